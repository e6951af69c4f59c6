//! The verdict: computed once, from integers; everything that a client is told is rendered from it.

use smallvec::SmallVec;

use crate::algorithm::{Outcome, Standing};
use crate::{Fallback, LimitName, Nanos, Reason, StoreKind};

/// What one limit said about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitVerdict {
    /// The limit.
    pub name: LimitName,
    /// The store that the policy names for it.
    pub store: StoreKind,
    /// The fallback that decided instead, where the exact store was away.
    pub fallback: Option<Fallback>,
    /// Why it was decided so.
    pub reason: Reason,
    /// Its bucket afterwards. `standing.outcome` is this limit's own, also where another one denied the request.
    pub standing: Standing,
    /// The period of its rate, or its window: what `RateLimit-Policy` says.
    pub window: Nanos,
    /// Whether it only counts and reports: it never denies.
    pub shadow: bool,
}

impl LimitVerdict {
    /// Whether this limit refuses the request.
    pub fn refuses(&self) -> bool {
        !self.shadow && self.standing.outcome != Outcome::Allowed
    }
}

/// What the limiter decided about a request.
///
/// ```
/// use tidegate_core::{Outcome, Verdict};
/// let verdict = Verdict::unlimited(1);
/// assert!(verdict.is_allowed());
/// assert_eq!(verdict.outcome(), Outcome::Allowed);
/// assert!(verdict.binding().is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    outcome: Outcome,
    binding: usize,
    cost: u64,
    limits: SmallVec<[LimitVerdict; 4]>,
}

impl Verdict {
    /// The verdict on a request of `cost` units to which no finite limit applies.
    pub fn unlimited(cost: u64) -> Self {
        Self::new(cost, SmallVec::new())
    }

    /// Sums up what the limits said.
    ///
    /// The binding limit is, when the request is refused, the one that no wait helps with, else the one with the longest
    /// wait; when it is allowed, the one with the smallest part left.
    pub fn new(cost: u64, limits: SmallVec<[LimitVerdict; 4]>) -> Self {
        let mut outcome = Outcome::Allowed;
        let mut binding = 0;
        for (index, limit) in limits.iter().enumerate() {
            if limit.refuses() {
                let standing = &limit.standing;
                let harder = severity(standing.outcome).cmp(&severity(outcome));
                let longer = standing.retry_after > limits[binding].standing.retry_after;
                if harder.is_gt() || (harder.is_eq() && longer) {
                    (outcome, binding) = (standing.outcome, index);
                }
            } else if outcome == Outcome::Allowed && !limit.shadow {
                // A shadow limit binds nobody: it is the binding one only where there is no other.
                if limits[binding].shadow || less_left(limit, &limits[binding]) {
                    binding = index;
                }
            }
        }
        Self { outcome, binding, cost, limits }
    }

    /// What was decided.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether the request may proceed.
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// Units asked for.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The limit that bound: the one headers speak of. `None` if no finite limit applied.
    pub fn binding(&self) -> Option<&LimitVerdict> {
        self.limits.get(self.binding)
    }

    /// What each limit said, in the policy's order. Where an in-memory limit refused, the exact ones were not asked and
    /// are not among them.
    pub fn limits(&self) -> &[LimitVerdict] {
        &self.limits
    }

    /// When this cost would pass, if nobody else comes; `None` unless denied.
    pub fn retry_after(&self) -> Option<Nanos> {
        let binding = self.binding()?;
        (self.outcome == Outcome::Denied).then_some(binding.standing.retry_after)
    }

    /// How long the caller must wait before it proceeds (leaky buckets); zero otherwise.
    pub fn delay(&self) -> Nanos {
        self.limits.iter().map(|limit| limit.standing.delay).max().unwrap_or(Nanos::ZERO)
    }

    /// Whether it was refused only because a store is away and the fallback is `deny`: the client did nothing wrong.
    pub fn is_unavailable(&self) -> bool {
        self.outcome == Outcome::Denied && self.binding().is_some_and(|limit| limit.fallback == Some(Fallback::Deny))
    }
}

fn severity(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Allowed => 0,
        Outcome::Denied => 1,
        Outcome::NeverFits => 2,
        Outcome::Blocked => 3,
    }
}

/// Whether `one` has a smaller part left than `other`, in integers.
fn less_left(one: &LimitVerdict, other: &LimitVerdict) -> bool {
    let part = |left: &Standing, of: &Standing| u128::from(left.remaining) * u128::from(of.limit);
    part(&one.standing, &other.standing) < part(&other.standing, &one.standing)
}
