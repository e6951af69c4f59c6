//! Calls that travel together: grouped by bucket, encoded for the script, answered from its reply.

use std::collections::HashMap;

use redis::{Cmd, Value};
use tidegate_core::{Answer, Answers, Outcome, Reason, StoreError};
use tokio::sync::oneshot;

use crate::figures::{RawMark, State};
use crate::request::{Counted, Operation, Rules};
use crate::script::Script;

/// What came of a call: the answers, and where its debits left the buckets.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) answers: Answers,
    /// Of what was taken; empty where nothing was.
    pub(crate) marks: Vec<RawMark>,
    /// Why a take was denied.
    pub(crate) denial: Option<Denial>,
}

/// The states that denied a take, at `now` in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    states: Vec<State>,
    pub(crate) now: u64,
}

impl Denial {
    /// What is to be said of it at `now`, if nobody else has come since.
    pub(crate) fn answers(&self, rules: &[Counted], now: u64) -> Answers {
        untaken(rules, &self.states, now).collect()
    }
}

pub(crate) type Outcomes = Result<Decided, StoreError>;

/// One caller's request, waiting for its answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) rules: Rules,
    /// `None`: nobody waits, the operation is done for its effect.
    pub(crate) reply: Option<oneshot::Sender<Outcomes>>,
}

impl Call {
    /// Whether whoever asked has gone, and the answer was all that mattered.
    pub(crate) fn is_abandoned(&self) -> bool {
        let looks = matches!(self.operation, Operation::Take | Operation::Peek);
        looks && self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// Calls for the same buckets, in their order.
#[derive(Debug)]
struct Group {
    operation: Operation,
    calls: Vec<Call>,
}

/// Groups that travel in one script call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    groups: Vec<Group>,
}

/// A call with what came of it.
pub(crate) type Settled = (Call, Outcomes);

impl Batch {
    /// Groups `calls`, at most `groups_at_most` to a batch.
    pub(crate) fn of(calls: Vec<Call>, groups_at_most: usize) -> Vec<Self> {
        let mut batches: Vec<Self> = Vec::new();
        let mut places: HashMap<u64, (usize, usize)> = HashMap::new();
        for call in calls {
            if call.operation == Operation::Take {
                let found = places.get(&call.rules.identity).copied();
                if let Some(group) = found.map(|(batch, group)| &mut batches[batch].groups[group])
                    && group.calls.first().is_some_and(|first| first.rules.same_buckets(&call.rules))
                {
                    group.calls.push(call);
                    continue;
                }
            }
            if batches.last().is_none_or(|batch| batch.groups.len() >= groups_at_most) {
                batches.push(Self::default());
            }
            let place = batches.len() - 1;
            let groups = &mut batches[place].groups;
            if call.operation == Operation::Take {
                places.insert(call.rules.identity, (place, groups.len()));
            }
            groups.push(Group { operation: call.operation.clone(), calls: vec![call] });
        }
        batches
    }

    /// Whether sending it twice by mistake can only deny more.
    pub(crate) fn is_safe_twice(&self) -> bool {
        self.groups.iter().all(|group| group.operation.is_safe_twice())
    }

    /// Whether anybody still waits for an answer.
    pub(crate) fn is_waited(&self) -> bool {
        let mut calls = self.groups.iter().flat_map(|group| &group.calls);
        calls.any(|call| call.reply.as_ref().is_some_and(|reply| !reply.is_closed()))
    }

    /// How many calls travel with others for the same buckets.
    pub(crate) fn coalesced(&self) -> usize {
        self.groups.iter().map(|group| group.calls.len()).filter(|calls| *calls > 1).sum()
    }

    /// The command that the server knows by the script's digest.
    pub(crate) fn evalsha(&self, script: &Script) -> Cmd {
        self.encode("EVALSHA", script.digest())
    }

    /// The command that brings the script along.
    pub(crate) fn eval(&self, script: &Script) -> Cmd {
        self.encode("EVAL", script.text())
    }

