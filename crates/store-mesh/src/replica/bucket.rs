//! One bucket at one replica: the view, what this replica spent, and the counters of the others.

use crdts::{CmRDT, Dot, ResetRemove, VClock};
use tidegate_core::algorithm::{Algorithm, Mark, TokenBucket, Word};
use tidegate_core::{Limit, Nanos, Outcome, Standing};

use super::message::Row;
use crate::mind::ReplicaId;

/// Counters that are kept for one bucket; more replicas than that are not believed.
const MAX_ACTORS: usize = 4_096;

/// What of a limit the mesh needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) bucket: TokenBucket,
    max_overshoot_ppm: u32,
}

/// One life of a counter: a replica, and when it began to count.
type Actor = (ReplicaId, u64);

/// The state of one (limit, key).
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) figures: Figures,
    pub(super) shape: u64,
    /// The view: debited by what this replica admits at once, by what others spent when it hears of it.
    word: Word,
    /// When this replica began to count here.
    pub(super) epoch: u64,
    pub(super) spent: u64,
    pub(super) given: u64,
    /// Debited and not yet final.
    pub(super) held: u64,
    /// Of `spent`, what every member has acknowledged.
    pub(super) acknowledged: u64,
    /// Whether it is on the list of what changed.
    pub(super) changed: bool,
    pub(super) used: Nanos,
    others_spent: VClock<Actor>,
    others_given: VClock<Actor>,
}

impl Figures {
    /// `None` where the limit is a word, or of an algorithm that the mesh does not count.
    pub(super) fn of(limit: &Limit) -> Option<Self> {
        match limit.algorithm()? {
            Algorithm::TokenBucket(bucket) => {
                Some(Self { bucket: *bucket, max_overshoot_ppm: limit.mesh().max_overshoot_ppm })
            }
            _ => None,
        }
    }

    /// By how many units the whole fleet may overshoot.
    pub(super) fn overshoot(&self) -> u64 {
        let units = u128::from(self.bucket.capacity()) * u128::from(self.max_overshoot_ppm) / 1_000_000;
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// The part of one of `replicas`.
    pub(super) fn credit(&self, replicas: u64) -> u64 {
        (self.overshoot() / replicas.max(1)).max(1)
    }
}

impl Bucket {
    /// A bucket that nobody is known to have spent from.
    pub(super) fn new(figures: Figures, shape: u64, now: Nanos) -> Self {
        Self {
            figures,
            shape,
            word: 0,
            epoch: now.0,
            spent: 0,
            given: 0,
            held: 0,
            acknowledged: 0,
            changed: false,
            used: now,
            others_spent: VClock::new(),
            others_given: VClock::new(),
        }
    }

    /// The decision of the view alone.
    pub(super) fn look(&self, now: Nanos, cost: u64) -> Standing {
        let bucket = &self.figures.bucket;
        let units = bucket.now_units(now);
        let (_, after) = bucket.decide(self.word, units, cost);
        bucket.standing(self.word, units, cost, after.outcome)
    }

    /// Whether `cost` more may be unacknowledged. The first is free, so that a cost beyond the credit passes at all.
    pub(super) fn has_credit(&self, cost: u64, replicas: u64) -> bool {
        let open = self.unacknowledged();
        open == 0 || open.saturating_add(cost) <= self.figures.credit(replicas)
    }

    /// What this replica took and not every member has acknowledged.
    pub(super) fn unacknowledged(&self) -> u64 {
        (self.spent + self.held).saturating_sub(self.acknowledged)
    }

    /// Debits the view. What it does not allow changes nothing.
    pub(super) fn hold(&mut self, now: Nanos, cost: u64) -> Standing {
        let standing = self.figures.bucket.take(&mut self.word, now, cost);
        if standing.outcome == Outcome::Allowed {
            self.held = self.held.saturating_add(cost);
            self.used = now;
        }
        standing
    }

    pub(super) fn commit(&mut self, cost: u64) {
        self.held = self.held.saturating_sub(cost);
        self.spent = self.spent.saturating_add(cost);
    }

    pub(super) fn release(&mut self, now: Nanos, cost: u64, mark: Mark) {
        self.held = self.held.saturating_sub(cost);
        let bucket = &self.figures.bucket;
        self.word = bucket.release(self.word, bucket.now_units(now), cost, mark);
    }

    /// Gives back `cost`; the others hear of it.
    pub(super) fn refund(&mut self, now: Nanos, cost: u64, mark: Option<Mark>) -> u64 {
        let bucket = &self.figures.bucket;
        let units = bucket.now_units(now);
        let (word, given) = match mark {
            Some(mark) => {
                let word = bucket.release(self.word, units, cost, mark);
                (word, if word == self.word { 0 } else { cost })
            }
            None => bucket.refund(self.word, units, cost),
        };
        self.word = word;
        self.given = self.given.saturating_add(given);
        given
    }

    pub(super) fn charge(&mut self, now: Nanos, cost: u64) {
        let bucket = &self.figures.bucket;
        self.word = bucket.charge(self.word, bucket.now_units(now), cost);
        self.spent = self.spent.saturating_add(cost);
        self.used = now;
    }

