//! What the stand-in was asked, in order, for assertions.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ringway::wire::pb::discovery::DeltaDiscoveryRequest;

/// One discovery request.
#[derive(Clone, Debug)]
pub struct Heard {
    pub at: Instant,
    /// Connections and streams are numbered from 1 in the order of their coming.
    pub connection: u64,
    pub stream: u64,
    pub kind: Kind,
    pub request: DeltaDiscoveryRequest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The first of its type on its stream.
    First,
    Ack,
    Nack,
    /// Answers a response before the last one.
    Stale,
    /// Subscribes or unsubscribes.
    Subscribe,
    /// A later one without nonce, or anything else.
    Odd,
}

/// A stream as it was opened.
#[derive(Clone, Debug)]
pub struct Opened {
    pub at: Instant,
    pub connection: u64,
    pub stream: u64,
    pub path: String,
    /// Header names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Opened {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// One certificate request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub at: Instant,
    pub connection: u64,
    /// `ImpersonatedIdentity`.
    pub identity: String,
    pub csr: String,
    pub validity_s: i64,
}

#[derive(Default)]
pub(crate) struct Record {
    log: Mutex<Log>,
}

#[derive(Clone, Default)]
pub(crate) struct Log {
    pub requests: Vec<Heard>,
    pub streams: Vec<Opened>,
    pub asked: Vec<Asked>,
    pub certificates_at_once: usize,
    pub most_certificates_at_once: usize,
    /// Connections that are up, and all that ever were.
    pub connections: u64,
    pub accepted: u64,
    /// Discovery responses sent whole.
    pub responses: u64,
}

impl Record {
    pub fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
