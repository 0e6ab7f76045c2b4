//! Closing a live connection from outside: the reason is set once, and the task that relays it is woken.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::shard::signal::Signal;

/// Why a live connection is ended before its ends have ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// A policy that is in force now doesn't allow it.
    PolicyChange,
    /// The pod is gone, or the process's time to end has come.
    Drain,
    /// One side finished long ago and the other has been silent since.
    HalfCloseIdle,
}

/// Clones share the reason.
#[derive(Clone, Default)]
pub struct Closer(Rc<Inner>);

#[derive(Default)]
struct Inner {
    reason: Cell<Option<CloseReason>>,
    half_closed: Cell<bool>,
    signal: RefCell<Signal>,
}

impl Closer {
    /// From here on, closing raises this signal.
    pub fn wake(&self, signal: Signal) {
        *self.0.signal.borrow_mut() = signal;
    }

    pub fn close(&self, reason: CloseReason) {
        if self.0.reason.get().is_none() {
            self.0.reason.set(Some(reason));
            self.0.signal.borrow().raise();
        }
    }

    /// One side has finished: from here on the task is woken now and then, to see whether the other still lives.
    pub fn mark_half_closed(&self) {
        self.0.half_closed.set(true);
    }

    /// Wakes the task of a half-closed connection.
    pub fn nudge_half_closed(&self) {
        if self.0.half_closed.get() {
            self.0.signal.borrow().raise();
        }
    }

    pub fn reason(&self) -> Option<CloseReason> {
        self.0.reason.get()
    }

    /// The signal that closing raises.
    pub fn signal(&self) -> Signal {
        self.0.signal.borrow().clone()
    }
}
