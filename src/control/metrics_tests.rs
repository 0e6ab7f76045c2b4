//! The page against lines of a real one.

use super::*;
use std::sync::Arc;

use crate::base::text::Text;
use crate::bridge::report::{DnsCounts, DnsLabels, VerdictCount};
use crate::control::http::Server;
use crate::control::http::test::ask;
use crate::control::test_support::Shards;
use crate::mesh::labels::{Security, ServiceLabels};
use crate::mesh::snapshot::Snapshot;

const HEAD: &str = "istio_tcp_connections_opened_total{reporter=\"source\",source_workload=\"client\",\
source_canonical_service=\"client\",source_canonical_revision=\"latest\",source_workload_namespace=\"default\",\
source_principal=\"spiffe://cluster.local/ns/default/sa/client\",source_app=\"client\",source_version=\"latest\",\
source_cluster=\"Kubernetes\",destination_service=\"unknown\",destination_service_namespace=\"unknown\",\
destination_service_name=\"unknown\",destination_workload=\"server\",destination_canonical_service=\"server\",\
destination_canonical_revision=\"v2\",destination_workload_namespace=\"default\",\
destination_principal=\"spiffe://cluster.local/ns/default/sa/server\",destination_app=\"server\",\
destination_version=\"v2\",destination_cluster=\"Kubernetes\",request_protocol=\"tcp\",response_flags=\"-\",\
connection_security_policy=\"mutual_tls\",source_region=\"r1\",source_zone=\"z1\",destination_region=\"r1\",\
destination_zone=\"z2\"} ";

fn party(name: &str, revision: &str, zone: &str) -> Party {
    Party {
        workload: name.into(),
        canonical_service: name.into(),
        canonical_revision: revision.into(),
        namespace: "default".into(),
        app: name.into(),
        cluster: "Kubernetes".into(),
        region: "r1".into(),
        zone: zone.into(),
        principal: Some(format!("spiffe://cluster.local/ns/default/sa/{name}").parse().unwrap()),
    }
}

fn labels() -> LabelSet {
    Arc::new(Labels {
        reporter: Reporter::Source,
        source: Some(party("client", "latest", "z1")),
        destination: Some(party("server", "v2", "z2")),
        service: None,
        security: Security::MutualTls,
    })
}

fn nobody() -> LabelSet {
    let service =
        ServiceLabels { hostname: "a\"b\\c\nd".into(), namespace: Text::default(), name: Text::default() };
    Arc::new(Labels {
        reporter: Reporter::Destination,
        source: None,
        destination: None,
        service: Some(service),
        security: Security::Unknown,
    })
}

fn stats(shard: usize) -> ShardStats {
    let counts =
        |labels, closed| ConnectionCounts { labels, opened: 2, received_bytes: 75, sent_bytes: 0, closed };
    ShardStats {
        shard,
        connections: vec![
            counts(labels(), vec![(Flag::Connect, 1), (Flag::None, 1)]),
            counts(nobody(), vec![(Flag::None, 0)]),
        ],
        on_demand_dns: vec![(party("client", "latest", "z1"), "h.example".into(), 2)],
        sockets_open: vec![(Reporter::Source, 3)],
        verdicts: vec![
            VerdictCount { namespace: "a".into(), name: "deny".into(), said: Said::Denied, count: 2 },
            VerdictCount { namespace: "a".into(), name: "try".into(), said: Said::WouldDeny, count: 3 },
            VerdictCount { namespace: "".into(), name: "".into(), said: Said::NoneAllowed, count: 4 },
        ],
        crl_rejections: vec![(Reporter::Source, 2), (Reporter::Destination, 0)],
        dns: vec![dns("a", 2, 1), dns("srv", 1, 0)],
        engine: vec![("stalls", "Turns of the loop that took too long.", 5)],
    }
}

fn dns(kind: &'static str, requests: u64, forwarded: u64) -> DnsCounts {
    let labels = DnsLabels { kind, tcp: false, service: "client".into(), revision: "".into() };
    let durations = [0, 0, forwarded, 0, 0, 0, 0];
    DnsCounts { labels, requests, forwarded, failed: 0, durations, duration_sum_s: 0.25 }
}

fn server(shards: Vec<Mailbox<Order>>) -> MetricsServer {
    let facts = Facts {
        version: serde_json::Value::Null,
        config: serde_json::Value::Null,
        istio_version: "unknown".into(),
        event_loop: "epoll".into(),
        event_loop_cause: "io_uring: EPERM".into(),
    };
    MetricsServer {
        shards,
        registry: Registry::default(),
        facts,
        identities: Arc::default(),
        published: Arc::new(Published::new(Snapshot::default())),
        lines: LineSink::new(crossbeam::channel::bounded(1).0),
    }
}

