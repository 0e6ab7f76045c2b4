//! Faults of the machine: outputs that take nothing, no ports left, a kernel without memory, peers that vanish, clocks
//! that jump, threads that hang or die. What can go on goes on, what can't is told, and all is well afterwards.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringway::demo::cluster::READY_BOUND;
use ringway::demo::node::{NodeProxy, READY_PORT, ended_well};
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::{Baseline, live_connections};
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service, talk, try_dial};
use ringway_e2e::{eventually, report, threads};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn say(stream: &mut TcpStream, word: u8) -> std::io::Result<()> {
    stream.write_all(&[word])?;
    let mut heard = [0];
    stream.read_exact(&mut heard)?;
    assert_eq!(heard, [word]);
    Ok(())
}

fn works(from: &Pod, to: SocketAddr) -> bool {
    try_dial(from, to).and_then(|mut stream| say(&mut stream, 1)).is_ok()
}

fn is_silent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[test]
fn an_output_that_takes_nothing_costs_lines_and_no_traffic() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let pipe = world.cluster.directory().join("pipe");
    let pipe = pipe.to_str().unwrap();
    let gone = format!("rm -f {pipe}; mkfifo {pipe}; exec 3<>{pipe} 4>{pipe} 3>&-; exec \"$0\" \"$@\" >&4");
    let stuck = format!("rm -f {pipe}; mkfifo {pipe}; exec 3<>{pipe}; exec \"$0\" \"$@\" >&3");
    for (what, script, loses) in [
        ("a full disk", "exec \"$0\" \"$@\" >/dev/full", true),
        ("a reader that is gone", gone.as_str(), true),
        // Whoever doesn't read loses nothing before 10,000 batches wait, but nobody may wait for it.
        ("a reader that doesn't read", stuck.as_str(), false),
    ] {
        let mut next = world.cluster.start_successor(1, &["sh", "-c", script], &[]).unwrap();
        next.wait_ready(READY_BOUND).unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Some(mut old) = world.cluster.take_over(1, next) {
            old.signal(Signal::TERM).unwrap();
            assert!(ended_well(old.wait(STEP).unwrap()), "{what}: the one before");
        }
        // More lines than a pipe holds.
        for _ in 0..200 {
            talk(&world.client, service(), what);
        }
        if loses {
            eventually(&format!("{what}: lines are counted as lost"), STEP, || {
                world.near().metrics().unwrap().sum("ringway_log_lines_dropped_total", &[]) >= 200.0
            });
        }
    }
    let near = world.cluster.proxy_mut(1).unwrap();
    near.signal(Signal::TERM).unwrap();
    assert!(ended_well(near.wait(STEP).unwrap()), "with a reader that doesn't read");
}

/// Hears one byte, then ends the connection first, so that no port of the caller's waits for late packets.
async fn short(mut stream: tokio::net::TcpStream) {
    if let Ok(word) = stream.read_u8().await {
        let _ = stream.write_u8(word).await;
    }
}

/// A client whose own port isn't an ephemeral one.
fn dial_from(pod: &Pod, port: u16, to: SocketAddr) -> std::io::Result<TcpStream> {
    let connect = || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((pod.v4, port)).into())?;
        socket.set_read_timeout(Some(STEP))?;
        socket.connect(&to.into())?;
        Ok(socket.into())
    };
    pod.space.enter(connect).map_err(std::io::Error::other)?
}

