//! What the script needs to know of each algorithm, and how its replies become the core's answers.
//!
//! The script decides and stores; what a caller is told about the bucket is worked out here, by the core's own functions, from
//! the state that the script read. So both tell the same, and the script stays short.

mod token_bucket;

use tidegate_core::Limit;
use tidegate_core::algorithm::{Algorithm, Standing};

/// Numbers for the script.
pub(crate) type Arguments = Vec<u64>;

/// A rule's state as the script read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u64, pub(crate) u64);

/// Where a debit left a state, for the script.
pub(crate) type RawMark = [u64; 2];

/// Figures whose numbers a double cannot hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfit;

/// One algorithm with its figures, ready for the script.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figures {
    TokenBucket(token_bucket::Figures),
}

impl Figures {
    /// Those of `limit`; `None` where it is a word and nothing is counted.
    pub(crate) fn of(limit: &Limit) -> Result<Option<Self>, Unfit> {
        match limit.algorithm() {
            None => Ok(None),
            Some(Algorithm::TokenBucket(bucket)) => token_bucket::Figures::new(bucket).map(Self::TokenBucket).map(Some),
            Some(_) => Err(Unfit),
        }
    }

    /// What the algorithm is called in keys.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token-bucket",
        }
    }

    /// What the script calls it.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "t",
        }
    }

    /// Appends the figures.
    pub(crate) fn figures(&self, arguments: &mut Arguments) {
        match self {
            Self::TokenBucket(figures) => figures.figures(arguments),
        }
    }

    /// Appends a cost.
    pub(crate) fn cost(&self, cost: u64, arguments: &mut Arguments) {
        match self {
            Self::TokenBucket(figures) => figures.cost(cost, arguments),
        }
    }

    /// Whether `cost` can ever pass.
    pub(crate) const fn fits(&self, cost: u64) -> bool {
        match self {
            Self::TokenBucket(figures) => figures.fits(cost),
        }
    }

    /// The decision for `cost` at `now` (microseconds): the state afterwards and what a caller is told.
    pub(crate) fn decide(&self, state: State, now: u64, cost: u64) -> (State, Standing) {
        match self {
            Self::TokenBucket(figures) => figures.decide(state, now, cost),
        }
    }

    /// The standing after `cost` was taken, there or not.
    pub(crate) fn charge(&self, state: State, now: u64, cost: u64) -> Standing {
        match self {
            Self::TokenBucket(figures) => figures.charge(state, now, cost),
        }
    }

    /// The standing after `cost` was given back.
    pub(crate) fn refund(&self, state: State, now: u64, cost: u64) -> Standing {
        match self {
            Self::TokenBucket(figures) => figures.refund(state, now, cost),
        }
    }

    /// The standing of a state never used.
    pub(crate) fn reset(&self, now: u64) -> Standing {
        match self {
            Self::TokenBucket(figures) => figures.reset(now),
        }
    }

    /// The mark of a debit that left `state`.
    pub(crate) const fn mark(&self, state: State) -> RawMark {
        match self {
            Self::TokenBucket(_) => token_bucket::Figures::mark(state),
        }
    }
}
