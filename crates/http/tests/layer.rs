//! What a client sees through the layer.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate_core::{Answers, Limiter, LimiterBuilder, Policy};
use tidegate_core::{BoxFuture, Operation, RemoteStore, Rule, StoreError};
use tidegate_http::{HeaderValue, LimitBody, RateLimitLayer};
use tower::{Layer, Service, ServiceExt};

const POLICY: &str = "
[limits.requests]
key = ['user']
store = 'local'
capacity = 2
refill = '2/h'
on_missing = 'deny'
";

/// A Redis that is away.
struct Away;

impl RemoteStore for Away {
    fn apply(&self, _: Operation, _: &[Rule<'_>]) -> BoxFuture<Result<Answers, StoreError>> {
        Box::pin(async { Err(StoreError::Open) })
    }
}

fn layer(policy: &str, stores: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> RateLimitLayer {
    let limiter = stores(Limiter::builder(Policy::from_toml(policy).unwrap())).build().unwrap();
    RateLimitLayer::new(limiter)
        .field("user", HeaderValue::new(http::HeaderName::from_static("x-user")))
        .cost(|parts| if parts.uri.path() == "/dear" { 3 } else { 1 })
}

async fn get(layer: &RateLimitLayer, user: &str, path: &str) -> Response<LimitBody<Full<Bytes>>> {
    let inner = tower::service_fn(|_: Request<()>| async {
        let response = Response::builder().header("ratelimit-limit", "999");
        Ok::<_, Infallible>(response.body(Full::new(Bytes::from_static(b"hello"))).unwrap())
    });
    let mut request = Request::get(path);
    if !user.is_empty() {
        request = request.header("x-user", user);
    }
    let mut service = layer.layer(inner);
    service.ready().await.unwrap().call(request.body(()).unwrap()).await.unwrap()
}

fn header<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    let all: Vec<_> = response.headers().get_all(name).iter().collect();
    assert!(all.len() <= 1, "{name} is doubled");
    all.first().map(|value| value.to_str().unwrap())
}

async fn problem(response: Response<LimitBody<Full<Bytes>>>) -> serde_json::Value {
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
    assert_eq!(header(&response, "cache-control"), Some("no-store"));
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

#[tokio::test]
async fn s8_s37_every_response_says_where_the_client_stands_and_clones_share_one_limiter() {
    let layer = layer(POLICY, |builder| builder);
    for remaining in ["1", "0"] {
        let response = get(&layer.clone(), "a", "/").await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "ratelimit-limit"), Some("2"), "the service's own is replaced");
        assert_eq!(header(&response, "ratelimit-remaining"), Some(remaining));
        assert_eq!(header(&response, "ratelimit-policy"), Some("2;w=3600;name=\"requests\""));
        assert_eq!(header(&response, "retry-after"), None);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    }
    let response = get(&layer, "a", "/").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&response, "ratelimit-remaining"), Some("0"));
    assert_eq!(header(&response, "retry-after"), header(&response, "ratelimit-reset"));
    let wait: u64 = header(&response, "retry-after").unwrap().parse().unwrap();
    assert!((1..=1_800).contains(&wait), "{wait}");
    let body = problem(response).await;
    assert_eq!((&body["status"], &body["code"]), (&429.into(), &"rate_limited".into()));
    assert_eq!(body["violated-policies"], serde_json::json!(["requests"]));
    assert_eq!(body["retry_after"], wait);
    assert_eq!(get(&layer, "b", "/").await.status(), StatusCode::OK, "another user has a bucket of their own");
}

#[tokio::test]
async fn a_cost_above_the_capacity_never_fits() {
    let response = get(&layer(POLICY, |builder| builder), "a", "/dear").await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(header(&response, "retry-after"), None);
    assert_eq!(problem(response).await["code"], "cost_exceeds_limit");
}

#[tokio::test]
async fn a_request_of_nobody_is_denied_where_the_policy_says_so() {
    let response = get(&layer(POLICY, |builder| builder), "", "/").await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(problem(response).await["code"], "identity_missing");
}

#[tokio::test]
async fn a_store_that_is_away_is_not_the_clients_fault() {
    let exact = |fallback: &str| {
        let policy = POLICY.replace("'local'", &format!("'exact'\nfallback = '{fallback}'"));
        layer(&policy, |builder| builder.exact(Away))
    };
    let response = get(&exact("deny"), "a", "/").await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&response, "retry-after"), Some("1"));
    assert_eq!(problem(response).await["code"], "limiter_unavailable");
    let response = get(&exact("allow"), "a", "/").await;
    assert_eq!((response.status(), header(&response, "ratelimit-remaining")), (StatusCode::OK, None));
}

#[tokio::test]
async fn observing_refuses_nothing() {
    let layer = layer(POLICY, |builder| builder).observe_only();
    for _ in 0..5 {
        assert_eq!(get(&layer, "a", "/").await.status(), StatusCode::OK);
    }
}