#[test]
fn without_a_free_port_a_connection_is_refused_with_the_reason_and_others_go_on() {
    const FREE: u16 = 8;
    let world = World::start();
    let _stranger = Server::start(&world.stranger, 7_000, short);
    let _other = Server::start(&world.stranger, 7_001, short);
    let _app = Server::start(&world.server, APP_PORT, short);
    let range = format!("40000 {}", 40_000 + FREE - 1);
    for (pod, to, elsewhere, direction) in [
        // The proxy dials from the client's namespace, then from the server's with the client's address.
        (&world.client, world.stranger.at(7_000), world.stranger.at(7_001), "outbound"),
        (&world.server, world.server.at(APP_PORT), world.stranger.at(7_001), "inbound"),
    ] {
        // A warm tunnel needs no port any more.
        say(&mut dial(&world.client, to), 1).unwrap();
        let all = pod.space.output("cat", &["/proc/sys/net/ipv4/ip_local_port_range"]).unwrap().stdout;
        pod.space.set("net/ipv4/ip_local_port_range", &range).unwrap();
        let base = if direction == "outbound" { 50_000 } else { 51_000 };
        let mut held = Vec::new();
        let mut refused = 0;
        for number in 0..FREE * 2 {
            let mut stream = dial_from(&world.client, base + number, to).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            // Nothing is said yet, so one that is carried stays silent.
            match stream.read(&mut [0]) {
                Err(error) if is_silent(&error) => held.push(stream),
                _ => refused += 1,
            }
        }
        assert!(refused >= FREE && !held.is_empty(), "{direction}: {refused} refused, {} held", held.len());
        let proxy = if direction == "outbound" { world.near() } else { world.far() };
        let line = lines::wait_for(proxy, "no port is left", |line| {
            line["direction"] == direction && text(line, "error").contains("Cannot assign requested address")
        });
        assert_eq!(line["level"], "error", "{line}");
        let mut fine = dial_from(&world.client, base + 500, elsewhere).unwrap();
        say(&mut fine, 1).unwrap_or_else(|error| panic!("{direction}, another destination: {error}"));
        for stream in &mut held {
            stream.set_read_timeout(Some(STEP)).unwrap();
            say(stream, 2).unwrap_or_else(|error| panic!("{direction}, held: {error}"));
        }
        drop(held);
        let mut next = base + 600;
        eventually(&format!("{direction}: ports are free again"), STEP, || {
            next += 1;
            dial_from(&world.client, next, to).and_then(|mut stream| say(&mut stream, 3)).is_ok()
        });
        pod.space.set("net/ipv4/ip_local_port_range", String::from_utf8(all).unwrap().trim()).unwrap();
    }
}

/// strace, which makes a call of the proxy's shards fail until it is dropped; admin and metrics go on.
struct Failing(Child);

