//! The two ways to keep a count: in memory, decided at once, and remote, decided in a round trip.

use std::future::Future;
use std::pin::Pin;

use crate::algorithm::{Mark, Outcome, Standing};
use crate::{Figures, Limit, Nanos, Rule};

/// A boxed future that owns what it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Which store counts a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// This process alone.
    Local,
    /// Redis: one atomic round trip.
    Exact,
    /// The fleet itself: counters gossiped between the processes, decided locally.
    Mesh,
}

impl StoreKind {
    /// The word of the policy file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Exact => "exact",
            Self::Mesh => "mesh",
        }
    }
}

/// Why a store decided as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The bucket itself: there was enough, or there was not.
    Level,
    /// Mesh: own spend that others have not acknowledged has reached the bound; a round trip frees it.
    Credit,
    /// Mesh: near the bottom of the bucket each replica takes its fair part only.
    Pace,
    /// Mesh: this replica has joined and not every member has acknowledged it yet.
    Joining,
    /// Mesh: the limit is split because some member is silent, and this replica's part is spent.
    Split,
    /// The exact store is away; the limit's fallback decided.
    Fallback,
    /// The request lacks a field of the limit's key; `on_missing` decided.
    Missing,
    /// The limit is a word: `unlimited` or `blocked`.
    Word,
}

/// A store's answer for one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The bucket's standing after the decision.
    pub standing: Standing,
    /// Why.
    pub reason: Reason,
}

impl Answer {
    /// The answer for a limit that is a word: `blocked` refuses, `unlimited` allows.
    pub fn word(rule: &Rule<'_>) -> Self {
        let outcome = match rule.limit.figures() {
            Figures::Blocked => Outcome::Blocked,
            Figures::Unlimited | Figures::Limited(_) => Outcome::Allowed,
        };
        Self { standing: Standing { outcome, ..Self::refused(Reason::Word).standing }, reason: Reason::Word }
    }

    /// A refusal that no bucket is behind: try again in a second.
    pub fn refused(reason: Reason) -> Self {
        let second = Nanos::from_secs(1);
        let standing = Standing {
            outcome: Outcome::Denied,
            limit: 0,
            remaining: 0,
            retry_after: second,
            next_unit_in: second,
            full_in: second,
            delay: Nanos::ZERO,
            mark: Mark(0),
        };
        Self { standing, reason }
    }
}

/// A store that decides in memory: `local` and `mesh`. Nothing here waits, locks for long or allocates.
///
/// `hold` debits; the debit counts for later decisions at once. `commit` makes it final (the mesh publishes it),
/// `release` takes it back. Between them may lie a round trip to the exact store. `now` is the time
/// of the limiter's clock.
pub trait MemoryStore: Send + Sync + 'static {
    /// Tells the store of a limit that it will be asked about; called for every limit before the first request and at each
    /// reload. By default nothing.
    fn register(&self, limit: &Limit) {
        let _ = limit;
    }

    /// Decides `rule` and debits its cost where that is allowed.
    fn hold(&self, rule: &Rule<'_>, now: Nanos) -> Answer;

    /// Makes a held debit final.
    fn commit(&self, rule: &Rule<'_>, mark: Mark, now: Nanos);

    /// Takes a held debit back, as if it had never been.
    fn release(&self, rule: &Rule<'_>, mark: Mark, now: Nanos);

    /// Decides without debiting.
    fn peek(&self, rule: &Rule<'_>, now: Nanos) -> Answer;

    /// Gives back `rule.cost` units of committed spend, never above the capacity. Returns the units given back. With
    /// `mark`, only what is still unused of that very debit.
    fn refund(&self, rule: &Rule<'_>, mark: Option<Mark>, now: Nanos) -> u64;

    /// Takes `rule.cost` units whether they are there or not: the bucket may go into debt.
    fn charge(&self, rule: &Rule<'_>, now: Nanos);

    /// Makes the bucket like one never used.
    fn reset(&self, rule: &Rule<'_>, now: Nanos);

    /// What to wait for, once, when `hold` denied for want of credit: `None` where waiting is no use.
    fn wait(&self, rule: &Rule<'_>) -> Option<BoxFuture<()>> {
        let _ = rule;
        None
    }
}

/// What a remote store is asked to do with each rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Debit all rules or none.
    Take,
    /// Only look.
    Peek,
    /// Give back the costs, never above the capacities.
    Refund,
    /// Take the costs whether they are there or not.
    Charge,
    /// Make the buckets like ones never used.
    Reset,
}

/// The answers of a remote store, one for each rule asked about, in their order.
///
/// For [`Operation::Take`] they are all allowed, or at least one is not and nothing was taken. For
/// [`Operation::Refund`], `standing.remaining` is after the refund.
pub type Answers = Vec<Answer>;

/// A remote store failed to answer. A refusal is never an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the deadline. The state may or may not have changed; what was taken late is given back.
    #[error("the exact store did not answer within its deadline")]
    Timeout,
    /// The circuit is open: the store was not asked, the state is unchanged.
    #[error("the exact store is away and was not asked")]
    Open,
    /// The connection failed. The state may or may not have changed.
    #[error("the exact store is away: {0}")]
    Unavailable(String),
    /// The store answered with an error that a retry will not mend (a wrong type, no permission, out of memory). The
    /// state is unchanged; the operator has to act.
    #[error("the exact store refused the call: {0}")]
    Refused(String),
}

/// A store that decides in a round trip: `exact`.
///
/// The future owns all it needs. When it is dropped the store still looks after the call: a late allow is given back.
pub trait RemoteStore: Send + Sync + 'static {
    /// Applies `operation` to all `rules` in one round trip, all or nothing.
    fn apply(&self, operation: Operation, rules: &[Rule<'_>]) -> BoxFuture<Result<Answers, StoreError>>;
}
