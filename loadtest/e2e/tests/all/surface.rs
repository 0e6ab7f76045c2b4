//! What a proxy shows beside what the reference showed: tests/reference has the metrics and access lines of two
//! ztunnels that carried certain connections; the same connections go through two of ours. What is of the moment
//! (ports, times) is made equal first; names, texts, labels, their order, counts and bytes have to be.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};

use bytes::Bytes;
use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;
use ringway::wire::pb::security::string_match::MatchType;
use ringway::wire::pb::security::{Action, Address, Authorization, Clause, Match, Rule, Scope, StringMatch};
use ringway::wire::pb::workload::{Locality, Workload};
use ringway_e2e::eventually;
use ringway_e2e::metrics_page::{Family, families};
use ringway_e2e::serve::Server;
use ringway_e2e::standin_world::{StandinWorld, web, workload};
use ringway_e2e::world::{APP_PORT, STEP, dial, service, try_dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What the applications of the captured scenario said.
const ANSWER: [u8; 94] = [b'a'; 94];
const GREETING: &[u8; 10] = b"held open\n";
const HELD_PORT: u16 = 7_000;
/// Nobody serves this one.
const EMPTY: &str = "10.77.200.9:80";

fn at(zone: &str) -> Option<Locality> {
    Some(Locality { region: "r1".to_owned(), zone: zone.to_owned(), subzone: String::new() })
}

fn policy(name: &str, scope: Scope, action: Action, matched: Match) -> Authorization {
    Authorization {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        scope: scope.into(),
        action: action.into(),
        rules: vec![Rule { clauses: vec![Clause { matches: vec![matched] }] }],
        dry_run: false,
    }
}

/// The mesh of the capture, and a pod outside it.
fn start(environment: &[(&str, &str)]) -> (StandinWorld, Pod) {
    let mut world = StandinWorld::build(environment);
    let stranger = world.cluster.plain_pod(2, "stranger").unwrap();
    let mut empty = web();
    empty.name = "empty".to_owned();
    empty.hostname = "empty.default.svc.cluster.local".to_owned();
    let address: SocketAddr = EMPTY.parse().unwrap();
    let IpAddr::V4(ip) = address.ip() else { unreachable!("an address of version 4") };
    empty.addresses[0].address = Bytes::copy_from_slice(&ip.octets());
    world.standin.mesh().put([web(), empty]);
    world.standin.mesh().put([
        Workload { locality: at("z1"), ..workload(&world.client, false) },
        Workload {
            locality: at("z2"),
            canonical_revision: "v2".to_owned(),
            authorization_policies: vec!["default/deny-range".to_owned()],
            ..workload(&world.server, true)
        },
    ]);
    let text = |of: MatchType| vec![StringMatch { match_type: Some(of) }];
    let client = Match {
        principals: text(MatchType::Exact("cluster.local/ns/default/sa/client".to_owned())),
        destination_ports: vec![APP_PORT.into(), HELD_PORT.into()],
        ..Match::default()
    };
    let range = Match {
        not_namespaces: text(MatchType::Prefix("sys-".to_owned())),
        source_ips: vec![Address { address: Bytes::from_static(&[192, 0, 2, 0]), length: 24 }],
        ..Match::default()
    };
    world.standin.mesh().put([
        policy("allow-client", Scope::Namespace, Action::Allow, client),
        policy("deny-range", Scope::WorkloadSelector, Action::Deny, range),
    ]);
    world.cluster.start().unwrap();
    (world, stranger)
}

/// Reads a request to its end, then answers.
async fn answer(mut stream: TcpStream) {
    let mut request = Vec::new();
    if stream.read_to_end(&mut request).await.is_ok() {
        let _ = stream.write_all(&ANSWER).await;
    }
}

/// Greets, then waits for the end.
async fn greet(mut stream: TcpStream) {
    let _ = stream.write_all(GREETING).await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// A request of so many bytes and its answer.
fn call(from: &Pod, to: SocketAddr, bytes: usize) {
    let mut stream = dial(from, to);
    stream.write_all(&vec![b'q'; bytes]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, ANSWER);
}

/// One that is closed before a byte has come.
fn refused(from: &Pod, to: SocketAddr) {
    let heard = try_dial(from, to).and_then(|mut stream| stream.read(&mut [0]));
    assert!(heard.is_err() || heard.is_ok_and(|count| count == 0), "{to} answered");
}

/// The connections of the capture, in its order; the last one is open.
fn traffic(world: &StandinWorld, stranger: &Pod) -> std::net::TcpStream {
    let (client, server) = (&world.client, &world.server);
    call(client, service(), 75);
    call(client, server.at(APP_PORT), 79);
    refused(client, server.at(9_999));
    refused(stranger, server.at(APP_PORT));
    refused(client, stranger.at(8_080));
    refused(client, server.at(15_008));
    let mut held = dial(client, server.at(HELD_PORT));
    held.read_exact(&mut [0; GREETING.len()]).unwrap();
    held
}

fn closed(proxy: &NodeProxy) -> f64 {
    proxy.metrics().unwrap().sum("istio_tcp_connections_closed_total", &[])
}

#[test]
fn a_scrape_and_the_access_log_in_json_are_the_references() {
    // One shard has one pool of tunnels, as the reference has it for all its threads.
    let (world, stranger) = start(&[("ZTUNNEL_WORKER_THREADS", "1")]);
    let _app = Server::start(&world.server, APP_PORT, answer);
    let greeter = Server::start(&world.server, HELD_PORT, greet);
    let held = traffic(&world, &stranger);
    for (proxy, count, reference) in [
        (world.near(), 5.0, include_str!("../reference/metrics.client.txt")),
        (world.far(), 4.0, include_str!("../reference/metrics.server.txt")),
    ] {
        eventually("what ended is counted", STEP, || closed(proxy) == count);
        compare(&families(&proxy.metrics().unwrap().0), &families(reference));
    }
    drop(held);
    let expected = [
        include_str!("../reference/access.client.json.txt"),
        include_str!("../reference/access.server.json.txt"),
    ];
    assert_lines(&world, &stranger, expected, json_line);

    // Of these the capture has no lines; they are written by its rules (ztunnel-behaviour 16.1).
    drop(greeter);
    refused(&world.client, world.server.at(HELD_PORT));
    refused(&world.client, EMPTY.parse().unwrap());
    let _outside = Server::start(&stranger, 9_000, answer);
    call(&world.client, stranger.at(9_000), 5);
    let outside = stranger.at(9_000);
    let expected = [
        vec![
            unreachable("outbound", "http status: 503 Service Unavailable"),
            json_record(
                "warn",
                "connection failed",
                &format!(
                    r#""dst.addr":"{EMPTY}","direction":"outbound","error":"no healthy upstream: {EMPTY}""#
                ),
            ),
            json_record(
                "info",
                "connection complete",
                &format!(
                    "{SOURCE},\"dst.addr\":\"{outside}\",\"direction\":\"outbound\",\"bytes_sent\":5,\
                 \"bytes_recv\":94,\"duration\":\"D\""
                ),
            ),
        ],
        vec![unreachable("inbound", "connection failed: Connection refused (os error 111)")],
    ];
    for (proxy, expected) in [world.near(), world.far()].into_iter().zip(expected) {
        eventually("each of these lines", STEP, || {
            let told = lines_of(proxy, json_line);
            expected.iter().all(|line| told.contains(line))
        });
    }
}

const SOURCE: &str = r#""src.workload":"client","src.namespace":"default","src.cluster":"Kubernetes""#;

/// A line by the client as `json_line` leaves it, from these fields behind `src.addr`.
fn json_record(level: &str, message: &str, fields: &str) -> String {
    format!(
        "{{\"level\":\"{level}\",\"time\":\"T\",\"scope\":\"access\",\"message\":\"{message}\",\
         \"src.addr\":\"10.77.1.10:P\",{fields}}}"
    )
}

/// A call of the server's port 7000 when nobody listens there any more.
fn unreachable(direction: &str, error: &str) -> String {
    let end = |side: &str, name: &str| {
        format!(
            "\"{side}.workload\":\"{name}\",\"{side}.namespace\":\"default\",\
             \"{side}.identity\":\"spiffe://cluster.local/ns/default/sa/{name}\",\"{side}.cluster\":\"Kubernetes\""
        )
    };
    let fields = format!(
        "{},\"dst.addr\":\"10.77.2.10:15008\",\"dst.hbone_addr\":\"10.77.2.10:7000\",{},\
         \"direction\":\"{direction}\",\"bytes_sent\":0,\"bytes_recv\":0,\"duration\":\"D\",\"error\":\"{error}\"",
        end("src", "client"),
        end("dst", "server")
    );
    json_record("error", "connection complete", &fields)
}

#[test]
fn the_access_log_in_plain_text_is_the_references() {
    let (world, stranger) = start(&[("LOG_FORMAT", "plain")]);
    let _apps =
        [Server::start(&world.server, APP_PORT, answer), Server::start(&world.server, HELD_PORT, greet)];
    drop(traffic(&world, &stranger));
    let expected = [
        include_str!("../reference/access.client.plain.txt"),
        include_str!("../reference/access.server.plain.txt"),
    ];
    assert_lines(&world, &stranger, expected, plain_line);
}

/// Panics unless every family of the reference is there with the same head, place, labels and, where they don't depend
/// on the moment, values; and nothing else but what is named as ours.
#[track_caller]
fn compare(ours: &[Family], reference: &[Family]) {
    let names = |all: &[Family]| all.iter().map(|family| family.name.clone()).collect::<Vec<_>>();
    let (alone, shared): (Vec<_>, Vec<_>) =
        names(ours).into_iter().partition(|name| name.starts_with("ringway_"));
    assert_eq!(shared, names(reference), "families and their order");
    let last = ours.iter().rposition(|family| !family.name.starts_with("ringway_")).unwrap();
    let first = ours.iter().position(|family| family.name.starts_with("ringway_")).unwrap();
    assert!(last < first, "{alone:?} come after the reference's");
    for expected in reference {
        let name = &expected.name;
        let Some(family) = ours.iter().find(|family| family.name == *name) else { continue };
        let head = |family: &Family| (family.help.clone(), family.kind.clone(), family.unit.clone());
        assert_eq!(head(family), head(expected), "{name}");
        let keys = |family: &Family| family.series.keys().cloned().collect::<Vec<_>>();
        if name.starts_with("tokio_worker_") {
            // There may be another number of workers.
            let first = |family: &Family| keys(family).into_iter().next();
            assert_eq!(first(family), first(expected), "{name}");
            continue;
        }
        assert_eq!(keys(family), keys(expected), "{name}");
        let of_the_moment = ["process_", "tokio_", "istio_xds_"].iter().any(|part| name.starts_with(part));
        if !of_the_moment {
            assert_eq!(family.series, expected.series, "{name}");
        }
    }
}

#[track_caller]
fn assert_lines(world: &StandinWorld, stranger: &Pod, expected: [&str; 2], line: fn(&str) -> Option<String>) {
    for (proxy, expected) in [world.near(), world.far()].into_iter().zip(expected) {
        let here = expected.replace("10.99.3.10", &stranger.v4.to_string()).replace("10.99.", "10.77.");
        let mut expected: Vec<_> = here.lines().filter_map(line).collect();
        expected.sort();
        let mut told = Vec::new();
        eventually("all lines", STEP, || {
            told = lines_of(proxy, line);
            told.len() >= expected.len()
        });
        told.sort();
        assert_eq!(told, expected);
    }
}

fn lines_of(proxy: &NodeProxy, line: fn(&str) -> Option<String>) -> Vec<String> {
    proxy.output_text().unwrap().lines().filter_map(line).collect()
}

/// An access line without what is of the moment (time, the caller's port, duration) and without what is ours, of which
/// it must have the shard, behind all else; none for other lines.
fn plain_line(line: &str) -> Option<String> {
    let (_, rest) = line.split_once('\t')?;
    if !rest.contains("\taccess\t") {
        return None;
    }
    let rest = without_ours(rest, " ", "=", "");
    let rest =
        between(&rest, "src.addr=", " ", |address| format!("{}:P", address.rsplit_once(':').unwrap().0));
    Some(format!("T\t{}", between(&rest, "duration=\"", "\"", |_| "D".to_owned())))
}

/// The same of the other format.
fn json_line(line: &str) -> Option<String> {
    if !line.contains(r#""scope":"access""#) {
        return None;
    }
    let rest = without_ours(line, ",\"", "\":", "}");
    let rest = between(&rest, "\"time\":\"", "\"", |_| "T".to_owned());
    let rest = between(&rest, "\"src.addr\":\"", "\"", |address| {
        format!("{}:P", address.rsplit_once(':').unwrap().0)
    });
    Some(between(&rest, "\"duration\":\"", "\"", |_| "D".to_owned()))
}

/// Cut where the first of ours begins. The capture's lines have none; where one of ours stands before one of the
/// reference's, that one is lost and the comparison fails.
fn without_ours(line: &str, before: &str, after: &str, end: &str) -> String {
    let ours = ["reason", "attempts", "setup_ms", "shard", "via"];
    let first = ours.iter().filter_map(|name| line.find(&format!("{before}{name}{after}"))).min();
    first.map_or_else(|| line.to_owned(), |first| format!("{}{end}", &line[..first]))
}

/// Changes what stands between two texts, where the first one occurs.
fn between(line: &str, from: &str, to: &str, change: impl Fn(&str) -> String) -> String {
    let Some((before, rest)) = line.split_once(from) else { return line.to_owned() };
    let (value, after) = rest.split_once(to).unwrap();
    format!("{before}{from}{}{to}{after}", change(value))
}
