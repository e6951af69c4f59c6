//! Answers to refused requests.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use tidegate_core::{Outcome, Reason, Verdict};

use crate::headers::{self, HeaderStyle};

/// What the client of a refused request is told: status, code, title, and the type of the problem where one is registered.
struct Kind {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    uri: &'static str,
}

const RATE_LIMITED: Kind = Kind {
    status: StatusCode::TOO_MANY_REQUESTS,
    code: "rate_limited",
    title: "The quota is used up: retry later",
    uri: "https://iana.org/assignments/http-problem-types#quota-exceeded",
};
const UNAVAILABLE: Kind = Kind {
    status: StatusCode::SERVICE_UNAVAILABLE,
    code: "limiter_unavailable",
    title: "The rate limiter cannot decide right now: retry later",
    uri: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
};
const COST_EXCEEDS_LIMIT: Kind = Kind {
    status: StatusCode::PAYLOAD_TOO_LARGE,
    code: "cost_exceeds_limit",
    title: "The request costs more than the limit ever allows",
    uri: "about:blank",
};
const BLOCKED: Kind =
    Kind { status: StatusCode::FORBIDDEN, code: "blocked", title: "The caller is blocked", uri: "about:blank" };
const IDENTITY_MISSING: Kind = Kind {
    status: StatusCode::FORBIDDEN,
    code: "identity_missing",
    title: "The request does not say who asks",
    uri: "about:blank",
};

fn kind(verdict: &Verdict) -> (Kind, Option<u64>) {
    let missing = verdict.binding().is_some_and(|limit| limit.reason == Reason::Missing);
    match verdict.outcome() {
        Outcome::NeverFits => (COST_EXCEEDS_LIMIT, None),
        Outcome::Blocked => (BLOCKED, None),
        Outcome::Allowed | Outcome::Denied if missing => (IDENTITY_MISSING, None),
        Outcome::Allowed | Outcome::Denied => {
            let kind = if verdict.is_unavailable() { UNAVAILABLE } else { RATE_LIMITED };
            (kind, headers::retry_after(verdict))
        }
    }
}

/// The whole answer to a request that `verdict` refused.
pub(crate) fn response(verdict: &Verdict, style: HeaderStyle) -> Response<Bytes> {
    let (kind, retry_after) = kind(verdict);
    let violated: Vec<&str> =
        verdict.limits().iter().filter(|limit| limit.refuses()).map(|limit| limit.name.as_str()).collect();
    let mut document = serde_json::json!({
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status.as_u16(),
        "code": kind.code,
        "violated-policies": violated,
    });
    if let Some(seconds) = retry_after {
        document["retry_after"] = seconds.into();
    }
    let mut response = Response::new(Bytes::from(document.to_string()));
    *response.status_mut() = kind.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    headers::write(headers, verdict, style);
    response
}
