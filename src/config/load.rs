//! Reads a whole `Config`, one group after the other, and checks what concerns several values at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ConfigError;
use super::proxy_config::ProxyConfig;
use super::reader::{Origin, Reader};
use super::resolver::{self, Resolver};
use super::surroundings::{Files, Surroundings};
use super::threads::Facts;
use super::{
    ADMIN_PORT, Aead, Bind, Config, DNS_PORT, DataPlane, DnsChoices, DnsUpstream, EventLoop, LoadBalancing,
    LogSettings, Place, ProxyMode, READINESS_PORT, STATS_PORT, WorkloadInfo, sources, table, wildcard,
};
use crate::bridge::settings::Keepalive;
use crate::control::logs::{self, Format};
use crate::mesh::identity::TrustDomains;

const LOOPBACK_IPV6_SWITCH: &str = "/proc/sys/net/ipv6/conf/lo/disable_ipv6";
const META: &str = "ISTIO_META_";
const METAJSON: &str = "ISTIO_METAJSON_";

pub fn load(surroundings: &Surroundings<'_>) -> Result<Config, Vec<ConfigError>> {
    let environment = &surroundings.environment;
    let files = surroundings.files;
    let reader = &mut Reader::new(environment);
    let documents =
        ProxyConfig::read(&|path| files.read(path), reader.raw("PROXY_CONFIG"), &mut reader.errors);
    if let Some(document) = reader.raw("PROXY_CONFIG") {
        reader.note("PROXY_CONFIG", document, Origin::Environment);
    }
    let proxy_metadata = metadata(reader, &documents);
    let proxy = reader.flag("ENABLE_PROXY");
    let mode = proxy_mode(reader);
    let ipv6 = reader.flag("IPV6_ENABLED");
    let loopback_ipv6 = ipv6 && loopback_has_ipv6(files, reader);
    let dns_proxy = proxy_metadata.get("DNS_CAPTURE").is_none_or(|value| value.eq_ignore_ascii_case("true"));
    let socks5 = reader.flag("UNSTABLE_ENABLE_SOCKS5");
    let sources = sources::read(reader, &documents, files);
    if dns_proxy && sources.xds_on_demand {
        reader.errors.push(ConfigError::DnsOnDemand);
    }
    if !proxy && !dns_proxy {
        reader.errors.push(ConfigError::Nothing);
    }
    let given_port =
        |given: &Option<(u16, Origin)>, default| given.as_ref().map_or(default, |(port, _)| *port);
    let stats_port = given_port(&documents.stats_port, STATS_PORT);
    let at = |port| Bind::SocketAddr(SocketAddr::new(wildcard(ipv6), port));
    let config = Config {
        proxy,
        dns_proxy,
        dns_proxy_addr: dns_proxy_addr(reader, &proxy_metadata, loopback_ipv6),
        resolver: resolver(files, reader),
        dns: DnsChoices {
            cache: reader.flag("RINGWAY_DNS_CACHE"),
            patience: reader.duration("RINGWAY_DNS_PATIENCE"),
            upstream: reader
                .choice("RINGWAY_DNS_UPSTREAM", &[DnsUpstream::Asked, DnsUpstream::ResolvConf])
                .unwrap_or(DnsUpstream::Asked),
        },
        socks5,
        socks5_early_reply: reader.flag("RINGWAY_SOCKS5_EARLY_REPLY"),
        connect: reader.flag("RINGWAY_HTTP_CONNECT"),
        admin_addr: Bind::Localhost(loopback_ipv6, given_port(&documents.admin_port, ADMIN_PORT)),
        stats_addr: at(stats_port),
        readiness_addr: at(READINESS_PORT),
        ipv6,
        place: place(reader),
        data: data_plane(reader, &mode),
        mode,
        sources,
        logs: log_settings(reader),
        worker_threads: worker_threads(reader, &documents, surroundings),
        event_loop: reader
            .choice("RINGWAY_EVENT_LOOP", &[EventLoop::Auto, EventLoop::IoUring, EventLoop::Epoll])
            .unwrap_or(EventLoop::Auto),
        aead: reader.choice("RINGWAY_AEAD", &[Aead::Auto, Aead::Ring, Aead::AwsLc]).unwrap_or(Aead::Auto),
        inpod_uds: PathBuf::from(reader.text("INPOD_UDS")),
        node_metadata: node_metadata(reader),
        proxy_metadata,
        proxy_args: surroundings.args.join(" "),
        shown: Vec::new(),
        warnings: Vec::new(),
    };
    finish(config, reader)
}

