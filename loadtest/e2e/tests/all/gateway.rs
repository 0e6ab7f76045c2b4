//! What is reached by more than one step: another network through its gateway, workloads known by host name, and
//! applications that take the PROXY header.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ringway::demo::mesh_file::{FileService, FileWorkload};
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::hbone::{HBONE_PORT, HbonePeer, connect};
use ringway_e2e::hbone_server::{Call, HboneServer};
use ringway_e2e::lines::{self, number, text};
use ringway_e2e::serve::{Server, digest, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, beyond, dial, talk};
use ringway_e2e::{block_on, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const FAR_VIP: &str = "10.77.201.1";

fn far() -> SocketAddr {
    format!("{FAR_VIP}:80").parse().unwrap()
}

/// A service whose only endpoint is in another network, behind the pod `gateway`, which no proxy serves. `name`: who
/// may be at the far end.
fn with_gateway(name: &str) -> (World, Pod) {
    let mut gateway = None;
    let world = World::start_with(&[], |world| {
        let pod = world.cluster.plain_pod(2, "gateway").unwrap();
        let mesh = &mut world.cluster.mesh;
        mesh.add(&pod, true).extra.push("network: remote".to_owned());
        let mut service = FileService::new("far", &[FAR_VIP], &[(80, APP_PORT)]);
        service.extra.push(format!("subjectAltNames: [\"{name}\"]"));
        mesh.workloads.push(beyond(&pod, vec![(service.hostname(), 80, APP_PORT)]));
        mesh.services.push(service);
        gateway = Some(pod);
    });
    (world, gateway.unwrap())
}

/// What the gateway was asked for.
#[derive(Default)]
struct Seen {
    calls: AtomicUsize,
    authorities: Mutex<Vec<String>>,
    forwarded_networks: AtomicUsize,
}

/// Terminates the outer tunnels and hands their streams to the server's port 15008, without looking in.
fn gateway(world: &World, pod: &Pod) -> (HboneServer, Arc<Seen>) {
    gateway_to(world, pod, vec![world.server.at(15008)])
}

/// The same with several backends, in turn.
fn gateway_to(world: &World, pod: &Pod, backends: Vec<SocketAddr>) -> (HboneServer, Arc<Seen>) {
    let (seen, space) = (Arc::new(Seen::default()), pod.space.clone());
    let counted = seen.clone();
    let identity = "spiffe://cluster.local/ns/default/sa/gateway";
    let server = HboneServer::start(pod, &world.cluster.authority(), identity, move |call| {
        counted.calls.fetch_add(1, Ordering::Relaxed);
        counted.authorities.lock().unwrap().push(call.authority.clone());
        counted
            .forwarded_networks
            .fetch_add(usize::from(call.headers.contains_key("x-forwarded-network")), Ordering::Relaxed);
        let onward = space.connect(backends[call.number % backends.len()], STEP).unwrap();
        Box::pin(hand_on(call, onward))
    });
    (server, seen)
}

async fn hand_on(mut call: Call, onward: std::net::TcpStream) {
    onward.set_nonblocking(true).unwrap();
    let (mut read, mut write) = tokio::net::TcpStream::from_std(onward).unwrap().into_split();
    let mut send = call.respond.send_response(http::Response::new(()), false).unwrap();
    let up = async {
        while let Some(Ok(data)) = call.body.data().await {
            let _ = call.body.flow_control().release_capacity(data.len());
            if write.write_all(&data).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await;
    };
    let down = async {
        let mut buffer = vec![0; 16 * 1_024];
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            send.reserve_capacity(count);
            let mut left = &buffer[..count];
            while !left.is_empty() {
                let Some(Ok(room)) = std::future::poll_fn(|context| send.poll_capacity(context)).await else {
                    return;
                };
                let (now, later) = left.split_at(room.min(left.len()));
                if send.send_data(Bytes::copy_from_slice(now), false).is_err() {
                    return;
                }
                left = later;
            }
        }
        let _ = send.send_data(Bytes::new(), true);
    };
    tokio::join!(up, down);
}

#[test]
fn another_network_is_reached_by_a_tunnel_within_a_tunnel() {
    let (world, pod) = with_gateway("spiffe://cluster.local/ns/default/sa/server");
    let _app = Server::start(&world.server, APP_PORT, echo);
    let (server, seen) = gateway(&world, &pod);
    let baseline = Baseline::take(&world);
    let from = talk(&world.client, far(), "across");
    let line = lines::wait_for(world.near(), "outbound", |line| {
        text(line, "src.addr") == from.to_string() && line["message"] == "connection complete"
    });
    let host = "far.default.svc.cluster.local";
    assert_eq!(text(&line, "dst.addr"), pod.at(15008).to_string());
    assert_eq!(text(&line, "dst.hbone_addr"), format!("{host}:80"));
    assert_eq!(text(&line, "dst.service"), host);
    assert_eq!(text(&line, "dst.identity"), "spiffe://cluster.local/ns/default/sa/server");
    assert_eq!(text(&line, "dst.workload"), "server");
    assert_eq!((number(&line, "bytes_sent"), number(&line, "bytes_recv")), (6, 6));
    let line = lines::wait_for(world.far(), "inbound", |line| line["direction"] == "inbound");
    assert_eq!(text(&line, "src.identity"), "spiffe://cluster.local/ns/default/sa/client");
    assert_eq!(text(&line, "dst.hbone_addr"), format!("{host}:80"));
    let metrics = world.near().metrics().unwrap();
    let labels = ["destination_workload=\"server\"", "connection_security_policy=\"mutual_tls\""];
    assert_eq!(metrics.sum("istio_tcp_connections_opened_total", &labels), 1.0);
    // Reused, but not for ever: each inner tunnel goes to one backend.
    for number in 0..99 {
        talk(&world.client, far(), &format!("word {number}"));
    }
    let calls = seen.calls.load(Ordering::Relaxed);
    assert!((7..40).contains(&calls), "{calls} inner tunnels for 100 connections");
    assert!(seen.authorities.lock().unwrap().iter().all(|authority| *authority == format!("{host}:80")));
    assert_eq!(
        seen.forwarded_networks.load(Ordering::Relaxed),
        0,
        "only the inner request tells the network"
    );
    drop(server);
    baseline.is_back(&world);
}

#[test]
fn connections_spread_over_what_is_behind_the_gateway() {
    let (world, pod) = with_gateway("spiffe://cluster.local/ns/default/sa/server");
    // The server's other address stands for a second backend.
    let twin = world.server.at6(15008);
    let app = Server::start(&world.server, APP_PORT, echo);
    let (_server, seen) = gateway_to(&world, &pod, vec![world.server.at(15008), twin]);
    for number in 0..200 {
        talk(&world.client, far(), &format!("word {number}"));
    }
    let calls = seen.calls.load(Ordering::Relaxed);
    assert!((12..60).contains(&calls), "{calls} inner tunnels for 200 connections");
    // The application is called at the address that the inner tunnel came to: v4 and v6 tell the backends apart.
    let by = |six: bool| {
        let of = |line: &serde_json::Value| {
            line["message"] == "connection complete" && text(line, "dst.addr").starts_with('[') == six
        };
        world.far().access_lines().unwrap().iter().filter(|line| of(line)).count()
    };
    eventually("a line for each", STEP, || by(false) + by(true) >= 200);
    let (four, six) = (by(false), by(true));
    assert!(four.min(six) >= 40, "{four} and {six} of {}", app.peers().len());
}

#[test]
fn much_goes_through_a_nested_tunnel_unharmed() {
    let (world, pod) = with_gateway("spiffe://cluster.local/ns/default/sa/server");
    let _app = Server::start(&world.server, APP_PORT, digest);
    let (_server, _) = gateway(&world, &pod);
    let mut sent = vec![0; 20 << 20];
    ringway_e2e::pattern(7, 0, &mut sent);
    let mut hash = ringway_e2e::serve::Digest::default();
    hash.add(&sent);
    let mut stream = dial(&world.client, far());
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut told = [0; 16];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(u64::from_be_bytes(told[..8].try_into().unwrap()), 20 << 20);
    assert_eq!(u64::from_be_bytes(told[8..].try_into().unwrap()), hash.value());
}

#[test]
fn whoever_isnt_expected_at_the_far_end_hears_nothing() {
    let (world, pod) = with_gateway("spiffe://cluster.local/ns/default/sa/another");
    let app = Server::start(&world.server, APP_PORT, echo);
    let (server, _) = gateway(&world, &pod);
    let baseline = Baseline::take(&world);
    let mut stream = dial(&world.client, far());
    let _ = stream.write_all(b"secret");
    assert!(!matches!(stream.read(&mut [0; 16]), Ok(1..)), "an answer from the wrong end");
    let line = lines::wait_for(world.near(), "a failed handshake", |line| !text(line, "error").is_empty());
    assert!(text(&line, "error").starts_with("io error: "), "{line}");
    assert!(text(&line, "error").contains("expected SAN"), "{line}");
    assert_eq!(app.peers().len(), 0);
    drop(server);
    baseline.is_back(&world);
}

#[test]
fn a_workload_known_by_host_name_is_resolved() {
    let world = World::start_with(&[], |world| {
        let mesh = &mut world.cluster.mesh;
        for (name, vip, host) in
            [("named", "10.77.203.1", "localhost"), ("lost", "10.77.203.2", "no.such.invalid")]
        {
            let service = FileService::new(name, &[vip], &[(80, APP_PORT)]);
            mesh.workloads.push(FileWorkload {
                name: name.to_owned(),
                service_account: name.to_owned(),
                trust_domain: "cluster.local".to_owned(),
                node: 9,
                addresses: Vec::new(),
                hbone: false,
                serves: vec![(service.hostname(), 80, APP_PORT)],
                extra: vec![format!("hostname: {host}")],
            });
            mesh.services.push(service);
        }
    });
    // The name means the client's own loopback: dials leave from its pod.
    let _app = Server::start_on(&world.client, (Ipv4Addr::LOCALHOST, APP_PORT).into(), echo);
    for word in ["one", "two"] {
        let from = talk(&world.client, "10.77.203.1:80".parse().unwrap(), word);
        let line = lines::wait_for(world.near(), word, |line| text(line, "src.addr") == from.to_string());
        assert_eq!(text(&line, "dst.addr"), format!("127.0.0.1:{APP_PORT}"));
        assert_eq!(text(&line, "dst.workload"), "named");
    }
    let metrics = world.near().metrics().unwrap();
    let asked = ["hostname=\"localhost\"", "source_workload=\"client\""];
    assert_eq!(metrics.sum("istio_on_demand_dns_total", &asked), 2.0);
    let mut stream = dial(&world.client, "10.77.203.2:80".parse().unwrap());
    assert!(!matches!(stream.read(&mut [0; 16]), Ok(1..)));
    let error = "no ip addresses were resolved for workload: Kubernetes//Pod/default/lost";
    lines::wait_for(world.near(), error, |line| text(line, "error") == error);
}

#[test]
fn an_application_that_wants_the_proxy_header_gets_it_first() {
    let mut sandwich = None;
    let world = World::start_with(&[], |world| {
        let pod = world.cluster.mesh_pod(2, "sandwich").unwrap();
        let workload = world.cluster.mesh.workload("sandwich").unwrap();
        workload.extra.push("applicationTunnel: {protocol: PROXY, port: 15088}".to_owned());
        sandwich = Some(pod);
    });
    let pod = sandwich.unwrap();
    let app = Server::start_on(&pod, (Ipv4Addr::LOCALHOST, 15088).into(), echo);
    let baseline = Baseline::take(&world);
    let to = pod.at(9_999);
    let mut stream = dial(&world.client, to);
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    let identity = b"spiffe://cluster.local/ns/default/sa/client";
    let header = heard.strip_suffix(b"hello").expect("the payload follows the header");
    assert_eq!(&header[..14], b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    assert_eq!(header[16..20], world.client.v4.octets());
    assert_eq!(header[20..24], pod.v4.octets());
    assert_eq!(u16::from_be_bytes([header[26], header[27]]), 9_999);
    assert_eq!(header[28], 0xd0);
    assert_eq!(&header[31..], identity);
    assert!(app.peer_addresses()[0].is_loopback());
    drop(stream);
    baseline.is_back(&world);
}

/// Makes one call for each set of headers, each of another length, and tells what the log says of the caller:
/// workload, namespace, identity.
fn callers(known: bool, environment: &[(&str, &str)], calls: &[&[(&str, &str)]]) -> Vec<[String; 3]> {
    let world = World::start_with(&[&[("NETWORK", "here")], environment].concat(), |world| {
        if known {
            world.cluster.mesh.add(&world.stranger, false).extra.push("network: here".to_owned());
        }
    });
    let _app = Server::start(&world.server, APP_PORT, echo);
    let peer = HbonePeer::new(
        &world.stranger,
        &world.cluster.authority(),
        "spiffe://cluster.local/ns/default/sa/stranger",
    );
    let (to, authority) = (world.server.at(HBONE_PORT), world.server.at(APP_PORT).to_string());
    let lengths = calls.iter().zip(1..).map(|(headers, length)| {
        block_on(async {
            let mut answer = connect(&mut peer.open(to).await, &authority, headers).await;
            assert_eq!(answer.status, 200, "{headers:?}");
            answer.echo(&[b'x'; 64][..length]).await;
        });
        length
    });
    let lines = lengths.map(|length| {
        lines::wait_for(world.far(), "a call", |line| {
            line["bytes_recv"].as_u64() == u64::try_from(length).ok()
        })
    });
    let of =
        |line| ["src.workload", "src.namespace", "src.identity"].map(|field| text(&line, field).to_owned());
    lines.map(of).collect()
}

#[test]
fn a_caller_from_another_network_is_who_its_baggage_says() {
    let baggage = ("baggage", "k8s.namespace.name=afar,k8s.deployment.name=shop-1,service.name=shop");
    let identity = "spiffe://cluster.local/ns/default/sa/stranger";
    let here = ["stranger", "default", identity].map(str::to_owned);
    let calls: [&[(&str, &str)]; 5] = [
        &[baggage],
        &[("x-forwarded-network", "HERE"), baggage],
        &[("x-forwarded-network", "elsewhere"), baggage],
        &[("x-forwarded-network", ""), baggage],
        &[("x-forwarded-network", "elsewhere")],
    ];
    let afar = ["shop", "afar", identity].map(str::to_owned);
    let unknown = ["", "", identity].map(str::to_owned);
    assert_eq!(callers(true, &[], &calls), [here.clone(), here.clone(), afar.clone(), afar, unknown.clone()]);
    // Where baggage is off, nothing is believed of it either.
    let told = callers(true, &[("ENABLE_RESPONSE_BAGGAGE", "false")], &calls[..3]);
    assert_eq!(told, [here.clone(), here, unknown]);
}

#[test]
fn a_caller_that_the_mesh_does_not_know_is_who_its_baggage_says() {
    let baggage = ("baggage", "k8s.namespace.name=afar,k8s.deployment.name=shop-1,service.name=shop");
    let identity = "spiffe://cluster.local/ns/default/sa/stranger";
    let [told, unknown] =
        [["shop", "afar", identity], ["", "", identity]].map(|fields| fields.map(str::to_owned));
    let calls: [&[(&str, &str)]; 2] = [&[baggage], &[]];
    assert_eq!(callers(false, &[], &calls), [told, unknown.clone()]);
    assert_eq!(callers(false, &[("ENABLE_RESPONSE_BAGGAGE", "false")], &calls[..1]), [unknown]);
}
