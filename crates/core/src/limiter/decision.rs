//! One decision: holds in memory, one round trip, commit or release.

use smallvec::SmallVec;

use super::Inner;
use crate::algorithm::{Outcome, Standing};
use crate::policy::{Applies, Tier, TierLimit};
use crate::{
    Answer, Answers, BoxFuture, Fallback, Figures, Limit, LimitName, LimitVerdict, Nanos, OnMissing, Operation, Reason,
    Request, Rule, StoreError, StoreKind, Verdict,
};

/// A decision under way. Dropped before it is finished, it releases what it holds.
pub(super) struct Decision<'a> {
    inner: &'a Inner,
    now: Nanos,
    cost: u64,
    entries: SmallVec<[Entry<'a>; 4]>,
}

/// One limit that applies.
struct Entry<'a> {
    limit: &'a TierLimit,
    rule: Rule<'a>,
    answer: Option<Answer>,
    fallback: Option<Fallback>,
    held: bool,
}

impl<'a> Decision<'a> {
    /// Finds the limits that apply. Nothing is debited.
    pub(super) fn new<'r: 'a>(inner: &'a Inner, tier: &'a Tier, request: &Request<'r>) -> Self {
        let mut entries = SmallVec::new();
        for limit in &tier.limits {
            let entry = |rule, answer| Entry { limit, rule, answer, fallback: None, held: false };
            match limit.applies(request) {
                Applies::No | Applies::Missing(OnMissing::Allow | OnMissing::Shared) => {}
                Applies::Rule(rule) => {
                    let answer = matches!(limit.limit.figures(), Figures::Blocked).then(|| Answer::word(&rule));
                    entries.push(entry(rule, answer));
                }
                Applies::Missing(OnMissing::Deny) => {
                    let rule = Rule { limit: &limit.limit, values: SmallVec::new(), cost: request.units() };
                    entries.push(entry(rule, Some(Answer::refused(Reason::Missing))));
                }
            }
        }
        Self { inner, now: inner.clock.now(), cost: request.units(), entries }
    }

    /// The first limit that takes an await.
    pub(super) fn first_exact(&self) -> Option<LimitName> {
        let exact = self.entries.iter().find(|entry| entry.is_open(StoreKind::Exact));
        exact.map(|entry| entry.rule.limit.name())
    }

    /// Decides the in-memory limits. After the first refusal the others are only looked at, and what is held is released.
    pub(super) fn hold(&mut self) {
        let mut refused = self.refused();
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            if entry.answer.is_some() || entry.rule.limit.store() == StoreKind::Exact {
                continue;
            }
            entry.decide(self.inner, None, self.now, !refused);
            refused = refused || entry.refuses();
        }
        if refused {
            self.release();
        }
    }

    /// What to wait for where nothing but credit of the mesh is short.
    pub(super) fn waits_for_credit(&self) -> Option<Vec<BoxFuture<()>>> {
        let mut refusing = self.entries.iter().filter(|entry| entry.refuses()).peekable();
        refusing.peek()?;
        refusing.map(|entry| self.inner.stores.memory(entry.rule.limit.store())?.wait(&entry.rule)).collect()
    }

    /// The call to the exact store, if one is needed.
    pub(super) fn exact(&self) -> Option<BoxFuture<Result<Answers, StoreError>>> {
        if self.refused() {
            return None;
        }
        let store = self.inner.stores.exact.as_ref()?;
        let open = self.entries.iter().filter(|entry| entry.is_open(StoreKind::Exact));
        let rules: SmallVec<[Rule<'_>; 4]> = open.map(|entry| entry.rule.clone()).collect();
        let operation = if self.cost == 0 { Operation::Peek } else { Operation::Take };
        (!rules.is_empty()).then(|| store.apply(operation, &rules))
    }

    /// Takes the exact store's answer in, or lets each limit's fallback decide.
    pub(super) fn answer(&mut self, result: Result<Answers, StoreError>) {
        let now = self.inner.clock.now();
        let open = self.entries.iter_mut().filter(|entry| entry.is_open(StoreKind::Exact));
        match result {
            Ok(answers) => {
                for (entry, answer) in open.zip(answers) {
                    entry.answer = Some(answer);
                }
            }
            Err(error) => {
                for entry in open {
                    entry.fall_back(self.inner, &error, now);
                }
            }
        }
        self.now = now;
        if self.refused() {
            self.release();
        }
    }

    /// Commits what is held and sums up.
    pub(super) fn finish(mut self) -> Verdict {
        for entry in &mut self.entries {
            entry.commit(self.inner, self.now);
        }
        Verdict::new(self.cost, self.entries.iter().filter_map(Entry::verdict).collect())
    }

    fn refused(&self) -> bool {
        self.entries.iter().any(Entry::refuses)
    }

    fn release(&mut self) {
        for entry in &mut self.entries {
            entry.release(self.inner, self.now);
        }
    }
}

