//! Warnings that an outage must not turn into a flood.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lets one message through in each interval and counts the others.
#[derive(Debug)]
pub(crate) struct Gate {
    start: Instant,
    interval: Duration,
    /// Nanoseconds after `start` at which the next may pass.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Gate {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { start: Instant::now(), interval, next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// How many were kept back since the last that passed; `None` if this one is kept back too.
    pub(crate) fn pass(&self, now: Instant) -> Option<u64> {
        let elapsed = nanos(now.saturating_duration_since(self.start));
        let next = self.next.load(Ordering::Relaxed);
        let wins = || {
            let after = elapsed.saturating_add(nanos(self.interval));
            // Relaxed: a message more or less at an interval's edge harms nobody.
            self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if elapsed >= next && wins() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_passes_in_each_interval_and_the_others_are_counted() {
        let gate = Gate::new(Duration::from_secs(10));
        let start = gate.start;
        assert_eq!(gate.pass(start), Some(0));
        for second in 1..10 {
            assert_eq!(gate.pass(start + Duration::from_secs(second)), None);
        }
        assert_eq!(gate.pass(start + Duration::from_secs(10)), Some(9));
        assert_eq!(gate.pass(start + Duration::from_secs(11)), None);
    }
}
