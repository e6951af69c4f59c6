//! What the store counts about itself.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the store was built; exact.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests asked of the store.
    requests,
    /// Script calls sent to Redis, one for each that travelled alone or together.
    commands,
    /// Requests that travelled in a script call with others for the same buckets.
    coalesced,
    /// Requests denied from memory: Redis had said until when they would be.
    denied_from_memory,
    /// Requests whose deadline passed.
    timeouts,
    /// Requests that were not sent because the circuit was open.
    not_sent,
    /// Requests that failed because the connection did.
    unavailable,
    /// Requests that Redis refused with an error somebody has to mend.
    refused,
    /// Debits given back: they were allowed when nobody waited for the answer any more.
    given_back,
    /// How often the circuit opened.
    opened,
    /// How often a probe closed it.
    closed,
    /// Probes sent while it was open.
    probes,
    /// How often the server did not know the script and was sent it.
    scripts_sent,
}

/// A count. Relaxed throughout: it orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}
