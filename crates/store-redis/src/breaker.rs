//! The circuit breaker's state: who may ask, and when asking stops. No clock, no network.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Opens after so many failures in a row; only a probe closes it.
#[derive(Debug)]
pub(crate) struct Breaker {
    open: AtomicBool,
    failures: AtomicU32,
    open_after: u32,
}

impl Breaker {
    pub(crate) fn new(open_after: u32) -> Self {
        Self { open: AtomicBool::new(false), failures: AtomicU32::new(0), open_after: open_after.max(1) }
    }

    pub(crate) fn is_open(&self) -> bool {
        // Acquire: who sees it closed sees the connection that the probe put in place before.
        self.open.load(Ordering::Acquire)
    }

    /// The server answered.
    pub(crate) fn succeeded(&self) {
        // Relaxed: a count that only decides when to stop asking. Read first, so that the line stays shared.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// The server did not answer. Returns whether this failure opened the circuit: probing is then up to the caller.
    pub(crate) fn failed(&self) -> bool {
        // Relaxed: as above.
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        // AcqRel: exactly one caller opens it.
        failures >= self.open_after && !self.open.swap(true, Ordering::AcqRel)
    }

    /// A probe was answered.
    pub(crate) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        // Release: pairs with the load in `is_open`.
        self.open.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_once_after_failures_in_a_row_and_closes_only_by_a_probe() {
        let breaker = Breaker::new(3);
        assert!(!breaker.failed());
        assert!(!breaker.failed());
        breaker.succeeded();
        assert!(!breaker.failed());
        assert!(!breaker.failed());
        assert!(breaker.failed(), "the third in a row opens it");
        assert!(!breaker.failed(), "it is opened once");
        breaker.succeeded();
        assert!(breaker.is_open(), "a late answer does not close it");
        breaker.close();
        assert!(!breaker.is_open());
        assert!(!breaker.failed());
    }
}
