//! Time as an argument: [`Nanos`], and the [`Clock`] that reads it at the edge.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds: a span, or an instant counted from the Unix epoch.
///
/// All arithmetic saturates, so that a clock gone backwards or a figure too large never wraps.
/// A `u64` of nanoseconds lasts until the year 2554.
///
/// ```
/// use tidegate_core::Nanos;
/// assert_eq!(Nanos::from_secs(1) - Nanos::from_secs(2), Nanos::ZERO);
/// assert_eq!(Nanos::from_millis(1_500).as_secs_ceil(), 2);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span; as an instant, never.
    pub const MAX: Self = Self(u64::MAX);

    /// So many microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// So many seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Whole seconds, rounded up: what `Retry-After` says.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Whole milliseconds, rounded up.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whole microseconds, rounded up.
    pub const fn as_micros_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Seconds as a float, for reports only.
    #[expect(clippy::cast_precision_loss, reason = "reports only")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from_nanos(self.0), f)
    }
}

/// Where a limiter reads the time, once per decision.
///
/// Two time lines, because they promise different things: [`now`](Clock::now) never steps and is what buckets
/// refill by; [`wall`](Clock::wall) follows the calendar and is what fixed windows are aligned to.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time, whose rate is right and which never goes back. Its origin is the clock's own choice.
    fn now(&self) -> Nanos;

    /// Time since the Unix epoch as the system knows it; it may step. The default is [`now`](Clock::now).
    fn wall(&self) -> Nanos {
        self.now()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Nanos {
        (**self).now()
    }

    fn wall(&self) -> Nanos {
        (**self).wall()
    }
}

/// The machine's clock: monotonic time by the processor's counter (14 ns a read instead of 35, measured); wall time by
/// the system. The monotonic time starts at the wall clock's time of the first use, and is the same for all in a process.
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    start: quanta::Instant,
    origin: Nanos,
}

impl SystemClock {
    /// The process's clock.
    pub fn new() -> Self {
        static CLOCK: LazyLock<SystemClock> = LazyLock::new(|| {
            let counter = quanta::Clock::new();
            SystemClock { start: counter.now(), origin: system_time(), counter }
        });
        CLOCK.clone()
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        let elapsed = self.counter.now().saturating_duration_since(self.start);
        self.origin + Nanos::from(elapsed)
    }

    fn wall(&self) -> Nanos {
        system_time()
    }
}

fn system_time() -> Nanos {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(Nanos::ZERO, Nanos::from)
}

/// A clock that moves only when told to: for tests, one's own and one's users'.
///
/// ```
/// use tidegate_core::{Clock, ManualClock, Nanos};
/// let clock = ManualClock::new(Nanos::from_secs(5));
/// clock.advance(Nanos::from_millis(1));
/// assert_eq!(clock.now(), Nanos::from_millis(5_001));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(std::sync::atomic::AtomicU64);

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Nanos) -> Self {
        Self(start.0.into())
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Nanos) {
        // Relaxed: the clock orders nothing but itself.
        self.0.fetch_add(by.0, std::sync::atomic::Ordering::Relaxed);
    }

    /// Sets the clock, backwards too.
    pub fn set(&self, to: Nanos) {
        // Relaxed: as above.
        self.0.store(to.0, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        // Relaxed: as above.
        Nanos(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }
}
