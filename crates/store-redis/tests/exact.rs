//! Exactly the limit, whoever asks and however many at once.

mod support;

use std::process::{Command, Stdio};
use std::sync::Arc;

use support::redis::RedisServer;
use support::{apply, bucket, flood, rule, take};
use tidegate_core::{Nanos, Operation, Outcome, RemoteStore};
use tidegate_store_redis::RedisStore;

/// Long enough for a loaded machine: here counts matter, not milliseconds.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

fn patient(url: &str) -> RedisStore {
    RedisStore::builder(url).deadline(PATIENCE).denial_memory(false).build().unwrap()
}

#[tokio::test]
async fn check_1_exactly_the_limit_passes_in_series() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let limit = bucket("requests", 10, "10/h");
    for left in (0..10).rev() {
        let standing = take(&store, &limit, "u", 1).await.unwrap();
        assert_eq!((standing.outcome, standing.remaining), (Outcome::Allowed, left));
    }
    let standing = take(&store, &limit, "u", 1).await.unwrap();
    assert_eq!((standing.outcome, standing.remaining), (Outcome::Denied, 0));
    assert!(standing.retry_after > Nanos::ZERO && standing.retry_after <= Nanos::from_secs(360));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_2_of_150_at_once_exactly_100_pass() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let limit = Arc::new(bucket("requests", 100, "1/h"));
    for round in 0..20 {
        assert_eq!(flood(&store, &limit, &format!("user-{round}"), 150).await, 100);
    }
    let stats = store.stats();
    assert!(stats.coalesced > 0, "calls that wait for each other travel together: {stats:?}");
}

#[test]
fn check_5_three_processes_together_pass_exactly_100() {
    let server = RedisServer::start();
    let spawn = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_of_many_processes", "--ignored", "--nocapture"])
            .env("TIDEGATE_TEST_REDIS", server.url())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap()
    };
    for _ in 0..3 {
        server.raw(&["FLUSHALL"]);
        let children: Vec<_> = (0..3).map(|_| spawn()).collect();
        let passed: usize = children
            .into_iter()
            .map(|child| {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success());
                let text = String::from_utf8(output.stdout).unwrap();
                let line = text.lines().find_map(|line| line.split_once("passed=")).unwrap();
                line.1.trim().parse::<usize>().unwrap()
            })
            .sum();
        assert_eq!(passed, 100);
    }
}

/// 150 checks at once, once the other processes have started too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a part of check_5, which runs it three times as a process of its own"]
async fn one_of_many_processes() {
    let store = patient(&std::env::var("TIDEGATE_TEST_REDIS").unwrap());
    let start = bucket("start", 1_000, "1/h");
    take(&store, &start, "all", 1).await.unwrap();
    while apply(&store, Operation::Peek, rule(&start, "all", 0)).await.unwrap().remaining > 997 {
        tokio::task::yield_now().await;
    }
    let limit = Arc::new(bucket("requests", 100, "1/h"));
    println!("passed={}", flood(&store, &limit, "u", 50).await);
}

#[tokio::test]
async fn check_6_two_keys_do_not_affect_each_other() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let limit = bucket("requests", 3, "1/h");
    for _ in 0..3 {
        assert!(take(&store, &limit, "a", 1).await.unwrap().is_allowed());
    }
    assert!(!take(&store, &limit, "a", 1).await.unwrap().is_allowed());
    assert_eq!(take(&store, &limit, "b", 1).await.unwrap().remaining, 2);
}

#[tokio::test]
async fn all_or_nothing_over_several_limits() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let (site, user) = (bucket("site", 10, "1/h"), bucket("user", 3, "1/h"));
    for nth in 1..=5 {
        let answers = store.apply(Operation::Take, &[rule(&site, "s", 1), rule(&user, "u", 1)]).await.unwrap();
        assert_eq!(answers.iter().all(|answer| answer.standing.is_allowed()), nth <= 3);
        assert_eq!(answers[0].standing.remaining, 10 - nth.min(3));
    }
}

#[tokio::test]
async fn the_script_is_sent_again_after_script_flush() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let limit = bucket("requests", 3, "1/h");
    assert!(take(&store, &limit, "u", 1).await.unwrap().is_allowed());
    server.raw(&["SCRIPT", "FLUSH"]);
    assert_eq!(take(&store, &limit, "u", 1).await.unwrap().remaining, 1);
    assert_eq!(store.stats().scripts_sent, 2);
}
