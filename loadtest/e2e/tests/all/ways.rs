//! The ways a connection can go: HBONE by pod address and by service, plaintext in, passthrough out; v4 and
//! v6; the server always sees the client's own address.

use std::io::{Read, Write};
use std::net::SocketAddr;

use ringway::demo::topology::Pod;
use ringway::demo::wire_tap::WireTap;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::lines::{self, number, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, World, dial, service, service6, talk};

#[test]
fn hbone_by_pod_and_by_service_in_both_families_with_identities_and_equal_byte_counts() {
    let world = World::start();
    let app = Server::start(&world.server, APP_PORT, echo);
    let tap = WireTap::start(&world.cluster.topology.wire, &["whispered"]).unwrap();
    let baseline = Baseline::take(&world);
    let (v4, v6) = (world.server.at(APP_PORT), world.server.at6(APP_PORT));
    for (to, dialled, service) in [
        (v4, v4, None),
        (v6, v6, None),
        (service(), v4, Some("web.default.svc.cluster.local")),
        (service6(), v6, Some("web.default.svc.cluster.local")),
    ] {
        let word = "x".repeat(1_000 + usize::from(to.port())) + "whispered";
        let from = talk(&world.client, to, &word);
        let length = u64::try_from(word.len()).unwrap();
        let outbound = lines::wait_for(world.near(), &format!("outbound from {from}"), |line| {
            text(line, "src.addr") == from.to_string() && line["direction"] == "outbound"
        });
        let mut fields = lines::FIELDS.to_vec();
        fields.retain(|field| *field != "error" && (*field != "dst.service" || service.is_some()));
        lines::assert_shape(&outbound, &fields);
        assert_eq!(outbound["level"], "info");
        assert_eq!(outbound["message"], "connection complete");
        assert_eq!(text(&outbound, "src.identity"), "spiffe://cluster.local/ns/default/sa/client");
        assert_eq!(text(&outbound, "dst.identity"), "spiffe://cluster.local/ns/default/sa/server");
        assert_eq!(text(&outbound, "dst.hbone_addr"), dialled.to_string());
        assert_eq!(text(&outbound, "dst.addr"), SocketAddr::new(dialled.ip(), 15008).to_string());
        assert_eq!(outbound["dst.service"].as_str(), service);
        assert_eq!((number(&outbound, "bytes_sent"), number(&outbound, "bytes_recv")), (length, length));
        let inbound = lines::wait_for(world.far(), &format!("inbound of {length} bytes"), |line| {
            line["direction"] == "inbound"
                && line["bytes_recv"] == length
                && text(line, "dst.hbone_addr") == dialled.to_string()
        });
        assert_eq!(number(&inbound, "bytes_sent"), length);
        assert_eq!(text(&inbound, "src.identity"), "spiffe://cluster.local/ns/default/sa/client");
        assert_eq!(text(&inbound, "dst.addr"), text(&outbound, "dst.addr"));
        let source: SocketAddr = text(&inbound, "src.addr").parse().unwrap();
        assert_eq!(source.ip(), from.ip());
    }
    let (v4, v6) = (world.client.at(0).ip(), world.client.at6(0).ip());
    assert_eq!(app.peer_addresses(), [v4, v6, v4, v6]);
    let seen = tap.sightings();
    assert_eq!(tap.seen("whispered"), 0, "plaintext on the wire: {seen:?}");
    assert!(seen.application_data > 8 && seen.other_segments == 0, "{seen:?}");
    baseline.is_back(&world);
}

#[test]
fn pods_of_one_node_talk_by_hbone_too() {
    let mut neighbour = None;
    let world = World::start_with(&[], |world| {
        neighbour = Some(world.cluster.mesh_pod(1, "neighbour").unwrap());
    });
    let neighbour = neighbour.unwrap();
    let app = Server::start(&neighbour, APP_PORT, echo);
    for to in [neighbour.at(APP_PORT), neighbour.at6(APP_PORT)] {
        talk(&world.client, to, "next door");
    }
    assert_eq!(app.peer_addresses(), [world.client.at(0).ip(), world.client.at6(0).ip()]);
    for direction in ["outbound", "inbound"] {
        lines::wait_for(world.near(), direction, |line| {
            line["direction"] == direction && text(line, "dst.identity").ends_with("/sa/neighbour")
        });
    }
}

#[test]
fn one_process_serves_both_address_families_of_a_pod_that_listens_on_one_only() {
    let world = World::start();
    let only_v6 = Server::start_on(&world.server, world.server.at6(APP_PORT), echo);
    talk(&world.client, world.server.at6(APP_PORT), "six");
    let only_v4 = Server::start_on(&world.server, world.server.at(APP_PORT), echo);
    talk(&world.client, world.server.at(APP_PORT), "four");
    assert_eq!((only_v4.peers().len(), only_v6.peers().len()), (1, 1));
}

