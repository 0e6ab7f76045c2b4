//! Waiting for the first of a signal and a socket's two readinesses, in one small future. The readiness futures are
//! kept by the caller, so that a wake-up by the signal doesn't cost a new ring entry.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::shard::signal::Signal;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woke {
    Signal,
    Readable,
    Writable,
}

/// Waits for the first of the three; an absent readiness never comes. An error of a wait shows at the next call on
/// the socket, so it counts as ready. What is ready at once, which only epoll tells, still lets others run first:
/// a busy socket must not keep the shard to itself.
pub async fn wait<R: Future, W: Future>(
    signal: &Signal,
    mut readable: Pin<&mut Option<R>>,
    mut writable: Pin<&mut Option<W>>,
) -> Woke {
    let mut polls = 0;
    let woke = poll_fn(|context| {
        polls += 1;
        poll_first(signal, readable.as_mut(), writable.as_mut(), context)
    })
    .await;
    if polls == 1 && woke != Woke::Signal {
        Box::pin(give_way()).await;
    }
    woke
}

/// One look at the three, for a task that does its own waiting.
pub fn poll_first<R: Future, W: Future>(
    signal: &Signal,
    readable: Pin<&mut Option<R>>,
    writable: Pin<&mut Option<W>>,
    context: &mut Context<'_>,
) -> Poll<Woke> {
    if signal.poll(context).is_ready() {
        return Poll::Ready(Woke::Signal);
    }
    if poll_slot(readable, context) {
        return Poll::Ready(Woke::Readable);
    }
    if poll_slot(writable, context) {
        return Poll::Ready(Woke::Writable);
    }
    Poll::Pending
}

/// The first of two that is ready; the other one is dropped.
pub async fn either<R>(first: impl Future<Output = R>, second: impl Future<Output = R>) -> R {
    let mut first = std::pin::pin!(first);
    let mut second = std::pin::pin!(second);
    poll_fn(move |context| match first.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => second.as_mut().poll(context),
    })
    .await
}

/// Polls a slot; a finished one is emptied.
pub fn poll_slot<F: Future>(mut slot: Pin<&mut Option<F>>, context: &mut Context<'_>) -> bool {
    let done = slot.as_mut().as_pin_mut().is_some_and(|future| future.poll(context).is_ready());
    if done {
        slot.set(None);
    }
    done
}

thread_local! {
    /// When tasks that are always ready rest again, so that timers are looked at.
    static REST_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets the shard's other tasks run that are ready now. The event loop looks at its timers only when no task is
/// ready, so now and then all that give way wait for a timer themselves.
pub async fn give_way() {
    let rests = REST_AT.get().is_none_or(|at| Instant::now() >= at);
    if rests {
        monoio::time::sleep(Duration::ZERO).await;
        REST_AT.set(Some(Instant::now() + Duration::from_millis(limits::REST_EVERY_MS)));
    } else {
        // A task that wakes itself runs next; one that waits for a new task runs behind all others.
        monoio::spawn(async {}).await;
    }
}
