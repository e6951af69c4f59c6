//! A fleet in virtual time: loss, delay, doubles, and the bound after every step.

use proptest::prelude::*;
use smallvec::SmallVec;
use tidegate_core::algorithm::{Algorithm, TokenBucket};
use tidegate_core::{Figures, LimitName, LimitParts, MeshFigures, Rate, StoreKind};

use super::*;

const FLUSH: Nanos = Nanos::from_millis(20);
const CAPACITY: u64 = 1_000;
/// Units a second.
const REFILL: u64 = 1_000;
const START: Nanos = Nanos::from_secs(1_000);

struct Fleet {
    replicas: Vec<Replica>,
    now: Nanos,
    /// When, from, to, what.
    wire: Vec<(Nanos, usize, usize, Message)>,
    limit: Limit,
    admitted: u64,
}

fn id(index: usize) -> ReplicaId {
    ReplicaId { node: index as u64, incarnation: 1 }
}

fn limit(refill: Rate) -> Limit {
    let bucket = TokenBucket::new(CAPACITY, refill).unwrap();
    Limit::new(LimitParts {
        name: LimitName::new("requests"),
        key: Box::default(),
        store: StoreKind::Mesh,
        figures: Figures::Limited(Algorithm::TokenBucket(bucket)),
        fallback: None,
        shadow: false,
        on_missing: None,
        mesh: MeshFigures::default(),
    })
}

impl Fleet {
    /// A fleet in which all know all.
    fn new(size: usize) -> Self {
        Self::with_refill(size, Rate::per_second(REFILL).unwrap())
    }

    /// One whose buckets refill by nothing in the time of a test, so that all views can be compared.
    fn still(size: usize) -> Self {
        Self::with_refill(size, Rate::per_hour(1).unwrap())
    }

    fn with_refill(size: usize, refill: Rate) -> Self {
        let replicas: Vec<_> = (0..size).map(|index| Replica::new(id(index), KeySecret::new([7; 16]), FLUSH)).collect();
        let mut fleet = Self { replicas, now: START, wire: Vec::new(), limit: limit(refill), admitted: 0 };
        for replica in &fleet.replicas {
            replica.register(&fleet.limit);
            (0..size).for_each(|index| replica.join(id(index), START));
        }
        for _ in 0..4 {
            fleet.step(FLUSH, |_, _| Some(Nanos::ZERO));
        }
        assert!(fleet.replicas.iter().all(Mind::is_settled));
        fleet
    }

    fn rule(&self, cost: u64) -> Rule<'_> {
        Rule { limit: &self.limit, values: SmallVec::new(), cost }
    }

    /// Asks replica `index` for `cost`.
    fn ask(&mut self, index: usize, cost: u64) -> Answer {
        let answer = self.replicas[index].hold(&self.rule(cost), self.now);
        if answer.standing.is_allowed() {
            self.replicas[index].commit(&self.rule(cost), answer.standing.mark, self.now);
            self.admitted += cost;
        }
        answer
    }

    /// Time goes on by `span`; each message takes what `delay` says, and is lost where it says nothing.
    fn step(&mut self, span: Nanos, mut delay: impl FnMut(usize, usize) -> Option<Nanos>) {
        self.now = self.now + span;
        for from in 0..self.replicas.len() {
            for (to, message) in self.replicas[from].poll(self.now).messages {
                let to = usize::try_from(to.node).unwrap();
                if let Some(delay) = delay(from, to) {
                    self.wire.push((self.now + delay, from, to, message));
                }
            }
        }
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.wire).into_iter().partition(|(at, ..)| *at <= now);
        self.wire = later;
        for (_, from, to, message) in due {
            self.replicas[to].receive(id(from), &message, now);
        }
    }

    fn remaining(&self, index: usize) -> u64 {
        self.replicas[index].peek(&self.rule(0), self.now).standing.remaining
    }

    /// The most that may have been admitted since the start.
    fn bound(&self) -> u64 {
        let refilled = (u128::from((self.now - START).0) * u128::from(REFILL)).div_ceil(1_000_000_000);
        CAPACITY + CAPACITY / 10 + u64::try_from(refilled).unwrap() + self.replicas.len() as u64 - 1
    }
}

proptest! {
    /// Demand of ten times the limit at every replica; a third of the messages lost, the others late, doubled and out of order.
    #[test]
    fn the_bound_holds(size in 2_usize..6, steps in prop::collection::vec((1_u64..30, 0_u64..200, any::<[u8; 8]>()), 1..120)) {
        let mut fleet = Fleet::new(size);
        for (millis, demand, mut chance) in steps {
            for index in 0..size {
                for _ in 0..demand {
                    if !fleet.ask(index, 1).standing.is_allowed() {
                        break;
                    }
                }
            }
            prop_assert!(fleet.admitted <= fleet.bound(), "{} of {}", fleet.admitted, fleet.bound());
            fleet.step(Nanos::from_millis(millis), |_, _| {
                chance.rotate_left(1);
                (chance[0] % 3 > 0).then(|| Nanos::from_millis(u64::from(chance[1] % 64)))
            });
            if let Some(doubled) = fleet.wire.first().map(|(at, from, to, message)| (*at, *from, *to, message.clone())) {
                fleet.wire.push(doubled);
            }
        }
    }

    /// Once nothing is lost any more, every view shows the same, to the unit.
    #[test]
    fn views_meet(spends in prop::collection::vec((0_usize..3, 1_u64..30, any::<bool>()), 0..40)) {
        let mut fleet = Fleet::still(3);
        let mut spent = 0;
        for (index, cost, lost) in spends {
            if fleet.ask(index, cost).standing.is_allowed() {
                spent += cost;
            }
            fleet.step(Nanos::from_micros(1_100), |_, _| (!lost).then_some(Nanos::ZERO));
        }
        for _ in 0..6 {
            fleet.step(FLUSH, |_, _| Some(Nanos::ZERO));
        }
        let shown: Vec<_> = (0..3).map(|index| fleet.remaining(index)).collect();
        prop_assert!(shown.iter().all(|remaining| *remaining == shown[0]), "{shown:?}");
        prop_assert_eq!(shown[0], CAPACITY - spent);
        prop_assert_eq!(fleet.replicas[0].report().unacknowledged, 0);
    }
}

