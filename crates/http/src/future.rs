//! The future of a response.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use tidegate_core::Verdict;
use tower_service::Service;

use crate::layer::Settings;
use crate::{HeaderStyle, LimitBody, headers, problem, service};

/// The verdict, and the request to go on with.
type Asked<B> = Pin<Box<dyn Future<Output = (Verdict, Request<B>)> + Send>>;

pin_project_lite::pin_project! {
    /// Completes with the service's response and the headers, or with the layer's refusal.
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S::Future, S, B>,
    }
}

pin_project_lite::pin_project! {
    #[project = Projected]
    enum State<F, S, B> {
        Passing { #[pin] future: F, told: Option<(Verdict, HeaderStyle)> },
        Refused { response: Response<Bytes> },
        Asking { asked: Asked<B>, settings: Arc<Settings>, service: S },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(crate) fn passing(future: S::Future, told: Option<(Verdict, HeaderStyle)>) -> Self {
        Self { state: State::Passing { future, told } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { state: State::Refused { response } }
    }

    pub(crate) fn asking(settings: Arc<Settings>, request: Request<B>, service: S) -> Self
    where
        B: Send + 'static,
    {
        let asked = Box::pin(ask(Arc::clone(&settings), request));
        Self { state: State::Asking { asked, settings, service } }
    }
}

async fn ask<B>(settings: Arc<Settings>, request: Request<B>) -> (Verdict, Request<B>) {
    let (parts, body) = request.into_parts();
    let question = settings.read(&parts);
    let verdict = settings.limiter.check(&question.request()).await;
    drop(question);
    (verdict, Request::from_parts(parts, body))
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<LimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projected::Passing { future, told } => {
                    let mut response = ready!(future.poll(cx))?.map(|body| LimitBody::Inner { body });
                    if let Some((verdict, style)) = told {
                        headers::write(response.headers_mut(), verdict, *style);
                    }
                    return Poll::Ready(Ok(response));
                }
                Projected::Refused { response } => {
                    return Poll::Ready(Ok(std::mem::take(response).map(LimitBody::own)));
                }
                Projected::Asking { asked, settings, service } => {
                    let (verdict, request) = ready!(asked.as_mut().poll(cx));
                    if service::passes(settings, &verdict) {
                        let told = Some((verdict, settings.style));
                        State::Passing { future: service.call(request), told }
                    } else {
                        State::Refused { response: problem::response(&verdict, settings.style) }
                    }
                }
            };
            state.set(next);
        }
    }
}
