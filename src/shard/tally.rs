//! What one pod has carried on this shard: counted when a connection opens and when it ends, never a byte at a time.

use std::cell::Cell;

use crate::base::text::Text;
use crate::bridge::flow::{FlowVerdict, PodTraffic};
use crate::shard::stats::bump;

/// See above. Bytes are those of connections that have ended, as the pod's applications see them.
#[derive(Default)]
pub struct Tally {
    /// The pod's.
    pub uid: Text,
    opened: Cell<u64>,
    denied: Cell<u64>,
    failed: Cell<u64>,
    sent_bytes: Cell<u64>,
    received_bytes: Cell<u64>,
}

impl Tally {
    pub fn new(uid: Text) -> Self {
        Self { uid, ..Self::default() }
    }

    pub fn opened(&self) {
        bump(&self.opened);
    }

    /// A connection that has ended, or that never opened.
    pub fn ended(&self, verdict: FlowVerdict, sent_bytes: u64, received_bytes: u64) {
        match verdict {
            FlowVerdict::Allowed => {}
            FlowVerdict::Denied => bump(&self.denied),
            FlowVerdict::Failed => bump(&self.failed),
        }
        self.sent_bytes.set(self.sent_bytes.get() + sent_bytes);
        self.received_bytes.set(self.received_bytes.get() + received_bytes);
    }

    /// The pod's traffic, but for what its live connections have carried so far.
    pub fn traffic(&self) -> PodTraffic {
        PodTraffic {
            uid: self.uid.clone(),
            opened: self.opened.get(),
            denied: self.denied.get(),
            failed: self.failed.get(),
            sent_bytes: self.sent_bytes.get(),
            received_bytes: self.received_bytes.get(),
            ..PodTraffic::default()
        }
    }
}
