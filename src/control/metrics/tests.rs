//! The page against lines of a real one.

use super::*;
use std::io::Read;

use crate::base::text::Text;
use crate::bridge::counts::Timing;
use crate::bridge::identities::Standing;
use crate::bridge::order::PodInfo;
use crate::bridge::report::{ConnectionCounts, DnsCounts, DnsLabels, Said, VerdictCount};
use crate::control::http::Server;
use crate::control::http::test::{ask, exchange};
use crate::control::session::PodView;
use crate::control::test_support::Shards;
use crate::mesh::labels::{Flag, LabelSet, Labels, Party, Reporter, Security, ServiceLabels};
use crate::mesh::snapshot::Snapshot;
use crate::tls::cert::Authority;
use crate::tls::config::Profile;

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
    let counts = |labels, closed| ConnectionCounts {
        labels,
        opened: 2,
        received_bytes: 75,
        sent_bytes: 0,
        closed: Flag::ALL.map(|flag| if <[Flag]>::contains(closed, &flag) { 1 } else { 0 }),
    };
    let mut stats = ShardStats {
        shard,
        connections: vec![counts(labels(), &[Flag::Connect, Flag::None]), counts(nobody(), &[])],
        on_demand_dns: vec![(party("client", "latest", "z1"), "h.example".into(), 2)],
        sockets_open: vec![(Reporter::Source, 3)],
        verdicts: vec![
            VerdictCount { namespace: "a".into(), name: "deny".into(), said: Said::Denied, count: 2 },
            VerdictCount { namespace: "a".into(), name: "try".into(), said: Said::WouldDeny, count: 3 },
            VerdictCount { namespace: "".into(), name: "".into(), said: Said::NoneAllowed, count: 4 },
        ],
        crl_rejections: vec![(Reporter::Source, 2), (Reporter::Destination, 0)],
        dns: vec![dns("a", 2, 1), dns("srv", 1, 0)],
        pod_sockets: vec![("default".into(), "client-1".into(), 2)],
        ..ShardStats::default()
    };
    stats.engine.pool_hits = 5;
    stats.holding.tunnels_client = 7;
    stats.timings.dial = Timing { buckets: std::array::from_fn(|at| u64::from(at == 2)), sum_ns: 300_000 };
    stats.work.busy_s = 1.5;
    stats.work.parks = 21;
    stats.work.tasks = 4;
    stats
}

fn dns(kind: &'static str, requests: u64, forwarded: u64) -> DnsCounts {
    let labels = DnsLabels { kind, tcp: false, service: "client".into(), revision: "".into() };
    let durations = [0, 0, forwarded, 0, 0, 0, 0];
    DnsCounts { labels, requests, forwarded, failed: forwarded, durations, duration_sum_s: 0.25 }
}

fn sources() -> Sources {
    let facts = Facts {
        version: serde_json::Value::Null,
        config: serde_json::Value::Null,
        istio_version: "unknown".into(),
        event_loop: "epoll".into(),
        event_loop_cause: "io_uring: EPERM".into(),
        aead: "ring".into(),
    };
    Sources {
        registry: Registry::default(),
        facts,
        identities: Arc::default(),
        published: Arc::new(Published::new(Snapshot::default())),
        lines: LineSink::new(crossbeam::channel::bounded(1).0),
        board: None,
    }
}

fn scrape(sources: Sources, stats: Vec<ShardStats>) -> Scrape {
    let control = Tasks { queued: 0, tasks: 10 };
    Scrape { sources: Arc::new(sources), shards: stats.len(), stats, control }
}

fn written(sources: Sources, stats: Vec<ShardStats>) -> String {
    let scrape = scrape(sources, stats);
    let mut page = String::new();
    assert!(scrape.write(&mut |text| {
        page.push_str(text);
        true
    }));
    page
}

fn page() -> String {
    let sources = sources();
    metrics::with_local_recorder(&sources.registry, || {
        metrics::gauge!("workload_manager_active_proxy_count").set(1.0);
        metrics::counter!("workload_manager_proxies_started").absolute(4);
        metrics::counter!("istio_xds_message_bytes", "url" => "type.googleapis.com/x").increment(391);
    });
    written(sources, vec![stats(0), stats(1)])
}

