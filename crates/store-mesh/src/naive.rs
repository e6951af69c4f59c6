//! What others do, for comparison only: the sum of last-seen counters in fixed windows of one second.
//!
//! Each replica counts what it admitted in the current second and tells the others; it admits while its own count and the counts that it
//! last heard stay below what the limit refills in a second. Nothing bounds what is spent between two messages, and it is spent anew in every window.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_core::algorithm::Mark;
use tidegate_core::{Answer, KeySecret, MemoryStore, Nanos, Outcome, Reason, Rule, Standing};

use crate::config::MeshConfig;
use crate::mind::{Mind, Outgoing, ReplicaId};
use crate::store::{Mesh, MeshError};
use crate::wire::Payload;

const WINDOW: Nanos = Nanos::from_secs(1);
/// Counts that are kept for one key; rows of more replicas are ignored.
const MAX_REPLICAS: usize = 1_024;
/// Keys that are kept; more are not learned from others.
const MAX_KEYS: usize = 1_000_000;
/// Rows of a message; what does not fit waits for the next flush.
const MAX_ROWS: usize = 10_000;

/// The naive state machine. No bound on overshoot: not for production.
pub struct Naive {
    secret: KeySecret,
    flush_interval: Nanos,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: Vec<ReplicaId>,
    buckets: HashMap<u128, Bucket>,
    next_flush: Nanos,
    founded: bool,
}

/// The counts of one key in one window.
#[derive(Default)]
struct Bucket {
    window: u64,
    own: u64,
    others: HashMap<ReplicaId, u64>,
}

/// What one replica has admitted in a window.
#[derive(Debug, Serialize, Deserialize)]
pub struct Counts {
    window: u64,
    rows: Vec<(u128, u64)>,
}

impl Payload for Counts {
    const MIN_ROW: usize = 2;

    fn rows(&self) -> usize {
        self.rows.len()
    }
}

impl Mesh<Naive> {
    /// Starts a replica that decides by the sum of last-seen counters, over the same transport and membership.
    ///
    /// # Errors
    /// [`MeshError`] says what to do.
    pub async fn start_naive(config: MeshConfig) -> Result<Self, MeshError> {
        Self::start_with(config, |_, config| Naive {
            secret: config.identity.key_secret(),
            flush_interval: config.flush_interval.into(),
            state: Mutex::default(),
        })
        .await
    }
}

impl Naive {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned state is a whole state: nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, rule: &Rule<'_>, now: Nanos, take: bool) -> Answer {
        let Some(algorithm) = rule.limit.algorithm() else { return Answer::word(rule) };
        let rate = algorithm.rate();
        let limit = u128::from(rate.units()) * u128::from(WINDOW.0) / u128::from(rate.period().0.max(1));
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(1);
        let mut state = self.lock();
        let bucket = state.buckets.entry(rule.key_hash(self.secret)).or_default();
        bucket.turn(now.0 / WINDOW.0);
        let free = limit.saturating_sub(bucket.sum());
        let allowed = rule.cost <= free;
        if allowed && take {
            bucket.own += rule.cost;
        }
        let until_next = WINDOW - Nanos(now.0 % WINDOW.0);
        let standing = Standing {
            outcome: if allowed { Outcome::Allowed } else { Outcome::Denied },
            limit,
            remaining: if allowed { free - rule.cost } else { free },
            retry_after: if allowed { Nanos::ZERO } else { until_next },
            next_unit_in: until_next,
            full_in: until_next,
            delay: Nanos::ZERO,
            mark: Mark(0),
        };
        Answer { standing, reason: Reason::Level }
    }

    fn change_own(&self, rule: &Rule<'_>, now: Nanos, change: impl FnOnce(u64) -> u64) -> u64 {
        let mut state = self.lock();
        let bucket = state.buckets.entry(rule.key_hash(self.secret)).or_default();
        bucket.turn(now.0 / WINDOW.0);
        let before = bucket.own;
        bucket.own = change(before);
        before.abs_diff(bucket.own)
    }
}

