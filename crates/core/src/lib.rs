//! The algorithms, the policy, the local store and the limiter of tidegate. No network, no async runtime.

pub mod algorithm;
mod key;
mod limit;
mod limiter;
mod local;
mod policy;
mod rate;
mod request;
mod store;
mod time;
mod verdict;

pub use algorithm::{Outcome, Standing};
pub use key::{KeySecret, Rule};
pub use limit::{Fallback, Figures, Limit, LimitName, LimitParts, MeshFigures, OnMissing};
pub use limiter::{BuildError, Limiter, LimiterBuilder, NeedsAwait};
pub use local::LocalStore;
pub use policy::{Code, Policy, PolicyError, Problem};
pub use rate::{MAX_PERIOD, MIN_PERIOD, Rate};
pub use request::Request;
pub use store::{Answer, Answers, BoxFuture, MemoryStore, Operation, Reason, RemoteStore, StoreError, StoreKind};
pub use time::{Clock, ManualClock, Nanos, SystemClock};
pub use verdict::{LimitVerdict, Verdict};