/// One that has every family.
pub(super) fn whole_page() -> String {
    let mut sources = sources();
    metrics::with_local_recorder(&sources.registry, || {
        metrics::counter!("istio_xds_connection_terminations", "reason" => "Reconnect").increment(1);
        metrics::counter!("istio_xds_message", "url" => "type.googleapis.com/x").increment(1);
        metrics::counter!("istio_xds_message_bytes", "url" => "type.googleapis.com/x").increment(391);
        metrics::gauge!("workload_manager_active_proxy_count").set(1.0);
        metrics::gauge!("workload_manager_pending_proxy_count").set(0.0);
        metrics::counter!("workload_manager_proxies_started").increment(1);
        metrics::counter!("workload_manager_proxies_stopped").increment(0);
        metrics::counter!("ringway_mesh_snapshots").increment(1);
        metrics::counter!("ringway_xds_resources_refused").increment(1);
        metrics::counter!("ringway_xds_lookups_refused").increment(1);
        metrics::counter!("ringway_orders_delayed").increment(1);
        metrics::counter!("ringway_certificate_requests", "outcome" => "signed").increment(1);
        metrics::gauge!("ringway_crl_lists").set(1.0);
        metrics::gauge!("ringway_crl_lists_expired").set(0.0);
        metrics::gauge!("ringway_crl_lists_unsigned").set(0.0);
        metrics::counter!("ringway_crl_load_errors").increment(1);
    });
    let authority = Authority::new("cluster.local").unwrap();
    let identity = "spiffe://cluster.local/ns/default/sa/client".parse().unwrap();
    let credential = authority.credential(&identity, Duration::from_secs(3_600), Profile::default()).unwrap();
    sources.identities.set(identity, Standing::Available(Arc::new(credential)));
    let info = PodInfo { name: "p".into(), namespace: "n".into(), service_account: "s".into() };
    let board = Board::default();
    board.set(vec![PodView { uid: "u".into(), info, up: true }]);
    sources.board = Some(Arc::new(board));
    sources.published = Arc::new(Published::new(unreadable_policy()));
    written(sources, vec![stats(0), stats(1)])
}

/// The mesh of a policy that can't be read.
fn unreadable_policy() -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    snapshot.unreadable.insert("a/broken".into(), ());
    snapshot
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
fn a_family_without_samples_has_no_head_and_values_are_sums() {
    let page = page();
    assert!(!page.contains("istio_xds_connection_terminations") && !page.contains("ringway_crl_lists"));
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
        "tokio_num_workers 2",
        "tokio_num_alive_tasks 18",
        "tokio_worker_total_busy_duration_seconds_total{worker=\"1\"} 1.5",
        "tokio_worker_park_count_total{worker=\"0\"} 21",
        "tokio_worker_park_unpark_count_total{worker=\"0\"} 42",
        "ringway_event_loop{kind=\"epoll\",cause=\"io_uring: EPERM\"} 1",
        "ringway_aead{library=\"ring\"} 1",
        "ringway_pool_hits_total{shard=\"1\"} 5",
        "ringway_tunnels{side=\"client\",shard=\"0\"} 7",
        "ringway_pod_sockets_open{namespace=\"default\",pod=\"client-1\"} 4",
        "# TYPE ringway_dial_seconds histogram",
        "# UNIT ringway_dial_seconds seconds",
        "ringway_dial_seconds_bucket{le=\"0.00025\"} 0",
        "ringway_dial_seconds_bucket{le=\"0.0005\"} 2",
        "ringway_dial_seconds_bucket{le=\"+Inf\"} 2",
        "ringway_dial_seconds_count 2",
        "ringway_dial_seconds_sum 0.0006",
        "ringway_tls_handshake_seconds_count{side=\"server\"} 0",
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
        let kind = content_type(&question.headers);
        let expected = if open {
            "application/openmetrics-text;charset=utf-8;version=1.0.0"
        } else {
            "text/plain; charset=utf-8"
        };
        assert_eq!(kind, expected, "{accept:?}");
    }
}

