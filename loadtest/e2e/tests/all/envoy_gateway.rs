//! A real Envoy at the mesh's edges: as ingress that calls pods by HBONE, and as gateway in front of another network,
//! which opens the outer tunnel and passes the inner one on.

use std::net::SocketAddr;

use ringway::demo::mesh_file::{FileService, MeshFile, deny};
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::envoy::Envoy;
use ringway_e2e::hbone::{HBONE_PORT, papers};
use ringway_e2e::http::{http_echo, request};
use ringway_e2e::lines::{self, number, text};
use ringway_e2e::serve::Server;
use ringway_e2e::world::{APP_PORT, STEP, World, beyond};
use ringway_e2e::{eventually, pattern};

use crate::envoy_waypoint::start_sandwich;

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
const SERVER: &str = "spiffe://cluster.local/ns/default/sa/server";
const GATEWAY: &str = "spiffe://cluster.local/ns/default/sa/gateway";
const WAYPOINT: &str = "spiffe://cluster.local/ns/default/sa/waypoint";
const INGRESS: &str = "spiffe://cluster.local/ns/default/sa/ingress";
const FAR_VIP: &str = "10.77.201.1";
const PRIVATE_VIP: &str = "10.77.201.2";
const FAR_HOST: &str = "far.default.svc.cluster.local";
const BODY_BYTES: usize = 4 << 20;

#[test]
fn an_ingress_calls_pods_by_hbone_with_its_own_identity() {
    let (mut ingress, mut second) = (None, None);
    let mut world = World::start_with(&[], |world| {
        let pod = world.cluster.plain_pod(2, "ingress").unwrap();
        world.cluster.mesh.add(&pod, false);
        ingress = Some(pod);
        second = Some(world.cluster.mesh_pod(1, "second").unwrap());
    });
    let (ingress, second) = (ingress.unwrap(), second.unwrap());
    let _apps = [&world.server, &second].map(|pod| Server::start(pod, APP_PORT, http_echo));
    let baseline = Baseline::take(&world);
    let values = [
        ("listen_port", "8000".to_owned()),
        ("first", world.server.at(APP_PORT).to_string()),
        ("second", second.at(APP_PORT).to_string()),
    ];
    let papers = papers(&world.cluster.authority(), INGRESS);
    let envoy = Envoy::start(&ingress, world.cluster.directory(), "ingress.yaml", &papers, &values);
    let url = format!("http://{}/", ingress.at(8000));
    for _ in 0..8 {
        let answer = request(&world.stranger, &url, None);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("x-saw-marker"), format!("ingress for {}", world.stranger.v4));
        assert_eq!(answer.header("x-saw-peer"), ingress.v4.to_string());
    }
    // A denial ends what is open, and what comes then is answered by Envoy.
    world.change_policies(vec![deny("no-ingress", "cluster.local/ns/default/sa/ingress")]);
    eventually("the ingress gets nothing more", STEP, || request(&world.stranger, &url, None).status == 503);
    for (proxy, pod) in [(world.far(), &world.server), (world.near(), &second)] {
        let line = lines::wait_for(proxy, "from the ingress", |line| {
            text(line, "src.identity") == INGRESS
                && text(line, "error") == "connection closed due to policy change"
        });
        assert_eq!(text(&line, "src.workload"), "ingress");
        assert_eq!(text(&line, "dst.workload"), pod.name);
        assert_eq!(text(&line, "dst.hbone_addr"), pod.at(APP_PORT).to_string());
        assert!(number(&line, "bytes_recv") > 0 && number(&line, "bytes_sent") > 0, "{line}");
    }
    drop(envoy);
    baseline.is_back(&world);
}

/// The pods of the other network that are there beside the server.
struct Remote {
    gateway: Pod,
    neighbour: Pod,
    waypoint: Pod,
    /// The mesh as that network's control plane tells it.
    mesh: MeshFile,
}

/// Node 1 is the network `near`, node 2 the network `remote`, each with its own view: to the one, the service `far` is
/// a name behind a gateway; to the other it is the server, and the client is unknown.
fn two_networks(with_waypoint: bool) -> (World, Remote) {
    let mut remote = None;
    let world = World::start_with(&[], |world| {
        let gateway = world.cluster.plain_pod(2, "gateway").unwrap();
        let neighbour = world.cluster.mesh_pod(2, "neighbour").unwrap();
        let waypoint = world.cluster.mesh_pod(2, "waypoint").unwrap();
        world.cluster.mesh.add(&gateway, true).extra.push("network: remote".to_owned());
        let mesh = remote_view(world, &waypoint, with_waypoint);
        mesh.write().unwrap();
        let cluster = &mut world.cluster;
        for (node, name, value) in [
            (1, "NETWORK", "near"),
            (2, "NETWORK", "remote"),
            (2, "LOCAL_XDS_PATH", &*mesh.path().to_string_lossy()),
        ] {
            cluster.node_environment.push((node, name.to_owned(), value.to_owned()));
        }
        near_view(&mut cluster.mesh, &gateway, if with_waypoint { WAYPOINT } else { SERVER });
        remote = Some(Remote { gateway, neighbour, waypoint, mesh });
    });
    (world, remote.unwrap())
}

