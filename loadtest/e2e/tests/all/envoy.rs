//! A real Envoy as the other end of HBONE, both ways.

use std::io::{Read, Write};
use std::net::Shutdown;

use ringway_e2e::baseline::Baseline;
use ringway_e2e::envoy::Envoy;
use ringway_e2e::hbone::papers;
use ringway_e2e::lines::{self, text};
use ringway_e2e::pattern;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, World, dial};

const BYTES: usize = 16 << 20;

/// Sends 16 MiB through an echo and compares; then many small connections.
fn exercise(from: &ringway::demo::topology::Pod, to: std::net::SocketAddr) {
    let mut stream = dial(from, to);
    let mut sent = vec![0; BYTES];
    pattern(3, 0, &mut sent);
    let mut reader = stream.try_clone().unwrap();
    let heard = std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut heard = Vec::with_capacity(BYTES);
            reader.read_to_end(&mut heard).unwrap();
            heard
        });
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        reading.join().unwrap()
    });
    assert!(heard == sent, "{} of {BYTES} bytes came back, or others", heard.len());
    let mut held: Vec<_> = (0..150).map(|_| dial(from, to)).collect();
    for stream in &mut held {
        stream.write_all(b"hello").unwrap();
    }
    for stream in &mut held {
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
}

#[test]
fn envoy_tunnels_to_our_inbound() {
    let world = World::start();
    let app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let identity = "spiffe://cluster.local/ns/default/sa/gateway";
    let papers = papers(&world.cluster.authority(), identity);
    let values = [
        ("listen_port", "10001".to_owned()),
        ("authority", world.server.at(APP_PORT).to_string()),
        ("peer_address", world.server.v4.to_string()),
        ("peer_identity", "spiffe://cluster.local/ns/default/sa/server".to_owned()),
    ];
    let envoy = Envoy::start(&world.stranger, world.cluster.directory(), "client.yaml", &papers, &values);
    exercise(&world.stranger, world.stranger.at(10_001));
    assert!(app.peer_addresses().iter().all(|peer| *peer == world.stranger.at(0).ip()));
    lines::wait_for(world.far(), "Envoy's identity", |line| {
        text(line, "src.identity") == identity && line["direction"] == "inbound"
    });
    drop(envoy);
    baseline.is_back(&world);
}

#[test]
fn our_outbound_tunnels_to_envoy() {
    let (world, gateway) = World::start_with_gateway();
    let app = Server::start(&gateway, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let papers = papers(&world.cluster.authority(), "spiffe://cluster.local/ns/default/sa/gateway");
    let envoy = Envoy::start(
        &gateway,
        world.cluster.directory(),
        "server.yaml",
        &papers,
        &[("app_port", APP_PORT.to_string())],
    );
    exercise(&world.client, gateway.at(APP_PORT));
    assert!(!app.peers().is_empty());
    let line = lines::wait_for(world.near(), "to Envoy", |line| text(line, "dst.workload") == "gateway");
    assert_eq!(text(&line, "dst.identity"), "spiffe://cluster.local/ns/default/sa/gateway");
    assert_eq!(text(&line, "dst.addr"), gateway.at(15008).to_string());
    drop(envoy);
    baseline.is_back(&world);
}

#[test]
fn the_two_envoys_understand_each_other() {
    // The peers themselves, without a proxy of ours: what fails here is no fault of it.
    let mut world = World::build(&[]);
    let gateway = world.cluster.plain_pod(1, "gateway").unwrap();
    let _app = Server::start(&gateway, APP_PORT, echo);
    let identity = "spiffe://cluster.local/ns/default/sa/gateway";
    let papers = papers(&world.cluster.authority(), identity);
    let directory = world.cluster.directory();
    let _server =
        Envoy::start(&gateway, directory, "server.yaml", &papers, &[("app_port", APP_PORT.to_string())]);
    let values = [
        ("listen_port", "10001".to_owned()),
        ("authority", gateway.at(APP_PORT).to_string()),
        ("peer_address", gateway.v4.to_string()),
        ("peer_identity", identity.to_owned()),
    ];
    let _client = Envoy::start(&world.stranger, directory, "client.yaml", &papers, &values);
    exercise(&world.stranger, world.stranger.at(10_001));
}