fn finish(mut config: Config, reader: &mut Reader<'_>) -> Result<Config, Vec<ConfigError>> {
    let unknown = reader.names().filter(|name| name.starts_with("RINGWAY_") && table::find(name).is_none());
    let unknown: Vec<_> =
        unknown.map(|name| format!("{name} is set, but no variable of that name is known")).collect();
    reader.warnings.extend(unknown);
    let errors = std::mem::take(&mut reader.errors);
    config.warnings = std::mem::take(&mut reader.warnings);
    config.shown = reader.take_shown();
    if errors.is_empty() { Ok(config) } else { Err(errors) }
}

fn proxy_mode(reader: &mut Reader<'_>) -> ProxyMode {
    let mode = reader.text("PROXY_MODE");
    if mode == "shared" {
        return ProxyMode::Shared;
    }
    if mode != "dedicated" {
        reader.errors.push(ConfigError::ProxyMode(mode));
        return ProxyMode::Shared;
    }
    let named = reader.maybe_text("PROXY_WORKLOAD_INFO");
    let mut parts = named.iter().flat_map(|text| text.splitn(3, '/'));
    let mut next = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
    if let (Some(namespace), Some(name), Some(service_account)) = (next(), next(), next()) {
        return ProxyMode::Dedicated(WorkloadInfo { name, namespace, service_account });
    }
    reader.errors.push(ConfigError::WorkloadInfo(named));
    ProxyMode::Shared
}

/// A kernel without IPv6 has no such switch. Any other failure to read it says nothing, so IPv6 is assumed.
fn loopback_has_ipv6(files: &dyn Files, reader: &mut Reader<'_>) -> bool {
    match files.read(Path::new(LOOPBACK_IPV6_SWITCH)) {
        Ok(text) => text.trim() != "1",
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let warning = format!("there is no {LOOPBACK_IPV6_SWITCH}: IPv6 on loopback is taken to be off");
            reader.warnings.push(warning);
            false
        }
        Err(error) => {
            let warning =
                format!("cannot read {LOOPBACK_IPV6_SWITCH} ({error}): IPv6 on loopback is taken to be on");
            reader.warnings.push(warning);
            true
        }
    }
}

/// The mesh's own names need no name servers, so a file that isn't there only warns.
fn resolver(files: &dyn Files, reader: &mut Reader<'_>) -> Resolver {
    match files.read(Path::new(resolver::FILE)) {
        Ok(text) => Resolver::parse(&text),
        Err(error) => {
            reader
                .warnings
                .push(format!("cannot read {} ({error}): no name servers are known", resolver::FILE));
            Resolver::default()
        }
    }
}

/// `localhost:PORT` or an address with its port.
fn dns_proxy_addr(reader: &mut Reader<'_>, metadata: &BTreeMap<String, String>, loopback_ipv6: bool) -> Bind {
    let default = Bind::Localhost(loopback_ipv6, DNS_PORT);
    let Some(value) = metadata.get("DNS_PROXY_ADDR") else { return default };
    let parsed = match value.strip_prefix("localhost:") {
        Some(port) => {
            port.parse().map(|port| Bind::Localhost(loopback_ipv6, port)).map_err(|_| "invalid port")
        }
        None => value.parse().map(Bind::SocketAddr).map_err(|_| "invalid socket address syntax"),
    };
    parsed.unwrap_or_else(|reason| {
        reader.errors.push(ConfigError::DnsProxyAddr { value: value.clone(), reason });
        default
    })
}