fn remote_view(world: &World, waypoint: &Pod, with_waypoint: bool) -> MeshFile {
    let mut mesh = MeshFile::new(&world.cluster.directory().join("remote.yaml"));
    let here = world.cluster.mesh.workloads.iter().filter(|workload| workload.node == 2);
    mesh.workloads = here.cloned().collect();
    let mut far = FileService::new("far", &[&format!("remote/{FAR_VIP}")], &[(80, APP_PORT)]);
    if with_waypoint {
        let at = format!("waypoint: {{destination: \"remote/{}\", hboneMtlsPort: 15008}}", waypoint.v4);
        far.extra.push(at);
    }
    for workload in &mut mesh.workloads {
        workload.serves.clear();
        workload.extra = vec!["network: remote".to_owned()];
        match &*workload.name {
            "server" => workload.serves.push((far.hostname(), 80, APP_PORT)),
            "waypoint" => {
                workload.extra.push("applicationTunnel: {protocol: PROXY, port: 15088}".to_owned());
            }
            // It calls by itself and tells nothing of what it carries.
            "gateway" => workload.hbone = false,
            _ => {}
        }
    }
    mesh.services.push(far);
    mesh
}

fn near_view(mesh: &mut MeshFile, gateway: &Pod, expected: &str) {
    mesh.workloads.retain(|workload| workload.node == 1 || workload.name == "gateway");
    for workload in mesh.workloads.iter_mut().filter(|workload| workload.node == 1) {
        workload.extra.push("network: near".to_owned());
    }
    mesh.services.clear();
    let mut horizon = beyond(gateway, Vec::new());
    for (name, vip) in [("far", FAR_VIP), ("private", PRIVATE_VIP)] {
        let mut service = FileService::new(name, &[&format!("near/{vip}")], &[(80, APP_PORT)]);
        service.extra.push(format!("subjectAltNames: [\"{expected}\"]"));
        horizon.serves.push((service.hostname(), 80, APP_PORT));
        mesh.services.push(service);
    }
    mesh.workloads.push(horizon);
}

fn start_gateway(world: &World, gateway: &Pod, onward: &Pod) -> Envoy {
    let papers = papers(&world.cluster.authority(), GATEWAY);
    let values = [("service", format!("{FAR_HOST}:80")), ("onward_address", onward.v4.to_string())];
    Envoy::start(gateway, world.cluster.directory(), "east-west.yaml", &papers, &values)
}

