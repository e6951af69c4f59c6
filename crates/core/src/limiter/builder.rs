//! Puts a limiter together.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{Inner, Limiter, Stores};
use crate::{Clock, LimitName, LocalStore, MemoryStore, Policy, RemoteStore, StoreKind, SystemClock};

/// Builds a [`Limiter`]: give it the stores that the policy names, then [`build`](Self::build).
pub struct LimiterBuilder {
    policy: Policy,
    max_keys: usize,
    mesh: Option<Arc<dyn MemoryStore>>,
    exact: Option<Arc<dyn RemoteStore>>,
    clock: Option<Arc<dyn Clock>>,
}

/// A limiter could not be built. Nothing was started; give the store, or change the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A limit is counted in a store that was not given.
    #[error("the limit `{limit}` is counted in the store `{}`, which was not given: add `.{}(..)` to the builder", store.as_str(), store.as_str())]
    StoreMissing {
        /// The first such limit.
        limit: LimitName,
        /// The store it needs.
        store: StoreKind,
    },
}

impl LimiterBuilder {
    pub(super) fn new(policy: Policy) -> Self {
        Self { policy, max_keys: 1_000_000, mesh: None, exact: None, clock: None }
    }

    /// The store for `exact` limits.
    #[must_use]
    pub fn exact(mut self, store: impl RemoteStore) -> Self {
        self.exact = Some(Arc::new(store));
        self
    }

    /// The store for `mesh` limits.
    #[must_use]
    pub fn mesh(mut self, store: impl MemoryStore) -> Self {
        self.mesh = Some(Arc::new(store));
        self
    }

    /// The most buckets that the local store holds: default 1,000,000.
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// The clock: default [`SystemClock`]. A mesh has to be given the same one.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// [`BuildError`] names the first limit whose store was not given.
    pub fn build(self) -> Result<Limiter, BuildError> {
        let stores = Stores { local: Arc::new(LocalStore::new(self.max_keys)), mesh: self.mesh, exact: self.exact };
        check_stores(&self.policy, &stores)?;
        let inner = Inner {
            policy: ArcSwap::from_pointee(self.policy),
            stores,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
            reported_tiers: std::sync::Mutex::default(),
        };
        Ok(Limiter { inner: Arc::new(inner) })
    }
}

pub(super) fn check_stores(policy: &Policy, stores: &Stores) -> Result<(), BuildError> {
    let given = [(StoreKind::Mesh, stores.mesh.is_some()), (StoreKind::Exact, stores.exact.is_some())];
    for (store, given) in given {
        if let (false, Some(limit)) = (given, policy.needs(store)) {
            return Err(BuildError::StoreMissing { limit: limit.name(), store });
        }
    }
    for limit in policy.all_limits() {
        if let Some(memory) = stores.memory(limit.store()) {
            memory.register(limit);
        }
    }
    Ok(())
}