    fn encode(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        let rules = || self.groups.iter().filter_map(|group| group.calls.first()).flat_map(|call| &*call.rules.counted);
        command.arg(script).arg(rules().count());
        for rule in rules() {
            command.arg(&rule.key);
        }
        for group in &self.groups {
            group.encode(&mut command);
        }
        command
    }

    /// Hands each call its part of the script's reply.
    pub(crate) fn settle(self, reply: Result<Value, StoreError>) -> Vec<Settled> {
        let reply = reply.and_then(|value| match value {
            Value::Array(values) => Ok(values),
            other => Err(StoreError::Refused(format!("the script answered with no array: {other:?}"))),
        });
        let values = match reply {
            Ok(values) => values,
            Err(error) => return self.fail(&error),
        };
        let mut values = values.into_iter();
        let Some(Value::Int(now)) = values.next() else {
            return self.fail(&StoreError::Refused("the script did not tell the time".into()));
        };
        let now = u64::try_from(now).unwrap_or(0);
        self.groups.into_iter().flat_map(|group| group.settle(now, &mut values)).collect()
    }

    /// Fails all calls alike.
    pub(crate) fn fail(self, error: &StoreError) -> Vec<Settled> {
        self.into_calls().map(|call| (call, Err(error.clone()))).collect()
    }

    fn into_calls(self) -> impl Iterator<Item = Call> {
        self.groups.into_iter().flat_map(|group| group.calls)
    }
}

impl Group {
    fn encode(&self, command: &mut Cmd) {
        let Some(first) = self.calls.first() else { return };
        command.arg(self.operation.word()).arg(first.rules.counted.len());
        let mut numbers = Vec::new();
        for rule in &*first.rules.counted {
            rule.figures.figures(&mut numbers);
            command.arg(rule.figures.kind()).arg(&numbers);
            numbers.clear();
        }
        match &self.operation {
            Operation::Take => {
                let runs = self.runs();
                command.arg(runs.len());
                for run in runs {
                    command.arg(run.len());
                    for rule in &*run[0].rules.counted {
                        rule.figures.cost(rule.cost, &mut numbers);
                    }
                    command.arg(&numbers);
                    numbers.clear();
                }
            }
            Operation::Peek => {}
            Operation::Give | Operation::Charge | Operation::Reset => {
                for rule in &*first.rules.counted {
                    rule.figures.cost(rule.cost, &mut numbers);
                }
                command.arg(&numbers);
            }
            Operation::Undo(marks) => {
                for (rule, mark) in first.rules.counted.iter().zip(marks) {
                    rule.figures.cost(rule.cost, &mut numbers);
                    numbers.extend(mark);
                }
                command.arg(&numbers);
            }
        }
    }

    /// Neighbours that ask for the same.
    fn runs(&self) -> Vec<&[Call]> {
        self.calls.chunk_by(|a, b| a.rules.same_costs(&b.rules)).collect()
    }

    fn settle(self, now: u64, values: &mut impl Iterator<Item = Value>) -> Vec<Settled> {
        match self.read(values) {
            Ok((states, passed)) => self.answer(now, states, &passed),
            Err(error) => self.calls.into_iter().map(|call| (call, Err(error.clone()))).collect(),
        }
    }

    /// The states before the operation, and how many passed of each run of a take.
    fn read(&self, values: &mut impl Iterator<Item = Value>) -> Result<(Vec<State>, Vec<u64>), StoreError> {
        let mut number = || match values.next() {
            Some(Value::Int(number)) => Ok(u64::try_from(number).unwrap_or(0)),
            Some(Value::BulkString(text)) => Err(StoreError::Refused(String::from_utf8_lossy(&text).into_owned())),
            other => Err(StoreError::Refused(format!("the script's reply is out of shape: {other:?}"))),
        };
        let rules = self.calls.first().map_or(0, |call| call.rules.counted.len());
        let mut states = Vec::with_capacity(rules);
        for _ in 0..rules {
            states.push(State(number()?, number()?));
        }
        let runs = if self.operation == Operation::Take { self.runs().len() } else { 0 };
        let passed = (0..runs).map(|_| number()).collect::<Result<_, _>>()?;
        Ok((states, passed))
    }

