//! The RateLimit headers: pure functions of a verdict.

use std::fmt::Write;

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Fallback, LimitVerdict, Nanos, Verdict};

/// What a CORS layer has to expose, so that scripts in browsers can read it.
pub const EXPOSED_HEADERS: [HeaderName; 5] = [
    http::header::RETRY_AFTER,
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("ratelimit-policy"),
];

/// Which headers tell a client where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` (seconds from now) and `-Policy`: the default.
    #[default]
    Separate,
    /// None but `Retry-After`.
    None,
}

/// Writes the headers of `style`, in place of any that are there.
pub(crate) fn write(headers: &mut HeaderMap, verdict: &Verdict, style: HeaderStyle) {
    let Some(binding) = verdict.binding().filter(|limit| limit.standing.limit > 0) else { return };
    if style == HeaderStyle::None {
        return;
    }
    let [_, limit, remaining, reset, policy] = EXPOSED_HEADERS;
    let standing = &binding.standing;
    headers.insert(limit, standing.limit.into());
    if binding.fallback == Some(Fallback::Allow) {
        headers.remove(remaining);
    } else {
        headers.insert(remaining, standing.remaining.into());
    }
    let wait = verdict.retry_after().unwrap_or(standing.full_in);
    headers.insert(reset, wait.as_secs_ceil().into());
    if let Ok(value) = HeaderValue::try_from(policies(verdict.limits())) {
        headers.insert(policy, value);
    }
}

/// Seconds that a refused client has to wait: rounded up, at least 1.
pub(crate) fn retry_after(verdict: &Verdict) -> Option<u64> {
    verdict.retry_after().map(|wait| wait.as_secs_ceil().max(1))
}

/// Every finite limit: `quota;w=seconds;name="…"`.
fn policies(limits: &[LimitVerdict]) -> String {
    let mut text = String::new();
    for limit in limits.iter().filter(|limit| limit.standing.limit > 0 && limit.window > Nanos::ZERO) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let name = limit.name.as_str().replace(['"', '\\'], "");
        let window = limit.window.as_secs_ceil();
        // Writing to a String cannot fail.
        let _ = write!(text, "{};w={window};name=\"{name}\"", limit.standing.limit);
    }
    text
}