fn page() -> String {
    let server = server(Vec::new());
    metrics::with_local_recorder(&server.registry, || {
        metrics::gauge!("workload_manager_active_proxy_count").set(1.0);
        metrics::counter!("workload_manager_proxies_started").absolute(4);
        metrics::counter!("istio_xds_message_bytes", "url" => "type.googleapis.com/x").increment(391);
    });
    server.render(&[stats(0), stats(1)])
}

fn line<'a>(page: &'a str, start: &str) -> &'a str {
    let mut lines = page.lines().filter(|line| line.starts_with(start));
    let line = lines.next().unwrap_or_else(|| panic!("no line starts with {start}:\n{page}"));
    assert_eq!(lines.next(), None, "more than one line starts with {start}");
    line
}

#[test]
fn what_policies_said_is_summed_by_policy() {
    let page = page();
    for wanted in [
        "ringway_policy_denials_total{policy=\"a/deny\",reason=\"explicit\"} 4",
        "ringway_policy_denials_total{policy=\"unknown\",reason=\"none_allowed\"} 8",
        "ringway_dry_run_verdicts_total{policy=\"a/try\",result=\"deny\"} 6",
    ] {
        assert!(page.lines().any(|line| line == wanted), "{wanted} isn't in {page}");
    }
}

#[test]
fn labels_stand_in_the_references_order_and_shards_are_summed() {
    let page = page();
    assert_eq!(line(&page, HEAD), format!("{HEAD}4"));
    let other = |name: &str, flag: &str| {
        HEAD.replace("connections_opened", name)
            .replace("response_flags=\"-\"", &format!("response_flags=\"{flag}\""))
    };
    for (name, flag, value) in [
        ("received_bytes", "-", "150"),
        ("sent_bytes", "-", "0"),
        ("connections_closed", "CONNECT", "2"),
        ("connections_closed", "-", "2"),
        ("connections_failed", "CONNECT", "2"),
    ] {
        let start = other(name, flag);
        assert_eq!(line(&page, &start), format!("{start}{value}"));
    }
    assert!(!page.contains(&other("connections_failed", "-")));
}

#[test]
fn unknown_parties_have_no_locality_and_text_is_escaped() {
    let page = page();
    let line = line(&page, "istio_tcp_connections_opened_total{reporter=\"destination\"");
    assert!(line.contains("destination_service=\"a\\\"b\\\\c\\nd\","), "{line}");
    assert!(line.ends_with("connection_security_policy=\"unknown\"} 4"), "{line}");
}