fn serve(shards: Vec<Mailbox<Order>>) -> (std::net::SocketAddr, impl Drop) {
    struct Close(tokio::sync::watch::Sender<bool>);
    impl Drop for Close {
        fn drop(&mut self) {
            let _ = self.0.send(true);
        }
    }
    let bound = Server::bind("stats", &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = bound.addresses()[0];
    let (close, closing) = tokio::sync::watch::channel(false);
    let _serving = bound.serve(Arc::new(MetricsServer::new(shards, sources())), &closing).unwrap();
    (address, Close(close))
}

#[tokio::test]
async fn a_scrape_sums_living_shards_and_does_not_wait_long_for_a_dead_one() {
    let shards = Shards::start(2, stats);
    let (dead, _letters) = crate::bridge::mailbox::mailbox(10).unwrap();
    let mut mailboxes = shards.mailboxes.clone();
    mailboxes.push(dead);
    let (address, _close) = serve(mailboxes);
    let started = Instant::now();
    let page = http::test::get(address, "POST", "/stats/prometheus").await;
    assert!(started.elapsed() < Duration::from_secs(30));
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

/// Sets that differ by their source.
fn many(shard: usize) -> ShardStats {
    let one = |number: usize| {
        let source = Some(party(&format!("client-{number}"), "latest", "z1"));
        let labels = LabelSet::new(Labels { source, ..(*labels()).clone() });
        ConnectionCounts {
            labels,
            opened: 5,
            received_bytes: 70_000,
            sent_bytes: 1,
            closed: [1; Flag::ALL.len()],
        }
    };
    ShardStats { connections: (0..10_000).map(one).collect(), ..stats(shard) }
}

#[tokio::test]
async fn a_large_page_is_sent_in_pieces_whole_and_compressed_as_asked() {
    let shards = Shards::start(2, many);
    let (address, _close) = serve(shards.mailboxes.clone());
    let plain = http::test::get(address, "GET", "/metrics").await;
    let (head, body) = plain.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("transfer-encoding: chunked") && !head.contains("content-encoding"), "{head}");
    assert!(body.ends_with("# EOF\n\r\n0\r\n\r\n"));
    assert_eq!(
        body.matches("istio_tcp_connections_opened_total{reporter=\"source\",source_workload=\"client-")
            .count(),
        10_000
    );
    let asked = b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\naccept-encoding: gzip\r\n\r\n";
    let answer = raw(address, asked).await;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"), "{head}");
    let mut text = String::new();
    let packed = dechunked(&answer[end + 4..]);
    flate2::read::GzDecoder::new(&*packed).read_to_string(&mut text).unwrap();
    assert!(
        text.ends_with("# EOF\n") && packed.len() * 10 < text.len(),
        "{} of {}",
        packed.len(),
        text.len()
    );
    let lines = text.lines().filter(|line| line.starts_with("istio_tcp_connections_closed_total{"));
    assert_eq!(lines.count(), 10_000 * Flag::ALL.len());
}

async fn raw(address: std::net::SocketAddr, request: &[u8]) -> Vec<u8> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

fn dechunked(mut rest: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return all;
        }
        all.extend_from_slice(&rest[end + 2..][..size]);
        rest = &rest[end + 2 + size + 2..];
    }
}

#[tokio::test]
async fn a_reader_that_stops_keeps_no_other_from_its_page() {
    let shards = Shards::start(1, many);
    let (address, _close) = serve(shards.mailboxes.clone());
    let mut stopped = Vec::new();
    for _ in 0..limits::SCRAPES_AT_ONCE - 1 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 16];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.unwrap();
        stopped.push(stream);
    }
    let page = exchange(address, b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(page.ends_with("0\r\n\r\n"));
}

#[test]
fn label_sets_that_have_been_idle_are_forgotten_by_every_shard_and_by_none_while_one_is_silent() {
    let (posts, letters): (Vec<_>, Vec<_>) =
        (0..2).map(|_| crate::bridge::mailbox::mailbox::<Order>(10).unwrap()).unzip();
    let idle = Mutex::new(Idle::default());
    let start = Instant::now();
    let later = start + Duration::from_millis(limits::LABEL_SET_IDLE_MS);
    let ordered = || letters.iter().filter_map(|letters| letters.take()).collect::<Vec<_>>();
    let both = scrape(sources(), vec![stats(0), stats(1)]);
    both.drop_idle(&idle, &posts, start);
    scrape(sources(), vec![stats(0)]).drop_idle(&idle, &posts, later);
    assert!(ordered().is_empty());
    both.drop_idle(&idle, &posts, later);
    let orders = ordered();
    assert_eq!(orders.len(), 2);
    for order in orders {
        let Order::Forget(told) = order else { panic!("another order") };
        // The other set has two connections that haven't ended.
        assert_eq!(told, [stats(0).connections[0].clone()]);
    }
}