impl Failing {
    fn start(proxy: &NodeProxy, inject: &str) -> Self {
        let mut command = Command::new("strace");
        command.args(["-qq", "-o", "/dev/null", "-e", inject]);
        let shards = threads::named(proxy.pid(), "shard-").unwrap();
        for thread in &shards {
            command.args(["-p", &thread.to_string()]);
        }
        let child = command.stdin(Stdio::null()).spawn().expect("strace");
        let failing = Self(child);
        eventually("strace has every shard", STEP, || {
            shards.iter().all(|thread| {
                let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
                let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
                tracer.is_some_and(|tracer| tracer.trim() == failing.0.id().to_string())
            })
        });
        failing
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        // It lets go of all threads before it ends.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

#[test]
fn a_kernel_without_memory_for_sockets_delays_or_refuses_and_old_connections_flow() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _open = Server::start(&world.stranger, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let mut old = dial(&world.client, service());
    say(&mut old, 1).unwrap();
    let pauses = || world.near().metrics().unwrap().sum("ringway_accept_pauses_total", &[]);
    for error in ["ENOMEM", "ENOBUFS"] {
        let before = pauses();
        let failing = Failing::start(world.near(), &format!("inject=accept4:error={error}"));
        let mut waiting = dial(&world.client, service());
        waiting.write_all(&[7]).unwrap();
        eventually("the listener rests", STEP, || pauses() > before);
        say(&mut old, 2).unwrap_or_else(|failed| panic!("{error}: {failed}"));
        drop(failing);
        let mut heard = [0];
        waiting.read_exact(&mut heard).unwrap_or_else(|failed| panic!("{error}, then memory: {failed}"));
        assert_eq!(heard, [7]);
    }
    // Spare sockets are given back after a second without dials; then a dial needs a socket.
    let failing = Failing::start(world.near(), "inject=socket:error=ENOBUFS");
    eventually("a dial fails", STEP, || !works(&world.client, world.stranger.at(APP_PORT)));
    say(&mut old, 3).unwrap();
    drop(failing);
    lines::wait_for(world.near(), "no buffer space", |line| {
        line["direction"] == "outbound" && text(line, "error").contains("No buffer space available")
    });
    assert!(works(&world.client, world.stranger.at(APP_PORT)), "with memory again");
    drop(old);
    baseline.is_back(&world);
}

/// Everything that fits is lost from now on, in a pod's namespace.
fn lose(pod: &Pod, what: &str) {
    let rules = format!("*filter\n-A INPUT {what} -j DROP\nCOMMIT\n");
    pod.space.feed("iptables-restore", &["--noflush"], &rules).unwrap();
}

/// The way from an app to another, and both of its ends.
fn connected(from: &Pod, to: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut near = dial(from, to);
    near.write_all(b"?").unwrap();
    let (mut far, _) = listener.accept().unwrap();
    far.read_exact(&mut [0]).unwrap();
    (near, far)
}

/// The end that is left hears of it within keepalive's time, which is 4 s here; machines may be slow.
fn is_told(what: &str, mut left: TcpStream) {
    let bound = Duration::from_secs(15);
    left.set_read_timeout(Some(bound)).unwrap();
    let heard = left.read(&mut [0]);
    let told = heard.as_ref().map_or_else(|error| !is_silent(error), |count| *count == 0);
    assert!(told, "{what}: not told within {bound:?}: {heard:?}");
}

#[test]
fn a_black_hole_between_a_proxy_and_an_app_is_noticed_with_and_without_data_under_way() {
    let fast = [
        ("KEEPALIVE_TIME", "1s"),
        ("KEEPALIVE_INTERVAL", "1s"),
        ("KEEPALIVE_RETRIES", "3"),
        ("USER_TIMEOUT_ENABLED", "true"),
    ];
    let world = World::start_with(&fast, |_| {});
    let ports = [7_000_u16, 7_001, 7_002, 7_003];
    let listeners = ports.map(|port| world.server.space.listen(world.server.at(port)).unwrap());
    let at = |index: usize| (world.server.at(ports[index]), &listeners[index]);
    let call = |from, index| connected(from, at(index).0, at(index).1);
    let (quiet, _quiet) = call(&world.client, 0);
    let (mut busy, _busy) = call(&world.client, 1);
    let (_plain, plain) = call(&world.stranger, 2);
    let (_app, app) = call(&world.client, 3);
    // The apps' answers, and all that the stranger says.
    lose(&world.server, "-p tcp -m multiport --sports 7000,7001");
    lose(&world.server, &format!("-i eth0 -s {}", world.stranger.v4));
    busy.write_all(b"never acknowledged").unwrap();
    is_told("proxy to app", quiet);
    is_told("proxy to app, data under way", busy);
    is_told("stranger to proxy", plain);
    // Now all that the client's app says to its own proxy.
    lose(&world.client, "-p tcp --dport 15001");
    is_told("app to proxy", app);
    for (name, proxy) in [("near", world.near()), ("far", world.far())] {
        eventually(&format!("{name} holds none of them"), STEP, || live_connections(proxy) == 0);
    }
}

/// Sets the proxies' wall clock, and no other, so many seconds beside the true one.
fn set_clock(file: &std::path::Path, seconds: i64) {
    // It is read again at each look at the clock, so it must never be half written.
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, format!("{seconds:+}\n")).unwrap();
    std::fs::rename(fresh, file).unwrap();
}

fn library() -> String {
    let found = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let mut files = found.map(|path| path.join("faketime/libfaketimeMT.so.1"));
    let file = files.find(|file| file.is_file()).expect("libfaketime (Debian: faketime)");
    file.to_string_lossy().into_owned()
}

#[test]
fn a_wall_clock_that_jumps_a_day_and_back_costs_no_connection_for_long() {
    const JUMP: i64 = 30 * 3_600;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("clock");
    set_clock(&file, 0);
    let (library, path) = (library(), file.to_string_lossy().into_owned());
    let world = World::start_with(
        &[
            ("LD_PRELOAD", &library),
            ("FAKETIME_TIMESTAMP_FILE", &path),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ],
        |_| {},
    );
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _open = Server::start(&world.stranger, APP_PORT, echo);
    // It has no certificate, so no clock concerns it.
    let mut held = dial(&world.client, world.stranger.at(APP_PORT));
    say(&mut held, 1).unwrap();
    assert!(works(&world.client, service()));
    let near = world.near();
    let handshakes = || near.metrics().unwrap().sum("ringway_tls_handshakes_total", &[]);
    let day = || text(&near.log_lines().unwrap().pop().unwrap(), "time")[..10].to_owned();
    let true_day = day();
    // Certificates live a day: they have all ended, then none has begun.
    for (turn, seconds) in [JUMP, 0, -JUMP, 0].into_iter().enumerate() {
        set_clock(&file, seconds);
        let since = Instant::now();
        let before = handshakes();
        eventually(&format!("jump {turn}, to {seconds:+} s: new tunnels come up"), 3 * STEP, || {
            // Those that were up before prove nothing.
            world.client.space.feed("ss", &["-K", "dport", "=", "15008"], "").unwrap();
            works(&world.client, service()) && handshakes() > before
        });
        say(&mut held, 2).unwrap_or_else(|error| panic!("jump {turn}: {error}"));
        // 30 h are always another day; a line waits a little for others.
        eventually(&format!("jump {turn}, to {seconds:+} s, shows in the log"), STEP, || {
            day().cmp(&true_day) == seconds.cmp(&0)
        });
        report(&format!("jump {turn}, to {seconds:+} s: all is well after {:.1?}", since.elapsed()));
    }
}

#[test]
fn a_shard_that_hangs_shows_in_readiness_and_one_that_dies_ends_the_process() {
    let mut world = World::start_with(&[("ZTUNNEL_WORKER_THREADS", "2")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let shards = threads::named(world.near().pid(), "shard-").unwrap();
    assert_eq!(shards.len(), 2);
    let mut held: Vec<_> = (0..16).map(|_| dial(&world.client, service())).collect();
    held.iter_mut().for_each(|stream| say(stream, 1).unwrap());
    let ready = |world: &World| world.near().get(READY_PORT, "/healthz/ready").unwrap();
    let hang = threads::Held::hold(shards[0]).unwrap();
    let since = Instant::now();
    // It is asked each 5 s and has 5 s for its answer.
    eventually("readiness names the shard", Duration::from_secs(20), || {
        ready(&world) == (500, "not ready, pending: shard 0\n".to_owned())
    });
    report(&format!("a held shard is missed after {:.1?}", since.elapsed()));
    for stream in &mut held {
        stream.write_all(&[2]).unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    let answered = |held: &[TcpStream]| held.iter().filter(|stream| stream.peek(&mut [0]).is_ok()).count();
    eventually("connections of the other shard go on", STEP, || answered(&held) > 0);
    assert!(answered(&held) < held.len(), "a shard that is held answered");
    drop(hang);
    eventually("all of them go on", STEP, || answered(&held) == held.len());
    eventually("ready again", Duration::from_secs(20), || ready(&world).0 == 200);
    assert!(works(&world.client, service()));
    threads::signal(world.near().pid(), shards[1], libc::SIGABRT).unwrap();
    let status = world.cluster.proxy_mut(1).unwrap().wait(STEP).unwrap();
    assert!(!status.success(), "{status}");
    let mut stream = held.pop().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(STEP)).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let ended = stream.read(&mut [0]);
    assert!(ended.as_ref().map_or_else(|error| !is_silent(error), |count| *count == 0), "{ended:?}");
    // The kernel takes a dead process's rings down in the background, and what they wait for with them.
    eventually("nobody listens any more", STEP, || try_dial(&world.client, service()).is_err());
}
