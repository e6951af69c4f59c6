//! A tier, resolved: the limits that apply to its callers, ready for requests.

use smallvec::SmallVec;

use super::scope::Scope;
use crate::{Limit, OnMissing, Request, Rule};

/// The limits of one tier.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tier {
    pub(crate) limits: Box<[TierLimit]>,
}

/// One limit of one tier.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TierLimit {
    pub(crate) limit: Limit,
    /// The limit that decides in memory while the exact store is away.
    pub(crate) fallback: Option<Limit>,
    pub(super) scope: Scope,
    pub(super) cost: Cost,
}

/// What a request costs at a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    Request,
    Fixed(u64),
    Field(Box<str>),
}

/// Whether and how a limit applies to a request.
pub(crate) enum Applies<'a> {
    /// It does not.
    No,
    /// It decides.
    Rule(Rule<'a>),
    /// A field of its key is missing, and it says what then.
    Missing(OnMissing),
}

impl TierLimit {
    pub(crate) fn applies<'a, 'r: 'a>(&'a self, request: &Request<'r>) -> Applies<'a> {
        if !self.scope.covers(request) {
            return Applies::No;
        }
        let mut values = SmallVec::new();
        for field in self.limit.key() {
            let value: Option<&'a str> = request.value(field);
            if value.is_none() {
                match self.limit.on_missing() {
                    Some(OnMissing::Shared) => {}
                    // Deny: nobody chose to let such a request pass.
                    None => return Applies::Missing(OnMissing::Deny),
                    Some(choice) => return Applies::Missing(choice),
                }
            }
            values.push(value);
        }
        Applies::Rule(Rule { limit: &self.limit, values, cost: self.cost(request) })
    }

    /// The cost of `request`, where only looking stays looking.
    fn cost(&self, request: &Request<'_>) -> u64 {
        match &self.cost {
            Cost::Fixed(cost) if request.units() > 0 => *cost,
            Cost::Request | Cost::Fixed(_) => request.units(),
            // A field that is missing or no number costs what the request says.
            Cost::Field(field) => request.value(field).and_then(|value| value.parse().ok()).unwrap_or(request.units()),
        }
    }
}
