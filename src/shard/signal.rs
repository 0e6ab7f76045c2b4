//! A wake-up within one shard: raised by anybody, waited for by one task. A signal raised before the wait is kept.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Clones share the signal.
#[derive(Clone, Default)]
pub struct Signal(Rc<Inner>);

#[derive(Default)]
struct Inner {
    raised: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl Signal {
    pub fn raise(&self) {
        self.0.raised.set(true);
        if let Some(waiter) = self.0.waiter.take() {
            waiter.wake();
        }
    }

    /// Ready once for any number of raises since the last time.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.0.raised.replace(false) {
            return Poll::Ready(());
        }
        let waiter = match self.0.waiter.take() {
            Some(waiter) if waiter.will_wake(context.waker()) => waiter,
            _ => context.waker().clone(),
        };
        self.0.waiter.set(Some(waiter));
        Poll::Pending
    }

    pub async fn wait(&self) {
        poll_fn(|context| self.poll(context)).await;
    }
}

/// Tells any number of waiting tasks at once, e.g. that the snapshot changed.
#[derive(Default)]
pub struct Broadcast {
    waiting: Cell<Vec<Signal>>,
    /// How many there may be before those whose waiter left are looked for.
    sweep_at: Cell<usize>,
}

impl Broadcast {
    /// A signal that the next `raise` will raise.
    pub fn subscribe(&self) -> Signal {
        let signal = Signal::default();
        let mut all = self.waiting.take();
        if all.len() >= self.sweep_at.get() {
            all.retain(|other| Rc::strong_count(&other.0) > 1);
            self.sweep_at.set((all.len() * 2).max(16));
        }
        all.push(signal.clone());
        self.waiting.set(all);
        signal
    }

    pub fn raise(&self) {
        for signal in self.waiting.take() {
            signal.raise();
        }
    }
}
