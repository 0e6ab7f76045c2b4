//! The configuration as operators see it in `/config_dump` and in the log: keys, order and shapes of
//! ztunnel-behaviour 17.7. What was never serialised there (local files, tokens) isn't here either.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::base::text::Text;

use super::{Bind, Config, ControlPlane, ProxyMode, RootCertificate, SOCKS5_PORT, WorkloadInfo};

pub fn json(config: &Config) -> Value {
    serde_json::to_value(view(config)).unwrap_or_default()
}

pub fn yaml(config: &Config) -> String {
    serde_saphyr::to_string(&view(config)).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct View<'a> {
    proxy: bool,
    dns_proxy: bool,
    window_size: u32,
    connection_window_size: u32,
    frame_size: u32,
    pool_max_streams_per_conn: u16,
    pool_unused_release_timeout: Duration,
    socks5_addr: Option<SocketAddr>,
    admin_addr: Bind,
    stats_addr: Bind,
    readiness_addr: Bind,
    inbound_addr: SocketAddr,
    inbound_plaintext_addr: SocketAddr,
    outbound_addr: SocketAddr,
    dns_proxy_addr: Bind,
    illegal_ports: Vec<u16>,
    network: &'a str,
    local_node: Option<&'a str>,
    proxy_mode: &'static str,
    proxy_workload_information: Option<&'a WorkloadInfo>,
    cluster_id: &'a str,
    cluster_domain: &'a str,
    ca_address: Option<&'a str>,
    ca_root_cert: Root<'a>,
    alt_ca_hostname: Option<&'a str>,
    xds_address: Option<&'a str>,
    xds_root_cert: Root<'a>,
    alt_xds_hostname: Option<&'a str>,
    prefered_service_namespace: Option<&'a str>,
    secret_ttl: Duration,
    xds_on_demand: bool,
    fake_ca: bool,
    fake_self_inbound: bool,
    self_termination_deadline: Duration,
    proxy_metadata: &'a BTreeMap<String, String>,
    num_worker_threads: usize,
    require_original_source: Option<bool>,
    proxy_args: &'a str,
    dns_resolver_cfg: Value,
    dns_resolver_opts: Value,
    inpod_uds: &'a Path,
    inpod_port_reuse: bool,
    packet_mark: Option<u32>,
    socket_config: Sockets,
    xds_headers: &'a [(String, String)],
    ca_headers: &'a [(String, String)],
    localhost_app_tunnel: bool,
    ztunnel_identity: Option<String>,
    ztunnel_workload: Option<&'a WorkloadInfo>,
    ipv6_enabled: bool,
    crl_path: Option<&'a str>,
    enable_enhanced_baggage: bool,
    /// From here on ours.
    trust_domains: &'a [Text],
    least_connections: bool,
}

