//! Every connection that is opened is closed once, in metrics and in the access log, however it ends.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use ringway::demo::cluster::READY_BOUND;
use ringway::demo::mesh_file::deny;
use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::live_connections;
use ringway_e2e::eventually;
use ringway_e2e::lines::{completed, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service, try_dial};
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const RESET_PORT: u16 = 8_081;

/// Hears a byte, says one, hears another and resets.
async fn resets(mut stream: tokio::net::TcpStream) {
    let mut heard = [0];
    let _ = stream.read_exact(&mut heard).await;
    let _ = stream.write_all(&heard).await;
    let _ = stream.read_exact(&mut heard).await;
    let _ = stream.set_zero_linger();
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])
}

/// A connection that both sides have spoken on.
#[track_caller]
fn open(from: &Pod, to: SocketAddr) -> TcpStream {
    let mut stream = dial(from, to);
    exchange(&mut stream).unwrap();
    stream
}

#[track_caller]
fn is_over(stream: &mut TcpStream) {
    let heard = stream.read(&mut [0]);
    let is_reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(matches!(heard, Ok(0)) || heard.as_ref().is_err_and(is_reset), "{heard:?}");
}

fn reset(stream: TcpStream) {
    socket2::Socket::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// What one proxy has told so far.
struct Told {
    opened: f64,
    closed: f64,
    live: usize,
    lines: Vec<Value>,
}

impl Told {
    fn by(proxy: &NodeProxy) -> Self {
        let metrics = proxy.metrics().unwrap();
        Self {
            opened: metrics.sum("istio_tcp_connections_opened_total", &[]),
            closed: metrics.sum("istio_tcp_connections_closed_total", &[]),
            live: live_connections(proxy),
            lines: completed(proxy),
        }
    }

    /// Counters, table and log agree on so many that were opened and so many that are live.
    fn agrees(&self, opened: u32, live: u32) -> bool {
        let ended = f64::from(opened - live);
        (self.opened, self.closed) == (opened.into(), ended)
            && (f64::from(u32::try_from(self.live).unwrap()), count(self.lines.len())) == (live.into(), ended)
    }
}

fn count(lines: usize) -> f64 {
    u32::try_from(lines).unwrap().into()
}

#[track_caller]
fn agree(proxy: &NodeProxy, what: &str, opened: u32, live: u32) {
    eventually(&format!("{what}: {opened} opened, {live} live"), STEP, || {
        Told::by(proxy).agrees(opened, live)
    });
}

fn with_reason(lines: &[Value], reason: &str) -> usize {
    lines.iter().filter(|line| text(line, "reason") == reason).count()
}

#[test]
fn what_is_opened_is_closed_once_however_it_ends() {
    let mut spare = None;
    let mut world = World::start_with(&[("CONNECTION_TERMINATION_DEADLINE", "1s")], |world| {
        let guest = world.cluster.mesh_pod(1, "guest").unwrap();
        let doomed = world.cluster.mesh_pod(2, "doomed").unwrap();
        spare = Some((guest, doomed));
    });
    let (guest, doomed) = spare.unwrap();
    let apps = |pods: &[&Pod]| {
        let each = pods
            .iter()
            .flat_map(|pod| [Server::start(pod, APP_PORT, echo), Server::start(pod, RESET_PORT, resets)]);
        each.collect::<Vec<_>>()
    };
    let _apps = apps(&[&world.server, &doomed, &world.stranger]);
    // HBONE, passthrough on the way out, plaintext on the way in: of six endings each, near sees the first four.
    let ways = |world: &World| {
        [
            (world.client.clone(), world.server.clone()),
            (world.client.clone(), world.stranger.clone()),
            (world.stranger.clone(), world.server.clone()),
        ]
    };
    for (from, to) in ways(&world) {
        let mut orderly = open(&from, to.at(APP_PORT));
        orderly.shutdown(Shutdown::Write).unwrap();
        is_over(&mut orderly);
        reset(open(&from, to.at(APP_PORT)));
        let mut refused = open(&from, to.at(RESET_PORT));
        refused.write_all(b"!").unwrap();
        is_over(&mut refused);
    }
    agree(world.near(), "ends of applications, near", 6, 0);
    agree(world.far(), "ends of applications, far", 6, 0);
    assert_eq!(with_reason(&completed(world.near()), "reset"), 4);
    assert_eq!(with_reason(&completed(world.far()), "reset"), 4);

    // A policy that comes while they are open, and one that could not be reached at all.
    let mut denied = [open(&guest, service()), open(&guest, world.server.at(APP_PORT))];
    let mut spared = open(&world.client, service());
    agree(world.near(), "before the policy, near", 9, 3);
    world.change_policies(vec![deny("no", "cluster.local/ns/default/sa/guest")]);
    denied.iter_mut().for_each(is_over);
    exchange(&mut spared).unwrap();
    let _ = try_dial(&world.client, world.server.at(9)).map(|mut stream| is_over(&mut stream));
    agree(world.near(), "after the policy, near", 10, 1);
    agree(world.far(), "after the policy, far", 10, 1);
    assert_eq!(with_reason(&completed(world.far()), "policy_change"), 2);
    assert_eq!(with_reason(&completed(world.far()), "application_unreachable"), 1);

    // A pod that is deleted.
    let mut lost = [
        open(&world.client, doomed.at(APP_PORT)),
        open(&world.client, doomed.at6(APP_PORT)),
        open(&world.stranger, doomed.at(APP_PORT)),
    ];
    agree(world.far(), "before the pod's end, far", 13, 4);
    world.cluster.agent(2).unwrap().delete("uid-doomed").unwrap();
    lost.iter_mut().for_each(is_over);
    agree(world.far(), "after the pod's end, far", 13, 1);
    agree(world.near(), "after the pod's end, near", 12, 1);
    assert_eq!(with_reason(&completed(world.far()), "drain"), 3);

    // The far proxy dies without a word.
    let mut cut = open(&world.client, service());
    agree(world.near(), "before the kill", 13, 2);
    let far = world.cluster.proxy_mut(2).unwrap();
    far.signal(Signal::KILL).unwrap();
    far.wait(STEP).unwrap();
    is_over(&mut cut);
    is_over(&mut spared);
    agree(world.near(), "after the kill", 13, 0);
    world.cluster.start_in_place(2).unwrap();
    world.cluster.proxy_mut(2).unwrap().wait_ready(READY_BOUND).unwrap();

    // The near proxy ends while connections are open.
    let mut held = [open(&world.client, service()), open(&world.client, world.stranger.at(APP_PORT))];
    agree(world.near(), "before the drain, near", 15, 2);
    agree(world.far(), "before the drain, far", 1, 1);
    let near = world.cluster.proxy_mut(1).unwrap();
    near.signal(Signal::TERM).unwrap();
    near.wait(2 * STEP).unwrap();
    held.iter_mut().for_each(is_over);
    agree(world.far(), "after the drain, far", 1, 0);
    let lines = completed(world.near());
    assert_eq!((lines.len(), with_reason(&lines, "drain")), (15, 2), "{lines:#?}");
    for line in lines.iter().filter(|line| text(line, "reason") == "drain") {
        assert_eq!(text(line, "error"), "connection closed due to connection drain");
        assert!(line["setup_ms"].is_u64() && line["shard"].is_u64(), "{line}");
    }
}

#[test]
fn a_sampled_log_tells_every_failure_and_counts_what_it_leaves_out() {
    let world = World::start_with(&[("RINGWAY_ACCESS_LOG_SAMPLING", "0")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    for _ in 0..5 {
        let mut stream = open(&world.client, service());
        stream.shutdown(Shutdown::Write).unwrap();
        is_over(&mut stream);
    }
    let _ = try_dial(&world.client, world.server.at(9)).map(|mut stream| is_over(&mut stream));
    for proxy in [world.near(), world.far()] {
        eventually("five left out, one told", STEP, || {
            let left_out = proxy.metrics().unwrap().sum("ringway_access_lines_sampled_out_total", &[]);
            left_out == 5.0 && !completed(proxy).is_empty()
        });
        let lines = completed(proxy);
        assert_eq!((lines.len(), text(&lines[0], "level")), (1, "error"), "{lines:#?}");
        let metrics = proxy.metrics().unwrap();
        assert_eq!(metrics.sum("istio_tcp_connections_closed_total", &[]), 6.0);
        assert_eq!(metrics.sum("ringway_log_lines_dropped_total", &[]), 0.0);
    }
}
