//! The exact store of tidegate: limits counted in Redis, to the unit, for any number of processes.
//!
//! All exact limits of a request are decided by one script call, all or nothing, by the server's clock. Calls that would
//! wait for each other travel together. A call has a deadline, a circuit breaker keeps callers off a server that is away, and a debit that was made too
//! late for its caller is given back.

mod batch;
mod breaker;
mod builder;
mod failure;
mod figures;
mod link;
mod log;
mod memory;
mod queue;
mod request;
mod script;
mod stats;
mod store;

pub use builder::{BuildError, RedisStoreBuilder};
pub use stats::Stats;
pub use store::RedisStore;
