//! The token bucket's figures as the script wants them: spans of time instead of tokens.
//!
//! A token takes `d / n` microseconds, a reduced fraction. A span is whole microseconds and a rest in 1/n of one, so the script
//! only ever adds and compares; nothing there is multiplied that could pass 2^53.
//!
//! The core counts in units of 2^-q token and rounds its clock down to one, so that it may let a token pass less than a
//! nanosecond early. In 1/n microsecond that is `floor((anchor x n x 2^q mod d) / 2^q)`, fixed by the instant at which the bucket was
//! last full; the script works it out at that instant, so its verdicts are the core's to the microsecond.

use tidegate_core::algorithm::{Standing, TokenBucket, Word};
use tidegate_core::{Nanos, Outcome};

use super::{Arguments, RawMark, State, Unfit};

/// Above this a number, or twice it, would not be exact in a double.
const EXACT: u64 = 1 << 51;
/// The script multiplies modulo `d` seven bits at a time, which needs this much room.
const FACTOR: u64 = 1 << 45;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    bucket: TokenBucket,
    /// Parts of a microsecond.
    n: u64,
    /// What a token takes, in those parts.
    d: u64,
    /// A token is `1 << shift` of the core's units.
    shift: u32,
    /// `n x 2^shift mod d`, or 0 where the core never rounds to another microsecond.
    unit: u64,
}

impl Figures {
    pub(super) fn new(bucket: &TokenBucket) -> Result<Self, Unfit> {
        let rate = bucket.refill();
        let (units, period) = (u128::from(rate.units()) * 1_000, u128::from(rate.period().0));
        let divisor = greatest_common_divisor(units, period);
        let (n, d) = (units / divisor, period / divisor);
        let (Ok(n), Ok(d)) = (u64::try_from(n), u64::try_from(d)) else { return Err(Unfit) };
        if n >= EXACT || d >= EXACT {
            return Err(Unfit);
        }
        let shift = bucket.to_units(1).trailing_zeros();
        // The rounding is below n / 1000 parts: up to a thousand parts there is none.
        let unit = if n <= 1_000 || d >= FACTOR { 0 } else { remainder(u128::from(n) << shift, d) };
        let figures = Self { bucket: *bucket, n, d, shift, unit };
        if figures.span(bucket.capacity()).0 >= EXACT { Err(Unfit) } else { Ok(figures) }
    }

    pub(super) fn figures(&self, arguments: &mut Arguments) {
        let (whole, rest) = self.span(self.bucket.capacity());
        let token = if self.unit == 0 { 0 } else { 1 << self.shift };
        arguments.extend([self.n, whole, rest, self.unit, self.d, token]);
    }

    pub(super) fn cost(&self, cost: u64, arguments: &mut Arguments) {
        let (whole, rest) = self.span(cost);
        arguments.extend([whole, rest]);
    }

    pub(super) const fn fits(&self, cost: u64) -> bool {
        cost <= self.bucket.capacity()
    }

    /// Decides as the core does, from the state that the script read.
    pub(super) fn decide(&self, state: State, now: u64, cost: u64) -> (State, Standing) {
        let now_units = self.now_units(now);
        let (new, standing) = self.bucket.decide(self.word(state), now_units, cost);
        let moved = new != self.word(state);
        (if moved { self.add(state, cost) } else { state }, standing)
    }

    pub(super) fn charge(&self, state: State, now: u64, cost: u64) -> Standing {
        let now_units = self.now_units(now);
        let word = self.bucket.charge(self.word(state), now_units, cost);
        self.bucket.standing(word, now_units, 0, Outcome::Allowed)
    }

    pub(super) fn refund(&self, state: State, now: u64, cost: u64) -> Standing {
        let now_units = self.now_units(now);
        let (word, _) = self.bucket.refund(self.word(state), now_units, cost);
        self.bucket.standing(word, now_units, 0, Outcome::Allowed)
    }

    pub(super) fn reset(&self, now: u64) -> Standing {
        self.bucket.standing(0, self.now_units(now), 0, Outcome::Allowed)
    }

    pub(super) const fn mark(state: State) -> RawMark {
        [state.0, state.1]
    }

    fn now_units(&self, now: u64) -> u64 {
        self.bucket.now_units(Nanos::from_micros(now))
    }

    /// The instant of `state` in the core's units.
    fn word(&self, state: State) -> Word {
        let parts = u128::from(state.0) * u128::from(self.n) + u128::from(state.1);
        let d = u128::from(self.d);
        let tokens = u64::try_from(parts / d).unwrap_or(u64::MAX);
        // d is below 2^51 and a token at most 2^55 units, so the shift loses nothing.
        let rest = ((parts % d) << self.shift) / d;
        self.bucket.to_units(tokens).saturating_add(u64::try_from(rest).unwrap_or(u64::MAX))
    }

    fn add(&self, state: State, tokens: u64) -> State {
        let (whole, rest) = self.span(tokens);
        let carry = (state.1 + rest) / self.n;
        State(state.0.saturating_add(whole + carry), (state.1 + rest) % self.n)
    }

    /// How long `tokens` take to refill. What is above 70 years is 70 years.
    fn span(&self, tokens: u64) -> (u64, u64) {
        let parts = u128::from(tokens) * u128::from(self.d);
        let n = u128::from(self.n);
        match u64::try_from(parts / n) {
            Ok(whole) if whole < EXACT => (whole, remainder(parts, self.n)),
            _ => (EXACT, 0),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder is below its divisor")]
fn remainder(of: u128, by: u64) -> u64 {
    (of % u128::from(by)) as u64
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
