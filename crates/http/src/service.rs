//! The service: asks at once where it can, and waits only for Redis or for the mesh's credit.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, header};
use tidegate_core::{Reason, Verdict};
use tower_service::Service;

use crate::future::ResponseFuture;
use crate::layer::Settings;
use crate::{LimitBody, problem};

/// A service whose requests are limited. A clone shares the limiter.
#[derive(Clone)]
pub struct RateLimitService<S> {
    pub(crate) inner: S,
    pub(crate) settings: Arc<Settings>,
}

impl<S, B, R> Service<Request<B>> for RateLimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    B: Send + 'static,
{
    type Response = Response<LimitBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let settings = &self.settings;
        if is_preflight(&request) {
            return ResponseFuture::passing(self.inner.call(request), None);
        }
        let (parts, body) = request.into_parts();
        let asked = settings.limiter.check_now(&settings.read(&parts).request()).ok();
        match asked.filter(|verdict| !waits_for_credit(verdict)) {
            Some(verdict) if passes(settings, &verdict) => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::passing(self.inner.call(request), Some((verdict, settings.style)))
            }
            Some(verdict) => ResponseFuture::refused(problem::response(&verdict, settings.style)),
            None => {
                // The service that was polled ready is the one to call; its clone stays for the next request.
                let next = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, next);
                ResponseFuture::asking(Arc::clone(settings), Request::from_parts(parts, body), ready)
            }
        }
    }
}

/// Whether the request goes on to the service.
pub(crate) fn passes(settings: &Settings, verdict: &Verdict) -> bool {
    if !verdict.is_allowed() && settings.observe_only {
        let limit = verdict.binding().map(|limit| limit.name.as_str());
        tracing::info!(limit, outcome = %verdict.outcome(), "observe only: this request would have been refused");
        return true;
    }
    verdict.is_allowed()
}

/// Whether the mesh denied for want of credit, which one round trip frees: worth a wait.
fn waits_for_credit(verdict: &Verdict) -> bool {
    !verdict.is_allowed() && verdict.limits().iter().any(|limit| limit.refuses() && limit.reason == Reason::Credit)
}

/// A CORS preflight costs nothing: the browser asks, not the user.
fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

impl<S: std::fmt::Debug> std::fmt::Debug for RateLimitService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
