//! What each other member has been told, and what it said that it has.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::message::{Merged, Message, Row};
use crate::mind::ReplicaId;

/// Messages whose acknowledgement is still looked for; older ones were sent again since.
const SENT: usize = 128;
/// Rows of a message; the others go with the next.
const MAX_ROWS: usize = 10_000;

/// All other members.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub(super) members: BTreeMap<ReplicaId, Peer>,
}

/// One other member.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// The number of the last message.
    number: u64,
    /// Messages sent and not acknowledged, oldest first.
    sent: VecDeque<Sent>,
    /// Buckets of which it has not acknowledged the newest totals.
    pub(super) open: HashSet<u128>,
    /// Of these, those that changed since the last message.
    pub(super) fresh: HashSet<u128>,
    /// The totals that it has acknowledged.
    acknowledged: HashMap<u128, Totals>,
    /// What we have merged of its messages.
    pub(super) merged: Merged,
    /// It waits for our acknowledgement.
    pub(super) answer: bool,
    /// It has acknowledged something: it knows us.
    pub(super) greeted: bool,
    /// We have merged all that it had to say at some time: views are what they should be.
    pub(super) heard: bool,
}

/// What this replica has spent and given back of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) epoch: u64,
    pub(super) spent: u64,
    pub(super) given: u64,
}

#[derive(Debug)]
struct Sent {
    number: u64,
    totals: Vec<(u128, Totals)>,
}

impl Peers {
    /// This replica and all others.
    pub(super) fn replicas(&self) -> u64 {
        self.members.len() as u64 + 1
    }

    /// What every member has acknowledged of what was spent from `key` since `epoch`; everything where there is no other.
    pub(super) fn acknowledged_by_all(&self, key: u128, epoch: u64) -> u64 {
        self.members.values().map(|peer| peer.acknowledged(key, epoch).spent).min().unwrap_or(u64::MAX)
    }

    /// A bucket has new totals.
    pub(super) fn changed(&mut self, key: u128) {
        for peer in self.members.values_mut() {
            peer.open.insert(key);
            peer.fresh.insert(key);
        }
    }

    /// Whether some member has not acknowledged the newest totals of `key`.
    pub(super) fn is_open(&self, key: u128) -> bool {
        self.members.values().any(|peer| peer.open.contains(&key))
    }

    pub(super) fn forget_bucket(&mut self, key: u128) {
        for peer in self.members.values_mut() {
            peer.acknowledged.remove(&key);
        }
    }
}

impl Peer {
    /// What it has acknowledged of the counting that began at `epoch`.
    fn acknowledged(&self, key: u128, epoch: u64) -> Totals {
        let totals = self.acknowledged.get(&key).copied().unwrap_or_default();
        if totals.epoch == epoch { totals } else { Totals { epoch, ..Totals::default() } }
    }

    /// The next message, if one is due. `whole`: with all that is open, instead of what is fresh. `row` looks a bucket up: its
    /// limit's shape and its totals.
    pub(super) fn message(
        &mut self,
        whole: bool,
        mut row: impl FnMut(u128) -> Option<(u64, Totals)>,
    ) -> Option<Message> {
        let complete = whole && self.open.len() <= MAX_ROWS;
        let keys: Vec<u128> = if whole { &self.open } else { &self.fresh }.iter().copied().take(MAX_ROWS).collect();
        let mut rows = Vec::with_capacity(keys.len());
        let mut totals = Vec::with_capacity(keys.len());
        for key in keys {
            self.fresh.remove(&key);
            let Some((shape, newest)) = row(key) else {
                self.open.remove(&key);
                continue;
            };
            let before = self.acknowledged(key, newest.epoch);
            rows.push(Row {
                key,
                shape,
                epoch: newest.epoch,
                spent: newest.spent,
                spent_before: before.spent,
                given: newest.given,
                given_before: before.given,
            });
            totals.push((key, newest));
        }
        let greeting = whole && !self.greeted;
        if rows.is_empty() && !self.answer && !greeting {
            return None;
        }
        self.number += 1;
        self.answer = false;
        let answer = greeting || !rows.is_empty();
        if answer {
            if self.sent.len() >= SENT {
                self.sent.pop_front();
            }
            self.sent.push_back(Sent { number: self.number, totals });
        }
        Some(Message { number: self.number, answer, whole: complete, merged: self.merged, rows })
    }

    /// Takes in what it has merged. Returns the buckets of which it now has more than before.
    pub(super) fn acknowledge(&mut self, merged: Merged) -> Option<HashSet<u128>> {
        let (mut any, mut keys) = (false, HashSet::new());
        let acknowledged = &mut self.acknowledged;
        self.sent.retain(|sent| {
            if !merged.contains(sent.number) {
                return !merged.is_past(sent.number);
            }
            any = true;
            for &(key, totals) in &sent.totals {
                let known = acknowledged.entry(key).or_default();
                if totals.epoch > known.epoch {
                    *known = totals;
                } else if totals.epoch == known.epoch {
                    known.spent = known.spent.max(totals.spent);
                    known.given = known.given.max(totals.given);
                }
                keys.insert(key);
            }
            false
        });
        self.greeted |= any;
        any.then_some(keys)
    }

    /// Closes `key` where it has acknowledged `newest`.
    pub(super) fn close(&mut self, key: u128, newest: Totals) {
        if self.acknowledged(key, newest.epoch) == newest {
            self.open.remove(&key);
            self.fresh.remove(&key);
        }
    }
}
