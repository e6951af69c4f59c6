//! The script against the core: the same schedule of microseconds, the same verdicts, the same standing.

mod support;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::redis::RedisServer;
use support::{TEST_CLOCK, bucket, limit, micros, rule};
use tidegate_core::Outcome::{Allowed, Denied, NeverFits};
use tidegate_core::algorithm::{Algorithm, TokenBucket};
use tidegate_core::{Limit, Nanos, Operation, Rate, RemoteStore, Standing};
use tidegate_store_redis::RedisStore;

/// 1 December 2025.
const START: u64 = 1_764_547_200_000_000;

/// Rates whose tokens fall on microseconds, between them, faster than one a microsecond, and years apart.
const RATES: [(u64, u64); 14] = [
    (100, 60_000_000_000),
    (1, 1_000_000_000),
    (2_000, 60_000_000_000),
    (10, 13_000_000_000),
    (999_983, 1_000_000_000),
    (999_999_937, 1_000_000_000),
    (1_000_000_000, 1_000_000_000),
    (12_345_679, 1_000_000_000),
    (10_000_019, 86_400_000_000_000),
    (3_600_000_000_001 - 2, 3_600_000_000_000),
    (7, 86_400_000_000_000),
    (1, 366 * 86_400_000_000_000),
    (1, 1_000_000),
    (7_919, 1_000_003_000),
];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// To the same instant.
    Stay,
    /// Forward so many microseconds.
    Micros(u64),
    /// As long as the last denial said, plus or minus a microsecond.
    Retry(i8),
    /// Forward this share of what a full refill takes.
    Share(u8),
    /// A little back.
    Back(u64),
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Take,
    Peek,
    Refund,
    Charge,
    Reset,
}

#[derive(Clone, Debug)]
struct Schedule {
    limits: Vec<(u64, u64, u64)>,
    steps: Vec<(Step, Ask, Vec<u64>)>,
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let limits = proptest::collection::vec((prop::sample::select(&RATES[..]), 1_u64..400), 1..4);
    let step = prop_oneof![
        2 => Just(Step::Stay),
        3 => (0_u64..3).prop_map(Step::Micros),
        1 => (0_u64..10_000_000).prop_map(Step::Micros),
        6 => (-1_i8..=1).prop_map(Step::Retry),
        1 => (0_u8..120).prop_map(Step::Share),
        1 => (1_u64..60).prop_map(Step::Back),
    ];
    let ask = prop_oneof![
        12 => Just(Ask::Take), 1 => Just(Ask::Peek), 1 => Just(Ask::Refund), 1 => Just(Ask::Charge), 1 => Just(Ask::Reset)
    ];
    let cost = prop_oneof![6 => Just(1_u64), 2 => 1_u64..40, 1 => 1_u64..401, 1 => Just(0_u64)];
    let costs = proptest::collection::vec(cost, 3);
    (limits, proptest::collection::vec((step, ask, costs), 1..40)).prop_map(|(limits, steps)| Schedule {
        limits: limits.into_iter().map(|((units, period), capacity)| (capacity, units, period)).collect(),
        steps,
    })
}

fn token_bucket((capacity, units, period): (u64, u64, u64)) -> TokenBucket {
    let rate = Rate::new(units, Nanos(period)).unwrap();
    let shortest = TokenBucket::new(capacity, rate);
    shortest.unwrap_or_else(|_| TokenBucket::new(1, rate).unwrap())
}

/// What the core says of the same, on words in memory.
struct Oracle {
    buckets: Vec<TokenBucket>,
    words: Vec<u64>,
}

impl Oracle {
    /// A full bucket is no key: when the clock then steps back, it is full still.
    fn forget_full(&mut self, now: Nanos) {
        for (bucket, word) in self.buckets.iter().zip(&mut self.words) {
            if TokenBucket::is_full(*word, bucket.now_units(now)) {
                *word = 0;
            }
        }
    }

    fn apply(&mut self, ask: Ask, now: Nanos, costs: &[u64]) -> Vec<Standing> {
        let each = self.buckets.iter().zip(&mut self.words).zip(costs);
        match ask {
            Ask::Take | Ask::Peek => {
                let decisions: Vec<_> =
                    each.map(|((b, word), cost)| b.decide(*word, b.now_units(now), *cost)).collect();
                let all = decisions.iter().all(|(_, standing)| standing.is_allowed());
                if all && matches!(ask, Ask::Take) {
                    self.words = decisions.iter().map(|(word, _)| *word).collect();
                    return decisions.into_iter().map(|(_, standing)| standing).collect();
                }
                let untaken = |((b, word), (_, standing)): ((&TokenBucket, &u64), (u64, Standing))| {
                    if standing.is_allowed() { b.decide(*word, b.now_units(now), 0).1 } else { standing }
                };
                self.buckets.iter().zip(&self.words).zip(decisions).map(untaken).collect()
            }
            Ask::Refund => each
                .map(|((b, word), cost)| {
                    *word = b.refund(*word, b.now_units(now), *cost).0;
                    b.standing(*word, b.now_units(now), 0, Allowed)
                })
                .collect(),
            Ask::Charge => each
                .map(|((b, word), cost)| {
                    *word = b.charge(*word, b.now_units(now), *cost);
                    b.standing(*word, b.now_units(now), 0, Allowed)
                })
                .collect(),
            Ask::Reset => each
                .map(|((b, word), _)| {
                    *word = 0;
                    b.standing(0, b.now_units(now), 0, Allowed)
                })
                .collect(),
        }
    }
}

