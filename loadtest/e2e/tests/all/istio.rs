//! A real istiod tells the mesh and signs the certificates: what is applied there changes what traffic does here,
//! and its absence changes nothing.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ringway::demo::cluster::READY_BOUND;
use ringway::demo::node::{NodeProxy, READY_PORT};
use ringway::demo::topology::Pod;
use ringway_e2e::eventually;
use ringway_e2e::istio_world::{IstioWorld, deny, pod, web};
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::verdicts::echo_on;
use ringway_e2e::world::{APP_PORT, STEP, dial, service, try_dial};
use serde_json::Value;

/// How soon an applied object is in force.
const SOON: Duration = Duration::from_secs(1);
const SERVER: &str = "spiffe://cluster.local/ns/default/sa/server";

/// One echo over a connection of its own.
fn call(from: &Pod, to: SocketAddr) -> std::io::Result<()> {
    echo_on(&mut try_dial(from, to)?)
}

fn is_refused(from: &Pod, to: SocketAddr) -> bool {
    call(from, to).is_err_and(|error| {
        matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused | ErrorKind::UnexpectedEof
        )
    })
}

fn certificate(proxy: &NodeProxy, identity: &str) -> Value {
    let dump = proxy.dump().unwrap();
    let all = dump["certificates"].as_array().unwrap();
    all.iter().find(|entry| entry["identity"] == identity).cloned().unwrap_or_default()
}

#[test]
fn pods_talk_with_istiods_certificates_and_its_policies_take_and_give_back() {
    let world = IstioWorld::start(&[], &[]);
    let app = Server::start(&world.server, APP_PORT, echo);
    call(&world.client, service()).unwrap();
    call(&world.client, world.server.at(APP_PORT)).unwrap();
    assert!(app.peer_addresses().iter().all(|peer| *peer == world.client.at(0).ip()));
    let line = lines::wait_for(world.far(), "the call", |line| line["direction"] == "inbound");
    assert_eq!(text(&line, "src.identity"), "spiffe://cluster.local/ns/default/sa/client");
    assert_eq!(text(&line, "dst.service"), "web.default.svc.cluster.local");
    let held = certificate(world.far(), SERVER);
    assert_eq!(held["state"], "Available", "{held}");
    assert!(
        !held["certChain"].as_array().unwrap().is_empty()
            && !held["rootCerts"].as_array().unwrap().is_empty()
    );

    let mut open = dial(&world.client, service());
    echo_on(&mut open).unwrap();
    world.istiod.apply(&deny("server", "client"));
    eventually("the policy is in force for what is open", SOON, || {
        open.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        match open.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    });
    assert!(is_refused(&world.client, service()));
    world.istiod.delete("AuthorizationPolicy", "default", "no-client");
    eventually("it is gone", SOON, || call(&world.client, service()).is_ok());
}

