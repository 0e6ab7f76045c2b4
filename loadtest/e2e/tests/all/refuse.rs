//! What can't be reached is refused quickly, and the log says why. Calls at the proxy's own ports never loop.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{STEP, World, dial, service, try_dial};

/// How a client experiences a destination.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    Refused,
    /// Connected, then ended or reset without an answer.
    Closed,
    Answered(String),
    Hung,
}

fn call(from: &Pod, to: SocketAddr) -> Outcome {
    let mut stream = match try_dial(from, to) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Outcome::Refused,
        Err(error) => panic!("{to}: {error}"),
    };
    let _ = stream.write_all(b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let mut heard = String::new();
    match stream.read_to_string(&mut heard) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Outcome::Hung,
        _ if heard.is_empty() => Outcome::Closed,
        _ => Outcome::Answered(heard),
    }
}

#[test]
fn a_closed_port_is_a_prompt_end_with_a_reason() {
    let world = World::start();
    let baseline = Baseline::take(&world);
    for (from, to, direction, error) in [
        (&world.client, world.server.at(9), "outbound", "http status: 503 Service Unavailable"),
        (&world.client, world.server.at(9), "inbound", "connection failed: "),
        (&world.client, world.stranger.at(9), "outbound", "io error: Connection refused (os error 111)"),
        (&world.stranger, world.server.at(9), "inbound", "connection failed: "),
    ] {
        let started = Instant::now();
        assert_eq!(call(from, to), Outcome::Closed, "{to}");
        assert!(started.elapsed() < Duration::from_secs(2), "{to} took {:?}", started.elapsed());
        let proxy = if direction == "outbound" { world.near() } else { world.far() };
        let line = lines::wait_for(proxy, error, |line| {
            line["direction"] == direction && text(line, "error").starts_with(error)
        });
        assert_eq!(line["level"], "error", "{line}");
        assert_eq!(line["message"], "connection complete");
    }
    assert_eq!(call(&world.client, service()), Outcome::Closed, "a service whose endpoint doesn't listen");
    let failed = world
        .near()
        .metrics()
        .unwrap()
        .sum("istio_tcp_connections_failed_total", &["response_flags=\"CONNECT\""]);
    assert!(failed >= 1.0, "failed connections are counted by flag, there are {failed}");
    baseline.is_back(&world);
}

#[test]
fn calls_at_the_proxys_own_ports_are_refused_from_everywhere() {
    let world = World::start();
    let baseline = Baseline::take(&world);
    let node = SocketAddr::from((world.cluster.topology.node(1).unwrap().v4, 0));
    let own = world.client.at(0);
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let at = |address: SocketAddr, port| SocketAddr::new(address.ip(), port);
    let closed_or_refused = |from: &Pod, to| {
        let outcome = call(from, to);
        assert!(matches!(outcome, Outcome::Closed | Outcome::Refused), "{} -> {to}: {outcome:?}", from.name);
    };
    let before = world.near().cpu_time().unwrap();
    for port in [15001, 15006, 15008] {
        // To the node, to itself, to the other pod.
        closed_or_refused(&world.client, at(node, port));
        closed_or_refused(&world.client, at(own, port));
        closed_or_refused(&world.client, at(loopback, port));
        closed_or_refused(&world.client, world.server.at(port));
        closed_or_refused(&world.client, world.server.at6(port));
        closed_or_refused(&world.stranger, world.server.at(port));
    }
    for port in [15000, 15020, 15021, 15080] {
        assert_eq!(call(&world.client, at(own, port)), Outcome::Refused, "{port} at the pod itself");
        assert_eq!(call(&world.client, at(loopback, port)), Outcome::Refused, "{port} at the pod's loopback");
        closed_or_refused(&world.stranger, world.server.at(port));
    }
    closed_or_refused(&world.client, at(node, 15000));
    for port in [15020, 15021] {
        let outcome = call(&world.client, at(node, port));
        assert!(
            matches!(&outcome, Outcome::Answered(text) if text.starts_with("HTTP/1.1 404")),
            "{port}: {outcome:?}"
        );
    }
    let used = world.near().cpu_time().unwrap() - before;
    assert!(used < Duration::from_secs(2), "a loop? {used:?} of CPU");
    lines::wait_for(world.far(), "a recursive call", |line| {
        line["level"] == "warn"
            && line["message"] == "connection failed"
            && line["error"] == "attempted recursive call to ourselves"
    });
    baseline.is_back(&world);
}

#[test]
fn a_peer_that_does_not_answer_is_given_up_within_the_connect_bound() {
    let world = World::start();
    let _app = Server::start(&world.server, 8_080, echo);
    let baseline = Baseline::take(&world);
    let drop_all = "*filter\n-A INPUT -p tcp --dport 15008 -j DROP\nCOMMIT\n";
    world.server.space.feed("iptables-restore", &["--noflush"], drop_all).unwrap();
    let mut stream = dial(&world.client, service());
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"?").unwrap();
    let started = Instant::now();
    let result = stream.read(&mut [0]);
    assert!(
        matches!(&result, Ok(0)) || result.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    );
    let took = started.elapsed();
    assert!((Duration::from_secs(8)..Duration::from_secs(13)).contains(&took), "given up after {took:?}");
    lines::wait_for(world.near(), "a timeout that hints at a network policy", |line| {
        line["direction"] == "outbound" && text(line, "error").contains("NetworkPolicy")
    });
    world.server.space.feed("iptables-restore", &[], "*filter\nCOMMIT\n").unwrap();
    let mut stream = dial(&world.client, service());
    stream.write_all(b"!").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    drop(stream);
    baseline.is_back(&world);
    assert!(STEP < Duration::from_secs(20));
}