#[test]
fn steady_overload_uses_the_whole_limit() {
    let mut fleet = Fleet::new(5);
    let begun = fleet.now;
    while fleet.now - begun < Nanos::from_secs(5) {
        for index in 0..5 {
            (0..4).for_each(|_| _ = fleet.ask(index, 1));
        }
        fleet.step(Nanos::from_millis(2), |_, _| Some(Nanos::from_micros(500)));
    }
    let ideal = CAPACITY + REFILL * 5;
    assert!(fleet.admitted * 100 >= ideal * 98, "{} of {ideal}", fleet.admitted);
    assert!(fleet.admitted <= fleet.bound());
}

#[test]
fn credit_ends_where_nobody_acknowledges_and_returns_with_the_acknowledgement() {
    let mut fleet = Fleet::new(2);
    let admitted = (0..200).filter(|_| fleet.ask(0, 1).standing.is_allowed()).count();
    assert_eq!(admitted, 50, "half of a tenth of the capacity");
    let refused = fleet.ask(0, 1);
    assert_eq!((refused.reason, refused.standing.is_allowed()), (Reason::Credit, false));
    for _ in 0..3 {
        fleet.step(Nanos::from_millis(2), |_, _| Some(Nanos::ZERO));
    }
    assert!(fleet.ask(0, 1).standing.is_allowed());
    let whole_burst = fleet.ask(1, 300);
    assert_eq!(whole_burst.reason, Reason::Level, "the first is free of credit");
}

#[test]
fn what_is_released_was_never_told() {
    let mut fleet = Fleet::still(2);
    let mark = fleet.replicas[0].hold(&fleet.rule(40), fleet.now).standing.mark;
    fleet.replicas[0].release(&fleet.rule(40), mark, fleet.now);
    assert_eq!(fleet.remaining(0), CAPACITY);
    assert!(fleet.ask(0, 10).standing.is_allowed());
    assert_eq!(fleet.replicas[0].refund(&fleet.rule(4), None, fleet.now), 4);
    for _ in 0..3 {
        fleet.step(Nanos::from_millis(2), |_, _| Some(Nanos::ZERO));
    }
    fleet.step(FLUSH, |_, _| Some(Nanos::ZERO));
    assert_eq!((fleet.remaining(0), fleet.remaining(1)), (CAPACITY - 6, CAPACITY - 6));
}

#[test]
fn a_replay_and_a_stranger_are_refused() {
    let mut fleet = Fleet::new(2);
    fleet.ask(0, 30);
    fleet.now = fleet.now + FLUSH;
    let (_, message) = fleet.replicas[0].poll(fleet.now).messages.remove(0);
    assert!(fleet.replicas[1].receive(id(0), &message, fleet.now));
    let shown = fleet.remaining(1);
    assert!(!fleet.replicas[1].receive(id(0), &message, fleet.now), "a replay");
    assert!(!fleet.replicas[1].receive(id(9), &message, fleet.now), "no member");
    assert_eq!(fleet.remaining(1), shown);
    assert_eq!(fleet.replicas[1].report().replayed, 1);
}

#[test]
fn a_joiner_refuses_until_it_has_heard_all_and_all_know_it() {
    let mut fleet = Fleet::new(2);
    fleet.ask(0, 600);
    (0..4).for_each(|_| fleet.step(FLUSH, |_, _| Some(Nanos::ZERO)));
    let joiner = Replica::new(id(2), KeySecret::new([7; 16]), FLUSH);
    joiner.poll(fleet.now);
    fleet.replicas.push(joiner);
    for index in 0..2 {
        fleet.replicas[index].join(id(2), fleet.now);
        fleet.replicas[2].join(id(index), fleet.now);
    }
    assert_eq!(fleet.ask(2, 1).reason, Reason::Joining);
    // Before its limits are registered, too, nothing that it hears is lost.
    (0..3).for_each(|_| fleet.step(FLUSH, |_, _| Some(Nanos::ZERO)));
    let limit = fleet.limit.clone();
    fleet.replicas[2].register(&limit);
    assert!(fleet.replicas[2].is_settled());
    let (old, new) = (fleet.remaining(0), fleet.remaining(2));
    assert!(new <= old, "the joiner knows of all that was spent: {new} against {old}");
}

#[test]
fn who_leaves_hands_its_credit_over_and_who_is_gone_costs_its_credit_once() {
    let mut fleet = Fleet::new(3);
    fleet.replicas[2].leave(fleet.now);
    fleet.step(FLUSH, |_, _| Some(Nanos::ZERO));
    assert!(!fleet.ask(2, 1).standing.is_allowed(), "it refuses");
    let now = fleet.now;
    fleet.replicas[..2].iter().for_each(|replica| replica.leave_announced(id(2), now));
    assert_eq!(fleet.replicas[0].report().replicas, 2);
    fleet.ask(0, 1);
    let before = fleet.remaining(0);
    fleet.replicas[0].forget(id(1), now);
    assert_eq!(before - fleet.remaining(0), 50, "half of a tenth of the capacity");
    assert_eq!((0..200).filter(|_| fleet.ask(0, 1).standing.is_allowed()).count(), 200, "alone, nobody is waited for");
}
