//! What a shard tells the control thread.

use std::net::SocketAddr;

use crate::base::text::Text;
use crate::bridge::counts::{Engine, Holding, Timing, Timings, Work};
use crate::bridge::flow::LiveDetail;
use crate::bridge::mailbox::Mailbox;
use crate::mesh::identity::Identity;
use crate::mesh::labels::{Flag, LabelSet, Party, Reporter};

/// One report.
#[derive(Debug)]
pub enum Report {
    /// A pod's listeners stand, or why they don't.
    Started { uid: Text, shard: usize, result: Result<(), String> },
    /// A pod's listeners and connections are gone.
    Stopped { uid: Text, shard: usize },
    /// A connection waits for the certificate of this identity.
    Want(Identity),
    /// A connection waits for an address that the snapshot doesn't hold: `NETWORK/IP`, a workload's uid, or
    /// `NAMESPACE/HOSTNAME`. See `bridge::absent`.
    Lookup(Text),
    /// A connection waits for the addresses of this host name. See `bridge::hosts`.
    Resolve(Text),
    /// A drain has finished: nothing is left.
    Drained { shard: usize },
    /// The shard's thread is about to end. See `LastWord`.
    Ended { shard: usize },
}

/// Held by a shard's thread for as long as it runs: reports its end, however it ends.
pub struct LastWord {
    shard: usize,
    reports: Mailbox<Report>,
}

impl LastWord {
    pub fn new(shard: usize, reports: Mailbox<Report>) -> Self {
        Self { shard, reports }
    }
}

impl Drop for LastWord {
    fn drop(&mut self) {
        // A full mailbox is one that control reads, and it looks at the threads now and then as well.
        let _ = self.reports.post(Report::Ended { shard: self.shard });
    }
}

/// One shard's counters, at one moment.
#[derive(Clone, Debug, Default)]
pub struct ShardStats {
    pub shard: usize,
    pub connections: Vec<ConnectionCounts>,
    /// Requests for a host name's addresses: who asked, the name, how often.
    pub on_demand_dns: Vec<(Party, Text, u64)>,
    /// Accepted sockets open now, by reporter.
    pub sockets_open: Vec<(Reporter, u64)>,
    /// What policies said about connections that came in.
    pub verdicts: Vec<VerdictCount>,
    /// Handshakes refused for a revoked certificate, by reporter; empty where none is checked.
    pub crl_rejections: Vec<(Reporter, u64)>,
    /// What pods asked names for.
    pub dns: Vec<DnsCounts>,
    /// Accepted sockets open now, by namespace and name of the pod.
    pub pod_sockets: Vec<(Text, Text, u64)>,
    pub engine: Engine<u64>,
    pub timings: Timings<Timing>,
    pub holding: Holding<u64>,
    pub work: Work,
}

/// The counters of one label set on one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionCounts {
    pub labels: LabelSet,
    pub opened: u64,
    /// Client to server.
    pub received_bytes: u64,
    /// Server to client.
    pub sent_bytes: u64,
    /// Closed, by final flag in the order of `Flag::ALL`; each flag but `None` is a failure as well.
    pub closed: [u64; Flag::ALL.len()],
}

impl ConnectionCounts {
    /// Connections that haven't ended.
    pub fn live(&self) -> u64 {
        self.opened.saturating_sub(self.closed.iter().sum())
    }
}

/// Whose queries are counted together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DnsLabels {
    /// `request_query_type`.
    pub kind: &'static str,
    pub tcp: bool,
    /// Canonical service and revision of the asker.
    pub service: Text,
    pub revision: Text,
}

/// The DNS counters of one label set.
#[derive(Clone, Debug)]
pub struct DnsCounts {
    pub labels: DnsLabels,
    pub requests: u64,
    pub forwarded: u64,
    pub failed: u64,
    /// How many took at most each of `DNS_BUCKETS_S`, and the rest.
    pub durations: [u64; DNS_BUCKETS_S.len() + 1],
    pub duration_sum_s: f64,
}

/// Bounds of the histogram of forwarded queries, in seconds (reference section 15.1).
pub const DNS_BUCKETS_S: [f64; 6] = [0.0005, 0.001, 0.01, 0.1, 1.0, 5.0];

/// How often one policy, or all of them together (no name), said something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerdictCount {
    pub namespace: Text,
    pub name: Text,
    pub said: Said,
    pub count: u64,
}

/// What a policy said. Allowances of enforced policies aren't counted: connections are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Said {
    Denied,
    /// There are ALLOW policies, and none matched.
    NoneAllowed,
    NotSynced,
    /// The same of policies on dry run.
    WouldDeny,
    WouldAllow,
    WouldAllowNone,
}

/// One live connection, as `/config_dump` shows it under `workloadState`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveConnection {
    pub pod: Text,
    pub inbound: bool,
    pub src: SocketAddr,
    /// Outbound: the captured address. Inbound: the service host of the Forwarded header, if any.
    pub original_dst: Option<String>,
    pub actual_dst: SocketAddr,
    pub protocol: LiveProtocol,
    pub shard: usize,
    /// None while the far side isn't reached.
    pub detail: Option<LiveDetail>,
    /// The ALLOW policy that lets it pass, `NAMESPACE/NAME`; none where no policy has to.
    pub policy: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveProtocol {
    Tcp,
    Hbone,
    DoubleHbone,
}
