//! What the control thread tells a shard.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;

use crate::base::text::Text;
use crate::bridge::flow::{FlowPage, ShardStatus};
use crate::bridge::report::{ConnectionCounts, LiveConnection, ShardStats};
use crate::sys::netns::Netns;

/// One order. Shards carry them out in the order they were posted.
pub enum Order {
    /// Put up this pod's listeners; answered with `Report::Started`.
    Start(Arc<Pod>),
    /// Take the pod's listeners down and end its connections; answered with `Report::Stopped`.
    Stop { uid: Text },
    /// The snapshot or the identities changed.
    Look,
    /// The process ends: hand the listeners over, let connections go on for `grace`; answered with `Report::Drained`.
    Drain { grace: Duration },
    /// Say that you live.
    Beat(Sender<()>),
    /// Counters, for one scrape.
    Scrape(Sender<ShardStats>),
    /// Take these counts of label sets back, as you told them: nobody has used the sets for long, on any shard.
    Forget(Vec<ConnectionCounts>),
    /// Live connections, for one dump.
    Connections(Sender<Vec<LiveConnection>>),
    /// Flows from a place on (0: from the oldest that is kept).
    Flows { after: u64, answer: Sender<FlowPage> },
    /// What the shard has in hand.
    Status(Sender<ShardStatus>),
    /// Take nothing new for this pod, and let its connections go on for the grace. The pod stays known.
    DrainPod { uid: Text, grace: Duration },
}

/// A pod of this node, or in dedicated mode the one workload that this process serves.
#[derive(Debug)]
pub struct Pod {
    pub uid: Text,
    pub info: PodInfo,
    /// The pod's network namespace; `None`: the process's own (dedicated mode, and the proxy's own listener).
    pub netns: Option<Netns>,
    pub kind: PodKind,
}

/// Who the pod is, as the CNI agent says; matched with the mesh's workloads by all three.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PodInfo {
    pub name: Text,
    pub namespace: Text,
    pub service_account: Text,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PodKind {
    /// All of 15001, 15006 and 15008.
    Workload,
    /// Only 15008, in the proxy's own namespace; sources are never spoofed, sockets are not marked.
    OwnInbound,
}
