//! A rate with its unit written out, so that `per_second(20)` cannot be read as its inverse.

use std::fmt;
use std::str::FromStr;

use crate::Nanos;
use crate::algorithm::FiguresError;

/// The shortest period of a rate and the shortest window: 1 ms.
pub const MIN_PERIOD: Nanos = Nanos::from_millis(1);
/// The longest period of a rate and the longest window: 366 days.
pub const MAX_PERIOD: Nanos = Nanos::from_secs(366 * 86_400);

/// So many units in each period: an integer ratio, never rounded.
///
/// Units are at least 1 and at most 10^9 for each second of the period; the period is between 1 ms and 366 days.
///
/// ```
/// use tidegate_core::Rate;
/// let rate: Rate = "2_000/min".parse().unwrap();
/// assert_eq!(rate, Rate::per_minute(2_000).unwrap());
/// assert_eq!("5/15min".parse::<Rate>().unwrap().to_string(), "5/15min");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    units: u64,
    period: Nanos,
}

impl Rate {
    /// `units` in each `period`.
    ///
    /// # Errors
    /// [`FiguresError`] when a figure is zero or out of range. Nothing was built; mend the figure.
    pub fn new(units: u64, period: Nanos) -> Result<Self, FiguresError> {
        if units == 0 {
            return Err(FiguresError::ZeroRate);
        }
        if period < MIN_PERIOD || period > MAX_PERIOD {
            return Err(FiguresError::Period { period });
        }
        if units > period.0 {
            return Err(FiguresError::RateTooHigh { units, period });
        }
        Ok(Self { units, period })
    }

    /// `units` in each second.
    ///
    /// # Errors
    /// As [`Rate::new`].
    pub fn per_second(units: u64) -> Result<Self, FiguresError> {
        Self::new(units, Nanos::from_secs(1))
    }

    /// `units` in each minute.
    ///
    /// # Errors
    /// As [`Rate::new`].
    pub fn per_minute(units: u64) -> Result<Self, FiguresError> {
        Self::new(units, Nanos::from_secs(60))
    }

    /// `units` in each hour.
    ///
    /// # Errors
    /// As [`Rate::new`].
    pub fn per_hour(units: u64) -> Result<Self, FiguresError> {
        Self::new(units, Nanos::from_secs(3_600))
    }

    /// Units in each period.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The period.
    pub const fn period(self) -> Nanos {
        self.period
    }

    /// Orders by units per time, exactly.
    pub fn cmp_speed(&self, other: &Self) -> std::cmp::Ordering {
        let left = u128::from(self.units) * u128::from(other.period.0);
        let right = u128::from(other.units) * u128::from(self.period.0);
        left.cmp(&right)
    }

    /// Units per second as a float, for reports only.
    #[expect(clippy::cast_precision_loss, reason = "reports only")]
    pub fn per_second_f64(self) -> f64 {
        self.units as f64 / self.period.as_secs_f64()
    }
}

impl FromStr for Rate {
    type Err = FiguresError;

    /// Reads `units/period`: `100/s`, `2_000/min`, `5/15min`, `1/366d`.
    fn from_str(text: &str) -> Result<Self, FiguresError> {
        let wrong = || FiguresError::RateSyntax { text: text.to_owned() };
        let (units, period) = text.split_once('/').ok_or_else(wrong)?;
        let units = parse_integer(units.trim()).ok_or_else(wrong)?;
        let period = period.trim();
        let period =
            if period.starts_with(|c: char| c.is_ascii_digit()) { parse_span(period) } else { unit_span(period) };
        Self::new(units, period.ok_or_else(wrong)?)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = span_parts(self.period);
        if count == 1 { write!(f, "{}/{unit}", self.units) } else { write!(f, "{}/{count}{unit}", self.units) }
    }
}

const SPANS: [(&str, u64); 6] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];

/// Reads a span such as `15min`, `250ms`, `10s`, `1h`, `30d`. `None` where it is none or overflows.
pub(crate) fn parse_span(text: &str) -> Option<Nanos> {
    let text = text.trim();
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '_')?;
    let count = parse_integer(&text[..unit])?;
    let span = unit_span(text[unit..].trim())?;
    count.checked_mul(span.0).map(Nanos)
}

fn span_parts(span: Nanos) -> (u64, &'static str) {
    let fits = SPANS.iter().find(|(_, size)| span.0 >= *size && span.0.is_multiple_of(*size));
    fits.map_or((span.0, "ns"), |(unit, size)| (span.0 / size, unit))
}

fn unit_span(unit: &str) -> Option<Nanos> {
    let canonical = match unit {
        "sec" | "second" | "seconds" => "s",
        "m" | "minute" | "minutes" => "min",
        "hour" | "hours" => "h",
        "day" | "days" => "d",
        other => other,
    };
    SPANS.iter().find(|(name, _)| *name == canonical).map(|(_, size)| Nanos(*size))
}

fn parse_integer(text: &str) -> Option<u64> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_rates() {
        for (text, units, period) in [
            ("100/s", 100, Nanos::from_secs(1)),
            ("2_000/min", 2_000, Nanos::from_secs(60)),
            ("5/15min", 5, Nanos::from_secs(900)),
            ("1/366d", 1, MAX_PERIOD),
            ("7/250ms", 7, Nanos::from_millis(250)),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.units(), rate.period()), (units, period), "{text}");
            assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }
    }

    #[test]
    fn refuses_what_is_no_rate() {
        for text in ["", "100", "/s", "100/", "0/s", "-1/s", "1.5/s", "100/fortnight", "1/367d", "1/0s", "2000000000/s"]
        {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
