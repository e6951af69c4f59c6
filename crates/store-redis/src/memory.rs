//! Denials remembered: who was told "not before t" is told so again without asking, until t.
//!
//! Sound because nothing but a refund, a reset or other figures can admit a request sooner than its bucket's refill. What this process gives back
//! is forgotten at once; other figures are other entries.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_core::{Answers, Outcome};

use crate::batch::Denial;
use crate::request::{Counted, Rules};

const SHARDS: usize = 16;
/// Entries of a shard, at most: some 16,000 in all.
const ENTRIES: usize = 1_024;

/// What is remembered, by the key of the bucket that denied.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    shards: [Mutex<HashMap<u64, Entry>>; SHARDS],
    /// Grows with each give-back: a denial that was decided before one must not be remembered after it.
    give_backs: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    rules: Arc<[Counted]>,
    denial: Denial,
    /// Before Redis read its clock.
    sent: Instant,
    /// After Redis read its clock.
    received: Instant,
}

/// The state of give-backs when a request was sent.
pub(crate) type Epoch = u64;

impl Memory {
    pub(crate) fn epoch(&self) -> Epoch {
        // Acquire: pairs with the increment in `forget`.
        self.give_backs.load(Ordering::Acquire)
    }

    /// The answers to `rules`, if they are known to be denied still.
    pub(crate) fn recall(&self, rules: &Rules, now: Instant) -> Option<Answers> {
        rules.counted.iter().find_map(|rule| {
            let mut shard = self.shard(rule.hash);
            let entry = shard.get(&rule.hash)?;
            if !rules.is_same_request(&entry.rules) {
                return None;
            }
            // Counted from before the answer was given: never denies for longer than Redis would.
            let due = entry.answers(rules, entry.denial.now + micros(now, entry.sent) + 1);
            if due.iter().all(|answer| answer.standing.is_allowed()) {
                shard.remove(&rule.hash);
                return None;
            }
            // Counted from after it: never promises an instant that is too early.
            Some(entry.answers(rules, entry.denial.now + micros(now, entry.received)))
        })
    }

    /// Remembers a denial, unless something was given back since it was asked for.
    pub(crate) fn remember(&self, rules: &Rules, denial: Denial, sent: Instant, received: Instant, epoch: Epoch) {
        let answers = denial.answers(&rules.counted, denial.now);
        let denies = rules.counted.iter().zip(&answers).find(|(_, answer)| answer.standing.outcome == Outcome::Denied);
        let Some((denying, _)) = denies else { return };
        let mut shard = self.shard(denying.hash);
        if self.epoch() != epoch {
            return;
        }
        if shard.len() >= ENTRIES && !shard.contains_key(&denying.hash) {
            shard.retain(|_, entry| entry.is_due_later(received));
            // Full of what is true still: one of them has to go and will be asked about again.
            if shard.len() >= ENTRIES
                && let Some(any) = shard.keys().next().copied()
            {
                shard.remove(&any);
            }
        }
        let entry = Entry { rules: Arc::clone(&rules.counted), denial, sent, received };
        shard.insert(denying.hash, entry);
    }

    /// Something was given back to these buckets, or they changed in another way.
    pub(crate) fn forget(&self, rules: &Rules) {
        // Release: whoever sees the new epoch does not remember; whoever remembered before is forgotten below.
        self.give_backs.fetch_add(1, Ordering::Release);
        for rule in &*rules.counted {
            self.shard(rule.hash).remove(&rule.hash);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below the number of shards")]
    fn shard(&self, hash: u64) -> MutexGuard<'_, HashMap<u64, Entry>> {
        let place = (hash % SHARDS as u64) as usize;
        // Nothing panics while the lock is held.
        self.shards[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn answers(&self, rules: &Rules, now: u64) -> Answers {
        rules.complete(self.denial.answers(&self.rules, now))
    }

    fn is_due_later(&self, now: Instant) -> bool {
        let answers = self.denial.answers(&self.rules, self.denial.now + micros(now, self.sent) + 1);
        !answers.iter().all(|answer| answer.standing.is_allowed())
    }
}

fn micros(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_micros()).unwrap_or(u64::MAX / 2)
}
