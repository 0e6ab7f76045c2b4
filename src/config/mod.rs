//! The configuration: everything that the environment and the mesh's files can say, read once at start, checked
//! whole, with all errors at once. Only `app` and `cli` see it; the data plane gets `bridge::settings::Settings`.

mod dump;
mod error;
mod headers;
mod load;
mod page;
pub mod parse;
pub mod proxy_config;
mod reader;
pub mod resolver;
mod sources;
mod surroundings;
pub mod table;
mod threads;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use error::{ConfigError, DocumentError};
pub use page::markdown;
pub use reader::{Origin, Shown};
pub use surroundings::{CpuFacts, Files, RealFiles, Surroundings};

use crate::bridge::settings::{DnsSettings, Keepalive, Settings};
use crate::control::logs::Format;
use crate::mesh::dns::Names;
use crate::mesh::identity::TrustDomains;
use resolver::Resolver;

pub const OUTBOUND_PORT: u16 = 15001;
pub const INBOUND_PLAINTEXT_PORT: u16 = 15006;
pub const INBOUND_PORT: u16 = 15008;
pub const SOCKS5_PORT: u16 = 15080;
pub const CONNECT_PORT: u16 = 15081;
pub const DNS_PORT: u16 = 15053;
pub const READINESS_PORT: u16 = 15021;
pub const ADMIN_PORT: u16 = 15000;
pub const STATS_PORT: u16 = 15020;

/// A configuration that was checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub proxy: bool,
    pub mode: ProxyMode,
    pub dns_proxy: bool,
    pub dns_proxy_addr: Bind,
    pub resolver: Resolver,
    pub dns: DnsChoices,
    pub socks5: bool,
    pub socks5_early_reply: bool,
    /// `RINGWAY_HTTP_CONNECT`.
    pub connect: bool,

    pub admin_addr: Bind,
    pub stats_addr: Bind,
    pub readiness_addr: Bind,
    /// `IPV6_ENABLED`: wildcard addresses are IPv6 ones.
    pub ipv6: bool,

    pub place: Place,
    pub sources: Sources,
    pub data: DataPlane,
    pub logs: LogSettings,

    pub worker_threads: usize,
    pub event_loop: EventLoop,
    pub aead: Aead,
    /// The CNI agent's socket.
    pub inpod_uds: PathBuf,
    pub proxy_metadata: BTreeMap<String, String>,
    /// `ISTIO_METAJSON_*`, the prefix cut off.
    pub node_metadata: BTreeMap<String, serde_json::Value>,

    /// Arguments of the process, joined by blanks.
    pub proxy_args: String,
    /// Each value that was read, with its origin, in the order of the table.
    pub shown: Vec<Shown>,
    /// Things to tell once at start: unknown RINGWAY_* variables, values that were skipped.
    pub warnings: Vec<String>,
}

/// `RINGWAY_DNS_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DnsChoices {
    pub cache: bool,
    pub patience: Duration,
    pub upstream: DnsUpstream,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DnsUpstream {
    Asked,
    ResolvConf,
}

/// Where in the mesh this proxy stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub network: String,
    pub local_node: Option<String>,
    pub cluster_id: String,
    pub cluster_domain: String,
    pub preferred_service_namespace: Option<String>,
    /// The proxy's own workload, where all three parts are known.
    pub own_workload: Option<WorkloadInfo>,
    /// The proxy's own pod in its XDS node; empty where unknown.
    pub pod_name: String,
    pub pod_namespace: String,
    /// For `Config::own_identity` and the embedded authority.
    pub trust_domain: String,
    /// It with its aliases.
    pub trust_domains: TrustDomains,
    /// Address in the XDS node id.
    pub instance_ip: String,
}

/// Where knowledge of the mesh and certificates come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sources {
    pub xds: ControlPlane,
    pub xds_on_demand: bool,
    pub local_xds: LocalXds,
    pub ca: ControlPlane,
    pub auth: Auth,
    /// `FAKE_CA`: sign here, with the root in `ca_dir`.
    pub fake_ca: bool,
    pub ca_dir: PathBuf,
    pub secret_ttl: Duration,
    /// `TLS12_ENABLED`: towards the control plane only.
    pub tls12: bool,
    /// `COMPLIANCE_POLICY=pqc`: key exchange by X25519MLKEM768 only.
    pub pqc: bool,
    /// `RINGWAY_HYBRID_KEY_EXCHANGE`: key exchange by X25519MLKEM768 where the peer knows it.
    pub hybrid: bool,
    /// `CRL_PATH`.
    pub crl_path: Option<PathBuf>,
}