#[test]
fn objects_of_every_kind_change_what_traffic_does_within_a_second() {
    let mut world = IstioWorld::start(&[], &[]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    let plain = world.server.at(APP_PORT);
    call(&world.stranger, plain).unwrap();
    world.istiod.apply(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
         metadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: STRICT}}\n",
    );
    eventually("plaintext is refused", SOON, || is_refused(&world.stranger, plain));
    call(&world.client, service()).unwrap();
    world.istiod.delete("PeerAuthentication", "istio-system", "default");
    eventually("plaintext is taken again", SOON, || call(&world.stranger, plain).is_ok());

    // A service's virtual address moves, and a service of the mesh that Kubernetes doesn't know.
    let elsewhere: SocketAddr = "10.77.200.9:80".parse().unwrap();
    world.istiod.apply(&web("server", "10.77.200.9"));
    eventually("the service answers at its new address", SOON, || call(&world.client, elsewhere).is_ok());
    let entry: SocketAddr = "240.240.1.1:9000".parse().unwrap();
    world.istiod.apply(&format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: out, namespace: default}}\n\
         spec:\n  hosts: [out.example]\n  addresses: [{}]\n  resolution: STATIC\n  location: MESH_INTERNAL\n  \
         ports: [{{number: 9000, name: tcp, protocol: TCP, targetPort: {APP_PORT}}}]\n  \
         workloadSelector: {{labels: {{app: server}}}}\n",
        entry.ip()
    ));
    eventually("the ServiceEntry leads to the pod", SOON, || call(&world.client, entry).is_ok());
    world.istiod.delete("ServiceEntry", "default", "out");
    eventually("and no more", SOON, || {
        let dump = world.near().dump().unwrap();
        dump["services"].as_array().unwrap().iter().all(|service| service["hostname"] != "out.example")
    });

    // A pod that comes while everything runs: captured, then known to istiod, then gone.
    let late = world.cluster.mesh_pod(1, "late").unwrap();
    let agent = world.cluster.agent(1).unwrap();
    agent.add(ringway::demo::cluster::agent_pod(&late).unwrap()).unwrap();
    let waiting = std::thread::scope(|scope| {
        let (late, to) = (&late, service_of("10.77.200.9"));
        let calling = scope.spawn(move || call(late, to));
        // The CNI was faster than the control plane, as it often is: the call is held, not lost.
        std::thread::sleep(Duration::from_millis(300));
        world.istiod.apply(&pod(late));
        calling.join().unwrap()
    });
    waiting.unwrap();
    world.istiod.delete("Pod", "default", "late");
    eventually("its certificate is forgotten", STEP, || {
        certificate(world.near(), "spiffe://cluster.local/ns/default/sa/late").is_null()
    });
}

fn service_of(vip: &str) -> SocketAddr {
    SocketAddr::new(vip.parse().unwrap(), 80)
}

