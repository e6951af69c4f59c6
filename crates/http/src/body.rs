//! The body of a response: the service's own, untouched, or the layer's.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

pin_project_lite::pin_project! {
    /// The body of a response behind the layer: streams, trailers and size hints of the service's own pass as they are.
    #[project = Projected]
    #[derive(Debug)]
    pub enum LimitBody<B> {
        /// The service's.
        #[doc(hidden)]
        Inner { #[pin] body: B },
        /// The layer's.
        #[doc(hidden)]
        Own { bytes: Option<Bytes> },
    }
}

impl<B> LimitBody<B> {
    pub(crate) fn own(bytes: Bytes) -> Self {
        Self::Own { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project() {
            Projected::Inner { body } => body.poll_frame(cx),
            Projected::Own { bytes } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Inner { body } => body.is_end_stream(),
            Self::Own { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Inner { body } => body.size_hint(),
            Self::Own { bytes } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
