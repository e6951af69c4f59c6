//! The algorithms: pure functions of figures, state, time and cost.

mod token_bucket;

use std::fmt;

pub use token_bucket::{MAX_FILL_TIME, TokenBucket, Word};

use crate::{Nanos, Rate};

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The cost was taken.
    Allowed,
    /// Not now; nothing was taken. Waiting helps.
    Denied,
    /// The cost is above the capacity: no wait helps, nothing was taken.
    NeverFits,
    /// The limit is `blocked` for this caller: no wait helps, nothing was taken.
    Blocked,
}

/// Where a debit left a state, so that it can be undone exactly later. What the number means is the algorithm's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(pub u64);

/// The standing of one bucket after a decision. Units are those of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What was decided.
    pub outcome: Outcome,
    /// The most that the bucket holds: capacity, or the limit of a window.
    pub limit: u64,
    /// Units that would pass right now, after this decision.
    pub remaining: u64,
    /// When this cost would pass, if nobody else comes; zero unless denied.
    pub retry_after: Nanos,
    /// When `remaining` grows by the next unit; zero when full.
    pub next_unit_in: Nanos,
    /// When the bucket will be full again.
    pub full_in: Nanos,
    /// How long the caller must wait before it proceeds: leaky bucket only, zero otherwise.
    pub delay: Nanos,
    /// For undoing this debit.
    pub mark: Mark,
}

impl Standing {
    /// Whether the cost was taken.
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }
}

/// The figures of a limit: which algorithm, with which numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Bursts up to a capacity, then a steady refill.
    TokenBucket(TokenBucket),
}

/// The state of one bucket under any algorithm. The default is that of a bucket never used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    word: Word,
}

impl Algorithm {
    /// The most units that pass at once.
    pub const fn capacity(&self) -> u64 {
        match self {
            Self::TokenBucket(bucket) => bucket.capacity(),
        }
    }

    /// The long-run rate.
    pub const fn rate(&self) -> Rate {
        match self {
            Self::TokenBucket(bucket) => bucket.refill(),
        }
    }

    /// Takes `cost` units if they are there; leaves `state` as it is if not. A cost of 0 only looks.
    pub fn take(&self, state: &mut State, now: Nanos, cost: u64) -> Standing {
        match self {
            Self::TokenBucket(bucket) => bucket.take(&mut state.word, now, cost),
        }
    }

    /// What [`take`](Self::take) would say, changing nothing.
    pub fn peek(&self, state: &State, now: Nanos, cost: u64) -> Standing {
        match self {
            Self::TokenBucket(bucket) => {
                let now = bucket.now_units(now);
                let (_, after) = bucket.decide(state.word, now, cost);
                bucket.standing(state.word, now, cost, after.outcome)
            }
        }
    }

    /// Takes `units` whether they are there or not.
    pub fn charge(&self, state: &mut State, now: Nanos, units: u64) {
        match self {
            Self::TokenBucket(bucket) => state.word = bucket.charge(state.word, bucket.now_units(now), units),
        }
    }

    /// Gives back `units`, never above the capacity; returns how many were given back.
    pub fn refund(&self, state: &mut State, now: Nanos, units: u64) -> u64 {
        match self {
            Self::TokenBucket(bucket) => {
                let (word, given) = bucket.refund(state.word, bucket.now_units(now), units);
                state.word = word;
                given
            }
        }
    }

    /// Undoes the debit of `units` that `mark` belongs to, so far as it still counts; returns how many were given back.
    pub fn release(&self, state: &mut State, now: Nanos, units: u64, mark: Mark) -> u64 {
        match self {
            Self::TokenBucket(bucket) => {
                let word = bucket.release(state.word, bucket.now_units(now), units, mark);
                let given = if word == state.word { 0 } else { units };
                state.word = word;
                given
            }
        }
    }

    /// Whether a bucket in this state behaves like one never used.
    pub fn is_fresh(&self, state: &State, now: Nanos) -> bool {
        match self {
            Self::TokenBucket(bucket) => TokenBucket::is_full(state.word, bucket.now_units(now)),
        }
    }
}

/// Figures that make no limit. Nothing was built; the figure named has to be mended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FiguresError {
    /// A capacity of zero.
    #[error("a capacity of 0 admits nothing: write \"blocked\" to deny everything, \"unlimited\" to allow everything")]
    ZeroCapacity,
    /// A rate of zero units.
    #[error("a rate of 0 admits nothing: write \"blocked\" to deny everything, \"unlimited\" to allow everything")]
    ZeroRate,
    /// A period or window out of range.
    #[error("a period of {period} is out of range: it must be between 1ms and 366d")]
    Period {
        /// The period given.
        period: Nanos,
    },
    /// More than 10^9 units per second.
    #[error("{units} units per {period} is too fast: at most 1_000_000_000 units per second")]
    RateTooHigh {
        /// The units given.
        units: u64,
        /// The period given.
        period: Nanos,
    },
    /// A bucket that would take over 30 years to fill.
    #[error(
        "a capacity of {capacity} at {refill} would take over 30 years to refill: lower the capacity or raise the refill"
    )]
    CapacityTooLarge {
        /// The capacity given.
        capacity: u64,
        /// The refill given.
        refill: Rate,
    },
    /// A text that is no rate.
    #[error("`{text}` is no rate: write units/period, such as \"100/s\", \"2_000/min\" or \"5/15min\"")]
    RateSyntax {
        /// The text given.
        text: String,
    },
}

impl FiguresError {
    /// The figure to blame, as the policy file names it.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::ZeroCapacity | Self::CapacityTooLarge { .. } => "capacity",
            Self::ZeroRate | Self::Period { .. } | Self::RateTooHigh { .. } | Self::RateSyntax { .. } => "refill",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NeverFits => "never_fits",
            Self::Blocked => "blocked",
        })
    }
}
