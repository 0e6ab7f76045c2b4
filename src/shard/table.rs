//! The live connections of this shard: what `/config_dump` shows, and whom a policy change has to ask again.
//! A connection is entered before it is admitted, so that no change can fall between.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use slab::Slab;

use crate::base::text::Text;
use crate::bridge::report::{LiveConnection, LiveProtocol};
use crate::mesh::admit::{Call, Verdict, admit};
use crate::mesh::identity::Identity;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;
use crate::shard::closer::{CloseReason, Closer};

/// One live connection.
pub struct Entry {
    pub pod: Text,
    pub src: SocketAddr,
    pub original: Original,
    pub actual_dst: SocketAddr,
    pub protocol: LiveProtocol,
    pub closer: Closer,
    /// Whom policies decide about; none for outbound connections.
    pub subject: Option<Box<Subject>>,
}

/// Where the connection was meant to go.
pub enum Original {
    /// Outbound: the captured address.
    Captured(SocketAddr),
    /// Inbound: the service host of the Forwarded header.
    Host(Option<Box<str>>),
}

/// What a policy needs to decide again later.
pub struct Subject {
    pub source: IpAddr,
    pub identity: Option<Identity>,
    pub destination: SocketAddr,
    pub workload: Arc<Workload>,
}

impl Subject {
    /// Asks the policies of a snapshot, those that it says are the workload's.
    pub fn admit(&self, snapshot: &Snapshot) -> Verdict {
        let workload = snapshot.workload(&self.workload.uid).unwrap_or(&self.workload);
        admit(
            snapshot,
            &Call {
                source: self.source,
                identity: self.identity.as_ref(),
                destination: self.destination,
                workload,
            },
        )
    }
}

/// All live connections of a shard.
#[derive(Default)]
pub struct Table(RefCell<Slab<Entry>>);

/// Keeps an entry in the table; dropping it takes the entry out.
pub struct Entered {
    table: Rc<Table>,
    key: usize,
}

impl Table {
    pub fn enter(self: &Rc<Self>, entry: Entry) -> Entered {
        Entered { key: self.0.borrow_mut().insert(entry), table: self.clone() }
    }

    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Asks the policies again for every connection that they decide about, and closes the losers. Returns how many.
    pub fn ask_again(&self, snapshot: &Snapshot) -> usize {
        let mut closed = 0;
        for (_, entry) in self.0.borrow().iter() {
            let Some(subject) = &entry.subject else { continue };
            if let Verdict::Denied(denial) = subject.admit(snapshot) {
                tracing::info!(
                    target: "ztunnel::proxy::connection_manager",
                    "connection {} -> {} closed because it's no longer allowed after a policy update: {denial}",
                    entry.src,
                    entry.actual_dst,
                );
                entry.closer.close(CloseReason::PolicyChange);
                closed += 1;
            }
        }
        closed
    }

    /// Lets connections with an unread side see whether they are over; called about once a second.
    pub fn tick(&self) {
        for (_, entry) in self.0.borrow().iter() {
            entry.closer.look_again();
        }
    }

    /// Everything, for one dump.
    pub fn report(&self) -> Vec<LiveConnection> {
        self.0.borrow().iter().map(|(_, entry)| entry.report()).collect()
    }
}

impl Entry {
    fn report(&self) -> LiveConnection {
        let (inbound, original_dst) = match &self.original {
            Original::Captured(address) => (false, Some(address.to_string())),
            Original::Host(host) => (true, host.as_deref().map(str::to_owned)),
        };
        LiveConnection {
            pod: self.pod.clone(),
            inbound,
            src: self.src,
            original_dst,
            actual_dst: self.actual_dst,
            protocol: self.protocol,
        }
    }
}

impl Entered {
    /// The policies' verdict on this connection now.
    pub fn admit(&self, snapshot: &Snapshot) -> Option<Verdict> {
        self.table.0.borrow().get(self.key)?.subject.as_ref().map(|subject| subject.admit(snapshot))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.table.0.borrow_mut().try_remove(self.key);
    }
}
