//! Closing a live connection from outside: the reason is set once, and the task that relays it is woken.

use std::cell::Cell;
use std::rc::Rc;

use crate::shard::signal::Signal;

/// Why a live connection is ended before its ends have ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// A policy that is in force now doesn't allow it.
    PolicyChange,
    /// The peer asked for something that this workload is no longer the waypoint of.
    WaypointChange,
    /// One side finished long ago and the other has been silent since.
    HalfCloseIdle,
    /// The peer's certificate is on a revocation list.
    Revoked,
}

/// Clones share the reason.
#[derive(Clone, Default)]
pub struct Closer(Rc<Inner>);

#[derive(Default)]
struct Inner {
    reason: Cell<Option<CloseReason>>,
    watched: Cell<bool>,
    look: Cell<bool>,
    /// None until somebody waits.
    signal: Cell<Option<Signal>>,
}

impl Closer {
    /// From here on, closing raises this signal.
    pub fn wake(&self, signal: Signal) {
        self.0.signal.set(Some(signal));
    }

    pub fn close(&self, reason: CloseReason) {
        if self.0.reason.get().is_none() {
            self.0.reason.set(Some(reason));
            self.raise();
        }
    }

    /// Whether there is a side that nobody reads now, because it has finished or because the other takes no more:
    /// then the task is woken now and then, to see whether that side still lives.
    pub fn watch(&self, watched: bool) {
        self.0.watched.set(watched);
    }

    /// Wakes the task of a connection that is watched.
    pub fn look_again(&self) {
        if self.0.watched.get() {
            self.0.look.set(true);
            self.raise();
        }
    }

    /// Whether it is time to look; true once for each time.
    pub fn take_look(&self) -> bool {
        self.0.look.take()
    }

    pub fn reason(&self) -> Option<CloseReason> {
        self.0.reason.get()
    }

    /// The signal that closing raises.
    pub fn signal(&self) -> Signal {
        let signal = self.0.signal.take().unwrap_or_default();
        self.0.signal.set(Some(signal.clone()));
        signal
    }

    fn raise(&self) {
        let signal = self.0.signal.take();
        if let Some(signal) = &signal {
            signal.raise();
        }
        self.0.signal.set(signal);
    }
}
