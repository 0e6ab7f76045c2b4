//! What the control thread is given by whoever starts it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::base::text::Text;
use crate::bridge::absent::Absent;
use crate::bridge::hosts::Hosts;
use crate::bridge::identities::Identities;
use crate::bridge::lines::LineSink;
use crate::bridge::mailbox::{Letterbox, Mailbox};
use crate::bridge::order::{Order, Pod};
use crate::bridge::published::Published;
use crate::bridge::report::Report;
use crate::bridge::settings::Settings;
use crate::control::crl::RevocationFile;
use crate::control::hosts::NameServers;
use crate::control::logging::LogLevels;
use crate::control::publish::Source;
use crate::control::signing::Signer;
use crate::control::xds::Dial;
use crate::wire::pb::discovery::Node;

/// What the control thread is given.
pub struct Wiring {
    pub published: Arc<Published>,
    pub identities: Arc<Identities>,
    /// One mailbox a shard, in the order of their numbers.
    pub shards: Vec<Mailbox<Order>>,
    pub reports: Letterbox<Report>,
    pub settings: Arc<Settings>,
    /// Where the mesh comes from, either or both; with neither it stays empty, and counts as complete.
    pub file: Option<Box<dyn Source>>,
    pub control_plane: Option<Discovery>,
    /// Whose workloads are local; all, where it isn't set.
    pub local_node: Option<Text>,
    pub absent: Arc<Absent>,
    pub hosts: Arc<Hosts>,
    pub name_servers: NameServers,
    /// `CRL_PATH`.
    pub revocation: Option<RevocationFile>,
    pub signer: Arc<dyn Signer>,
    pub certificate_ttl: Duration,
    pub mode: Mode,
    /// Pods that are this process's own: the workload of dedicated mode, or the proxy's own inbound listener.
    /// Started once the mesh is known.
    pub own: Vec<Arc<Pod>>,
    pub readiness_addresses: Vec<SocketAddr>,
    pub metrics_addresses: Vec<SocketAddr>,
    pub admin_addresses: Vec<SocketAddr>,
    /// `RINGWAY_ADMIN_SOCKET`.
    pub admin_socket: Option<PathBuf>,
    pub facts: Facts,
    pub lines: LineSink,
    /// `None`: `/logging` says that logging isn't there.
    pub logs: Option<Arc<dyn LogLevels>>,
}

/// The control plane that tells the mesh.
pub struct Discovery {
    pub dial: Box<dyn Dial>,
    pub on_demand: bool,
    pub node: Node,
}

#[derive(Clone, Debug)]
pub enum Mode {
    /// Pods are named by the CNI agent behind this socket; certificates are made ahead.
    Shared { cni: PathBuf },
    /// One workload, in the process's own namespace.
    Dedicated,
}

/// What doesn't change while the process lives, as the dump and the metrics show it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `version` of the dump: {version, gitRevision, rustVersion, buildProfile, buildStatus, istioVersion,
    /// cryptoProvider}.
    pub version: serde_json::Value,
    /// `config` of the dump.
    pub config: serde_json::Value,
    /// The tag of `istio_build`.
    pub istio_version: String,
    /// `io_uring` or `epoll`.
    pub event_loop: String,
    /// Why it isn't `io_uring`; empty otherwise.
    pub event_loop_cause: String,
    /// The library that protects records.
    pub aead: String,
}
