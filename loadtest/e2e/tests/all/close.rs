//! How connections end: halves, resets, ends with unread data, servers that speak first.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::serve::{Server, banner, source};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service};

/// From whom to whom each of the three ways of a connection goes.
fn ways(world: &World) -> [(&'static str, &Pod, &Pod); 3] {
    [
        ("hbone", &world.client, &world.server),
        ("plaintext in", &world.stranger, &world.server),
        ("passthrough out", &world.client, &world.stranger),
    ]
}

/// A connection of which the test holds both ends.
struct Pair {
    near: TcpStream,
    far: TcpStream,
    way: &'static str,
}

fn pair(way: &'static str, from: &Pod, to: &Pod, port: u16) -> Pair {
    let listener = to.space.listen(to.at(port)).unwrap();
    let near = dial(from, to.at(port));
    listener.set_nonblocking(true).unwrap();
    let mut far = None;
    ringway_e2e::eventually(&format!("{way}: the connection arrives"), STEP, || {
        far = listener.accept().ok();
        far.is_some()
    });
    let (far, peer) = far.unwrap();
    assert_eq!(peer.ip(), from.at(0).ip(), "{way}");
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(STEP)).unwrap();
    far.set_write_timeout(Some(STEP)).unwrap();
    Pair { near, far, way }
}

fn reset(stream: TcpStream) {
    let socket = socket2::Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

fn read_all(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The client ends first and the server goes on; then the other way round, after 5 MiB (A5).
fn halves(way: &'static str, from: &Pod, to: &Pod, port: u16) {
    let Pair { mut near, mut far, .. } = pair(way, from, to, port);
    near.write_all(b"question").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut far).unwrap(), b"question", "{way}");
    far.write_all(b"a late").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    far.write_all(b" answer").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut near).unwrap(), b"a late answer", "{way}");
    let Pair { mut near, mut far, .. } = pair(way, from, to, port + 100);
    let sender = std::thread::spawn(move || {
        far.write_all(&vec![7; 5 << 20]).unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        read_all(&mut far).unwrap()
    });
    assert_eq!(read_all(&mut near).unwrap().len(), 5 << 20, "{way}");
    std::thread::sleep(Duration::from_millis(200));
    near.write_all(b"still here").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(sender.join().unwrap(), b"still here", "{way}");
}

fn resets(way: &'static str, from: &Pod, to: &Pod, port: u16) {
    let Pair { near, mut far, .. } = pair(way, from, to, port);
    reset(near);
    let error = read_all(&mut far).expect_err(&format!("{way}: the client's reset became an orderly end"));
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{way}");
    let Pair { mut near, far, .. } = pair(way, from, to, port + 100);
    reset(far);
    let error = read_all(&mut near).expect_err(&format!("{way}: the server's reset became an orderly end"));
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{way}");
}

/// The server sends 64 KiB and its end while the client reads slowly; once it leaves a byte of the client's
/// unread and lingers, once it reads it and is gone at once (A2).
fn orderly_ends(way: &'static str, from: &Pod, to: &Pod, port: u16) {
    for (port, leaves_unread) in [(port, true), (port + 100, false)] {
        let Pair { mut near, mut far, .. } = pair(way, from, to, port);
        near.write_all(b"!").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        if !leaves_unread {
            far.read_exact(&mut [0]).unwrap();
        }
        far.write_all(&vec![9; 64 * 1_024]).unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        let lingering = leaves_unread.then_some(far);
        let (mut total, mut buffer) = (0, [0; 4_096]);
        loop {
            match near.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => total += count,
                Err(error) => panic!("{way}: {error} after {total} bytes"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(total, 64 * 1_024, "{way}");
        drop((near, lingering));
    }
}

/// The server closes with data unread while the client writes on: its kernel resets, the client must learn.
fn close_under_a_writer(way: &'static str, from: &Pod, to: &Pod, port: u16) {
    let Pair { near, far, way } = pair(way, from, to, port);
    let (done, ended) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut near = near;
        let chunk = vec![1; 64 * 1_024];
        while near.write_all(&chunk).is_ok() {}
        done.send(()).unwrap();
    });
    std::thread::sleep(Duration::from_millis(100));
    drop(far);
    ended.recv_timeout(STEP).unwrap_or_else(|_| panic!("{way}: the client writes on into nothing"));
    writer.join().unwrap();
}

type Scenario = fn(&'static str, &Pod, &Pod, u16);

fn on_every_way(scenario: Scenario) {
    let world = World::start();
    let baseline = Baseline::take(&world);
    for (port, (way, from, to)) in (7_000..).zip(ways(&world)) {
        scenario(way, from, to, port);
    }
    baseline.is_back(&world);
}

#[test]
fn each_half_ends_by_itself() {
    on_every_way(halves);
}

#[test]
fn a_reset_arrives_as_a_reset_both_ways() {
    on_every_way(resets);
}

#[test]
fn an_orderly_end_never_becomes_a_reset_even_with_unread_data() {
    on_every_way(orderly_ends);
}

#[test]
fn whoever_closes_while_the_other_writes_learns_soon() {
    on_every_way(close_under_a_writer);
}

#[test]
fn a_direct_connection_passes_every_scenario_here() {
    // The tests themselves, without a proxy: what fails here is no fault of it.
    let mut world = World::build(&[]);
    let other = world.cluster.plain_pod(1, "other").unwrap();
    let count = count_resets(&other);
    for (port, scenario) in (7_000..).zip([halves as Scenario, orderly_ends]) {
        scenario("direct", &other, &world.stranger, port);
    }
    assert_eq!(count(), 0);
    for (port, scenario) in (8_000..).zip([resets as Scenario, close_under_a_writer]) {
        scenario("direct", &other, &world.stranger, port);
    }
    assert!(count() > 0);
}

#[test]
fn a_server_may_speak_first() {
    let world = World::start();
    let baseline = Baseline::take(&world);
    let _mesh = Server::start(&world.server, APP_PORT, banner);
    let _open = Server::start(&world.stranger, APP_PORT, banner);
    let hear = |from: &Pod, to: SocketAddr| {
        let mut stream = dial(from, to);
        let mut heard = [0; 10];
        stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(&heard, b"220 hello\n", "{to}");
    };
    for (_, from, to) in ways(&world) {
        hear(from, to.at(APP_PORT));
        hear(from, to.at6(APP_PORT));
    }
    hear(&world.client, service());
    baseline.is_back(&world);
}

/// RST segments that the pod's side of the network sent or got, counted by iptables inside the pod.
fn count_resets(pod: &Pod) -> impl Fn() -> u64 {
    let rules =
        "*filter\n-A INPUT -p tcp --tcp-flags RST RST\n-A OUTPUT -p tcp --tcp-flags RST RST\nCOMMIT\n";
    pod.space.feed("iptables-restore", &["--noflush"], rules).unwrap();
    let space = pod.space.clone();
    move || {
        let output = space.output("iptables-save", &["-c", "-t", "filter"]).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let counted = text.lines().filter(|line| line.contains("RST RST"));
        counted.map(|line| line[1..].split(':').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

#[test]
fn a_thousand_orderly_ends_send_no_reset_anywhere() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, source);
    let counts = [count_resets(&world.client), count_resets(&world.server)];
    for number in 0..1_000_u64 {
        let mut stream = dial(&world.client, service());
        stream.write_all(&number.to_be_bytes()).unwrap();
        if number % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        assert_eq!(read_all(&mut stream).unwrap().len(), usize::try_from(number).unwrap());
    }
    assert_eq!(counts.map(|count| count()), [0, 0], "RST segments at client and server");
}