impl Bucket {
    fn turn(&mut self, window: u64) {
        if window > self.window {
            *self = Self { window, ..Self::default() };
        }
    }

    fn sum(&self) -> u64 {
        self.others.values().fold(self.own, |sum, count| sum.saturating_add(*count))
    }
}

impl MemoryStore for Naive {
    fn hold(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        self.decide(rule, now, true)
    }

    fn commit(&self, _: &Rule<'_>, _: Mark, _: Nanos) {}

    fn release(&self, rule: &Rule<'_>, _: Mark, now: Nanos) {
        self.change_own(rule, now, |own| own.saturating_sub(rule.cost));
    }

    fn peek(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        self.decide(rule, now, false)
    }

    fn refund(&self, rule: &Rule<'_>, _: Option<Mark>, now: Nanos) -> u64 {
        self.change_own(rule, now, |own| own.saturating_sub(rule.cost))
    }

    fn charge(&self, rule: &Rule<'_>, now: Nanos) {
        self.change_own(rule, now, |own| own.saturating_add(rule.cost));
    }

    fn reset(&self, rule: &Rule<'_>, now: Nanos) {
        self.change_own(rule, now, |_| 0);
    }
}

impl Mind for Naive {
    type Message = Counts;

    fn join(&self, id: ReplicaId, _: Nanos) {
        let mut state = self.lock();
        if !state.members.contains(&id) && state.members.len() < MAX_REPLICAS {
            state.members.push(id);
        }
    }

    fn leave_announced(&self, id: ReplicaId, _: Nanos) {
        self.lock().members.retain(|member| *member != id);
    }

    fn forget(&self, id: ReplicaId, now: Nanos) {
        self.leave_announced(id, now);
    }

    fn receive(&self, from: ReplicaId, message: &Counts, now: Nanos) -> bool {
        let mut state = self.lock();
        let current = now.0 / WINDOW.0;
        if !state.members.contains(&from) || message.window.abs_diff(current) > 1 {
            return false;
        }
        for &(key, count) in &message.rows {
            if state.buckets.len() >= MAX_KEYS && !state.buckets.contains_key(&key) {
                continue;
            }
            let bucket = state.buckets.entry(key).or_default();
            bucket.turn(message.window);
            if bucket.window == message.window
                && (bucket.others.len() < MAX_REPLICAS || bucket.others.contains_key(&from))
            {
                let seen = bucket.others.entry(from).or_default();
                *seen = (*seen).max(count);
            }
        }
        true
    }

    fn poll(&self, now: Nanos) -> Outgoing<Counts> {
        let mut state = self.lock();
        if now < state.next_flush {
            return Outgoing { messages: Vec::new(), next: state.next_flush };
        }
        state.next_flush = now + self.flush_interval;
        let window = now.0 / WINDOW.0;
        state.buckets.retain(|_, bucket| bucket.window + 1 >= window);
        let spent = state.buckets.iter().filter(|(_, bucket)| bucket.window == window && bucket.own > 0);
        let rows: Vec<_> = spent.map(|(&key, bucket)| (key, bucket.own)).take(MAX_ROWS).collect();
        let messages = if rows.is_empty() { Vec::new() } else { state.members.clone() };
        let message = |id| (id, Counts { window, rows: rows.clone() });
        Outgoing { messages: messages.into_iter().map(message).collect(), next: state.next_flush }
    }

    fn wants_push(&self) -> bool {
        false
    }

    fn acknowledged(&self) -> u64 {
        0
    }

    fn is_settled(&self) -> bool {
        let state = self.lock();
        state.founded || !state.members.is_empty()
    }

    fn found(&self) {
        self.lock().founded = true;
    }

    fn leave(&self, _: Nanos) {
        // The last counts go out at once.
        self.lock().next_flush = Nanos::ZERO;
    }
}