#[derive(Serialize)]
enum Root<'a> {
    File(&'a Path),
    Static,
    Default,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sockets {
    keepalive_time: Duration,
    keepalive_interval: Duration,
    keepalive_retries: u32,
    keepalive_enabled: bool,
    user_timeout_enabled: bool,
}

fn view(config: &Config) -> View<'_> {
    let settings = config.settings(config.worker_threads);
    let (proxy_mode, served) = match &config.mode {
        ProxyMode::Shared => ("Shared", None),
        ProxyMode::Dedicated(workload) => ("Dedicated", Some(workload)),
    };
    View {
        proxy: config.proxy,
        dns_proxy: config.dns_proxy,
        window_size: config.data.stream_window_bytes,
        connection_window_size: config.data.connection_window_bytes,
        frame_size: config.data.frame_bytes,
        pool_max_streams_per_conn: config.data.pool_streams,
        pool_unused_release_timeout: config.data.pool_idle,
        socks5_addr: config.socks5.then_some(SocketAddr::from(([127, 0, 0, 1], SOCKS5_PORT))),
        admin_addr: config.admin_addr,
        stats_addr: config.stats_addr,
        readiness_addr: config.readiness_addr,
        inbound_addr: settings.inbound,
        inbound_plaintext_addr: settings.inbound_plaintext,
        outbound_addr: settings.outbound,
        dns_proxy_addr: config.dns_proxy_addr,
        illegal_ports: settings.illegal_ports,
        network: &config.place.network,
        local_node: config.place.local_node.as_deref(),
        proxy_mode,
        proxy_workload_information: served,
        cluster_id: &config.place.cluster_id,
        cluster_domain: &config.place.cluster_domain,
        ca_address: config.sources.ca.address.as_deref(),
        ca_root_cert: root(&config.sources.ca),
        alt_ca_hostname: config.sources.ca.alternative_host.as_deref(),
        xds_address: config.sources.xds.address.as_deref(),
        xds_root_cert: root(&config.sources.xds),
        alt_xds_hostname: config.sources.xds.alternative_host.as_deref(),
        prefered_service_namespace: config.place.preferred_service_namespace.as_deref(),
        secret_ttl: config.sources.secret_ttl,
        xds_on_demand: config.sources.xds_on_demand,
        fake_ca: config.sources.fake_ca,
        fake_self_inbound: false,
        self_termination_deadline: config.data.termination_deadline,
        proxy_metadata: &config.proxy_metadata,
        num_worker_threads: config.worker_threads,
        require_original_source: config.data.original_source,
        proxy_args: &config.proxy_args,
        dns_resolver_cfg: resolver_servers(config),
        dns_resolver_opts: resolver_options(config),
        inpod_uds: &config.inpod_uds,
        inpod_port_reuse: config.data.inpod_port_reuse,
        packet_mark: config.data.packet_mark,
        socket_config: sockets(config),
        xds_headers: &config.sources.xds.headers,
        ca_headers: &config.sources.ca.headers,
        localhost_app_tunnel: config.data.localhost_app_tunnel,
        ztunnel_identity: config.own_identity(),
        ztunnel_workload: config.place.own_workload.as_ref(),
        ipv6_enabled: config.ipv6,
        // A configuration with one is refused.
        crl_path: config.sources.crl_path.as_deref().and_then(Path::to_str),
        enable_enhanced_baggage: config.data.response_baggage,
        trust_domains: config.place.trust_domains.names(),
        least_connections: settings.least_connections,
    }
}

fn sockets(config: &Config) -> Sockets {
    Sockets {
        keepalive_time: config.data.keepalive.time,
        keepalive_interval: config.data.keepalive.interval,
        keepalive_retries: config.data.keepalive.retries,
        keepalive_enabled: config.data.keepalive_enabled,
        user_timeout_enabled: config.data.keepalive.user_timeout,
    }
}

fn root(of: &ControlPlane) -> Root<'_> {
    match &of.root {
        RootCertificate::File(path) => Root::File(path),
        RootCertificate::Static(_) => Root::Static,
        RootCertificate::System => Root::Default,
    }
}

fn resolver_servers(config: &Config) -> Value {
    let over = |protocol| json!({"bind_addr": null, "port": 53, "protocol": {"type": protocol}});
    let server =
        |ip| json!({"connections": [over("udp"), over("tcp")], "ip": ip, "trust_negative_responses": true});
    let resolver = &config.resolver;
    json!({
        "domain": resolver.domain,
        "name_servers": resolver.name_servers.iter().map(server).collect::<Vec<_>>(),
        "search": resolver.search,
    })
}

/// The fixed ones are the values that the reference's resolver library has or is given.
fn resolver_options(config: &Config) -> Value {
    let resolver = &config.resolver;
    json!({
        "allow_answers": [],
        "attempts": resolver.attempts,
        "avoid_local_udp_ports": [],
        "cache_size": 4096,
        "case_randomization": false,
        "deny_answers": [],
        "edns0": resolver.edns0,
        "edns_payload_len": 1232,
        "ip_strategy": if config.ipv6 { "Ipv4AndIpv6" } else { "Ipv4Only" },
        "max_active_requests": 32,
        "ndots": resolver.ndots,
        "negative_max_ttl": null,
        "negative_min_ttl": null,
        "num_concurrent_reqs": 2,
        "os_port_selection": false,
        "positive_max_ttl": null,
        "positive_min_ttl": null,
        "preserve_intermediates": true,
        "recursion_desired": true,
        "server_ordering_strategy": "QueryStatistics",
        "timeout": resolver.timeout_s,
        "trust_anchor": null,
        "try_tcp_on_error": false,
        "use_hosts_file": "Auto",
    })
}
