//! Calls that wait to be sent. While one script call is under way the next gathers here: that is all the batching there is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::batch::Call;

/// Script calls under way at once: one at the server, one on its way.
const FLIGHTS: usize = 2;
/// Calls that one flight takes along, at most.
const CALLS_PER_FLIGHT: usize = 1_024;
/// Calls that wait, at most; more are refused, so that memory stays flat whatever happens.
const WAITING: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Call>,
    flights: usize,
}

/// What became of a pushed call.
pub(crate) enum Pushed {
    /// A flight under way will take it.
    Waits,
    /// Whoever pushed it has to start a flight.
    StartFlight,
    /// The queue is full.
    Full(Call),
}

impl Queue {
    pub(crate) fn push(&self, call: Call) -> Pushed {
        let mut state = self.lock();
        if state.waiting.len() >= WAITING {
            return Pushed::Full(call);
        }
        state.waiting.push(call);
        state.board()
    }

    /// For when the circuit closes: whether a flight has to be started for what waits.
    pub(crate) fn resume(&self) -> bool {
        let mut state = self.lock();
        !state.waiting.is_empty() && matches!(state.board(), Pushed::StartFlight)
    }

    /// What a flight takes along next; with none the flight is over.
    pub(crate) fn take(&self) -> Option<Vec<Call>> {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            state.flights -= 1;
            return None;
        }
        let count = state.waiting.len().min(CALLS_PER_FLIGHT);
        let rest = state.waiting.split_off(count);
        Some(std::mem::replace(&mut state.waiting, rest))
    }

    /// A flight gives its place to another: it has waited too long.
    pub(crate) fn leave(&self) {
        self.lock().flights -= 1;
    }

    /// Takes out every call for which somebody waits; the others stay until the circuit closes.
    pub(crate) fn drain_waited(&self) -> Vec<Call> {
        let mut state = self.lock();
        let (waited, kept) = std::mem::take(&mut state.waiting).into_iter().partition(|call| call.reply.is_some());
        state.waiting = kept;
        waited
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn board(&mut self) -> Pushed {
        if self.flights >= FLIGHTS {
            return Pushed::Waits;
        }
        self.flights += 1;
        Pushed::StartFlight
    }
}