#[test]
fn an_east_west_gateway_opens_the_outer_tunnel_and_passes_the_inner_one_on() {
    let (world, mut remote) = two_networks(false);
    let app = Server::start(&world.server, APP_PORT, http_echo);
    let baseline = Baseline::take(&world);
    let envoy = start_gateway(&world, &remote.gateway, &world.server);
    let url = format!("http://{FAR_VIP}/");
    let body = world.cluster.directory().join("body");
    let mut sent = vec![0; BODY_BYTES];
    pattern(13, 0, &mut sent);
    std::fs::write(&body, &sent).unwrap();
    let answer = request(&world.client, &url, Some(&body));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body == sent, "{} of {BODY_BYTES} bytes came back, or others", answer.body.len());
    assert_eq!(answer.header("x-saw-peer"), remote.gateway.v4.to_string());
    let line = lines::wait_for(world.near(), "across", |line| line["direction"] == "outbound");
    assert_eq!(text(&line, "dst.addr"), remote.gateway.at(HBONE_PORT).to_string());
    assert_eq!(text(&line, "dst.hbone_addr"), format!("{FAR_HOST}:80"));
    assert_eq!((text(&line, "dst.identity"), text(&line, "dst.workload")), (SERVER, "server"));
    assert!(number(&line, "bytes_sent").min(number(&line, "bytes_recv")) > 4 << 20, "{line}");
    // To the far side the connection comes from its gateway, which its mesh knows; the caller is told by the baggage.
    let line = lines::wait_for(world.far(), "across", |line| line["direction"] == "inbound");
    let from: SocketAddr = text(&line, "src.addr").parse().unwrap();
    assert_eq!(from.ip(), remote.gateway.v4);
    assert_eq!((text(&line, "src.identity"), text(&line, "src.workload")), (CLIENT, "client"));
    assert_eq!(text(&line, "src.namespace"), "default");
    assert_eq!((text(&line, "dst.workload"), text(&line, "dst.service")), ("server", FAR_HOST));
    assert_eq!(text(&line, "dst.hbone_addr"), format!("{FAR_HOST}:80"));
    let metrics = world.far().metrics().unwrap();
    let opened = |labels: &[&str]| metrics.sum("istio_tcp_connections_opened_total", labels);
    let principal = format!("source_principal=\"{CLIENT}\"");
    assert_eq!(opened(&["source_workload=\"client\"", "source_cluster=\"Kubernetes\"", &principal]), 1.0);
    assert_eq!(opened(&["source_workload=\"gateway\""]), 0.0);
    // Within the network nothing is nested.
    assert_eq!(request(&remote.neighbour, &url, None).status, 200);
    let line = lines::wait_for(world.far(), "within the network", |line| line["direction"] == "outbound");
    assert_eq!(text(&line, "dst.addr"), world.server.at(HBONE_PORT).to_string());
    assert_eq!(text(&line, "dst.hbone_addr"), world.server.at(APP_PORT).to_string());
    lines::wait_for(world.far(), "by address", |line| {
        line["direction"] == "inbound" && text(line, "src.workload") == "neighbour"
    });
    assert_eq!(app.peer_addresses(), [remote.gateway.v4, remote.neighbour.v4]);
    // What the gateway doesn't serve.
    assert_eq!(request(&world.client, &format!("http://{PRIVATE_VIP}/"), None).status, 0);
    let not_served = "http status: 404 Not Found";
    lines::wait_for(world.near(), not_served, |line| text(line, "error").contains(not_served));
    // Policies at the far end judge the caller, not the gateway.
    remote.mesh.policies.push(deny("no-client", "cluster.local/ns/default/sa/client"));
    remote.mesh.write().unwrap();
    eventually("the policy is in force", STEP, || request(&world.client, &url, None).status == 0);
    lines::wait_for(world.near(), "a denial", |line| text(line, "error") == "http status: 401 Unauthorized");
    assert_eq!(request(&remote.neighbour, &url, None).status, 200);
    let log = envoy.wait_for(&["OUTER", &format!("to={FAR_HOST}:80")]);
    assert!(
        log.contains(&format!("by={CLIENT} network=- ")),
        "only the inner request tells the network: {log}"
    );
    drop(envoy);
    baseline.is_back(&world);
}

#[test]
fn a_gateway_may_lead_to_a_waypoint_of_its_network() {
    let (world, remote) = two_networks(true);
    let app = Server::start(&world.server, APP_PORT, http_echo);
    let baseline = Baseline::take(&world);
    let waypoint = start_sandwich(&world, &remote.waypoint);
    let gateway = start_gateway(&world, &remote.gateway, &remote.waypoint);
    let url = format!("http://{FAR_VIP}");
    let answer = request(&world.client, &format!("{url}/own"), None);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("x-saw-marker"), format!("waypoint for {CLIENT}"));
    assert_eq!(request(&world.client, &format!("{url}/denied"), None).status, 403);
    // The host's name has become the address that it has here.
    let (from, to) = (format!("from={} ", remote.gateway.v4), format!("to={FAR_VIP}:80 "));
    waypoint.wait_for(&["REQUEST path=/own", &format!("by={CLIENT}"), &from, &to, "status=200"]);
    let line = lines::wait_for(world.near(), "across", |line| line["direction"] == "outbound");
    assert_eq!((text(&line, "dst.identity"), text(&line, "dst.workload")), (WAYPOINT, "waypoint"));
    drop((waypoint, gateway));
    let line =
        lines::wait_for(world.far(), "at the waypoint", |line| text(line, "dst.workload") == "waypoint");
    assert_eq!((text(&line, "src.identity"), text(&line, "src.workload")), (CLIENT, "client"));
    lines::wait_for(world.far(), "at the server", |line| {
        line["direction"] == "inbound"
            && text(line, "src.identity") == WAYPOINT
            && text(line, "dst.workload") == "server"
    });
    assert_eq!(app.peer_addresses().first(), Some(&remote.waypoint.v4.into()));
    baseline.is_back(&world);
}
