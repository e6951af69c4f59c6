//! The mesh's mind: decides from its own memory, tells the others what it spent, hears what they spent. No I/O, no time, no threads
//! of its own.
//!
//! A decision passes two questions. The **view**, a token bucket that is debited by own admits at once and by what others spent
//! exactly once: is there enough? The **credit**: may this replica spend more that not every member has acknowledged? The credits of all sum to
//! `max_overshoot` of the capacity, so the fleet never overshoots by more, whatever the delay and the loss. A member that is silent
//! therefore holds the others to their credit, until it is heard again or released.

mod bucket;
mod message;
mod peers;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use tidegate_core::algorithm::Mark;
use tidegate_core::{Answer, KeySecret, Limit, MemoryStore, Nanos, Outcome, Reason, Rule, Standing};

pub use message::{Merged, Message, Row};

use crate::mind::{Mind, Outgoing, ReplicaId};
use bucket::{Bucket, Figures};
use peers::{Peer, Peers, Totals};

const SHARDS: usize = 64;
/// Buckets of one shard: 16,384, a million in all. More are refused until idle ones are forgotten.
const MAX_KEYS: usize = 16_384;
/// A bucket that is full and quiet for so long is forgotten.
const QUIET: Nanos = Nanos::from_secs(60);
/// Urgent messages go at most so often.
const PUSH_INTERVAL: Nanos = Nanos::from_millis(1);
/// A replica that joins refuses for so long at most, where not every member acknowledges it before.
const JOINING: Nanos = Nanos::from_secs(1);
/// Rows of limits that are not registered yet, kept for when they are.
const MAX_STRANGERS: usize = 10_000;

type Shard = HashMap<u128, Bucket, foldhash::fast::RandomState>;

/// One replica of the mesh.
///
/// Of `crate::Mesh` this is the part that decides; it can be driven at virtual time as well.
pub struct Replica {
    own: ReplicaId,
    secret: KeySecret,
    flush_interval: Nanos,
    shards: Box<[Mutex<Shard>]>,
    limits: RwLock<HashMap<u64, Figures>>,
    /// Buckets whose totals changed since the last flush.
    changed: Mutex<Vec<u128>>,
    exchange: Mutex<Exchange>,
    /// The members, this replica included, for the hot path.
    replicas: AtomicU64,
    settled: AtomicBool,
    leaving: AtomicBool,
    urgent: AtomicBool,
    started: AtomicU64,
    acknowledged: AtomicU64,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Exchange {
    peers: Peers,
    next_flush: Nanos,
    last_push: Nanos,
    /// The shard whose idle buckets are looked for next.
    sweep: usize,
    /// What members spent of limits that are not registered here, by bucket and sender.
    strangers: BTreeMap<(u128, ReplicaId), Row>,
}

#[derive(Debug, Default)]
struct Counters {
    credit_denials: AtomicU64,
    rows_merged: AtomicU64,
    rows_refused: AtomicU64,
    replayed: AtomicU64,
}

/// What a replica did since it was started, and holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaReport {
    /// This replica.
    pub own: ReplicaId,
    /// Members, this replica included.
    pub replicas: u64,
    /// Buckets in memory.
    pub buckets: u64,
    /// Units that this replica spent and some member has not acknowledged, over all buckets.
    pub unacknowledged: u64,
    /// Decisions refused for want of credit alone.
    pub credit_denials: u64,
    /// Acknowledgements heard.
    pub acknowledgements: u64,
    /// Rows merged.
    pub rows_merged: u64,
    /// Rows refused: too many keys, too many replicas in one bucket, too many unknown limits. Their message is not acknowledged.
    pub rows_refused: u64,
    /// Messages that had come before.
    pub replayed: u64,
}