/// The word of a full bucket may be any instant that is past: what it is called is no part of the answer.
fn comparable(mut standing: Standing, full: bool) -> Standing {
    if full {
        standing.mark = tidegate_core::algorithm::Mark::default();
    }
    standing
}

#[test]
fn the_script_and_the_core_agree_to_the_microsecond() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let store = {
        let _inside = runtime.enter();
        let builder = RedisStore::builder(&server.url()).prelude_for_tests(TEST_CLOCK).denial_memory(false);
        builder.deadline(std::time::Duration::from_secs(20)).build().unwrap()
    };
    let mut case = 0_u64;
    let case = &mut case;
    let connection = std::cell::RefCell::new(&mut connection);
    let case = std::cell::RefCell::new(case);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&schedules(), |schedule| {
        let user = {
            let mut case = case.borrow_mut();
            **case += 1;
            format!("user-{case}")
        };
        let buckets: Vec<_> = schedule.limits.iter().copied().map(token_bucket).collect();
        let limits: Vec<Limit> =
            buckets.iter().enumerate().map(|(n, b)| limit(&format!("limit-{n}"), Algorithm::TokenBucket(*b))).collect();
        let mut oracle = Oracle { words: vec![0; buckets.len()], buckets };
        let mut now = START;
        let mut retry = 0;
        for (nth, (step, ask, costs)) in schedule.steps.iter().enumerate() {
            now = match step {
                Step::Stay => now,
                Step::Micros(by) => now + by,
                Step::Retry(by) => (now + retry).saturating_add_signed(i64::from(*by)),
                Step::Share(share) => {
                    now + oracle.buckets[0].nanos_for(oracle.buckets[0].capacity_units()).0 / 1_000 / 100
                        * u64::from(*share)
                }
                Step::Back(by) => now - by,
            };
            // A debt of over 70 years is one of 70 years in Redis; one unit a step stays below.
            let limited: Vec<u64> =
                costs.iter().map(|cost| if matches!(ask, Ask::Charge) { *cost.min(&1) } else { *cost }).collect();
            let costs = &limited;
            redis::cmd("SET").arg("test-clock").arg(now).exec(&mut **connection.borrow_mut()).unwrap();
            let rules: Vec<_> = limits.iter().zip(costs).map(|(limit, cost)| rule(limit, &user, *cost)).collect();
            let operation = match ask {
                Ask::Take => Operation::Take,
                Ask::Peek => Operation::Peek,
                Ask::Refund => Operation::Refund,
                Ask::Charge => Operation::Charge,
                Ask::Reset => Operation::Reset,
            };
            let answers = runtime.block_on(store.apply(operation, &rules));
            let answers: Vec<_> = answers.unwrap().into_iter().map(|answer| answer.standing).collect();
            let expected = oracle.apply(*ask, micros(now), costs);
            // What only looks writes nothing, so it forgets nothing.
            let writes = !matches!(ask, Ask::Peek | Ask::Take)
                || (expected.iter().all(Standing::is_allowed) && costs[..limits.len()].iter().any(|cost| *cost > 0));
            if writes && !matches!(ask, Ask::Peek) {
                oracle.forget_full(micros(now));
            }
            for (place, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                let full = expected.full_in == Nanos::ZERO;
                prop_assert_eq!(
                    comparable(*answer, full),
                    comparable(*expected, full),
                    "step {} rule {} at {}",
                    nth,
                    place,
                    now
                );
            }
            retry = expected.iter().map(|standing| standing.retry_after.as_micros_ceil()).max().unwrap_or(0);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_costs_that_travel_together_are_decided_in_their_order() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let limit = bucket("requests", 10, "1/h");
    // All are queued before the first flight leaves: this task does not yield in between.
    let costs = [4_u64, 4, 4, 1, 1, 1, 0, 11];
    let calls = costs.map(|cost| store.apply(Operation::Take, &[rule(&limit, "u", cost)]));
    let answers = futures_util::future::join_all(calls).await;
    let outcomes: Vec<_> = answers.into_iter().map(|answer| answer.unwrap()[0].standing.outcome).collect();
    assert_eq!(outcomes, [Allowed, Allowed, Denied, Allowed, Allowed, Denied, Allowed, NeverFits]);
}
