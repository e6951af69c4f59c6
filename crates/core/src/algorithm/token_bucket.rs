//! Token bucket: bursts up to `capacity`, then `refill` per period.
//!
//! The generic cell rate algorithm (ITU-T I.371) with time kept in tokens. A *unit* is 1/2^q token, q chosen so that
//! between one and two units refill in each nanosecond. The state is one word: the instant, in units, at which the bucket
//! will be full. `now` in units is floor(now x refill x 2^q / period), from absolute time, so nothing is lost by asking
//! often and nothing drifts. The only rounding is that of the clock: a token may pass less than one nanosecond early.

use super::{FiguresError, Mark, Outcome, Standing};
use crate::{Nanos, Rate};

/// The longest time that an empty bucket may need to become full: 30 years of 366 days.
pub const MAX_FILL_TIME: Nanos = Nanos::from_secs(30 * 366 * 86_400);

/// The state of a token bucket: the instant, in units, at which it will be full. Zero, and anything past, is full.
pub type Word = u64;

/// The figures of a token bucket: `capacity` tokens at most, `refill` tokens per period.
///
/// ```
/// use tidegate_core::algorithm::TokenBucket;
/// use tidegate_core::{Nanos, Rate};
/// let bucket = TokenBucket::new(2, Rate::per_second(1).unwrap()).unwrap();
/// let mut word = 0; // full
/// let now = Nanos::from_secs(1_000);
/// assert!(bucket.take(&mut word, now, 2).is_allowed());
/// assert_eq!(bucket.take(&mut word, now, 1).retry_after, Nanos::from_secs(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    capacity: u64,
    refill: Rate,
    /// A token is `1 << shift` units.
    shift: u32,
    /// Units refilled in each period: `refill << shift`.
    units_per_period: u64,
    /// floor(2^63 x units per nanosecond); a reciprocal, so that the hot path has no division.
    units_per_nano_q63: u64,
    /// floor(2^64 x nanoseconds per unit), at most 2^64 - 1.
    nanos_per_unit_q64: u64,
}

impl TokenBucket {
    /// A bucket of `capacity` tokens (at least 1) that refills at `refill`.
    ///
    /// # Errors
    /// [`FiguresError`] when `capacity` is zero or would take over 30 years to refill. Nothing was built; mend the figure.
    pub fn new(capacity: u64, refill: Rate) -> Result<Self, FiguresError> {
        if capacity == 0 {
            return Err(FiguresError::ZeroCapacity);
        }
        let period = refill.period().0;
        let fill_time = u128::from(capacity) * u128::from(period) / u128::from(refill.units());
        if fill_time > u128::from(MAX_FILL_TIME.0) {
            return Err(FiguresError::CapacityTooLarge { capacity, refill });
        }
        // The smallest shift with at least one unit per nanosecond; units <= period, so it is never negative.
        let mut shift = 0;
        while (refill.units() << shift) < period {
            shift += 1;
        }
        let units_per_period = refill.units() << shift;
        let rate = (u128::from(units_per_period) << 63) / u128::from(period);
        let inverse = (u128::from(period) << 64) / u128::from(units_per_period);
        Ok(Self {
            capacity,
            refill,
            shift,
            units_per_period,
            units_per_nano_q63: u64::try_from(rate).unwrap_or(u64::MAX),
            nanos_per_unit_q64: u64::try_from(inverse).unwrap_or(u64::MAX),
        })
    }

    /// The most tokens that the bucket holds.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Tokens per period.
    pub const fn refill(&self) -> Rate {
        self.refill
    }

    /// Takes `cost` tokens if they are there; leaves `word` as it is if not. A cost of 0 only looks.
    pub fn take(&self, word: &mut Word, now: Nanos, cost: u64) -> Standing {
        let now_units = self.now_units(now);
        let (new, standing) = self.decide(*word, now_units, cost);
        *word = new;
        standing
    }

    /// The decision for `cost` tokens at `now_units`: the word afterwards and what a caller is told.
    pub fn decide(&self, word: Word, now_units: u64, cost: u64) -> (Word, Standing) {
        let base = word.max(now_units);
        let outcome = if cost > self.capacity {
            Outcome::NeverFits
        } else if base.saturating_add(self.to_units(cost)) - now_units <= self.capacity_units() {
            Outcome::Allowed
        } else {
            Outcome::Denied
        };
        // What is allowed fits into the capacity, so the sum does not saturate.
        let new = if outcome == Outcome::Allowed && cost > 0 { base + self.to_units(cost) } else { word };
        (new, self.standing(new, now_units, cost, outcome))
    }

