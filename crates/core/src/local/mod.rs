//! The local store: counts in this process alone.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::algorithm::{Algorithm, Mark, State};
use crate::{Answer, KeySecret, MemoryStore, Nanos, Reason, Rule};

const SHARDS: usize = 64;

type Shard = HashMap<u128, (State, Algorithm), foldhash::fast::RandomState>;

/// Counts in this process alone: sharded, bounded, without a thread of its own.
///
/// ```
/// use tidegate_core::LocalStore;
/// let store = LocalStore::new(100_000);
/// assert_eq!(store.keys(), 0);
/// ```
pub struct LocalStore {
    shards: Box<[Mutex<Shard>]>,
    max_keys_per_shard: usize,
    secret: KeySecret,
}

impl LocalStore {
    /// A store that holds at most about `max_keys` buckets.
    pub fn new(max_keys: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, max_keys_per_shard: max_keys.div_ceil(SHARDS).max(1), secret: KeySecret::random() }
    }

    /// How many buckets it holds.
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    fn with<R>(&self, rule: &Rule<'_>, now: Nanos, change: impl FnOnce(&Algorithm, &mut State) -> R) -> Option<R> {
        let algorithm = rule.limit.algorithm()?;
        let key = rule.key_hash(self.secret);
        let shard = &self.shards[key as usize % SHARDS];
        // A poisoned shard is whole: no state is half changed when a panic unwinds.
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if !shard.contains_key(&key) && shard.len() >= self.max_keys_per_shard {
            shard.retain(|_, (state, algorithm)| !algorithm.is_fresh(state, now));
        }
        let (state, _) = shard.entry(key).or_insert_with(|| (State::default(), *algorithm));
        Some(change(algorithm, state))
    }
}

impl MemoryStore for LocalStore {
    fn hold(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        let standing = self.with(rule, now, |algorithm, state| algorithm.take(state, now, rule.cost));
        Answer::word(rule).or_level(standing)
    }

    fn commit(&self, _rule: &Rule<'_>, _mark: Mark, _now: Nanos) {}

    fn release(&self, rule: &Rule<'_>, mark: Mark, now: Nanos) {
        self.with(rule, now, |algorithm, state| algorithm.release(state, now, rule.cost, mark));
    }

    fn peek(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        let standing = self.with(rule, now, |algorithm, state| algorithm.peek(state, now, rule.cost));
        Answer::word(rule).or_level(standing)
    }

    fn refund(&self, rule: &Rule<'_>, mark: Option<Mark>, now: Nanos) -> u64 {
        let given = self.with(rule, now, |algorithm, state| match mark {
            Some(mark) => algorithm.release(state, now, rule.cost, mark),
            None => algorithm.refund(state, now, rule.cost),
        });
        given.unwrap_or(0)
    }

    fn charge(&self, rule: &Rule<'_>, now: Nanos) {
        self.with(rule, now, |algorithm, state| algorithm.charge(state, now, rule.cost));
    }

    fn reset(&self, rule: &Rule<'_>, now: Nanos) {
        self.with(rule, now, |_, state| *state = State::default());
    }
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalStore").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

impl Answer {
    fn or_level(self, standing: Option<crate::Standing>) -> Self {
        standing.map_or(self, |standing| Self { standing, reason: Reason::Level })
    }
}