/// What becomes `Settings`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataPlane {
    pub original_source: Option<bool>,
    /// As configured; 0 sets no mark.
    pub packet_mark: Option<u32>,
    pub inpod_port_reuse: bool,
    pub keepalive_enabled: bool,
    pub keepalive: Keepalive,
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    pub frame_bytes: u32,
    pub pool_streams: u16,
    pub pool_idle: Duration,
    pub termination_deadline: Duration,
    pub certificate_deadline: Duration,
    pub workload_deadline: Duration,
    pub response_baggage: bool,
    pub localhost_app_tunnel: bool,
    pub retries: u32,
    pub ejection: Duration,
    pub load_balancing: LoadBalancing,
    /// `None`: the default, which depends on the number of shards.
    pub pod_shards: Option<usize>,
}

/// For `control::logs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSettings {
    /// `RUST_LOG`.
    pub directives: Option<String>,
    pub format: Format,
    /// `RINGWAY_ACCESS_LOG_SAMPLING`.
    pub access_per_million: u32,
    /// `AUTHZ_POLICY_INFO_LOGGING`.
    pub policy_decisions: bool,
}

/// `PROXY_MODE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProxyMode {
    Shared,
    Dedicated(WorkloadInfo),
}

/// Name of one workload.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadInfo {
    pub name: String,
    pub namespace: String,
    pub service_account: String,
}

/// Where a server listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub enum Bind {
    /// 127.0.0.1 and, where the flag says that loopback has IPv6, ::1.
    Localhost(bool, u16),
    SocketAddr(SocketAddr),
}

impl Bind {
    /// The addresses to bind.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match *self {
            Self::Localhost(ipv6, port) => {
                let four = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
                let six = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port);
                if ipv6 { vec![four, six] } else { vec![four] }
            }
            Self::SocketAddr(address) => vec![address],
        }
    }
}

/// How one of the two control-plane services is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlPlane {
    /// With scheme; none: not used.
    pub address: Option<String>,
    pub root: RootCertificate,
    /// One more name that its certificate may carry.
    pub alternative_host: Option<String>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RootCertificate {
    File(PathBuf),
    /// PEM text.
    Static(String),
    /// Those of the operating system.
    System,
}

/// `LOCAL_XDS_PATH`, `LOCAL_XDS`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocalXds {
    None,
    File(PathBuf),
    Inline(String),
}

/// `AUTH_TOKEN`. Not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub enum Auth {
    None,
    /// Read anew for every request.
    File(PathBuf),
    Token(String),
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Token(_) => f.write_str("Token(..)"),
        }
    }
}

/// `RINGWAY_EVENT_LOOP`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventLoop {
    Auto,
    IoUring,
    Epoll,
}

/// `RINGWAY_LOAD_BALANCING`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadBalancing {
    Random,
    LeastConnections,
}

/// `RINGWAY_AEAD`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aead {
    Auto,
    Ring,
    AwsLc,
}

impl Config {
    /// Reads and checks everything; all errors at once.
    pub fn load(surroundings: &Surroundings<'_>) -> Result<Self, Vec<ConfigError>> {
        load::load(surroundings)
    }

    /// The wildcard address of every captured port.
    pub fn wildcard(&self) -> IpAddr {
        wildcard(self.ipv6)
    }

    /// The proxy's own identity, for logs and dumps only.
    pub fn own_identity(&self) -> Option<String> {
        let own = self.place.own_workload.as_ref()?;
        Some(format!("spiffe://{}/ns/{}/sa/{}", self.place.trust_domain, own.namespace, own.service_account))
    }

    /// Ports that may never be the target of a connection.
    pub fn illegal_ports(&self) -> Vec<u16> {
        let mut ports = vec![INBOUND_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT];
        ports.extend(self.socks5.then_some(SOCKS5_PORT));
        ports.extend(self.connect.then_some(CONNECT_PORT));
        ports
    }

