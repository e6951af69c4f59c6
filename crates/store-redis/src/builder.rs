//! How a store is built.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::StoreError;
use tokio::runtime::Handle;

use crate::link::{Connector, Link};
use crate::script::{PRELUDE, Script};
use crate::store::{Inner, RedisStore};

/// A store that cannot be built. Nothing was opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The URL is none, or names something this build does not support. Mend the URL, or turn the feature on.
    #[error("the Redis URL is of no use: {0}")]
    Url(String),
    /// No tokio runtime runs here and none was given: call it inside one, or give [`RedisStoreBuilder::runtime`].
    #[error("no tokio runtime: build the store inside one, or give it a handle")]
    NoRuntime,
    /// [`RedisStore::connect`] found no Redis. Build it with [`RedisStoreBuilder::build`] to start without.
    #[error("Redis does not answer: {0}")]
    Unreachable(StoreError),
}

/// Settings of a [`RedisStore`]; every one has a default.
///
/// ```no_run
/// # async fn example() -> Result<(), tidegate_store_redis::BuildError> {
/// use std::time::Duration;
/// use tidegate_store_redis::RedisStore;
/// let store = RedisStore::builder("redis://127.0.0.1/")
///     .deadline(Duration::from_millis(20))
///     .prefix("limits:")
///     .build()?; // Redis may be away: the first call connects
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisStoreBuilder {
    url: String,
    pub(crate) settings: Settings,
    prelude: String,
    runtime: Option<Handle>,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: String,
    pub(crate) deadline: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) open_after: u32,
    pub(crate) probe_first: Duration,
    pub(crate) probe_most: Duration,
    pub(crate) denial_memory: bool,
}

impl RedisStoreBuilder {
    pub(crate) fn new(url: &str) -> Self {
        let settings = Settings {
            prefix: "ratelimit:".into(),
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(250),
            open_after: 1,
            probe_first: Duration::from_millis(50),
            probe_most: Duration::from_secs(1),
            denial_memory: true,
        };
        Self { url: url.into(), settings, prelude: PRELUDE.into(), runtime: None }
    }

    /// How long a caller waits for an answer, connecting included; the default is 50 ms. Then the limit's fallback decides, and a
    /// debit that Redis turns out to have made is given back.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// What every key begins with; the default is `ratelimit:`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// How long opening a connection may take; the default is 250 ms. A caller waits no longer than its deadline anyway.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Failures in a row that open the circuit; the default is 1, at least 1. A failure is a script call that nobody answered within the
    /// deadline, or a connection that could not be opened. While it is open nobody waits for the network; probes find out
    /// beside the callers when Redis is back.
    #[must_use]
    pub const fn open_after(mut self, failures: u32) -> Self {
        self.settings.open_after = failures;
        self
    }

    /// The pauses between probes: from `first`, doubling, to `most`; the defaults are 50 ms and 1 s. The first probe is sent at once.
    #[must_use]
    pub const fn probe_pauses(mut self, first: Duration, most: Duration) -> Self {
        self.settings.probe_first = first;
        self.settings.probe_most = most;
        self
    }

    /// Whether a request that Redis denied until some instant is denied here until then; the default is yes. Only a refund,
    /// a reset or a changed policy could admit it sooner: those made through this store show at once, other processes' when the memory ends. Turn it off where that
    /// matters.
    #[must_use]
    pub const fn denial_memory(mut self, on: bool) -> Self {
        self.settings.denial_memory = on;
        self
    }

    /// The runtime that the connection lives on; the default is the one that `build` is called in.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Replaces the script's first line, which reads the server's clock, by one that defines `now` in another way.
    #[doc(hidden)]
    #[must_use]
    pub fn prelude_for_tests(mut self, prelude: &str) -> Self {
        self.prelude = prelude.into();
        self
    }

    /// Builds the store. Connects to nothing: the first call does, or [`RedisStore::ready`].
    ///
    /// # Errors
    /// [`BuildError`] when the URL is of no use or no runtime is there.
    pub fn build(self) -> Result<RedisStore, BuildError> {
        let runtime = self.runtime.or_else(|| Handle::try_current().ok()).ok_or(BuildError::NoRuntime)?;
        let connector = Connector::single(&self.url).map_err(|error| BuildError::Url(error.to_string()))?;
        let link = Link::new(connector, self.settings.connect_timeout);
        let script = Script::new(&self.prelude);
        Ok(RedisStore(Arc::new(Inner::new(link, script, self.settings, runtime))))
    }
}