/// The documents' metadata, with ISTIO_META_* on top.
fn metadata(reader: &mut Reader<'_>, documents: &ProxyConfig) -> BTreeMap<String, String> {
    let mut metadata = documents.metadata.clone();
    for (key, value) in reader.prefixed(META) {
        reader.note(&format!("{META}{key}"), value, Origin::Environment);
        metadata.insert(key.to_owned(), value.to_owned());
    }
    metadata
}

fn node_metadata(reader: &mut Reader<'_>) -> BTreeMap<String, serde_json::Value> {
    let mut metadata = BTreeMap::new();
    for (key, value) in reader.prefixed(METAJSON) {
        reader.note(&format!("{METAJSON}{key}"), value, Origin::Environment);
        match serde_json::from_str(value) {
            Ok(value) => drop(metadata.insert(key.to_owned(), value)),
            Err(error) => {
                reader.warnings.push(format!("{METAJSON}{key}={value} is skipped: {error}; expected JSON"))
            }
        }
    }
    metadata
}

fn place(reader: &mut Reader<'_>) -> Place {
    let cluster_id = reader.text("CLUSTER_ID");
    let namespace = reader.maybe_text("POD_NAMESPACE");
    let name = reader.maybe_text("POD_NAME");
    let service_account = reader.maybe_text("SERVICE_ACCOUNT");
    let (pod_name, pod_namespace) = (name.clone().unwrap_or_default(), namespace.clone().unwrap_or_default());
    let own_workload = match (name, namespace, service_account) {
        (Some(name), Some(namespace), Some(service_account)) => {
            Some(WorkloadInfo { name, namespace, service_account })
        }
        _ => None,
    };
    let trust_domain = reader.text("TRUST_DOMAIN");
    let trust_domains = trust_domains(reader, &trust_domain);
    Place {
        network: reader.text("NETWORK"),
        local_node: reader.maybe_text("NODE_NAME"),
        cluster_id: reader.raw("ISTIO_META_CLUSTER_ID").map_or(cluster_id, str::to_owned),
        cluster_domain: reader.text("CLUSTER_DOMAIN"),
        preferred_service_namespace: reader.maybe_text("PREFERED_SERVICE_NAMESPACE"),
        own_workload,
        pod_name,
        pod_namespace,
        trust_domain,
        trust_domains,
        instance_ip: reader.text("INSTANCE_IP"),
    }
}

fn trust_domains(reader: &mut Reader<'_>, own: &str) -> TrustDomains {
    let name = "RINGWAY_TRUST_DOMAIN_ALIASES";
    let aliases = reader.maybe_text(name).unwrap_or_default();
    if !aliases.is_empty() && reader.raw("TRUST_DOMAIN").is_none() {
        reader
            .warnings
            .push(format!("{name} is set without TRUST_DOMAIN: these are taken as aliases of {own}"));
    }
    TrustDomains::parse(own, &aliases).unwrap_or_else(|reason| {
        reader.errors.push(ConfigError::TrustDomainAliases { value: aliases, reason });
        TrustDomains::default()
    })
}

