//! Redis killed, frozen, asleep, unreachable, or answering with errors: who waits, who is told what, and what is counted.

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::proxy::Proxy;
use support::redis::RedisServer;
use support::{apply, bucket, eventually, rule, take};
use tidegate_core::{Limit, Operation, RemoteStore, StoreError};
use tidegate_store_redis::RedisStore;

/// Short pauses, so that tests of recovery are over soon.
fn store(url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).probe_pauses(Duration::from_millis(10), Duration::from_millis(100));
    builder.denial_memory(false).build().unwrap()
}

/// Waits until the circuit is closed and Redis counts again.
async fn recovered(store: &RedisStore) {
    eventually("the circuit to close", || !store.is_open()).await;
}

/// Asks until the circuit is open; returns how many were asked before.
async fn until_open(store: &RedisStore, limit: &Limit) -> u64 {
    let mut asked = 0;
    while !store.is_open() {
        let error = take(store, limit, "u", 1).await.expect_err("nobody is there to answer");
        assert!(matches!(error, StoreError::Timeout | StoreError::Unavailable(_) | StoreError::Open), "{error:?}");
        asked += 1;
        assert!(asked < 100, "the circuit does not open");
    }
    asked
}

/// Many checks against an open circuit: none of them reaches the network, each is told so and counted.
async fn nobody_waits(store: &RedisStore, limit: &Limit) {
    let before = store.stats();
    for _ in 0..20_000 {
        assert_eq!(take(store, limit, "u", 1).await, Err(StoreError::Open));
    }
    let after = store.stats();
    assert_eq!(after.not_sent - before.not_sent, 20_000);
    // A probe may have sent its call; no caller has.
    assert!(after.commands - before.commands <= after.probes - before.probes + 1, "{before:?} {after:?}");
    assert_eq!(after.timeouts, before.timeouts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_7_killed_the_first_fail_the_rest_do_not_wait_and_it_recovers() {
    let mut server = RedisServer::start();
    let store = store(&server.url());
    let limit = bucket("requests", 100, "1/h");
    assert!(take(&store, &limit, "u", 1).await.unwrap().is_allowed());
    server.kill();
    until_open(&store, &limit).await;
    nobody_waits(&store, &limit).await;
    server.restart();
    recovered(&store).await;
    for left in (0..100).rev() {
        assert_eq!(take(&store, &limit, "u", 1).await.unwrap().remaining, left);
    }
    assert!(!take(&store, &limit, "u", 1).await.unwrap().is_allowed());
    let stats = store.stats();
    assert_eq!((stats.opened, stats.closed), (1, 1), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_7_frozen_late_allows_are_given_back() {
    let server = RedisServer::start();
    let store = store(&server.url());
    let limit = Arc::new(bucket("requests", 1_000, "1/h"));
    for _ in 0..10 {
        take(&store, &limit, "u", 1).await.unwrap();
    }
    server.freeze();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (store, limit) = (store.clone(), Arc::clone(&limit));
        callers.spawn(async move { take(&store, &limit, "u", 1).await.expect_err("it is frozen") });
    }
    callers.join_all().await;
    until_open(&store, &limit).await;
    nobody_waits(&store, &limit).await;
    server.thaw();
    recovered(&store).await;
    // Whatever was under way when it froze has been executed by now; all of it comes back.
    let left = async || apply(&store, Operation::Peek, rule(&limit, "u", 0)).await.map(|standing| standing.remaining);
    let mut rounds = 0;
    while left().await != Ok(990) {
        rounds += 1;
        assert!(rounds < 2_000, "{:?} of 990 are left: {:?}", left().await, store.stats());
        // The real server gives back when it gets to it; rounds are bounded.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(store.stats().given_back > 0, "{:?}", store.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_7_asleep_nobody_waits_and_it_recovers() {
    let server = RedisServer::start();
    let store = store(&server.url());
    let limit = bucket("requests", 1_000, "1/h");
    take(&store, &limit, "u", 1).await.unwrap();
    let port = server.port();
    let sleeper = std::thread::spawn(move || support::redis::ask(port, &["DEBUG", "SLEEP", "1"]));
    while !store.is_open() {
        let _ = take(&store, &limit, "u", 1).await;
    }
    nobody_waits(&store, &limit).await;
    recovered(&store).await;
    sleeper.join().unwrap();
    assert!(take(&store, &limit, "u", 1).await.unwrap().is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d22_black_holed_nobody_waits_and_a_new_connection_recovers() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let store = store(&proxy.url());
    let limit = bucket("requests", 1_000, "1/h");
    take(&store, &limit, "u", 1).await.unwrap();
    proxy.swallow(true);
    until_open(&store, &limit).await;
    nobody_waits(&store, &limit).await;
    // The old connection stays a black hole for ever: only a new one can tell that the way is free again.
    proxy.swallow(false);
    recovered(&store).await;
    assert!(take(&store, &limit, "u", 1).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_store_is_built_while_redis_is_away() {
    let mut server = RedisServer::start();
    let url = server.url();
    server.kill();
    assert!(RedisStore::connect(&url).await.is_err());
    let store = store(&url);
    let limit = bucket("requests", 10, "1/h");
    assert!(matches!(take(&store, &limit, "u", 1).await, Err(StoreError::Unavailable(_))));
    assert_eq!(take(&store, &limit, "u", 1).await, Err(StoreError::Open));
    server.restart();
    recovered(&store).await;
    store.ready().await.unwrap();
    assert_eq!(take(&store, &limit, "u", 1).await.unwrap().remaining, 9);
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_costs_nobody_an_error() {
    let server = RedisServer::start();
    let store = store(&server.url());
    let limit = bucket("requests", 10, "1/h");
    assert_eq!(take(&store, &limit, "u", 1).await.unwrap().remaining, 9);
    server.raw(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert_eq!(take(&store, &limit, "u", 1).await.unwrap().remaining, 8);
    assert_eq!(store.stats().opened, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_leave_connection_and_counts_right() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20)).build().unwrap();
    let limit = Arc::new(bucket("requests", 100_000, "1/h"));
    let mut callers = tokio::task::JoinSet::new();
    for nth in 0..2_000_u64 {
        let (store, limit) = (store.clone(), Arc::clone(&limit));
        callers.spawn(async move {
            let asking = take(&store, &limit, "u", 1);
            match tokio::time::timeout(Duration::from_micros(nth % 300), asking).await {
                Ok(standing) => u64::from(standing.unwrap().is_allowed()),
                Err(_) => 0,
            }
        });
    }
    let answered: u64 = callers.join_all().await.into_iter().sum();
    let mut rounds = 0;
    loop {
        let left = apply(&store, Operation::Peek, rule(&limit, "u", 0)).await.unwrap().remaining;
        if left == 100_000 - answered {
            break;
        }
        rounds += 1;
        assert!(rounds < 2_000, "{left} left after {answered} answers: {:?}", store.stats());
        // The real server gives back when it gets to it; rounds are bounded.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn errors_that_need_an_operator_are_named_and_do_not_open_the_circuit() {
    let server = RedisServer::start();
    let store = store(&server.url());
    let (good, bad) = (bucket("good", 10, "1/h"), bucket("bad", 10, "1/h"));
    server.raw(&["LPUSH", "ratelimit:bad.token-bucket:{u}", "somebody else's"]);
    // Together in one script call: only the one whose key is taken fails.
    let both = [&good, &bad].map(|limit| store.apply(Operation::Take, &[rule(limit, "u", 1)]));
    let both = futures_util::future::join_all(both).await;
    assert!(both[0].as_ref().unwrap()[0].standing.is_allowed());
    let Err(StoreError::Refused(text)) = &both[1] else { panic!("{:?}", both[1]) };
    assert!(text.contains("WRONGTYPE"), "{text}");
    server.raw(&["SET", "ratelimit:bad.token-bucket:{u}", "garbage"]);
    server.raw(&["DEL", "ratelimit:bad.token-bucket:{u}"]);
    server.raw(&["SET", "ratelimit:bad.token-bucket:{u}", "garbage"]);
    let Err(StoreError::Refused(text)) = take(&store, &bad, "u", 1).await else {
        panic!("garbage was taken for a state")
    };
    assert!(text.contains("BADSTATE"), "{text}");
    server.raw(&["REPLICAOF", "127.0.0.1", "1"]);
    let Err(StoreError::Refused(text)) = take(&store, &good, "u", 1).await else { panic!("a replica was written to") };
    assert!(text.contains("READONLY"), "{text}");
    server.raw(&["REPLICAOF", "NO", "ONE"]);
    server.raw(&["CONFIG", "SET", "maxmemory", "1"]);
    let Err(StoreError::Refused(text)) = take(&store, &good, "u", 1).await else {
        panic!("memory that is full was written to")
    };
    assert!(text.contains("OOM"), "{text}");
    server.raw(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(take(&store, &good, "u", 1).await.unwrap().remaining, 8);
    let stats = store.stats();
    assert_eq!((stats.refused, stats.opened), (4, 0), "{stats:?}");
}

#[tokio::test]
async fn a_wrong_password_is_named() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let store = store(&server.url());
    let limit = bucket("requests", 10, "1/h");
    let Err(StoreError::Refused(text)) = take(&store, &limit, "u", 1).await else { panic!("no password was needed") };
    assert!(text.contains("NOAUTH"), "{text}");
    let url = format!("redis://:secret@127.0.0.1:{}/5", server.port());
    assert_eq!(take(&RedisStore::connect(&url).await.unwrap(), &limit, "u", 1).await.unwrap().remaining, 9);
}