#[test]
fn families_are_the_references_in_its_order_and_ours_come_after() {
    let page = page();
    let heads: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let expected = [
        "process_open_fds gauge",
        "process_max_fds gauge",
        "istio_build gauge",
        "istio_xds_message_bytes counter",
        "istio_tcp_connections_opened counter",
        "istio_tcp_connections_closed counter",
        "istio_tcp_received_bytes counter",
        "istio_tcp_sent_bytes counter",
        "istio_on_demand_dns counter",
        "istio_tcp_connections_failed counter",
        "istio_tcp_sockets_open gauge",
        "istio_crl_policy_rejections counter",
        "istio_crl_untracked_connections counter",
        "istio_dns_requests counter",
        "istio_dns_upstream_requests counter",
        "istio_dns_upstream_request_duration_seconds histogram",
        "workload_manager_active_proxy_count gauge",
        "workload_manager_proxies_started counter",
        "ringway_event_loop gauge",
        "ringway_log_lines_dropped counter",
        "ringway_shards gauge",
        "ringway_shards_answering gauge",
        "ringway_policy_denials counter",
        "ringway_dry_run_verdicts counter",
        "ringway_stalls counter",
    ];
    let heads: Vec<&str> = heads.into_iter().filter(|head| !head.starts_with("process_max_fds")).collect();
    let expected: Vec<&str> =
        expected.into_iter().filter(|head| !head.starts_with("process_max_fds")).collect();
    assert_eq!(heads, expected, "a family without samples has no head");
    for whole in [
        "# HELP istio_build Istio component build info.",
        "istio_build{component=\"ztunnel\",tag=\"unknown\"} 1",
        "# HELP istio_tcp_received_bytes The size of total bytes received during request in case of a TCP connection.",
        "# UNIT istio_xds_message_bytes bytes",
        "istio_xds_message_bytes_total{url=\"type.googleapis.com/x\"} 391",
        "istio_tcp_sockets_open{reporter=\"source\"} 6",
        "istio_crl_policy_rejections_total{reporter=\"source\"} 4",
        "istio_dns_requests_total{request_query_type=\"a\",request_protocol=\"udp\",\
         source_canonical_service=\"client\",source_canonical_revision=\"unknown\"} 4",
        "# UNIT istio_dns_upstream_request_duration_seconds seconds",
        "istio_dns_upstream_request_duration_seconds_sum{request_query_type=\"a\",request_protocol=\"udp\",\
         source_canonical_service=\"client\",source_canonical_revision=\"unknown\"} 0.5",
        "istio_dns_upstream_request_duration_seconds_bucket{le=\"0.01\",request_query_type=\"a\",\
         request_protocol=\"udp\",source_canonical_service=\"client\",source_canonical_revision=\"unknown\"} 2",
        "istio_dns_upstream_request_duration_seconds_bucket{le=\"1.0\",request_query_type=\"a\",\
         request_protocol=\"udp\",source_canonical_service=\"client\",source_canonical_revision=\"unknown\"} 2",
        "istio_dns_upstream_request_duration_seconds_bucket{le=\"0.001\",request_query_type=\"a\",\
         request_protocol=\"udp\",source_canonical_service=\"client\",source_canonical_revision=\"unknown\"} 0",
        "istio_crl_untracked_connections_total{reporter=\"destination\"} 0",
        "workload_manager_active_proxy_count 1",
        "workload_manager_proxies_started_total 4",
        "ringway_event_loop{kind=\"epoll\",cause=\"io_uring: EPERM\"} 1",
        "ringway_stalls_total{shard=\"1\"} 5",
    ] {
        assert!(page.lines().any(|line| line == whole), "missing: {whole}\n{page}");
    }
    assert!(page.ends_with("\n# EOF\n"));
    let mut seen = std::collections::HashSet::new();
    let twice = page
        .lines()
        .filter(|line| !line.is_empty())
        .find(|line| !seen.insert(line.rsplit_once(' ').unwrap().0));
    assert_eq!(twice, None, "a series or head stands twice");
}

#[test]
fn the_type_is_chosen_as_the_reference_does() {
    for (accept, open) in [
        (None, false),
        (Some("*/*"), false),
        (Some("application/openmetrics-text"), true),
        (Some("Application/OpenMetrics-Text;version=1.0.0;q=0.5,text/plain"), true),
        (Some("text/plain, application/openmetrics-text"), false),
        (Some("text/plain,application/openmetrics-text; version=1"), true),
    ] {
        let mut question = ask("GET", "/metrics");
        if let Some(accept) = accept {
            question.headers.insert(ACCEPT, accept.parse().unwrap());
        }
        let reply = reply(&question.headers, String::new());
        let kind = reply.headers()[CONTENT_TYPE].to_str().unwrap();
        let expected = if open {
            "application/openmetrics-text;charset=utf-8;version=1.0.0"
        } else {
            "text/plain; charset=utf-8"
        };
        assert_eq!(kind, expected, "{accept:?}");
    }
}

#[tokio::test]
async fn a_scrape_sums_living_shards_and_does_not_wait_long_for_a_dead_one() {
    let shards = Shards::start(2, stats);
    let (dead, _letters) = crate::bridge::mailbox::mailbox(10).unwrap();
    let mut mailboxes = shards.mailboxes.clone();
    mailboxes.push(dead);
    let bound = Server::bind("stats", &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = bound.addresses()[0];
    let (_close, closing) = tokio::sync::watch::channel(false);
    let _serving = bound.serve(Arc::new(server(mailboxes)), &closing).unwrap();
    let started = std::time::Instant::now();
    let page = http::test::get(address, "POST", "/stats/prometheus").await;
    assert!(started.elapsed() < std::time::Duration::from_secs(3));
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(page.contains(&format!("{HEAD}4\n")), "{page}");
    assert!(page.contains("\nringway_shards 3\n") && page.contains("\nringway_shards_answering 2\n"));
    let missing = http::test::get(address, "GET", "/x").await;
    assert!(
        missing.starts_with("HTTP/1.1 404 Not Found\r\n") && !missing.contains("content-type"),
        "{missing}"
    );
}

#[test]
fn host_names_asked_for_are_counted_by_source_and_name() {
    let page = page();
    let told = line(&page, "istio_on_demand_dns_total{");
    assert!(told.starts_with("istio_on_demand_dns_total{source_workload=\"client\","), "{told}");
    assert!(told.ends_with("hostname=\"h.example\"} 4"), "{told}");
}
