//! Which requests a limit applies to: route pattern, method, exemptions.

use crate::Request;

/// The requests that a limit applies to. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) route: Option<RoutePattern>,
    pub(super) method: Option<Box<str>>,
    /// Field and value pairs whose bearers are exempt.
    pub(super) exempt: Vec<(Box<str>, Vec<Box<str>>)>,
}

impl Scope {
    pub(super) fn covers(&self, request: &Request<'_>) -> bool {
        let route = |pattern: &RoutePattern| request.value("route").is_some_and(|route| pattern.matches(route));
        let method = |wanted: &str| request.value("method").is_some_and(|method| method.eq_ignore_ascii_case(wanted));
        self.route.as_ref().is_none_or(route)
            && self.method.as_deref().is_none_or(method)
            && !self.exempt.iter().any(|(field, values)| {
                request.value(field).is_some_and(|value| values.iter().any(|exempt| &**exempt == value))
            })
    }
}

/// A route pattern: literal segments, `{name}` for one segment, `*` as the last segment for any rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RoutePattern(Box<str>);

impl RoutePattern {
    pub(super) fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    fn matches(&self, route: &str) -> bool {
        let mut actual = route.split('/');
        let mut wanted = self.0.split('/').peekable();
        while let Some(segment) = wanted.next() {
            if segment == "*" && wanted.peek().is_none() {
                return true;
            }
            let Some(found) = actual.next() else { return false };
            let is_parameter = segment.starts_with('{') && segment.ends_with('}');
            if segment != found && (!is_parameter || found.is_empty()) {
                return false;
            }
        }
        actual.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_patterns() {
        for (pattern, route, expected) in [
            ("/login", "/login", true),
            ("/login", "/login/x", false),
            ("/v1/{id}", "/v1/42", true),
            ("/v1/{id}", "/v1/", false),
            ("/v1/{id}", "/v1/42/parts", false),
            ("/v1/*", "/v1/42/parts", true),
            ("/v1/*", "/v2/42", false),
            ("*", "/anything", true),
            ("/v1/{id}/parts", "/v1/{id}/parts", true),
        ] {
            assert_eq!(RoutePattern::new(pattern).matches(route), expected, "{pattern} on {route}");
        }
    }
}
