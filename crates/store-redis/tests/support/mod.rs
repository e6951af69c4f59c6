//! What the tests of the Redis store share.
#![allow(clippy::allow_attributes, dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod proxy;
pub mod redis;

use std::sync::Arc;

use smallvec::smallvec;
use tidegate_core::algorithm::{Algorithm, TokenBucket};
use tidegate_core::{
    Fallback, Figures, Limit, LimitName, LimitParts, MeshFigures, Nanos, Operation, Rate, RemoteStore, Rule, Standing,
    StoreError, StoreKind,
};
use tidegate_store_redis::RedisStore;

/// A prelude that takes the time from a key instead of the clock.
pub const TEST_CLOCK: &str = "local now = redis.call('GET', 'test-clock') + 0\n";

/// An exact limit by user.
pub fn limit(name: &str, algorithm: Algorithm) -> Limit {
    Limit::new(LimitParts {
        name: LimitName::new(name),
        key: Box::new(["user".into()]),
        store: StoreKind::Exact,
        figures: Figures::Limited(algorithm),
        fallback: Some(Fallback::Deny),
        shadow: false,
        on_missing: None,
        mesh: MeshFigures::default(),
    })
}

/// A token bucket by user, such as `bucket("requests", 20, "100/min")`.
pub fn bucket(name: &str, capacity: u64, refill: &str) -> Limit {
    let refill: Rate = refill.parse().expect("a rate");
    limit(name, Algorithm::TokenBucket(TokenBucket::new(capacity, refill).expect("figures of a token bucket")))
}

/// That limit for `user`.
pub fn rule<'a>(limit: &'a Limit, user: &'a str, cost: u64) -> Rule<'a> {
    Rule { limit, values: smallvec![Some(user)], cost }
}

/// Applies `operation` to one rule.
pub async fn apply(store: &RedisStore, operation: Operation, rule: Rule<'_>) -> Result<Standing, StoreError> {
    store.apply(operation, &[rule]).await.map(|answers| answers[0].standing)
}

/// Takes `cost` for `user`.
pub async fn take(store: &RedisStore, limit: &Limit, user: &str, cost: u64) -> Result<Standing, StoreError> {
    apply(store, Operation::Take, rule(limit, user, cost)).await
}

/// Takes one unit `count` times at once; returns how many passed.
pub async fn flood(store: &RedisStore, limit: &Arc<Limit>, user: &str, count: usize) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (store, limit, user) = (store.clone(), Arc::clone(limit), user.to_owned());
        tasks.spawn(async move { take(&store, &limit, &user, 1).await.expect("an answer").is_allowed() });
    }
    tasks.join_all().await.into_iter().filter(|passed| *passed).count()
}

/// Microseconds as the core wants them.
pub const fn micros(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

/// Waits for `condition`; real servers take the time they take.
///
/// # Panics
/// When it does not come true within 30 seconds.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !condition() {
        assert!(started.elapsed().as_secs() < 30, "waited in vain for {what}");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}
