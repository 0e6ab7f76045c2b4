//! The bytes of one connection, counted on every write for the connection and for its label set.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use crate::shard::stats::Counters;

/// Which way payload goes, seen from the application that opened the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    ToServer,
    ToClient,
}

impl Way {
    pub fn back(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
        }
    }
}

/// Shared by whoever moves bytes of the connection.
pub struct Meter {
    counters: Rc<Counters>,
    to_server: Cell<u64>,
    to_client: Cell<u64>,
    pub started: Instant,
    /// From then until the far side was reached, in milliseconds.
    pub setup_ms: Cell<Option<u32>>,
}

impl Meter {
    pub fn new(counters: Rc<Counters>, started: Instant) -> Rc<Self> {
        Rc::new(Self {
            counters,
            to_server: Cell::new(0),
            to_client: Cell::new(0),
            started,
            setup_ms: Cell::new(None),
        })
    }

    pub fn add(&self, way: Way, bytes: usize) {
        let bytes = bytes as u64;
        match way {
            Way::ToServer => {
                self.to_server.set(self.to_server.get() + bytes);
                self.counters.received_bytes.set(self.counters.received_bytes.get() + bytes);
            }
            Way::ToClient => {
                self.to_client.set(self.to_client.get() + bytes);
                self.counters.sent_bytes.set(self.counters.sent_bytes.get() + bytes);
            }
        }
    }

    pub fn to_server(&self) -> u64 {
        self.to_server.get()
    }

    pub fn to_client(&self) -> u64 {
        self.to_client.get()
    }

    pub fn counters(&self) -> &Rc<Counters> {
        &self.counters
    }
}
