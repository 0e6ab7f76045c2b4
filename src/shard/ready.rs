//! Waiting for the first of a signal and a socket's two readinesses, in one small future. The readiness futures are
//! kept by the caller, so that a wake-up by the signal doesn't cost a new ring entry.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::shard::signal::Signal;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woke {
    Signal,
    Readable,
    Writable,
}

/// Waits for the first of the three; an absent readiness never comes. An error of a wait shows at the next call on
/// the socket, so it counts as ready.
pub async fn wait<R: Future, W: Future>(
    signal: &Signal,
    mut readable: Pin<&mut Option<R>>,
    mut writable: Pin<&mut Option<W>>,
) -> Woke {
    poll_fn(move |context| {
        if signal.poll(context).is_ready() {
            return Poll::Ready(Woke::Signal);
        }
        if let Some(readable) = readable.as_mut().as_pin_mut()
            && readable.poll(context).is_ready()
        {
            return Poll::Ready(Woke::Readable);
        }
        if let Some(writable) = writable.as_mut().as_pin_mut()
            && writable.poll(context).is_ready()
        {
            return Poll::Ready(Woke::Writable);
        }
        Poll::Pending
    })
    .await
}