#[test]
fn plaintext_from_outside_the_mesh_arrives_with_its_source_and_without_an_identity() {
    let world = World::start();
    let app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    for (to, source) in [
        (world.server.at(APP_PORT), world.stranger.at(0).ip()),
        (world.server.at6(APP_PORT), world.stranger.at6(0).ip()),
    ] {
        let from = talk(&world.stranger, to, "a stranger's words");
        assert_eq!(from.ip(), source);
        let line = lines::wait_for(world.far(), "inbound plaintext", |line| {
            text(line, "src.addr") == from.to_string()
        });
        assert_eq!(text(&line, "dst.addr"), to.to_string());
        assert_eq!(line["direction"], "inbound");
        for absent in ["src.identity", "dst.identity", "dst.hbone_addr", "src.workload"] {
            assert!(line.get(absent).is_none(), "{absent} in {line}");
        }
        assert_eq!((number(&line, "bytes_recv"), number(&line, "bytes_sent")), (18, 18));
    }
    // The same port and address as the client had: nothing between changed it.
    assert_eq!(app.peer_addresses(), [world.stranger.at(0).ip(), world.stranger.at6(0).ip()]);
    let unknown = world.far().metrics().unwrap();
    let labels = ["reporter=\"destination\"", "connection_security_policy=\"unknown\""];
    assert_eq!(unknown.sum("istio_tcp_connections_opened_total", &labels), 2.0);
    baseline.is_back(&world);
}

#[test]
fn what_the_mesh_does_not_know_or_does_not_serve_is_passed_through() {
    let world = World::start_with(&[], |world| {
        // Known to the mesh, but no proxy serves it.
        let legacy = world.cluster.plain_pod(2, "legacy").unwrap();
        world.cluster.mesh.add(&legacy, false);
    });
    let baseline = Baseline::take(&world);
    let unknown = Server::start(&world.stranger, APP_PORT, echo);
    for to in [world.stranger.at(APP_PORT), world.stranger.at6(APP_PORT)] {
        let from = talk(&world.client, to, "into the open");
        let line =
            lines::wait_for(world.near(), "passthrough", |line| text(line, "src.addr") == from.to_string());
        assert_eq!(text(&line, "dst.addr"), to.to_string());
        assert_eq!(line["direction"], "outbound");
        assert!(line.get("dst.identity").is_none() && line.get("src.identity").is_none(), "{line}");
        assert!(line.get("dst.hbone_addr").is_none() && line.get("dst.workload").is_none(), "{line}");
    }
    assert_eq!(unknown.peer_addresses(), [world.client.at(0).ip(), world.client.at6(0).ip()]);
    baseline.is_back(&world);
}

#[test]
fn an_uncaptured_workload_of_the_mesh_is_reached_in_the_clear_and_named_in_the_log() {
    let mut legacy = None;
    let world = World::start_with(&[], |world| {
        let pod = world.cluster.plain_pod(2, "legacy").unwrap();
        world.cluster.mesh.add(&pod, false);
        legacy = Some(pod);
    });
    let legacy = legacy.unwrap();
    let _app = Server::start(&legacy, APP_PORT, echo);
    let from = talk(&world.client, legacy.at(APP_PORT), "to the old world");
    let line = lines::wait_for(world.near(), "to legacy", |line| text(line, "src.addr") == from.to_string());
    assert_eq!(text(&line, "dst.workload"), "legacy");
    assert_eq!(text(&line, "dst.addr"), legacy.at(APP_PORT).to_string());
    assert!(line.get("dst.identity").is_none(), "{line}");
}

#[test]
fn a_pool_shares_tunnels_within_a_pod_and_never_between_pods() {
    let mut neighbour = None;
    let world = World::start_with(&[], |world| {
        neighbour = Some(world.cluster.mesh_pod(1, "neighbour").unwrap());
    });
    let neighbour = neighbour.unwrap();
    let app = Server::start(&world.server, APP_PORT, echo);
    let mut held = Vec::new();
    for pod in [&world.client, &neighbour] {
        for _ in 0..20 {
            let mut stream = dial(pod, world.server.at(APP_PORT));
            stream.write_all(b"?").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            held.push(stream);
        }
    }
    let tunnels = |pod: &Pod| {
        let sockets = ringway_e2e::sockets::connections(&pod.space);
        sockets.iter().filter(|socket| socket.peer.contains(":15008")).count()
    };
    // A pod's listeners stand on up to four shards, each with a pool of its own.
    for pod in [&world.client, &neighbour] {
        assert!(
            (1..=4).contains(&tunnels(pod)),
            "{} has {} tunnels for 20 connections",
            pod.name,
            tunnels(pod)
        );
    }
    let of = |address| app.peer_addresses().iter().filter(|peer| **peer == address).count();
    assert_eq!((of(world.client.at(0).ip()), of(neighbour.at(0).ip())), (20, 20));
}
