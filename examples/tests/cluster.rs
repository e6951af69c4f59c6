//! The demo as a user runs it: the fleet keeps its cap, and the naive rule is seen to break it.

use std::path::PathBuf;
use std::process::{Command, Output};

/// The demo that was built along with this test.
fn demo(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let program: PathBuf = profile.join("examples").join(format!("cluster{}", std::env::consts::EXE_SUFFIX));
    Command::new(&program).args(arguments).output().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

// One test, one after the other: two fleets at once would starve each other.
#[test]
fn the_fleet_keeps_its_cap_and_the_naive_rule_breaks_it() {
    let kept = demo(&["--seconds", "5", "--load", "3000"]);
    let shown = text(&kept);
    assert!(kept.status.success(), "{shown}");
    for line in ["every replica lists all 5 members", "kept: the cap on the mesh", "kept: the exact quota"] {
        assert!(shown.contains(line), "{line} is not in: {shown}");
    }

    let broken = demo(&["--seconds", "10", "--naive"]);
    assert_eq!(broken.status.code(), Some(1), "{}", text(&broken));
    assert!(text(&broken).contains("BROKEN: the cap on the mesh"), "{}", text(&broken));
}

#[test]
fn a_redis_that_is_not_there_is_named_in_one_line() {
    let output = demo(&["--redis", "redis://127.0.0.1:1/"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(shown.contains("redis://127.0.0.1:1/") && shown.lines().count() == 1, "{shown}");
}
