//! What an answer carries: everything at once, or piece by piece while it is made.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::base::limits::HTTP_PIECES_QUEUED;
use crate::control::chunks::{Chunks, Cut};

/// See above.
pub struct Body(Inner);

enum Inner {
    Whole(Full<Bytes>),
    Pieces(mpsc::Receiver<Bytes>),
    Written(Chunks),
}

impl Body {
    /// One that ends when its sender goes. The sender waits while the client reads slowly, and fails once it has left.
    pub fn pieces() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(HTTP_PIECES_QUEUED);
        (sender, Self(Inner::Pieces(receiver)))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Inner::Whole(Full::new(bytes)))
    }
}

/// What a thread of its own writes.
impl From<Chunks> for Body {
    fn from(chunks: Chunks) -> Self {
        Self(Inner::Written(chunks))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut self.0 {
            Inner::Whole(whole) => Pin::new(whole).poll_frame(context).map_err(|never| match never {}),
            Inner::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
            Inner::Written(chunks) => Pin::new(chunks).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(whole) => whole.is_end_stream(),
            Inner::Pieces(_) | Inner::Written(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(whole) => whole.size_hint(),
            Inner::Pieces(_) | Inner::Written(_) => SizeHint::default(),
        }
    }
}
