//! Blank sockets of a pod's namespace, made ahead in small batches: going there and back costs 16 to 33 µs, as much
//! as everything else that a dial does. A pod that doesn't dial holds none.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::base::limits::SPARE_SOCKETS;
use crate::shard::pod::within;
use crate::sys::netns::Netns;

/// Blank sockets of one pod and one kind.
pub struct Spares {
    blank: fn(SocketAddr) -> io::Result<OwnedFd>,
    four: RefCell<Vec<OwnedFd>>,
    six: RefCell<Vec<OwnedFd>>,
    taken: Cell<usize>,
}

impl Spares {
    pub fn new(blank: fn(SocketAddr) -> io::Result<OwnedFd>) -> Self {
        Self { blank, four: RefCell::default(), six: RefCell::default(), taken: Cell::new(0) }
    }

    /// A blank socket for a dial to `to`. The first one of a quiet time is made alone.
    pub fn take(&self, netns: Option<&Netns>, to: SocketAddr) -> io::Result<OwnedFd> {
        let spares = if to.is_ipv4() { &self.four } else { &self.six };
        if let Some(spare) = spares.borrow_mut().pop() {
            self.taken.set(self.taken.get() + 1);
            return Ok(spare);
        }
        // As many as were wanted since the last look, so that a single dial doesn't make sockets for nobody.
        let batch = self.taken.get().min(SPARE_SOCKETS);
        self.taken.set(self.taken.get() + 1);
        within(netns, || {
            let mut made = spares.borrow_mut();
            for _ in 0..batch {
                match (self.blank)(to) {
                    Ok(spare) => made.push(spare),
                    Err(_) => break,
                }
            }
            (self.blank)(to)
        })?
    }

    /// Whether none is left, nor any dial counted that would make some.
    pub(super) fn is_empty(&self) -> bool {
        self.taken.get() == 0 && self.four.borrow().is_empty() && self.six.borrow().is_empty()
    }

    /// Gives back what a second without dials left over; called about once a second.
    pub fn tick(&self) {
        if self.taken.take() == 0 {
            self.four.take();
            self.six.take();
        }
    }
}
