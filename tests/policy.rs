//! The policy file that ships with the examples, and what a bad one says.

use tidegate::Policy;

#[test]
fn the_example_policy_parses() {
    let policy = Policy::from_path(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/limits.toml")).unwrap();
    assert_eq!(policy.limits(Some("pro")).count(), 3);
}

#[test]
fn a_bad_policy_file_names_file_line_field_and_what_was_expected() {
    let path = std::env::temp_dir().join(format!("tidegate-bad-policy-{}.toml", std::process::id()));
    std::fs::write(&path, "[limits.requests]\nkey = []\nstore = 'local'\ncapacity = 0\nrefill = '1/s'\n").unwrap();
    let error = Policy::from_path(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let place = format!("{}:4", path.display());
    for part in [place.as_str(), "capacity", "unlimited"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}
