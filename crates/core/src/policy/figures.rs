//! Figures: which ones each algorithm takes, and what they make.

use super::build::Checks;
use super::error::{Code, Problem};
use super::source::Source;
use super::spec::{AlgorithmName, LimitSpec};
use super::tier::Tier;
use crate::algorithm::{Algorithm, TokenBucket};
use crate::{Figures, Rate};

/// Whether any figure of an algorithm is given.
pub(super) fn any(spec: &LimitSpec) -> bool {
    given(spec).iter().any(|(_, given)| *given)
}

/// `spec` without the figures of an algorithm.
pub(super) fn without(spec: LimitSpec) -> LimitSpec {
    LimitSpec { capacity: None, refill: None, ..spec }
}

fn given(spec: &LimitSpec) -> [(&'static str, bool); 2] {
    [("capacity", spec.capacity.is_some()), ("refill", spec.refill.is_some())]
}

/// The figures of the limit at `path`, unless they are wrong, which is reported.
pub(super) fn figures(spec: &LimitSpec, path: &[&str], checks: &mut Checks<'_>) -> Option<Figures> {
    let algorithm = spec.algorithm.unwrap_or(AlgorithmName::TokenBucket);
    let needed: &[&str] = match algorithm {
        AlgorithmName::TokenBucket => &["capacity", "refill"],
    };
    let mut complete = true;
    for (field, given) in given(spec) {
        if given && !needed.contains(&field) {
            let message = format!("the algorithm `{}` has no `{field}`", algorithm.as_str());
            checks.report(
                Code::UnusedFigure,
                &[path, &[field]].concat(),
                message,
                &format!("it takes {}", needed.join(" and ")),
            );
            complete = false;
        }
        if !given && needed.contains(&field) {
            let message = format!("`{field}` is missing");
            let remedy = format!("the algorithm `{}` takes {}", algorithm.as_str(), needed.join(" and "));
            checks.report(Code::MissingFigure, path, message, &remedy);
            complete = false;
        }
    }
    if !complete {
        return None;
    }
    let made = match algorithm {
        AlgorithmName::TokenBucket => TokenBucket::new(spec.capacity?, spec.refill?).map(Algorithm::TokenBucket),
    };
    match made {
        Ok(algorithm) => Some(Figures::Limited(algorithm)),
        Err(error) => {
            let message = error.to_string();
            let (message, remedy) = message.split_once(": ").unwrap_or((&message, "mend the figure"));
            checks.report(Code::Figure, &[path, &[error.field()]].concat(), message, remedy);
            None
        }
    }
}

/// `figures` of which a process has `ppm` parts per million: at least one unit of each.
pub(super) fn scale(figures: &Figures, ppm: u32) -> Figures {
    match figures {
        Figures::Limited(Algorithm::TokenBucket(bucket)) => {
            let bucket = scaled_rate(bucket.refill(), ppm)
                .and_then(|refill| TokenBucket::new(scaled(bucket.capacity(), ppm), refill).ok())
                .unwrap_or(*bucket);
            Figures::Limited(Algorithm::TokenBucket(bucket))
        }
        Figures::Unlimited | Figures::Blocked => figures.clone(),
    }
}

fn scaled(units: u64, ppm: u32) -> u64 {
    let part = u128::from(units) * u128::from(ppm) / 1_000_000;
    u64::try_from(part).unwrap_or(u64::MAX).max(1)
}

/// The rate's part, in a longer period where whole units would lose too much.
fn scaled_rate(rate: Rate, ppm: u32) -> Option<Rate> {
    let longer = rate.period().0.checked_mul(1_000_000);
    let exact = longer.and_then(|period| {
        let units = rate.units().checked_mul(u64::from(ppm))?;
        let divisor = greatest_common_divisor(units, period);
        Rate::new(units / divisor, crate::Nanos(period / divisor)).ok()
    });
    exact.or_else(|| Rate::new(scaled(rate.units(), ppm), rate.period()).ok())
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// What cannot work although it is valid.
pub(super) fn warnings(tiers: &[(Box<str>, Tier)], source: &Source) -> Vec<Problem> {
    let _ = (tiers, source);
    Vec::new()
}
