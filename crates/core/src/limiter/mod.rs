//! The limiter: one decision about all limits of a request, all or nothing.

mod builder;
mod decision;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub use builder::{BuildError, LimiterBuilder};

use crate::policy::Tier;
use crate::{Clock, LimitName, MemoryStore, Policy, RemoteStore, Request, StoreKind, Verdict};
use decision::Decision;

/// Decides about requests under a policy. A clone is another handle to the same limiter.
///
/// In-memory limits (`local`, `mesh`) are decided first and held; the exact ones last, together, in one round trip whose
/// answer commits the holds or releases them. A denied request costs nothing anywhere.
///
/// ```
/// use tidegate_core::{Limiter, Policy, Request};
/// let policy = Policy::from_toml(r#"
///     [limits.requests]
///     key = ["user"]
///     store = "local"
///     capacity = 2
///     refill = "1/h"
/// "#).unwrap();
/// let limiter = Limiter::builder(policy).build().unwrap();
/// let request = Request::new().field("user", "42");
/// assert!(limiter.check_now(&request).unwrap().is_allowed());
/// assert!(limiter.check_now(&request).unwrap().is_allowed());
/// assert!(!limiter.check_now(&request).unwrap().is_allowed());
/// ```
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

struct Inner {
    policy: ArcSwap<Policy>,
    stores: Stores,
    clock: Arc<dyn Clock>,
    reported_tiers: std::sync::Mutex<std::collections::HashSet<String>>,
}

/// The stores of a limiter, one of each kind.
struct Stores {
    local: Arc<dyn MemoryStore>,
    mesh: Option<Arc<dyn MemoryStore>>,
    exact: Option<Arc<dyn RemoteStore>>,
}

/// An exact limit applies, which takes an await: ask with [`Limiter::check`]. Nothing was debited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limit `{limit}` is counted in the exact store: use `check`, which awaits its answer")]
pub struct NeedsAwait {
    /// The first such limit.
    pub limit: LimitName,
}

impl Limiter {
    /// Starts building a limiter for `policy`.
    pub fn builder(policy: Policy) -> LimiterBuilder {
        LimiterBuilder::new(policy)
    }

    /// Decides about `request`. Waits only for the exact store and, when the mesh's credit is short, for one round trip
    /// of the mesh. Never an error: each exact limit has a fallback. Dropped, it costs nothing anywhere.
    pub async fn check(&self, request: &Request<'_>) -> Verdict {
        let policy = self.inner.policy.load_full();
        let tier = self.tier(&policy, request);
        let mut decision = Decision::new(&self.inner, tier, request);
        decision.hold();
        if let Some(waits) = decision.waits_for_credit() {
            for wait in waits {
                wait.await;
            }
            decision = Decision::new(&self.inner, tier, request);
            decision.hold();
        }
        if let Some(call) = decision.exact() {
            let result = call.await;
            decision.answer(result);
        }
        decision.finish()
    }

    /// Decides about `request` at once: no await, no allocation.
    ///
    /// # Errors
    /// [`NeedsAwait`], before any debit, if an exact limit applies.
    pub fn check_now(&self, request: &Request<'_>) -> Result<Verdict, NeedsAwait> {
        let policy = self.inner.policy.load();
        let tier = self.tier(&policy, request);
        let mut decision = Decision::new(&self.inner, tier, request);
        if let Some(limit) = decision.first_exact() {
            return Err(NeedsAwait { limit });
        }
        decision.hold();
        Ok(decision.finish())
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.inner.policy.load_full()
    }

    /// Puts another policy in force, at once for all requests that start from now on. The counts of limits whose figures
    /// did not change live on.
    ///
    /// # Errors
    /// [`BuildError`] if the policy needs a store that this limiter has not; the old policy stays in force then.
    pub fn reload(&self, policy: Policy) -> Result<(), BuildError> {
        builder::check_stores(&policy, &self.inner.stores)?;
        self.inner.policy.store(Arc::new(policy));
        Ok(())
    }

    fn tier<'a>(&self, policy: &'a Policy, request: &Request<'_>) -> &'a Tier {
        policy.tier(request.tier_name()).unwrap_or_else(|strictest| {
            self.report_unknown_tier(request.tier_name().unwrap_or_default());
            strictest
        })
    }

    /// Logs an unknown tier once for each name, for at most 100 names: they may come from outside.
    #[cold]
    fn report_unknown_tier(&self, name: &str) {
        let mut reported = self.inner.reported_tiers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if reported.len() < 100 && reported.insert(name.to_owned()) {
            tracing::warn!(tier = name, "unknown tier: the strictest figures of any tier apply");
        }
    }
}

impl Stores {
    fn memory(&self, kind: StoreKind) -> Option<&Arc<dyn MemoryStore>> {
        match kind {
            StoreKind::Local => Some(&self.local),
            StoreKind::Mesh => self.mesh.as_ref(),
            StoreKind::Exact => None,
        }
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}
