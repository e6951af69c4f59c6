//! What replicas tell each other.

use serde::{Deserialize, Serialize};

use crate::wire::Payload;

/// What one replica has spent from one bucket, in totals since `epoch`: lost, doubled and reordered rows do no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The bucket: a hash under the cluster's secret.
    pub key: u128,
    /// The limit: [`tidegate_core::Limit::shape`].
    pub shape: u64,
    /// When the sender began to count here; totals of an older epoch are over.
    pub epoch: u64,
    /// Units spent.
    pub spent: u64,
    /// Of these, what the receiver has acknowledged: where it has forgotten an idle bucket since, that is not news to it.
    pub spent_before: u64,
    /// Units given back.
    pub given: u64,
    /// Of these, what the receiver has acknowledged.
    pub given_before: u64,
}

/// Which messages have been merged whole: the newest, and of the 64 before it, bit by bit from the one just before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The highest number; 0 is none.
    pub newest: u64,
    /// Bit i: `newest - 1 - i`.
    pub before: u64,
}

/// News from one replica to one other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Numbers count from 1 for each pair of incarnations.
    pub number: u64,
    /// Whether the receiver should say that it has it.
    pub answer: bool,
    /// Whether the rows are all that the receiver has not acknowledged.
    pub whole: bool,
    /// What the sender has merged of the receiver's messages.
    pub merged: Merged,
    /// What the sender spent.
    pub rows: Vec<Row>,
}

impl Payload for Message {
    /// A key of one byte and six numbers of one byte.
    const MIN_ROW: usize = 7;

    fn rows(&self) -> usize {
        self.rows.len()
    }
}

impl Merged {
    /// Whether `number` is among them.
    pub(super) fn contains(self, number: u64) -> bool {
        match self.newest.checked_sub(number) {
            Some(0) => number != 0,
            Some(back @ 1..=64) => self.before >> (back - 1) & 1 == 1,
            _ => false,
        }
    }

    /// Whether `number` is so old that it cannot be told.
    pub(super) fn is_past(self, number: u64) -> bool {
        self.newest.saturating_sub(number) > 64
    }

    /// Adds `number`.
    pub(super) fn insert(&mut self, number: u64) {
        if let Some(back) = self.newest.checked_sub(number) {
            if let 1..=64 = back {
                self.before |= 1 << (back - 1);
            }
            return;
        }
        let ahead = u32::try_from(number - self.newest).unwrap_or(u32::MAX);
        let shifted = self.before.checked_shl(ahead).unwrap_or(0);
        // The former newest becomes one of those before; 0 never was one.
        let former = if self.newest > 0 { 1_u64.checked_shl(ahead - 1).unwrap_or(0) } else { 0 };
        *self = Self { newest: number, before: shifted | former };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn the_bytes_stay_the_same() {
        let row = Row { key: 1 << 100, shape: 2, epoch: 3, spent: 70_000, spent_before: 5, given: 6, given_before: 0 };
        let message = Message {
            number: 300,
            answer: true,
            whole: true,
            merged: Merged { newest: 7, before: 8 },
            rows: vec![row],
        };
        let golden = [
            &[1, 1, 0, 0, 0, 251, 44, 1, 1, 1, 7, 8, 1, 254][..],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0],
            &[2, 3, 252, 112, 17, 1, 0, 5, 6, 0],
        ]
        .concat();
        assert_eq!(encode(&message).unwrap(), golden);
        assert_eq!(decode::<Message>(&golden).unwrap(), message);
    }

    proptest! {
        #[test]
        fn merged_is_a_set_of_the_last_65(numbers in prop::collection::vec(1_u64..200, 0..100)) {
            let (mut merged, mut oracle) = (Merged::default(), BTreeSet::<u64>::new());
            for number in numbers {
                if oracle.last().is_none_or(|newest| newest.saturating_sub(number) <= 64) {
                    oracle.insert(number);
                }
                merged.insert(number);
                let newest = *oracle.last().unwrap();
                for probe in 0..270 {
                    let known = oracle.contains(&probe) && newest - probe <= 64;
                    prop_assert_eq!(merged.contains(probe), known, "{}", probe);
                }
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = decode::<Message>(&bytes);
            let _ = decode::<Message>(&[&[1, 1, 0, 0, 0][..], &bytes].concat());
        }
    }
}
