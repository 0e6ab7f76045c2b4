//! A gate counts who is inside and tells them when it is closed. A pod's connections are inside its gate: closing
//! it ends them at once, and the pod is gone when the last has left.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use slab::Slab;

use crate::shard::shrink::shrink;
use crate::shard::signal::Broadcast;

/// See above.
#[derive(Default)]
pub struct Gate {
    closed: Cell<bool>,
    inside: Cell<usize>,
    waiters: RefCell<Slab<Waker>>,
    empty: Broadcast,
}

impl Gate {
    /// Runs `work` inside; drops it where the gate closes first, which `None` tells.
    pub fn run<F: Future>(self: &Rc<Self>, work: F) -> Inside<F> {
        self.inside.set(self.inside.get() + 1);
        Inside { place: Place { gate: self.clone(), key: None }, work }
    }

    pub fn close(&self) {
        self.closed.set(true);
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        for (_, waker) in waiters {
            waker.wake();
        }
        if self.inside.get() == 0 {
            self.empty.raise();
        }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Called about once a second.
    pub fn tick(&self) {
        shrink(&mut self.waiters.borrow_mut());
    }

    pub fn inside(&self) -> usize {
        self.inside.get()
    }

    /// Waits until nobody is inside. A drain and the end of its pod may wait at the same time.
    pub async fn emptied(&self) {
        loop {
            let empty = self.empty.subscribe();
            if self.inside.get() == 0 {
                return;
            }
            empty.wait().await;
        }
    }

    /// Wakers kept for a close.
    #[cfg(test)]
    pub(super) fn registered(&self) -> usize {
        self.waiters.borrow().len()
    }
}

pin_project! {
    /// Work inside a gate. A future by hand, since an async function would keep its argument twice, and an idle
    /// connection is little more than this.
    pub struct Inside<F> {
        place: Place,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for Inside<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.place.is_closed(context) {
            return Poll::Ready(None);
        }
        this.work.poll(context).map(Some)
    }
}

/// One that is inside.
struct Place {
    gate: Rc<Gate>,
    key: Option<usize>,
}

impl Place {
    fn is_closed(&mut self, context: &Context<'_>) -> bool {
        if self.gate.closed.get() {
            return true;
        }
        // A task keeps its waker for life, so registering once is enough.
        if self.key.is_none() {
            self.key = Some(self.gate.waiters.borrow_mut().insert(context.waker().clone()));
        }
        false
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(key) = self.key
            && !self.gate.closed.get()
        {
            self.gate.waiters.borrow_mut().try_remove(key);
        }
        self.gate.inside.set(self.gate.inside.get() - 1);
        if self.gate.inside.get() == 0 {
            self.gate.empty.raise();
        }
    }
}
