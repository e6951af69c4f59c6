//! What the layer reads from a request: identity, tier, route.

use std::borrow::Cow;

use http::HeaderName;
use http::request::Parts;

/// Reads a value from the head of a request. A closure `Fn(&Parts) -> Option<String>` is one.
///
/// ```
/// use tidegate_http::Extract;
/// let tenant = |parts: &http::request::Parts| parts.uri.host().map(str::to_owned);
/// let (parts, ()) = http::Request::get("http://acme.example/").body(()).unwrap().into_parts();
/// assert_eq!(tenant.extract(&parts).as_deref(), Some("acme.example"));
/// ```
pub trait Extract: Send + Sync + 'static {
    /// The value; `None` where the request has none: then the limit's `on_missing` decides.
    fn extract<'a>(&'a self, parts: &'a Parts) -> Option<Cow<'a, str>>;
}

impl<F> Extract for F
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    fn extract<'a>(&'a self, parts: &'a Parts) -> Option<Cow<'a, str>> {
        self(parts).map(Cow::Owned)
    }
}

/// The value of a header. Only for headers that a client cannot set at will: an API key that was checked, or what a gateway adds.
///
/// ```
/// use tidegate_http::{Extract, HeaderValue};
/// let user = HeaderValue::new(http::HeaderName::from_static("x-user"));
/// let (parts, ()) = http::Request::get("/").header("x-user", "42").body(()).unwrap().into_parts();
/// assert_eq!(user.extract(&parts).as_deref(), Some("42"));
/// ```
#[derive(Clone, Debug)]
pub struct HeaderValue(HeaderName);

impl HeaderValue {
    /// The header `name`.
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }
}

impl Extract for HeaderValue {
    fn extract<'a>(&'a self, parts: &'a Parts) -> Option<Cow<'a, str>> {
        parts.headers.get(&self.0)?.to_str().ok().map(Cow::Borrowed)
    }
}