fn data_plane(reader: &mut Reader<'_>, mode: &ProxyMode) -> DataPlane {
    let default_mark = (*mode == ProxyMode::Shared).then_some(1337);
    let mark = reader.maybe_number("PACKET_MARK");
    if let (None, Some(default)) = (mark, default_mark) {
        reader.note("PACKET_MARK", default, Origin::Default);
    }
    let pod_shards: Option<u32> = reader.maybe_number("RINGWAY_POD_SHARDS");
    DataPlane {
        original_source: reader.maybe_flag("ENABLE_ORIG_SRC"),
        packet_mark: mark.or(default_mark),
        inpod_port_reuse: reader.flag("INPOD_PORT_REUSE"),
        keepalive_enabled: reader.flag("KEEPALIVE_ENABLED"),
        keepalive: Keepalive {
            time: reader.duration("KEEPALIVE_TIME"),
            interval: reader.duration("KEEPALIVE_INTERVAL"),
            retries: reader.number("KEEPALIVE_RETRIES"),
            user_timeout: reader.flag("USER_TIMEOUT_ENABLED"),
        },
        stream_window_bytes: reader.number("HTTP2_STREAM_WINDOW_SIZE"),
        connection_window_bytes: reader.number("HTTP2_CONNECTION_WINDOW_SIZE"),
        frame_bytes: reader.number("HTTP2_FRAME_SIZE"),
        pool_streams: reader.number("POOL_MAX_STREAMS_PER_CONNECTION"),
        pool_idle: reader.duration("POOL_UNUSED_RELEASE_TIMEOUT"),
        termination_deadline: termination_deadline(reader),
        certificate_deadline: reader.duration("RINGWAY_CERTIFICATE_DEADLINE"),
        workload_deadline: reader.duration("RINGWAY_WORKLOAD_DEADLINE"),
        response_baggage: reader.flag("ENABLE_RESPONSE_BAGGAGE"),
        localhost_app_tunnel: reader.flag("LOCALHOST_APP_TUNNEL"),
        retries: reader.number("RINGWAY_RETRIES"),
        ejection: reader.duration("RINGWAY_EJECTION"),
        load_balancing: reader
            .choice("RINGWAY_LOAD_BALANCING", &[LoadBalancing::Random, LoadBalancing::LeastConnections])
            .unwrap_or(LoadBalancing::Random),
        pod_shards: pod_shards.and_then(|shards| usize::try_from(shards).ok()),
    }
}

/// Ends a little before Kubernetes kills the process (section 1.7). A grace of 0 s counts as 1 s.
fn termination_deadline(reader: &mut Reader<'_>) -> Duration {
    let grace: Option<u64> = reader.maybe_number("TERMINATION_GRACE_PERIOD_SECONDS");
    let from_grace = grace.map(|seconds| {
        let margin = if seconds > 10 { 5 } else { 1 };
        Duration::from_secs(seconds.saturating_sub(margin).max(1))
    });
    let name = "CONNECTION_TERMINATION_DEADLINE";
    if let Some(given) = reader.maybe_duration(name) {
        return given;
    }
    let derived = from_grace.unwrap_or(Duration::from_secs(5));
    reader.note(name, format_args!("{}s", derived.as_secs()), Origin::Default);
    derived
}

fn log_settings(reader: &mut Reader<'_>) -> LogSettings {
    let directives = reader.maybe_text("RUST_LOG").filter(|text| !text.is_empty());
    if let Err(error) = logs::check(directives.as_deref()) {
        reader.errors.push(ConfigError::Logs(error));
    }
    let format = if reader.word("LOG_FORMAT") { Format::Json } else { Format::Plain };
    LogSettings {
        directives,
        format,
        access_per_million: reader.per_million("RINGWAY_ACCESS_LOG_SAMPLING"),
        policy_decisions: reader.word("AUTHZ_POLICY_INFO_LOGGING"),
    }
}

fn worker_threads(
    reader: &mut Reader<'_>,
    documents: &ProxyConfig,
    surroundings: &Surroundings<'_>,
) -> usize {
    let limit: Option<u32> = reader.maybe_number("ZTUNNEL_CPU_LIMIT");
    let facts = Facts {
        online: surroundings.cpus.online,
        workers: reader.workers(),
        concurrency: documents.concurrency.as_ref().map(|(concurrency, _)| *concurrency),
        resource_limit: reader.cpus("ZTUNNEL_RESOURCE_CPU_LIMIT"),
        resource_request: reader.cpus("ZTUNNEL_RESOURCE_CPU_REQUEST"),
        limit: limit.and_then(|limit| usize::try_from(limit).ok()),
    };
    let threads = facts.threads();
    if facts.workers.is_none() {
        let origin = documents.concurrency.as_ref().map_or(Origin::Default, |(_, origin)| origin.clone());
        reader.note("ZTUNNEL_WORKER_THREADS", threads, origin);
    }
    threads
}
