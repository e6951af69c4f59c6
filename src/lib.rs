//! A rate limiter for fleets: each limit says where it is counted.
//!
//! * `local`: in this process.
//! * `exact`: in Redis, one atomic round trip (feature `redis`).
//! * `mesh`: on the fleet itself, without Redis, decided in memory with a bounded overshoot (feature `mesh`).
//!
//! ```
//! use tidegate::{Limiter, Policy, Request};
//! let policy = Policy::from_toml(r#"
//!     [limits.requests]
//!     key = ["user"]
//!     store = "local"
//!     capacity = 20
//!     refill = "100/min"
//! "#)?;
//! let limiter = Limiter::builder(policy).build()?;
//! let verdict = limiter.check_now(&Request::new().field("user", "42"))?;
//! assert!(verdict.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use tidegate_core::*;

#[cfg(feature = "http")]
pub use tidegate_http as http;
#[cfg(feature = "mesh")]
pub use tidegate_store_mesh as mesh;
#[cfg(feature = "redis")]
pub use tidegate_store_redis as redis;

/// The README's example compiles.
#[cfg(all(doctest, feature = "mesh", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
