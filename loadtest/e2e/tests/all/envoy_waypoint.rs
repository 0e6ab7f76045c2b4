//! A real Envoy as waypoint, in both forms: one that speaks HBONE itself, and one behind the node's proxy, which hears
//! by the PROXY header who calls.

use std::net::SocketAddr;
use std::path::PathBuf;

use ringway::demo::cluster::Cluster;
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::envoy::Envoy;
use ringway_e2e::hbone::{HBONE_PORT, HbonePeer, papers};
use ringway_e2e::http::{http_echo, request};
use ringway_e2e::lines::{self, number, text};
use ringway_e2e::serve::Server;
use ringway_e2e::world::{APP_PORT, VIP, VIP6, World};
use ringway_e2e::{block_on, pattern};
use serde_json::Value;

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
const SERVER: &str = "spiffe://cluster.local/ns/default/sa/server";
const WAYPOINT: &str = "spiffe://cluster.local/ns/default/sa/waypoint";
const BODY_BYTES: u64 = 8 << 20;

/// The service and the server behind it have this waypoint; the server takes nobody else.
fn attach(cluster: &mut Cluster, waypoint: &Pod) {
    let at = format!("waypoint: {{destination: \"/{}\", hboneMtlsPort: 15008}}", waypoint.v4);
    let service = cluster.mesh.services.iter_mut().find(|service| service.name == "web").unwrap();
    service.extra.push(at.clone());
    let server = cluster.mesh.workload("server").unwrap();
    server.extra.extend([at, "authorizationPolicies: [default/only-waypoint]".to_owned()]);
    cluster.mesh.policies.push(
        "{name: only-waypoint, namespace: default, scope: WorkloadSelector, action: Allow, dryRun: false, \
         rules: [[[{principals: [{Exact: cluster.local/ns/default/sa/waypoint}]}]]]}"
            .to_owned(),
    );
}

/// A file in the cluster's directory, and what is in it.
fn body(world: &World) -> (PathBuf, Vec<u8>) {
    let path = world.cluster.directory().join("body");
    let mut body = vec![0; usize::try_from(BODY_BYTES).unwrap()];
    pattern(11, 0, &mut body);
    std::fs::write(&path, &body).unwrap();
    (path, body)
}

/// What holds for either form: who is seen, what the waypoint refuses by path and by identity, and that much goes
/// through unharmed. Gives how many requests it made.
#[track_caller]
fn judge(world: &World, neighbour: &Pod, waypoint: &Pod, app: &Server, base: &str) {
    let answer = request(&world.client, &format!("{base}/hello"), None);
    assert_eq!(answer.status, 200, "{base}: {answer:?}");
    assert_eq!(answer.header("x-saw-marker"), format!("waypoint for {CLIENT}"));
    assert_eq!(answer.header("x-saw-peer"), waypoint.v4.to_string());
    let before = app.peers().len();
    assert_eq!(request(&world.client, &format!("{base}/denied"), None).status, 403);
    assert_eq!(request(neighbour, &format!("{base}/own"), None).status, 403);
    assert_eq!(app.peers().len(), before, "a denied request went on");
    // Nobody is ever taken for the one who called before.
    let statuses = |pod| request(pod, &format!("{base}/own"), None).status;
    let turns: Vec<_> = (0..20).map(|_| (statuses(&world.client), statuses(neighbour))).collect();
    assert!(turns.iter().all(|turn| *turn == (200, 403)), "{turns:?}");
    let (path, sent) = body(world);
    let answer = request(&world.client, &format!("{base}/much"), Some(&path));
    assert_eq!(answer.status, 200);
    assert!(answer.body == sent, "{} of {BODY_BYTES} bytes came back, or others", answer.body.len());
    let line = lines::wait_for(world.near(), "much", |line| line["bytes_sent"].as_u64() > Some(BODY_BYTES));
    assert!(number(&line, "bytes_recv") > BODY_BYTES, "{line}");
}

