//! Warnings that a peer can cause, at most one a second each.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// One kind of warning: says when it may be written, and how many were left out since.
#[derive(Debug, Default)]
pub(crate) struct Complaint(Mutex<(Option<Instant>, u64)>);

impl Complaint {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new((None, 0)))
    }

    /// `Some(left out)` when a warning may be written now; the occurrence is counted otherwise.
    pub(crate) fn due(&self) -> Option<u64> {
        let mut state = super::lock(&self.0);
        let now = Instant::now();
        if state.0.is_some_and(|last| now.duration_since(last) < Duration::from_secs(1)) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_a_second_and_the_rest_counted() {
        let complaint = Complaint::new();
        assert_eq!(complaint.due(), Some(0));
        assert_eq!((complaint.due(), complaint.due()), (None, None));
        tokio::time::advance(Duration::from_millis(1_001)).await;
        assert_eq!(complaint.due(), Some(2));
    }
}
