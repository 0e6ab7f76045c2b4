//! Every metric of the reference by its table (ztunnel-behaviour 15.1 and 15.2), once there was something to count for
//! each: name, type, unit, help, and the labels in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
    SerialNumber,
};
use ringway::wire::pb::workload::{NetworkAddress, PortList, Workload};
use ringway_e2e::eventually;
use ringway_e2e::metrics_page::{Family, families};
use ringway_e2e::names::{A, Heard, NameServer, Say, ask, query, reply};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::standin_world::{StandinWorld, web};
use ringway_e2e::world::{APP_PORT, STEP, service, talk, try_dial};
use ringway_standin::generate;

const CONNECTION: &str = "reporter,source_workload,source_canonical_service,source_canonical_revision,\
    source_workload_namespace,source_principal,source_app,source_version,source_cluster,destination_service,\
    destination_service_namespace,destination_service_name,destination_workload,destination_canonical_service,\
    destination_canonical_revision,destination_workload_namespace,destination_principal,destination_app,\
    destination_version,destination_cluster,request_protocol,response_flags,connection_security_policy,source_region,\
    source_zone,destination_region,destination_zone";
const ON_DEMAND: &str = "source_workload,source_canonical_service,source_canonical_revision,\
    source_workload_namespace,source_principal,source_app,source_version,source_cluster,hostname";
const NAMES: &str = "request_query_type,request_protocol,source_canonical_service,source_canonical_revision";

/// Name, type, unit, labels, help.
type Row = (&'static str, &'static str, Option<&'static str>, &'static str, &'static str);

#[rustfmt::skip]
const INVENTORY: &[Row] = &[
    ("process_open_fds", "gauge", None, "", "Number of open file descriptors"),
    ("process_max_fds", "gauge", None, "", "Maximum number of file descriptors"),
    ("tokio_num_workers", "gauge", None, "", "the number of worker threads used by the runtime"),
    ("tokio_global_queue_depth", "gauge", None, "",
        "the number of tasks currently scheduled in the runtime's global queue"),
    ("tokio_num_alive_tasks", "gauge", None, "", "the number of alive tasks in the runtime"),
    ("tokio_worker_total_busy_duration_seconds", "counter", None, "worker",
        "the amount of time worker threads have been busy"),
    ("tokio_worker_park_count", "counter", None, "worker",
        "the total number of times the given worker thread has parked"),
    ("tokio_worker_park_unpark_count", "counter", None, "worker",
        "the total number of times the given worker thread has parked and unparked"),
    ("istio_build", "gauge", None, "component,tag", "Istio component build info."),
    ("istio_xds_connection_terminations", "counter", None, "reason",
        "The total number of completed connections to xds server (unstable)."),
    ("istio_xds_message", "counter", None, "url", "Total number of messages received (unstable)."),
    ("istio_xds_message_bytes", "counter", Some("bytes"), "url", "Total number of bytes received (unstable)."),
    ("istio_tcp_connections_opened", "counter", None, CONNECTION, "The total number of TCP connections opened."),
    ("istio_tcp_connections_closed", "counter", None, CONNECTION, "The total number of TCP connections closed."),
    ("istio_tcp_received_bytes", "counter", None, CONNECTION,
        "The size of total bytes received during request in case of a TCP connection."),
    ("istio_tcp_sent_bytes", "counter", None, CONNECTION,
        "The size of total bytes sent during response in case of a TCP connection."),
    ("istio_on_demand_dns", "counter", None, ON_DEMAND,
        "The total number of requests that used on-demand DNS (unstable)."),
    ("istio_tcp_connections_failed", "counter", None, CONNECTION,
        "The total number of TCP connections that failed to establish (unstable)."),
    ("istio_tcp_sockets_open", "gauge", None, "reporter", "The current number of open TCP sockets (unstable)."),
    ("istio_crl_policy_rejections", "counter", None, "reporter",
        "The total number of connections rejected due to CRL certificate revocation (unstable)."),
    ("istio_crl_untracked_connections", "counter", None, "reporter",
        "The total number of connections not tracked for CRL enforcement (unstable)."),
    ("istio_dns_requests", "counter", None, NAMES, "Total number of DNS requests (unstable)."),
    ("istio_dns_upstream_requests", "counter", None, NAMES,
        "Total number of DNS requests forwarded to upstream (unstable)."),
    ("istio_dns_upstream_failures", "counter", None, NAMES,
        "Total number of DNS requests that failed to forward upstream (unstable)."),
    ("istio_dns_upstream_request_duration_seconds", "histogram", Some("seconds"), NAMES,
        "Total time in seconds Istio takes to get DNS response from upstream (unstable)."),
    ("workload_manager_active_proxy_count", "gauge", None, "",
        "The total number current workloads with active proxies (unstable)."),
    ("workload_manager_pending_proxy_count", "gauge", None, "",
        "The total number current workloads with pending proxies (unstable)."),
    ("workload_manager_proxies_started", "counter", None, "",
        "The total number of proxies that were started (unstable)."),
    ("workload_manager_proxies_stopped", "counter", None, "",
        "The total number of proxies that were stopped (unstable)."),
];

/// A list that revokes nobody, of a root of its own: what counts is that there is one.
fn revocation_list() -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::CrlSign];
    let now = std::time::SystemTime::now();
    let list = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + Duration::from_secs(3_600)).into(),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(&Issuer::new(params, key)).unwrap().pem().unwrap()
}