/// A line of this direction from one workload to another.
fn of<'a>(direction: &'a str, from: &'a str, to: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |line| {
        line["direction"] == direction
            && text(line, "src.identity").ends_with(&format!("/sa/{from}"))
            && text(line, "dst.workload") == to
    }
}

/// The direct way is closed for everyone else, whatever they ask for.
fn nobody_goes_around(world: &World, app: &Server) {
    let before = app.peers().len();
    let authority = world.cluster.authority();
    let peer = HbonePeer::new(&world.stranger, &authority, CLIENT);
    let status = block_on(async {
        peer.connect(world.server.at(HBONE_PORT), &world.server.at(APP_PORT).to_string()).await.status
    });
    assert_eq!(status, 401);
    let plain = request(&world.stranger, &format!("http://{}/", world.server.at(APP_PORT)), None);
    assert_eq!(plain.status, 0, "{plain:?}");
    assert_eq!(app.peers().len(), before);
}

#[test]
fn a_waypoint_terminates_judges_and_goes_on_by_hbone() {
    let (mut waypoint, mut neighbour) = (None, None);
    let world = World::start_with(&[], |world| {
        let pod = world.cluster.plain_pod(2, "waypoint").unwrap();
        world.cluster.mesh.add(&pod, true);
        attach(&mut world.cluster, &pod);
        neighbour = Some(world.cluster.mesh_pod(1, "neighbour").unwrap());
        waypoint = Some(pod);
    });
    let (waypoint, neighbour) = (waypoint.unwrap(), neighbour.unwrap());
    let app = Server::start(&world.server, APP_PORT, http_echo);
    let baseline = Baseline::take(&world);
    let values = [
        ("service", format!("{VIP}:80")),
        ("service6", format!("[{VIP6}]:80")),
        ("server", world.server.at(APP_PORT).to_string()),
        ("principal", CLIENT.to_owned()),
        ("server_principal", SERVER.to_owned()),
    ];
    let papers = papers(&world.cluster.authority(), WAYPOINT);
    let envoy = Envoy::start(&waypoint, world.cluster.directory(), "waypoint.yaml", &papers, &values);
    judge(&world, &neighbour, &waypoint, &app, &format!("http://{VIP}"));
    let line = lines::wait_for(world.near(), "to the waypoint", of("outbound", "client", "waypoint"));
    assert_eq!(text(&line, "dst.addr"), waypoint.at(HBONE_PORT).to_string());
    assert_eq!(text(&line, "dst.hbone_addr"), format!("{VIP}:80"));
    assert_eq!(text(&line, "dst.service"), "web.default.svc.cluster.local");
    assert_eq!(text(&line, "dst.identity"), WAYPOINT);
    let told = envoy.wait_for(&["TUNNEL", &format!("to={VIP}:80"), CLIENT, "status=200"]);
    for word in [
        format!("from={}", world.client.v4),
        format!("forwarded=for=\"{}:", world.client.v4),
        "host=web.default.svc.cluster.local".to_owned(),
        "k8s.pod.name=client,service.name=client".to_owned(),
    ] {
        assert!(told.contains(&word), "{word} in {told}");
    }
    // The other family: the waypoint's other address, the same way.
    let answer = request(&world.client, &format!("http://[{VIP6}]/six"), None);
    assert_eq!((answer.status, answer.header("x-saw-marker")), (200, &*format!("waypoint for {CLIENT}")));
    envoy.wait_for(&["TUNNEL", &format!("to=[{VIP6}]:80")]);
    // A port that the waypoint doesn't serve is its own to refuse.
    assert_eq!(request(&world.client, &format!("http://{VIP}:81/"), None).status, 0);
    lines::wait_for(world.near(), "an unserved port", |line| {
        text(line, "error") == "http status: 404 Not Found"
            && text(line, "dst.hbone_addr") == format!("{VIP}:81")
    });
    nobody_goes_around(&world, &app);
    drop(envoy);
    let line = lines::wait_for(world.far(), "from the waypoint", of("inbound", "waypoint", "server"));
    assert_eq!(text(&line, "src.workload"), "waypoint");
    assert_eq!(text(&line, "dst.hbone_addr"), world.server.at(APP_PORT).to_string());
    let metrics = world.near().metrics().unwrap();
    let labels = [
        "destination_workload=\"waypoint\"",
        "destination_service_name=\"web\"",
        "destination_principal=\"spiffe://cluster.local/ns/default/sa/waypoint\"",
    ];
    assert!(metrics.sum("istio_tcp_connections_opened_total", &labels) > 5.0);
    baseline.is_back(&world);
}

