//! What shards need of the configuration, fixed at start.

use std::net::SocketAddr;
use std::time::Duration;

use crate::base::text::Text;
use crate::mesh::dns::Names;
use crate::mesh::identity::TrustDomains;
pub use crate::sys::socket::Keepalive;

/// Names: who answers for them, and who is asked for the others.
#[derive(Clone, Debug)]
pub struct DnsSettings {
    /// Where pods' queries are taken; none where the DNS proxy is off.
    pub addresses: Vec<SocketAddr>,
    pub names: Names,
    /// Name servers of the proxy's own resolv.conf.
    pub name_servers: Vec<SocketAddr>,
    /// Search domains of every pod; `None`: what Kubernetes gives to pods of their namespace.
    pub search: Option<Vec<Text>>,
    /// How long an attempt at a name server is waited for (`timeout` of resolv.conf) before the next is made as well.
    pub timeout: Duration,
    pub attempts: usize,
    /// How long all attempts may take (`RINGWAY_DNS_PATIENCE`).
    pub patience: Duration,
    /// `RINGWAY_DNS_CACHE`.
    pub cache: bool,
    /// `RINGWAY_DNS_UPSTREAM=asked`: forward to the server that the pod asked, where that can be found out.
    pub follows_asker: bool,
}

/// Data-plane settings. Every shard holds a clone of one `Arc<Settings>`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `ENABLE_PROXY`: without it only names are served.
    pub proxy: bool,
    pub inbound: SocketAddr,
    pub inbound_plaintext: SocketAddr,
    pub outbound: SocketAddr,
    /// `UNSTABLE_ENABLE_SOCKS5`; none where it is off.
    pub socks5: Vec<SocketAddr>,
    /// `RINGWAY_HTTP_CONNECT`; none where it is off. Loopback addresses that a pod lacks are left out there.
    pub connect: Vec<SocketAddr>,
    /// `RINGWAY_SOCKS5_EARLY_REPLY`: success is told before the upstream is called, as the reference does.
    pub socks5_early_reply: bool,
    /// Ports that may never be the target of a connection (15001, 15006, 15008; 15080 and 15081 where their proxies
    /// are on).
    pub illegal_ports: Vec<u16>,
    pub network: Text,
    pub dns: DnsSettings,
    /// The names of our own trust domain.
    pub trust_domains: TrustDomains,
    /// `AUTHZ_POLICY_INFO_LOGGING`: what policies decide is told at level info instead of debug.
    pub policy_info: bool,
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
    /// How long a connection waits for a certificate (`RINGWAY_CERTIFICATE_DEADLINE`).
    pub certificate_deadline: Duration,
    /// How long a connection waits for the record of its pod, or for a look-up (`RINGWAY_WORKLOAD_DEADLINE`).
    pub workload_deadline: Duration,
    /// `XDS_ON_DEMAND`: what the snapshot doesn't hold must be asked for.
    pub on_demand: bool,
    /// `ENABLE_RESPONSE_BAGGAGE`.
    pub response_baggage: bool,
    /// `LOCALHOST_APP_TUNNEL`: applications behind a PROXY tunnel are called on the loopback.
    pub localhost_app_tunnel: bool,
    /// Endpoints tried after the first (`RINGWAY_RETRIES`).
    pub retries: u32,
    /// How long an endpoint that refused is left out (`RINGWAY_EJECTION`); zero: never.
    pub ejection: Duration,
    /// `RINGWAY_LOAD_BALANCING=least-connections`.
    pub least_connections: bool,
    pub log_json: bool,
    /// Of a million connections that end well, how many have an access line (`RINGWAY_ACCESS_LOG_SAMPLING`).
    pub access_log_per_million: u32,
    /// How many shards carry the listeners of one pod (`RINGWAY_POD_SHARDS`).
    pub pod_shards: usize,
    pub shards: usize,
}

impl Settings {
    /// The shards that carry this pod's listeners: `pod_shards` neighbours from a place that only the uid decides,
    /// so that the answer is the same for as long as the process lives.
    pub fn shards_of(&self, uid: &str) -> Vec<usize> {
        shards_of(uid, self.shards, self.pod_shards)
    }
}

/// See `Settings::shards_of`. At least one shard, each at most once, all below `shards`.
pub fn shards_of(uid: &str, shards: usize, pod_shards: usize) -> Vec<usize> {
    let shards = shards.max(1);
    // FNV-1a, then a mixing step, because its upper bits hardly move between short, similar uids.
    let hash = uid
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let first = usize::try_from(mixed).unwrap_or_default() % shards;
    (0..pod_shards.clamp(1, shards)).map(|step| (first + step) % shards).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_shards_are_distinct_steady_and_spread() {
        let mut load = [0; 8];
        for number in 0..4_000 {
            let uid = format!("pod-{number}");
            let mut of = shards_of(&uid, 8, 3);
            assert_eq!(of, shards_of(&uid, 8, 3));
            of.iter().for_each(|shard| load[*shard] += 1);
            of.sort_unstable();
            of.dedup();
            assert_eq!(of.len(), 3);
        }
        assert!(load.iter().all(|pods| (1_200..1_800).contains(pods)), "uneven: {load:?}");
        assert_eq!(shards_of("x", 2, 4).len(), 2);
        assert_eq!(shards_of("x", 0, 0), [0]);
    }
}