    fn answer(self, now: u64, mut states: Vec<State>, passed: &[u64]) -> Vec<Settled> {
        let lengths: Vec<usize> = self.runs().iter().map(|run| run.len()).collect();
        let mut verdicts = lengths
            .iter()
            .zip(passed)
            .flat_map(|(length, passed)| (0_u64..).take(*length).map(move |nth| nth < *passed));
        let operation = self.operation;
        let calls = self.calls.into_iter();
        calls
            .map(|call| {
                let decided = match &operation {
                    Operation::Take => decide(&call.rules, &mut states, now, verdicts.next() == Some(true)),
                    Operation::Peek => look(&call.rules, &states, now),
                    other => stand(other, &call.rules, &states, now),
                };
                (call, Ok(decided))
            })
            .collect()
    }
}

/// The answers to a take: `passed` is what the script said, and so what was stored.
fn decide(rules: &Rules, states: &mut [State], now: u64, passed: bool) -> Decided {
    if !passed {
        let mut decided = look(rules, states, now);
        if decided.answers.iter().all(|answer| answer.standing.is_allowed()) {
            disagree(rules, now, passed);
            decided.answers.iter_mut().take(1).for_each(|answer| answer.standing.outcome = Outcome::Denied);
        } else {
            decided.denial = Some(Denial { states: states.to_vec(), now });
        }
        return decided;
    }
    let mut marks = Vec::with_capacity(states.len());
    let counted = rules.counted.iter().zip(states);
    let answers = counted.map(|(rule, state)| {
        let (after, mut standing) = rule.figures.decide(*state, now, rule.cost);
        if !standing.is_allowed() {
            disagree(rules, now, passed);
            standing.outcome = Outcome::Allowed;
        }
        *state = after;
        marks.push(rule.figures.mark(after));
        Answer { standing, reason: Reason::Level }
    });
    let answers = rules.complete(answers.collect());
    Decided { answers, marks, denial: None }
}

/// The answers to a look.
fn look(rules: &Rules, states: &[State], now: u64) -> Decided {
    let answers = rules.complete(untaken(&rules.counted, states, now).collect());
    Decided { answers, marks: Vec::new(), denial: None }
}

/// How each rule stands to its cost when nothing is taken.
fn untaken(rules: &[Counted], states: &[State], now: u64) -> impl Iterator<Item = Answer> {
    rules.iter().zip(states).map(move |(rule, state)| {
        let (_, standing) = rule.figures.decide(*state, now, rule.cost);
        // Would it pass here, then what is left is what there is: nothing was taken.
        let standing = if standing.is_allowed() { rule.figures.decide(*state, now, 0).1 } else { standing };
        Answer { standing, reason: Reason::Level }
    })
}

fn disagree(rules: &Rules, now: u64, passed: bool) {
    tracing::error!(passed, now, ?rules, "the script and the core disagree: this is a defect of tidegate");
}

/// The answers to what cannot be denied.
fn stand(operation: &Operation, rules: &Rules, states: &[State], now: u64) -> Decided {
    let counted = rules.counted.iter().zip(states);
    let standings = counted.map(|(rule, state)| match operation {
        Operation::Give => rule.figures.refund(*state, now, rule.cost),
        Operation::Charge => rule.figures.charge(*state, now, rule.cost),
        Operation::Reset => rule.figures.reset(now),
        // An undo may or may not find its debit; nobody waits for its answer.
        _ => rule.figures.decide(*state, now, 0).1,
    });
    let answers = standings.map(|standing| Answer { standing, reason: Reason::Level }).collect();
    Decided { answers: rules.complete(answers), marks: Vec::new(), denial: None }
}
