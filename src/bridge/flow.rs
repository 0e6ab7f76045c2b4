//! Connections as operators are told of them: live ones, and those that have ended or were refused.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use crate::base::text::Text;
use crate::wire::access_log::{Direction, Via};

/// One end, as far as it is known; what isn't known is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowEnd {
    /// The pod's name, or what a peer of another network says of itself.
    pub workload: Text,
    pub namespace: Text,
    pub cluster: Text,
    /// Only where the connection is protected by mutual TLS.
    pub identity: Option<String>,
}

/// Who talks to whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parties {
    /// The pod of this node that the connection belongs to, by its uid.
    pub pod: Text,
    pub direction: Direction,
    pub src: SocketAddr,
    /// Outbound: the next hop as dialled. Inbound: where the caller came to.
    pub dst: SocketAddr,
    /// What was asked for, where no address was found for it.
    pub dst_name: Option<Text>,
    /// The authority of the CONNECT.
    pub authority: Option<Text>,
    pub source: FlowEnd,
    pub destination: FlowEnd,
    /// `NAMESPACE/HOSTNAME`.
    pub service: Option<String>,
    pub via: Option<Via>,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowVerdict {
    /// It was carried.
    Allowed,
    /// A policy refused or ended it.
    Denied,
    /// Anything else.
    Failed,
}

impl FlowVerdict {
    pub const ALL: [Self; 3] = [Self::Allowed, Self::Denied, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

/// One connection that has ended, or never was.
#[derive(Clone, Debug)]
pub struct Flow {
    pub ended: SystemTime,
    pub lasted: Duration,
    pub parties: Parties,
    /// As in the access log: outbound, client to server; inbound, server to client.
    pub sent_bytes: u64,
    /// The other way.
    pub received_bytes: u64,
    /// Endpoints tried.
    pub attempts: u32,
    pub verdict: FlowVerdict,
    /// Why, where it wasn't carried to its end.
    pub error: Option<Text>,
}

/// Flows of one shard, from a place on.
#[derive(Debug)]
pub struct FlowPage {
    pub shard: usize,
    /// Oldest first.
    pub flows: Vec<Flow>,
    /// The place to go on from.
    pub next: u64,
    /// How many after the place asked for are gone already.
    pub lost: u64,
}

/// What is known of a live connection that has got to its far side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveDetail {
    pub parties: Parties,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub age: Duration,
}

/// What one shard has in hand.
#[derive(Debug, Default)]
pub struct ShardStatus {
    pub shard: usize,
    pub connections: usize,
    /// Tunnels that are up: those we dialled, and those that peers dialled.
    pub tunnels_outbound: usize,
    pub tunnels_inbound: usize,
    /// Scratch memory of the shard.
    pub buffer_bytes: usize,
    pub pods: Vec<PodTraffic>,
}

/// One pod's traffic on one shard, since the pod was started there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodTraffic {
    pub uid: Text,
    /// New connections are no longer taken.
    pub draining: bool,
    pub live: u64,
    pub opened: u64,
    pub denied: u64,
    pub failed: u64,
    /// What the pod's applications sent, live connections included.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}