#[test]
fn a_sandwiched_waypoint_hears_who_calls_and_its_own_calls_go_on() {
    let (mut waypoint, mut neighbour) = (None, None);
    let world = World::start_with(&[], |world| {
        let pod = world.cluster.mesh_pod(2, "waypoint").unwrap();
        let workload = world.cluster.mesh.workload("waypoint").unwrap();
        workload.extra.push("applicationTunnel: {protocol: PROXY, port: 15088}".to_owned());
        attach(&mut world.cluster, &pod);
        neighbour = Some(world.cluster.mesh_pod(1, "neighbour").unwrap());
        waypoint = Some(pod);
    });
    let (waypoint, neighbour) = (waypoint.unwrap(), neighbour.unwrap());
    let app = Server::start(&world.server, APP_PORT, http_echo);
    let baseline = Baseline::take(&world);
    let envoy = start_sandwich(&world, &waypoint);
    // By the service, and by the pod: both have the waypoint. The waypoint itself calls the pod, and isn't sent back.
    let pod = world.server.at(APP_PORT);
    let service: SocketAddr = format!("{VIP}:80").parse().unwrap();
    for asked in [service, pod] {
        judge(&world, &neighbour, &waypoint, &app, &format!("http://{asked}"));
        let line = lines::wait_for(world.near(), "to the waypoint", |line| {
            of("outbound", "client", "waypoint")(line) && text(line, "dst.hbone_addr") == asked.to_string()
        });
        assert_eq!(text(&line, "dst.addr"), waypoint.at(HBONE_PORT).to_string());
        assert_eq!(line["dst.service"].is_string(), asked == service, "{line}");
        lines::wait_for(world.far(), "at the waypoint", |line| {
            of("inbound", "client", "waypoint")(line)
                && text(line, "src.workload") == "client"
                && text(line, "dst.hbone_addr") == asked.to_string()
        });
        let (from, to) = (format!("from={} ", world.client.v4), format!("to={asked} "));
        envoy.wait_for(&["REQUEST path=/hello", &from, &to, &format!("by={CLIENT}"), "status=200"]);
    }
    nobody_goes_around(&world, &app);
    drop(envoy);
    let line = lines::wait_for(world.far(), "on from the waypoint", of("outbound", "waypoint", "server"));
    assert_eq!(text(&line, "dst.addr"), world.server.at(HBONE_PORT).to_string());
    assert_eq!(text(&line, "dst.hbone_addr"), pod.to_string());
    assert_eq!(text(&line, "dst.identity"), SERVER);
    let line = lines::wait_for(world.far(), "at the server", of("inbound", "waypoint", "server"));
    assert_eq!(text(&line, "src.workload"), "waypoint");
    let back = world.far().access_lines().unwrap();
    assert!(!back.iter().any(of("outbound", "waypoint", "waypoint")), "sent to itself");
    baseline.is_back(&world);
}

pub fn start_sandwich(world: &World, waypoint: &Pod) -> Envoy {
    let values = [
        ("server_address", world.server.v4.to_string()),
        ("server_port", APP_PORT.to_string()),
        ("principal", CLIENT.to_owned()),
    ];
    let papers = papers(&world.cluster.authority(), WAYPOINT);
    Envoy::start(waypoint, world.cluster.directory(), "sandwich.yaml", &papers, &values)
}