    fn loopback(&self, on: bool, both: bool, port: u16) -> Vec<SocketAddr> {
        let four = on.then_some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let six = (on && both).then_some(SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
        four.into_iter().chain(six).collect()
    }

    /// What the data plane needs to know.
    pub fn settings(&self, shards: usize) -> Settings {
        let at = |port| SocketAddr::new(self.wildcard(), port);
        Settings {
            proxy: self.proxy,
            dns: self.dns_settings(),
            inbound: at(INBOUND_PORT),
            inbound_plaintext: at(INBOUND_PLAINTEXT_PORT),
            outbound: at(OUTBOUND_PORT),
            socks5: self.loopback(self.socks5, false, SOCKS5_PORT),
            connect: self.loopback(self.connect, self.ipv6, CONNECT_PORT),
            socks5_early_reply: self.socks5_early_reply,
            illegal_ports: self.illegal_ports(),
            network: self.place.network.as_str().into(),
            trust_domains: self.place.trust_domains.clone(),
            policy_info: self.logs.policy_decisions,
            original_source: self.data.original_source,
            mark: self.data.packet_mark.filter(|mark| *mark != 0),
            port_reuse: self.data.inpod_port_reuse,
            ipv6: self.ipv6,
            keepalive: self.data.keepalive_enabled.then_some(self.data.keepalive),
            stream_window_bytes: self.data.stream_window_bytes,
            connection_window_bytes: self.data.connection_window_bytes,
            frame_bytes: self.data.frame_bytes,
            pool_streams: self.data.pool_streams,
            pool_idle: self.data.pool_idle,
            termination_deadline: self.data.termination_deadline,
            certificate_deadline: self.data.certificate_deadline,
            workload_deadline: self.data.workload_deadline,
            on_demand: self.sources.xds_on_demand,
            response_baggage: self.data.response_baggage,
            localhost_app_tunnel: self.data.localhost_app_tunnel,
            retries: self.data.retries,
            ejection: self.data.ejection,
            least_connections: self.data.load_balancing == LoadBalancing::LeastConnections,
            log_json: self.logs.format == Format::Json,
            access_log_per_million: self.logs.access_per_million,
            pod_shards: self.data.pod_shards.unwrap_or(DEFAULT_POD_SHARDS).min(shards).max(1),
            shards,
        }
    }

    fn dns_settings(&self) -> DnsSettings {
        let (place, resolver) = (&self.place, &self.resolver);
        let addresses = match self.dns_proxy_addr {
            _ if !self.dns_proxy => Vec::new(),
            // Whether loopback has IPv6 is each pod's own affair.
            Bind::Localhost(_, port) => Bind::Localhost(self.ipv6, port).addresses(),
            Bind::SocketAddr(address) => vec![address],
        };
        let search =
            resolver.search.iter().chain(resolver.domain.as_ref().filter(|_| resolver.search.is_empty()));
        let search = search.map(|domain| domain.trim_matches('.').to_ascii_lowercase().into());
        DnsSettings {
            addresses,
            names: Names::new(&place.cluster_domain, place.preferred_service_namespace.as_deref(), self.ipv6),
            name_servers: resolver.name_servers.iter().map(|ip| SocketAddr::new(*ip, 53)).collect(),
            search: matches!(self.mode, ProxyMode::Dedicated(_)).then(|| search.collect()),
            timeout: Duration::from_secs(resolver.timeout_s.max(1)),
            attempts: resolver.attempts,
            patience: self.dns.patience,
            cache: self.dns.cache,
            follows_asker: self.dns.upstream == DnsUpstream::Asked,
        }
    }

    /// Why a valid configuration can't be run by this version: it would come up, look well and serve nobody.
    pub fn refusals(&self) -> Vec<ConfigError> {
        let sources = &self.sources;
        let plain = [("XDS_ADDRESS", &sources.xds.address), ("CA_ADDRESS", &sources.ca.address)];
        let plain = plain.into_iter().filter_map(|(name, address)| {
            let address = address.clone().filter(|address| !is_tls(address))?;
            Some(ConfigError::Plaintext { name, address })
        });
        plain.collect()
    }

    /// The `config` object of `/config_dump` (ztunnel-behaviour 17.7), keys sorted.
    pub fn dump(&self) -> serde_json::Value {
        dump::json(self)
    }

    /// The same as YAML, in the reference's order, for the log line `running with config: ...`.
    pub fn to_yaml(&self) -> String {
        dump::yaml(self)
    }
}

/// A pod's pool of tunnels splits by its shards, so not more than a few.
const DEFAULT_POD_SHARDS: usize = 4;

fn is_tls(address: &str) -> bool {
    address.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
}

fn wildcard(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests;
