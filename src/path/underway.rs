//! The task of one connection, in two stages: getting there needs much more room than being there, so that stands in
//! a box of its own, which is given back on arrival. All by hand, since an async function would hold all of it twice.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::path::record::Record;
use crate::shard::ending::Ending;

pin_project! {
    /// First the way there, then what it led to, if anything.
    #[project = Stage]
    pub(super) enum Staged<U> {
        Preparing { preparing: Pin<Box<dyn Future<Output = Option<U>>>> },
        Underway { #[pin] underway: U },
    }
}

impl<U> Staged<U> {
    pub fn new(preparing: impl Future<Output = Option<U>> + 'static) -> Self {
        Self::Preparing { preparing: Box::pin(preparing) }
    }
}

impl<U: Future<Output = ()>> Future for Staged<U> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let arrived = match self.as_mut().project() {
                Stage::Preparing { preparing } => ready!(preparing.as_mut().poll(context)),
                Stage::Underway { underway } => return underway.poll(context),
            };
            let Some(underway) = arrived else { return Poll::Ready(()) };
            self.set(Self::Underway { underway });
        }
    }
}

pin_project! {
    /// A connection that has arrived on both sides; runs to its end.
    pub(super) struct Underway<F, K> {
        #[pin]
        running: F,
        // Until it has ended.
        record: Option<Record>,
        _kept: K,
    }
}

impl<F, K> Underway<F, K> {
    /// `kept`: what it holds as long as it lives.
    pub fn new(running: F, record: Record, kept: K) -> Self {
        Self { running, record: Some(record), _kept: kept }
    }
}

impl<F: Future<Output = Ending>, K> Future for Underway<F, K> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let ending = ready!(this.running.poll(context));
        if let Some(record) = this.record.take() {
            record.end(ending);
        }
        Poll::Ready(())
    }
}

pin_project! {
    /// Work, and what is kept until it is done.
    pub(super) struct Keeping<K, W> {
        #[pin]
        pub work: W,
        pub _kept: K,
    }
}

impl<K, W: Future> Future for Keeping<K, W> {
    type Output = W::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().work.poll(context)
    }
}