    /// Takes `tokens` whether they are there or not; the bucket may go into debt, which refill pays back.
    pub fn charge(&self, word: Word, now_units: u64, tokens: u64) -> Word {
        word.max(now_units).saturating_add(self.to_units(tokens))
    }

    /// Gives back `tokens`, never above the capacity: the word afterwards and how many were given back.
    pub fn refund(&self, word: Word, now_units: u64, tokens: u64) -> (Word, u64) {
        let given = tokens.min((word.saturating_sub(now_units)).div_ceil(self.to_units(1)));
        (word.saturating_sub(self.to_units(tokens)).max(now_units.min(word)), given)
    }

    /// Undoes a debit of `tokens` that left the word at `mark`, exactly. Past the mark the bucket may have been full
    /// since, so what was taken may have refilled already: nothing is given back then.
    pub fn release(&self, word: Word, now_units: u64, tokens: u64, mark: Mark) -> Word {
        if now_units < mark.0 && mark.0 <= word { word - self.to_units(tokens).min(word) } else { word }
    }

    /// Whether a bucket in this state behaves like one never used.
    pub const fn is_full(word: Word, now_units: u64) -> bool {
        word <= now_units
    }

    /// The level in units, above zero or, in debt, below.
    pub fn level_units(&self, word: Word, now_units: u64) -> i128 {
        i128::from(self.capacity_units()) - i128::from(word.saturating_sub(now_units))
    }

    /// An instant in units: floor(now x units per nanosecond), exactly, without a division.
    #[expect(clippy::cast_possible_truncation, reason = "at most two units a nanosecond: fits until the year 2262")]
    pub fn now_units(&self, now: Nanos) -> u64 {
        let mut units = ((u128::from(now.0) * u128::from(self.units_per_nano_q63)) >> 63) as u64;
        let exact = u128::from(now.0) * u128::from(self.units_per_period);
        let period = u128::from(self.refill.period().0);
        // The reciprocal is at most 2^-63 too small, so the estimate at most two units.
        while exact - u128::from(units) * period >= period {
            units += 1;
        }
        units
    }

    /// The shortest span in which `units` refill, whatever the fraction at its start.
    pub fn nanos_for(&self, units: u64) -> Nanos {
        let mut nanos = ((u128::from(units) * u128::from(self.nanos_per_unit_q64)) >> 64) as u64;
        let exact = u128::from(units) * u128::from(self.refill.period().0);
        while u128::from(nanos) * u128::from(self.units_per_period) < exact {
            nanos += 1;
        }
        Nanos(nanos)
    }

    /// Tokens as units, saturating.
    pub const fn to_units(&self, tokens: u64) -> u64 {
        if tokens > u64::MAX >> self.shift { u64::MAX } else { tokens << self.shift }
    }

    /// Units as whole tokens, rounded down.
    pub const fn to_tokens(&self, units: u64) -> u64 {
        units >> self.shift
    }

    /// The capacity in units.
    pub const fn capacity_units(&self) -> u64 {
        // Fits: the fill time is at most 30 years and fewer than two units refill in a nanosecond.
        self.capacity << self.shift
    }

    /// What a caller is told about the bucket in the state `word`.
    pub fn standing(&self, word: Word, now_units: u64, cost: u64, outcome: Outcome) -> Standing {
        let used = word.saturating_sub(now_units);
        let level = self.capacity_units().saturating_sub(used);
        let debt = used.saturating_sub(self.capacity_units());
        let retry_after = match outcome {
            Outcome::Denied => self.nanos_for(debt.saturating_add(self.to_units(cost)) - level),
            _ => Nanos::ZERO,
        };
        let token = self.to_units(1);
        Standing {
            outcome,
            limit: self.capacity,
            remaining: self.to_tokens(level),
            retry_after,
            next_unit_in: if used == 0 {
                Nanos::ZERO
            } else {
                self.nanos_for(debt.saturating_add(token - level % token))
            },
            full_in: self.nanos_for(used),
            delay: Nanos::ZERO,
            mark: Mark(word),
        }
    }
}