impl Drop for Decision<'_> {
    fn drop(&mut self) {
        // Finished, nothing is held any more.
        self.release();
    }
}

impl<'a> Entry<'a> {
    /// Whether this limit still has to be decided by a store of that kind.
    fn is_open(&self, store: StoreKind) -> bool {
        self.answer.is_none() && self.rule.limit.store() == store
    }

    fn refuses(&self) -> bool {
        let refused = self.answer.is_some_and(|answer| answer.standing.outcome != Outcome::Allowed);
        refused && !self.rule.limit.shadow()
    }

    /// Lets the memory store of `limit` (this limit, or the one of its fallback) decide.
    fn decide(&mut self, inner: &Inner, limit: Option<Fallback>, now: Nanos, debit: bool) {
        let rule = self.memory_rule(limit);
        let Some(store) = inner.stores.memory(rule.limit.store()) else { return };
        let answer = if debit && rule.cost > 0 { store.hold(&rule, now) } else { store.peek(&rule, now) };
        self.held = debit && rule.cost > 0 && answer.standing.is_allowed();
        self.answer = Some(answer);
        self.fallback = limit;
    }

    fn fall_back(&mut self, inner: &Inner, error: &StoreError, now: Nanos) {
        let Some(fallback) = self.rule.limit.fallback() else { return };
        tracing::debug!(limit = %self.rule.limit.name(), ?fallback, %error, "the exact store is away: its fallback decides");
        match fallback {
            Fallback::Allow => {
                let standing = Standing { outcome: Outcome::Allowed, ..Answer::refused(Reason::Fallback).standing };
                self.answer = Some(Answer { standing, reason: Reason::Fallback });
            }
            Fallback::Deny => self.answer = Some(Answer::refused(Reason::Fallback)),
            Fallback::Local | Fallback::Mesh => self.decide(inner, Some(fallback), now, true),
        }
        self.fallback = Some(fallback);
    }

    fn memory_rule(&self, fallback: Option<Fallback>) -> Rule<'a> {
        let limit: &'a Limit = match (fallback, &self.limit.fallback) {
            (Some(_), Some(limit)) => limit,
            _ => self.rule.limit,
        };
        Rule { limit, ..self.rule.clone() }
    }

    fn commit(&mut self, inner: &Inner, now: Nanos) {
        self.settle(inner, |store, rule, answer| store.commit(rule, answer.standing.mark, now));
    }

    fn release(&mut self, inner: &Inner, now: Nanos) {
        self.settle(inner, |store, rule, answer| store.release(rule, answer.standing.mark, now));
    }

    fn settle(&mut self, inner: &Inner, settle: impl FnOnce(&dyn crate::MemoryStore, &Rule<'_>, Answer)) {
        if !std::mem::take(&mut self.held) {
            return;
        }
        let rule = self.memory_rule(self.fallback);
        if let (Some(store), Some(answer)) = (inner.stores.memory(rule.limit.store()), self.answer) {
            settle(&**store, &rule, answer);
        }
    }

    fn verdict(&self) -> Option<LimitVerdict> {
        let answer = self.answer?;
        let limit = self.rule.limit;
        Some(LimitVerdict {
            name: limit.name(),
            store: limit.store(),
            fallback: self.fallback,
            reason: answer.reason,
            standing: answer.standing,
            window: limit.algorithm().map_or(Nanos::ZERO, |algorithm| algorithm.rate().period()),
            shadow: limit.shadow(),
        })
    }
}
