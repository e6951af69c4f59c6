//! A request as the limiter sees it: who, what, and how much.

use smallvec::SmallVec;

/// What is asked for: built on the stack, borrowing everything.
///
/// The limiter takes identity as given: call it after authentication. Field names are those of the policy's `key`
/// lists; `tier`, `route` and `method` may be used as key fields too. The default cost is 1; cost 0 only looks.
///
/// ```
/// use tidegate_core::Request;
/// let request = Request::new().tier("pro").field("user", "42").route("/v1/items").method("GET").cost(3);
/// assert_eq!(request.value("user"), Some("42"));
/// assert_eq!(request.value("route"), Some("/v1/items"));
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    tier: Option<&'a str>,
    fields: SmallVec<[(&'a str, &'a str); 4]>,
    route: Option<&'a str>,
    method: Option<&'a str>,
    cost: u64,
}

impl<'a> Request<'a> {
    /// A request of nobody for one unit.
    pub fn new() -> Self {
        Self { tier: None, fields: SmallVec::new(), route: None, method: None, cost: 1 }
    }

    /// The plan of the caller; without one the policy's `default_tier` holds.
    #[must_use]
    pub fn tier(mut self, tier: &'a str) -> Self {
        self.tier = Some(tier);
        self
    }

    /// Sets the field `name`; a later value for the same name replaces the earlier one.
    #[must_use]
    pub fn field(mut self, name: &'a str, value: &'a str) -> Self {
        match self.fields.iter_mut().find(|(field, _)| *field == name) {
            Some(field) => field.1 = value,
            None => self.fields.push((name, value)),
        }
        self
    }

    /// The route, as a pattern rather than as a path where there is a choice.
    #[must_use]
    pub fn route(mut self, route: &'a str) -> Self {
        self.route = Some(route);
        self
    }

    /// The method.
    #[must_use]
    pub fn method(mut self, method: &'a str) -> Self {
        self.method = Some(method);
        self
    }

    /// Units asked for.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// The tier given.
    pub fn tier_name(&self) -> Option<&'a str> {
        self.tier
    }

    /// The units asked for.
    pub fn units(&self) -> u64 {
        self.cost
    }

    /// The value of a field, of `tier`, `route` or `method`.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        let field = self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| *value);
        field.or(match name {
            "tier" => self.tier,
            "route" => self.route,
            "method" => self.method,
            _ => None,
        })
    }
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self::new()
    }
}