impl Replica {
    /// The replica `own`, whose keys are hashed with the cluster's `secret`, and that tells others what it spent every `flush_interval`.
    pub fn new(own: ReplicaId, secret: KeySecret, flush_interval: Nanos) -> Self {
        Self {
            own,
            secret,
            flush_interval,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            limits: RwLock::default(),
            changed: Mutex::default(),
            exchange: Mutex::default(),
            replicas: AtomicU64::new(1),
            settled: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
            started: AtomicU64::new(u64::MAX),
            acknowledged: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// What it did and holds.
    pub fn report(&self) -> ReplicaReport {
        let (mut buckets, mut unacknowledged) = (0, 0_u64);
        for shard in &self.shards {
            let shard = lock(shard);
            buckets += shard.len() as u64;
            unacknowledged += shard.values().map(Bucket::unacknowledged).sum::<u64>();
        }
        // Relaxed, here and below: each counter stands for itself.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReplicaReport {
            own: self.own,
            replicas: self.replicas(),
            buckets,
            unacknowledged: if self.replicas() == 1 { 0 } else { unacknowledged },
            credit_denials: read(&self.counters.credit_denials),
            acknowledgements: read(&self.acknowledged),
            rows_merged: read(&self.counters.rows_merged),
            rows_refused: read(&self.counters.rows_refused),
            replayed: read(&self.counters.replayed),
        }
    }

    fn replicas(&self) -> u64 {
        // Relaxed: a decision made a moment before a change of members is as good as one made before it.
        self.replicas.load(Ordering::Relaxed)
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Shard> {
        lock(&self.shards[key as usize % SHARDS])
    }

    /// Does `act` with the rule's bucket, which is made at its first use. `None` where there is no room for it.
    fn with<R>(&self, rule: &Rule<'_>, now: Nanos, act: impl FnOnce(&mut Bucket, u128) -> R) -> Option<R> {
        let key = rule.key_hash(self.secret);
        let mut shard = self.shard(key);
        if let Some(bucket) = shard.get_mut(&key) {
            return Some(act(bucket, key));
        }
        let figures = Figures::of(rule.limit)?;
        if shard.len() >= MAX_KEYS {
            return None;
        }
        if !self.knows(rule.limit.shape()) {
            // What others spent of it may be waiting; never with a shard in hand.
            drop(shard);
            self.register(rule.limit);
            shard = self.shard(key);
        }
        let bucket = shard.entry(key).or_insert_with(|| Bucket::new(figures, rule.limit.shape(), now));
        Some(act(bucket, key))
    }

    fn knows(&self, shape: u64) -> bool {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).contains_key(&shape)
    }

    /// Puts `key` on the list of what changed.
    fn mark_changed(&self, bucket: &mut Bucket, key: u128) {
        if !std::mem::replace(&mut bucket.changed, true) {
            lock(&self.changed).push(key);
        }
        if self.replicas() > 1 && bucket.unacknowledged() >= bucket.figures.credit(self.replicas()) / 4 {
            self.urgent.store(true, Ordering::Relaxed);
        }
    }

    /// Why nothing may be decided from a bucket now.
    fn closed(&self, now: Nanos) -> bool {
        if self.leaving.load(Ordering::Relaxed) {
            return true;
        }
        if self.settled.load(Ordering::Relaxed) {
            return false;
        }
        // The first question or the first poll is the start.
        let started = self.started.fetch_min(now.0, Ordering::Relaxed).min(now.0);
        now - Nanos(started) < JOINING
    }

    fn decide(&self, rule: &Rule<'_>, now: Nanos, take: bool) -> Answer {
        if rule.limit.algorithm().is_none() {
            return Answer::word(rule);
        }
        if self.closed(now) {
            return Answer::refused(Reason::Joining);
        }
        let replicas = self.replicas();
        let answer = self.with(rule, now, |bucket, _| {
            let standing = bucket.look(now, rule.cost);
            if standing.outcome != Outcome::Allowed || replicas == 1 || bucket.has_credit(rule.cost, replicas) {
                let standing = if take { bucket.hold(now, rule.cost) } else { standing };
                return Answer { standing, reason: Reason::Level };
            }
            let retry_after = self.flush_interval;
            let standing = Standing { outcome: Outcome::Denied, retry_after, ..standing };
            Answer { standing, reason: Reason::Credit }
        });
        let answer = answer.unwrap_or_else(|| Answer::refused(Reason::Level));
        if take && answer.reason == Reason::Credit {
            self.counters.credit_denials.fetch_add(1, Ordering::Relaxed);
            self.urgent.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Takes in a row; `false` where it could not be.
    fn merge(&self, exchange: &mut Exchange, from: ReplicaId, row: &Row, now: Nanos) -> bool {
        let replicas = exchange.peers.replicas();
        let merged = {
            let mut shard = self.shard(row.key);
            let full = shard.len() >= MAX_KEYS;
            match shard.get_mut(&row.key) {
                Some(bucket) => Some(bucket.shape == row.shape && bucket.merge(from, row, now, replicas)),
                None => match self.limits.read().unwrap_or_else(PoisonError::into_inner).get(&row.shape) {
                    Some(_) if full => Some(false),
                    Some(&figures) => {
                        let bucket = shard.entry(row.key).or_insert(Bucket::new(figures, row.shape, now));
                        Some(bucket.merge(from, row, now, replicas))
                    }
                    None => None,
                },
            }
        };
        let merged = merged.unwrap_or_else(|| exchange.keep_stranger(from, row));
        let counter = if merged { &self.counters.rows_merged } else { &self.counters.rows_refused };
        counter.fetch_add(1, Ordering::Relaxed);
        merged
    }

    /// The members changed: each bucket's acknowledged spend, and everyone's credit, are others now.
    fn recount(&self, exchange: &Exchange) {
        self.replicas.store(exchange.peers.replicas(), Ordering::Relaxed);
        for shard in &self.shards {
            for (&key, bucket) in lock(shard).iter_mut() {
                bucket.acknowledged = exchange.peers.acknowledged_by_all(key, bucket.epoch).min(bucket.spent);
            }
        }
        self.check_settled(exchange);
    }

    fn check_settled(&self, exchange: &Exchange) {
        let members = &exchange.peers.members;
        if !members.is_empty() && members.values().all(|peer| peer.greeted && peer.heard) {
            self.settled.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets the idle buckets of one shard.
    fn sweep(&self, exchange: &mut Exchange, now: Nanos) {
        exchange.sweep = (exchange.sweep + 1) % SHARDS;
        let peers = &mut exchange.peers;
        lock(&self.shards[exchange.sweep]).retain(|&key, bucket| {
            let keep = !bucket.is_idle(now, QUIET) || peers.is_open(key);
            if !keep {
                peers.forget_bucket(key);
            }
            keep
        });
    }

    fn remove(&self, id: ReplicaId, unheard: bool, now: Nanos) {
        let mut exchange = lock(&self.exchange);
        let replicas = exchange.peers.replicas();
        if exchange.peers.members.remove(&id).is_none() {
            return;
        }
        exchange.strangers.retain(|(_, from), _| *from != id);
        if unheard {
            // Up to its credit it may have spent without our hearing of it.
            for shard in &self.shards {
                for bucket in lock(shard).values_mut() {
                    bucket.debit(bucket.figures.credit(replicas), now, replicas);
                }
            }
        }
        self.recount(&exchange);
    }
}

impl Exchange {
    /// Keeps what is spent of a limit that is not registered here, so that registering it later does not start from a full bucket.
    fn keep_stranger(&mut self, from: ReplicaId, row: &Row) -> bool {
        let known = self.strangers.get(&(row.key, from));
        if known.is_none() && self.strangers.len() >= MAX_STRANGERS {
            return false;
        }
        let newer =
            known.is_none_or(|known| (row.epoch, row.spent, row.given) > (known.epoch, known.spent, known.given));
        if newer {
            // What was acknowledged meanwhile was kept here, not merged.
            let (spent_before, given_before) = match known {
                Some(known) if known.epoch == row.epoch => (known.spent_before, known.given_before),
                _ => (row.spent_before, row.given_before),
            };
            self.strangers.insert((row.key, from), Row { spent_before, given_before, ..row.clone() });
        }
        true
    }
}

impl MemoryStore for Replica {
    fn register(&self, limit: &Limit) {
        let Some(figures) = Figures::of(limit) else { return };
        self.limits.write().unwrap_or_else(PoisonError::into_inner).insert(limit.shape(), figures);
        let mut exchange = lock(&self.exchange);
        let ours = |row: &Row| row.shape == limit.shape();
        let rows: Vec<_> =
            exchange.strangers.iter().filter(|(_, row)| ours(row)).map(|(id, row)| (*id, row.clone())).collect();
        exchange.strangers.retain(|_, row| !ours(row));
        for ((_, from), row) in rows {
            // The time of the last poll: nothing was spent here from a limit that was not there.
            let now = exchange.last_push;
            if !self.merge(&mut exchange, from, &row, now) {
                exchange.keep_stranger(from, &row);
            }
        }
    }

    /// Refuses while it joins: until every member has acknowledged it, for at most 1 s.
    fn hold(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        self.decide(rule, now, true)
    }

    fn commit(&self, rule: &Rule<'_>, _: Mark, now: Nanos) {
        self.with(rule, now, |bucket, key| {
            bucket.commit(rule.cost);
            self.mark_changed(bucket, key);
        });
    }

    fn release(&self, rule: &Rule<'_>, mark: Mark, now: Nanos) {
        self.with(rule, now, |bucket, _| bucket.release(now, rule.cost, mark));
    }

    fn peek(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        self.decide(rule, now, false)
    }

    fn refund(&self, rule: &Rule<'_>, mark: Option<Mark>, now: Nanos) -> u64 {
        let given = self.with(rule, now, |bucket, key| {
            let given = bucket.refund(now, rule.cost, mark);
            self.mark_changed(bucket, key);
            given
        });
        given.unwrap_or(0)
    }

    fn charge(&self, rule: &Rule<'_>, now: Nanos) {
        self.with(rule, now, |bucket, key| {
            bucket.charge(now, rule.cost);
            self.mark_changed(bucket, key);
        });
    }

    /// Everywhere, as far as this replica's view knows what was spent.
    fn reset(&self, rule: &Rule<'_>, now: Nanos) {
        self.with(rule, now, |bucket, key| {
            bucket.refund(now, u64::MAX, None);
            self.mark_changed(bucket, key);
        });
    }
}

impl Mind for Replica {
    type Message = Message;

    fn join(&self, id: ReplicaId, _: Nanos) {
        let mut exchange = lock(&self.exchange);
        if id == self.own || exchange.peers.members.contains_key(&id) {
            return;
        }
        let mut peer = Peer::default();
        for shard in &self.shards {
            let shard = lock(shard);
            peer.open.extend(shard.iter().filter(|(_, b)| b.spent > 0 || b.given > 0).map(|(&key, _)| key));
        }
        exchange.peers.members.insert(id, peer);
        exchange.next_flush = Nanos::ZERO;
        self.recount(&exchange);
    }

    fn leave_announced(&self, id: ReplicaId, now: Nanos) {
        self.remove(id, false, now);
    }

    fn forget(&self, id: ReplicaId, now: Nanos) {
        self.remove(id, true, now);
    }

    fn found(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    fn receive(&self, from: ReplicaId, message: &Message, now: Nanos) -> bool {
        let mut exchange = lock(&self.exchange);
        let Some(peer) = exchange.peers.members.get_mut(&from) else { return false };
        if peer.merged.contains(message.number) || peer.merged.is_past(message.number) {
            self.counters.replayed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if let Some(keys) = peer.acknowledge(message.merged) {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            for key in keys {
                let mut shard = self.shard(key);
                let Some(bucket) = shard.get_mut(&key) else { continue };
                if let Some(peer) = exchange.peers.members.get_mut(&from) {
                    peer.close(key, totals(bucket));
                }
                bucket.acknowledged = exchange.peers.acknowledged_by_all(key, bucket.epoch).min(bucket.spent);
            }
        }
        // Views are debited before it is acknowledged.
        let mut whole = true;
        for row in &message.rows {
            whole &= self.merge(&mut exchange, from, row, now);
        }
        if let Some(peer) = exchange.peers.members.get_mut(&from).filter(|_| whole) {
            peer.merged.insert(message.number);
            peer.heard |= message.whole;
            if message.answer {
                peer.answer = true;
                self.urgent.store(true, Ordering::Relaxed);
            }
        }
        self.check_settled(&exchange);
        true
    }

    fn poll(&self, now: Nanos) -> Outgoing<Message> {
        self.started.fetch_min(now.0, Ordering::Relaxed);
        let mut exchange = lock(&self.exchange);
        let whole = now >= exchange.next_flush;
        // Relaxed: what is marked after this is on the list, or marked for the next poll.
        let urgent = self.urgent.load(Ordering::Relaxed) && now >= exchange.last_push + PUSH_INTERVAL;
        if !whole && !urgent {
            let pushed = exchange.last_push + PUSH_INTERVAL;
            let next = if self.wants_push() { pushed.min(exchange.next_flush) } else { exchange.next_flush };
            return Outgoing { messages: Vec::new(), next };
        }
        self.urgent.store(false, Ordering::Relaxed);
        exchange.last_push = now;
        if whole {
            exchange.next_flush = now + self.flush_interval;
            self.sweep(&mut exchange, now);
        }
        let changed = std::mem::take(&mut *lock(&self.changed));
        let alone = exchange.peers.members.is_empty();
        for key in changed {
            if let Some(bucket) = self.shard(key).get_mut(&key) {
                bucket.changed = false;
                if alone {
                    bucket.acknowledged = bucket.spent;
                }
            }
            exchange.peers.changed(key);
        }
        let row = |key| self.shard(key).get(&key).map(|bucket| (bucket.shape, totals(bucket)));
        let peers = exchange.peers.members.iter_mut();
        let messages = peers.filter_map(|(&id, peer)| Some((id, peer.message(whole, row)?))).collect();
        Outgoing { messages, next: exchange.next_flush }
    }

    fn wants_push(&self) -> bool {
        self.urgent.load(Ordering::Relaxed)
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// From now on it refuses everything.
    fn leave(&self, _: Nanos) {
        self.leaving.store(true, Ordering::Relaxed);
        lock(&self.exchange).next_flush = Nanos::ZERO;
    }
}

fn totals(bucket: &Bucket) -> Totals {
    Totals { epoch: bucket.epoch, spent: bucket.spent, given: bucket.given }
}

/// What a poisoned mutex of this module guards is whole: nothing in here panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