/// Connections one after another until told to stop; what failed.
fn run_until(stop: &AtomicBool, done: &AtomicU32) -> Vec<String> {
    let mut failures = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let once = || {
            let mut stream = TcpStream::connect_timeout(&service(), STEP)?;
            stream.set_read_timeout(Some(STEP))?;
            echo_on(&mut stream)?;
            stream.shutdown(Shutdown::Both)
        };
        if let Err(error) = once() {
            failures.push(error.to_string());
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    failures
}

#[test]
fn istiod_dies_and_comes_back_under_traffic_without_one_failed_connection() {
    let mut world = IstioWorld::start(&["--cert-ttl", "1h"], &[]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    echo_on(&mut held).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU32::new(0));
    let space = world.client.space.clone();
    let failures = std::thread::scope(|scope| {
        let running = scope.spawn(|| space.enter(|| run_until(&stop, &done)).unwrap());
        let at_least = |count: u32| {
            let until = done.load(Ordering::Relaxed) + count;
            eventually("connections go on", STEP, || done.load(Ordering::Relaxed) >= until);
        };
        at_least(50);
        world.istiod.stop();
        at_least(200);
        std::thread::sleep(Duration::from_secs(1));
        world.istiod.restart();
        eventually("both nodes are connected again", Duration::from_secs(20), || {
            world.istiod.connections().as_array().is_some_and(|all| all.len() == 2)
        });
        at_least(50);
        echo_on(&mut held).unwrap();
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    assert_eq!(failures, Vec::<String>::new(), "of {} connections", done.load(Ordering::Relaxed));
    // What changes after the restart arrives.
    world.istiod.apply(&deny("server", "client"));
    eventually("a policy is in force", STEP, || is_refused(&world.client, service()));
}

#[test]
fn certificates_are_renewed_at_half_their_life_and_connections_do_not_notice() {
    let world = IstioWorld::start(&[], &[("SECRET_TTL", "8s")]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    echo_on(&mut held).unwrap();
    let serial = || certificate(world.far(), SERVER)["certChain"][0]["serialNumber"].clone();
    let first = serial();
    assert!(first.is_string(), "{first}");
    eventually("a new certificate", Duration::from_secs(12), || {
        call(&world.client, service()).unwrap();
        echo_on(&mut held).unwrap();
        serial() != first
    });
}

#[test]
fn on_demand_each_connection_brings_what_its_way_needs() {
    let world = IstioWorld::start(&[], &[("XDS_ON_DEMAND", "true")]);
    let app = Server::start(&world.server, APP_PORT, echo);
    let known = |kind: &str| world.near().dump().unwrap()[kind].as_array().unwrap().len();
    assert_eq!(known("services"), 0, "nothing was asked for yet");
    call(&world.client, service()).unwrap();
    call(&world.client, world.server.at(APP_PORT)).unwrap();
    assert!(app.peer_addresses().iter().all(|peer| *peer == world.client.at(0).ip()));
    lines::wait_for(world.far(), "carried as a call of the mesh", |line| {
        text(line, "src.identity") == "spiffe://cluster.local/ns/default/sa/client"
    });
    assert_eq!(known("services"), 1);
    // What isn't of the mesh goes where it was meant to go, and is looked up once for a while.
    let outside = Server::start(&world.stranger, APP_PORT, echo);
    call(&world.client, world.stranger.at(APP_PORT)).unwrap();
    assert_eq!(outside.peer_addresses(), [world.client.at(0).ip()]);
    // What appears later is told of, since it was asked for.
    let later: SocketAddr = "10.77.200.9:80".parse().unwrap();
    assert!(call(&world.client, later).is_err(), "nobody has this address yet");
    world.istiod.apply(&web("server", "10.77.200.9"));
    eventually("the address leads to the service", STEP, || call(&world.client, later).is_ok());
    world.istiod.apply(&deny("server", "client"));
    eventually("policies are held without being asked for", STEP, || is_refused(&world.client, later));
}

#[test]
fn without_istiod_a_restarted_proxy_serves_nothing_and_says_what_it_waits_for() {
    let mut world = IstioWorld::start(&[], &[]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    call(&world.client, service()).unwrap();
    world.istiod.stop();
    world.cluster.start_in_place(1).unwrap();
    says(world.near(), &["XDS client connection error", "10.77.0.100:15012", "tcp connect error"]);
    for to in [service(), world.server.at(APP_PORT), world.stranger.at(APP_PORT)] {
        assert!(is_refused(&world.client, to), "{to} was reached without a mesh");
    }
    world.istiod.restart();
    world.cluster.proxy_mut(1).unwrap().wait_ready(READY_BOUND).unwrap();
    eventually("traffic flows again", STEP, || call(&world.client, service()).is_ok());
}

/// A line of the proxy's log has all these words, and the proxy isn't ready.
fn says(proxy: &NodeProxy, words: &[&str]) {
    lines::wait_for_message(proxy, words);
    let (status, _) = proxy.get(READY_PORT, "/healthz/ready").unwrap();
    assert_eq!(status, 500, "ready, although {words:?}");
}

#[test]
fn a_wrong_token_and_an_unknown_root_are_named_where_an_operator_looks() {
    let mut world = IstioWorld::build(&[], &[]);
    let directory = world.cluster.directory().to_owned();
    let bad = directory.join("bad-token-1");
    std::fs::write(&bad, "no.such.token").unwrap();
    let plane = world.cluster.control_plane.as_mut().unwrap();
    let good =
        std::mem::replace(&mut plane.tokens, directory.join("bad-token-").to_string_lossy().into_owned());
    world.cluster.start_in_place(1).unwrap();
    says(world.near(), &["10.77.0.100:15012", "authentication", "token"]);
    // The token is read anew for each stream: the right one in its place is enough.
    std::fs::copy(format!("{good}1"), &bad).unwrap();
    world.cluster.proxy_mut(1).unwrap().wait_ready(READY_BOUND).unwrap();

    let root = directory.join("other-root.pem");
    let other = ringway::tls::cert::Authority::new("cluster.local").unwrap();
    let papers = other.issue(&SERVER.parse().unwrap(), Duration::from_secs(60)).unwrap();
    std::fs::write(&root, papers.roots_pem).unwrap();
    let plane = world.cluster.control_plane.as_mut().unwrap();
    let right = std::mem::replace(&mut plane.root, root.clone());
    world.cluster.start_in_place(1).unwrap();
    says(world.near(), &["10.77.0.100:15012", "certificate"]);
    std::fs::copy(right, &root).unwrap();
    world.cluster.proxy_mut(1).unwrap().wait_ready(READY_BOUND).unwrap();
}
