//! The tower layer of tidegate: it asks the limiter about every request, answers refusals itself, and tells clients where they stand.
//!
//! A refusal is 429 with `Retry-After` and a problem document (RFC 9457); a cost above the capacity is 413, a blocked caller 403, a
//! store that is away behind the fallback `deny` 503. Put the layer after authentication, inside the CORS layer.

mod body;
mod client_ip;
mod extract;
mod future;
mod headers;
mod layer;
mod problem;
mod service;

pub use body::LimitBody;
pub use client_ip::{ClientIp, PrefixError, TrustedProxies};
pub use extract::{Extract, HeaderValue};
pub use future::ResponseFuture;
pub use headers::{EXPOSED_HEADERS, HeaderStyle};
pub use layer::RateLimitLayer;
pub use service::RateLimitService;
