//! What shards need of the configuration, fixed at start.

use std::net::SocketAddr;
use std::time::Duration;

use crate::base::text::Text;
pub use crate::sys::socket::Keepalive;

/// Data-plane settings. Every shard holds a clone of one `Arc<Settings>`.
#[derive(Clone, Debug)]
pub struct Settings {
    pub inbound: SocketAddr,
    pub inbound_plaintext: SocketAddr,
    pub outbound: SocketAddr,
    /// Ports that may never be the target of a connection (15001, 15006, 15008, and 15080 where SOCKS5 is on).
    pub illegal_ports: Vec<u16>,
    pub network: Text,
    pub cluster_domain: Text,
    /// `ENABLE_ORIG_SRC`: `Some(true)` must, `Some(false)` never, `None` best effort.
    pub original_source: Option<bool>,
    /// SO_MARK of every socket; `None` leaves it.
    pub mark: Option<u32>,
    pub port_reuse: bool,
    pub ipv6: bool,
    pub keepalive: Option<Keepalive>,
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    pub frame_bytes: u32,
    pub pool_streams: u16,
    pub pool_idle: Duration,
    pub termination_deadline: Duration,
    /// `ENABLE_RESPONSE_BAGGAGE`.
    pub response_baggage: bool,
    /// `LOCALHOST_APP_TUNNEL`.
    pub localhost_app_tunnel: bool,
    /// `AUTHZ_POLICY_INFO_LOGGING`.
    pub log_policy_decisions: bool,
    pub log_json: bool,
    /// How many shards carry the listeners of one pod (`RINGWAY_POD_SHARDS`).
    pub pod_shards: usize,
    pub shards: usize,
}