#[test]
fn each_metric_of_the_reference_is_there_with_its_type_unit_help_and_labels() {
    let directory = tempfile::tempdir().unwrap();
    let lists = directory.path().join("lists.pem");
    std::fs::write(&lists, revocation_list()).unwrap();
    let mut world = StandinWorld::build(&[
        ("ISTIO_META_DNS_CAPTURE", "true"),
        ("RINGWAY_DNS_PATIENCE", "300ms"),
        ("CRL_PATH", &lists.to_string_lossy()),
    ]);
    let stranger = world.cluster.plain_pod(2, "stranger").unwrap();
    let mut named = web();
    named.name = "named".to_owned();
    named.hostname = "named.default.svc.cluster.local".to_owned();
    let address = Bytes::from_static(&[10, 77, 203, 1]);
    named.addresses = vec![NetworkAddress { address, ..NetworkAddress::default() }];
    let serves = PortList { ports: named.ports.clone() };
    let by_name = Workload {
        hostname: "localhost".to_owned(),
        tunnel_protocol: 0,
        services: BTreeMap::from([("default/named.default.svc.cluster.local".to_owned(), serves)]),
        ..generate::pod("named", "default", "node9", &[])
    };
    world.standin.mesh().put([named]);
    world.standin.mesh().put([by_name]);
    world.cluster.start().unwrap();

    let _apps = [&world.server, &stranger].map(|pod| Server::start(pod, APP_PORT, echo));
    talk(&world.client, service(), "hbone");
    talk(&world.client, stranger.at(APP_PORT), "passthrough");
    talk(&stranger, world.server.at(APP_PORT), "plaintext");
    // Of these nobody answers; the refusal may come before the call that dials has returned.
    for to in [world.server.at(9), stranger.at(9), "10.77.203.1:80".parse().unwrap()] {
        drop(try_dial(&world.client, to));
    }
    // A pod of the mesh calls itself: its proxy reports both sides.
    talk(&world.server, world.server.at(APP_PORT), "hairpin");
    let answer =
        |heard: &Heard| vec![Say::Reply(reply(&heard.message, 0x8180, &[(A, 60, vec![192, 0, 2, 1])]))];
    let names = NameServer::start(&stranger, move |heard, _| answer(heard));
    assert!(ask(&world.client, stranger.at(53), &query(1, "example.org", A), STEP).is_some());
    drop(names);
    let _ = ask(&world.client, stranger.at(53), &query(2, "example.com", A), STEP);
    world.standin.end_streams(0, "");

    let mut page = Vec::new();
    eventually("each family", STEP, || {
        page = families(&world.near().metrics().unwrap().0);
        INVENTORY.iter().all(|row| is_there(&page, row))
    });
    let ours = page.iter().filter(|family| !family.name.starts_with("ringway_"));
    let shown: Vec<_> = ours.map(|family| family.name.as_str()).collect();
    let in_order = INVENTORY.iter().map(|row| row.0).filter(|name| shown.contains(name));
    assert_eq!(shown, in_order.collect::<Vec<_>>(), "families, and their order");
    for family in &page {
        let Some(row) = INVENTORY.iter().find(|row| row.0 == family.name) else { continue };
        let (name, kind, unit, labels, help) = *row;
        assert_eq!(
            (family.kind.as_str(), family.unit.as_deref(), family.help.as_str()),
            (kind, unit, help),
            "{name}"
        );
        assert_eq!(labels_of(family), BTreeSet::from([labels.to_owned()]), "{name}");
    }
    let histogram = page.iter().find(|family| family.kind == "histogram").unwrap();
    let bounds: Vec<_> =
        histogram.series.keys().filter_map(|key| key.split("le=\"").nth(1)?.split('"').next()).collect();
    for bound in ["0.0005", "0.001", "0.01", "0.1", "1.0", "5.0", "+Inf"] {
        assert!(bounds.contains(&bound), "{bound} in {bounds:?}");
    }
}

fn is_there(page: &[Family], row: &Row) -> bool {
    page.iter().any(|family| family.name == row.0)
}

/// The names of the labels as they stand, one text for each order that occurs; a histogram's own is left out. Each
/// series has the suffix of its type.
fn labels_of(family: &Family) -> BTreeSet<String> {
    let of = |series: &String| {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let suffix = name.strip_prefix(&family.name).unwrap();
        let known: &[&str] = match family.kind.as_str() {
            "counter" => &["_total"],
            "histogram" => &["_sum", "_count", "_bucket"],
            _ => &[""],
        };
        assert!(known.contains(&suffix), "{series}");
        let names = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        names.filter(|name| name != "le").collect::<Vec<_>>().join(",")
    };
    family.series.keys().map(of).collect()
}