    /// Whether nothing would be lost by forgetting it.
    pub(super) fn is_idle(&self, now: Nanos, quiet: Nanos) -> bool {
        let units = self.figures.bucket.now_units(now);
        self.held == 0 && !self.changed && now - self.used >= quiet && TokenBucket::is_full(self.word, units)
    }

    /// Merges what `from` has spent and given back: each unit moves the view exactly once, in whatever order and however often it is
    /// heard of. Returns `false` where the row could not be taken in.
    pub(super) fn merge(&mut self, from: ReplicaId, row: &Row, now: Nanos, replicas: u64) -> bool {
        let actor = (from, row.epoch);
        let newest = self.others_spent.iter().filter(|dot| dot.actor.0 == from).map(|dot| dot.actor.1).max();
        if newest.is_some_and(|newest| row.epoch < newest) {
            return true;
        }
        let known = self.others_spent.get(&actor) > 0 || self.others_given.get(&actor) > 0;
        if !known {
            if self.others_spent.dots.len() >= MAX_ACTORS {
                return false;
            }
            self.end_epochs_of(from);
            // Acknowledged once and forgotten since, as an idle bucket is: no news.
            self.others_spent.apply(Dot::new(actor, row.spent_before.min(row.spent)));
            self.others_given.apply(Dot::new(actor, row.given_before.min(row.given)));
        }
        let spent = row.spent.saturating_sub(self.others_spent.get(&actor));
        let given = row.given.saturating_sub(self.others_given.get(&actor));
        self.others_spent.apply(Dot::new(actor, row.spent));
        self.others_given.apply(Dot::new(actor, row.given));
        if spent > 0 || given > 0 {
            self.used = now;
        }
        self.debit(spent, now, replicas);
        let bucket = &self.figures.bucket;
        self.word = bucket.refund(self.word, bucket.now_units(now), given).0;
        true
    }

    /// What `from` counted before is history.
    fn end_epochs_of(&mut self, from: ReplicaId) {
        for clock in [&mut self.others_spent, &mut self.others_given] {
            let old: VClock<Actor> =
                clock.iter().filter(|dot| dot.actor.0 == from).map(|dot| Dot::new(*dot.actor, dot.counter)).collect();
            clock.reset_remove(&old);
        }
    }

    /// Debits what another spent. The debt ends at what the bound says is the lowest true level: a deeper one is known to be false.
    pub(super) fn debit(&mut self, units: u64, now: Nanos, replicas: u64) {
        let bucket = &self.figures.bucket;
        let at = bucket.now_units(now);
        let floor = self.figures.overshoot().saturating_add(replicas.saturating_sub(1));
        let room = bucket.level_units(self.word, at) + i128::from(bucket.to_units(floor));
        let room = bucket.to_tokens(u64::try_from(room.max(0)).unwrap_or(u64::MAX));
        self.word = bucket.charge(self.word, at, units.min(room));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tidegate_core::Rate;

    use super::*;

    fn fresh(capacity: u64) -> Bucket {
        let bucket = TokenBucket::new(capacity, Rate::per_second(1).unwrap()).unwrap();
        Bucket::new(Figures { bucket, max_overshoot_ppm: 100_000 }, 1, Nanos::ZERO)
    }

    fn replica(node: u64) -> ReplicaId {
        ReplicaId { node, incarnation: 1 }
    }

    fn row(epoch: u64, spent: u64) -> Row {
        Row { key: 1, shape: 1, epoch, spent, spent_before: 0, given: 0, given_before: 0 }
    }

    const START: Nanos = Nanos::from_secs(1_000);

    proptest! {
        /// Whatever arrives, in whatever order and however often, the view is debited by the sum of the maxima.
        #[test]
        fn each_unit_is_debited_once(rows in prop::collection::vec((0_u64..4, 0_u64..1_000), 0..60)) {
            let (mut bucket, mut oracle) = (fresh(1_000_000), BTreeMap::new());
            for (node, spent) in rows {
                prop_assert!(bucket.merge(replica(node), &row(1, spent), START, 5));
                let most = oracle.entry(node).or_insert(0);
                *most = spent.max(*most);
                let remaining = bucket.look(START, 0).remaining;
                prop_assert_eq!(remaining, 1_000_000 - oracle.values().sum::<u64>());
            }
        }
    }

    #[test]
    fn an_absurd_total_costs_no_more_than_the_bound() {
        let mut bucket = fresh(100);
        assert!(bucket.merge(replica(1), &row(1, u64::MAX), START, 3));
        // Ten units of overshoot and two of the other replicas: positive again after 13 s at one a second.
        assert!(!bucket.look(START + Nanos::from_secs(12), 1).is_allowed());
        assert!(bucket.look(START + Nanos::from_secs(13), 1).is_allowed());
    }

    #[test]
    fn what_was_acknowledged_before_the_bucket_was_forgotten_is_no_news() {
        let mut bucket = fresh(100);
        assert!(bucket.merge(replica(1), &Row { spent_before: 40, ..row(1, 45) }, START, 2));
        assert_eq!(bucket.look(START, 0).remaining, 95);
    }

    #[test]
    fn an_old_epoch_is_over() {
        let mut bucket = fresh(100);
        assert!(bucket.merge(replica(1), &row(2, 10), START, 2));
        assert!(bucket.merge(replica(1), &row(1, 50), START, 2));
        assert_eq!(bucket.look(START, 0).remaining, 90);
    }
}
