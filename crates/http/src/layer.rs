//! The layer: what to read from a request, and how to answer.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;
use tidegate_core::{Limiter, Request};
use tower_layer::Layer;

use crate::{Extract, HeaderStyle, RateLimitService};

type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;

/// Limits the requests of a service. Clones, and the services made by them, share one limiter.
///
/// ```
/// use tidegate_core::{Limiter, Policy};
/// use tidegate_http::{HeaderValue, RateLimitLayer};
/// let policy = Policy::from_toml("[limits.requests]\nkey = ['user']\nstore = 'local'\ncapacity = 20\nrefill = '100/min'")?;
/// let layer = RateLimitLayer::new(Limiter::builder(policy).build()?)
///     .field("user", HeaderValue::new(http::HeaderName::from_static("x-user")))
///     .tier(|parts: &http::request::Parts| parts.headers.contains_key("x-paid").then(|| "pro".to_owned()))
///     .cost(|parts| if parts.uri.path() == "/export" { 10 } else { 1 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RateLimitLayer {
    pub(crate) settings: Arc<Settings>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limiter: Limiter,
    pub(crate) style: HeaderStyle,
    pub(crate) observe_only: bool,
    fields: Vec<(Cow<'static, str>, Arc<dyn Extract>)>,
    tier: Option<Arc<dyn Extract>>,
    route: Option<Arc<dyn Extract>>,
    cost: Option<Arc<Cost>>,
}

impl RateLimitLayer {
    /// Asks `limiter` about every request, at a cost of 1, in the default tier, by its path.
    pub fn new(limiter: Limiter) -> Self {
        let settings = Settings {
            limiter,
            style: HeaderStyle::default(),
            observe_only: false,
            fields: Vec::new(),
            tier: None,
            route: None,
            cost: None,
        };
        Self { settings: Arc::new(settings) }
    }

    /// Fills the field `name` of the policy's keys.
    #[must_use]
    pub fn field(self, name: impl Into<Cow<'static, str>>, value: impl Extract) -> Self {
        self.with(|settings| settings.fields.push((name.into(), Arc::new(value))))
    }

    /// The caller's tier; the policy's default where there is none.
    #[must_use]
    pub fn tier(self, tier: impl Extract) -> Self {
        self.with(|settings| settings.tier = Some(Arc::new(tier)))
    }

    /// The route, best as a pattern; the default is the path.
    #[must_use]
    pub fn route(self, route: impl Extract) -> Self {
        self.with(|settings| settings.route = Some(Arc::new(route)))
    }

    /// Units that a request costs: default 1. A cost of 0 only looks.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Which headers tell clients where they stand: default [`HeaderStyle::Separate`].
    #[must_use]
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|settings| settings.style = style)
    }

    /// Counts, logs what would have been refused, and lets everything pass.
    #[must_use]
    pub fn observe_only(self) -> Self {
        self.with(|settings| settings.observe_only = true)
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl Settings {
    /// Reads what the limiter has to know.
    pub(crate) fn read<'a>(&'a self, parts: &'a Parts) -> Question<'a> {
        let read = |extract: &'a Option<Arc<dyn Extract>>| extract.as_ref().and_then(|extract| extract.extract(parts));
        let route = if self.route.is_some() { read(&self.route) } else { Some(Cow::Borrowed(parts.uri.path())) };
        Question {
            tier: read(&self.tier),
            route,
            fields: self.fields.iter().map(|(name, value)| (&**name, value.extract(parts))).collect(),
            method: parts.method.as_str(),
            cost: self.cost.as_ref().map_or(1, |cost| cost(parts)),
        }
    }
}

/// A field's name and its value, where the request has one.
type Field<'a> = (&'a str, Option<Cow<'a, str>>);

/// What was read from a request.
pub(crate) struct Question<'a> {
    tier: Option<Cow<'a, str>>,
    route: Option<Cow<'a, str>>,
    fields: SmallVec<[Field<'a>; 4]>,
    method: &'a str,
    cost: u64,
}

impl Question<'_> {
    pub(crate) fn request(&self) -> Request<'_> {
        let mut request = Request::new().method(self.method).cost(self.cost);
        if let Some(tier) = &self.tier {
            request = request.tier(tier);
        }
        if let Some(route) = &self.route {
            request = request.route(route);
        }
        for (name, value) in &self.fields {
            if let Some(value) = value {
                request = request.field(name, value);
            }
        }
        request
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimitService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, settings: Arc::clone(&self.settings) }
    }
}

impl std::fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitLayer").field("style", &self.settings.style).finish_non_exhaustive()
    }
}
