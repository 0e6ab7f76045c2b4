//! A peer with a certificate of the mesh does what HTTP/2 and TLS let it do to a server. What it costs has a bound: a
//! proxy's memory and its other clients' waits stay in the order of what they were; the peer is cut off, and counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway::demo::node::NodeProxy;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::frames::{self, Frame, frame};
use ringway_e2e::hbone::{HBONE_PORT, HbonePeer, PREFACE};
use ringway_e2e::neighbour::{Neighbour, Seen};
use ringway_e2e::serve::{Server, echo, source};
use ringway_e2e::world::{APP_PORT, STEP, World, service};
use ringway_e2e::{block_on, report};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
/// Each kind of abuse goes on for so long: who is cut off comes back.
const ROW: Duration = Duration::from_secs(1);
/// Waits may double, and beside that be as long as a busy machine makes them.
const WAIT_SLACK: Duration = Duration::from_millis(100);
/// Memory may double; beside that, what 4 MiB of answers to a few peers that don't read come to.
const MEMORY_SLACK_BYTES: u64 = 16 << 20;
/// An abuser stands for a peer on another machine, so it takes no CPU from the proxies.
const NICE: i32 = 10;
/// Where bulk comes from, and where nobody listens.
const BULK_PORT: u16 = 8_081;
const CLOSED_PORT: u16 = 9;

/// Connections that send the beginning of a handshake; that shake hands and say nothing; that never end a request's
/// head; that have all of a tunnel but a stream.
const HALF_OPEN: usize = 500;
const SILENT: usize = 300;
const SLOW: usize = 200;
const IDLE: usize = 2_000;
/// What the proxy lets an address keep: IDLE_TUNNELS_A_PEER on two shards.
const IDLE_KEPT: usize = 1_000;
/// What each of them may cost for a while.
const CROWD_BYTES: u64 = 12 << 10;
const HANDSHAKES_AT_ONCE: usize = 32;
/// Deadlines of handshakes, SETTINGS and header blocks are 10 s.
const GIVEN_UP: Duration = Duration::from_secs(25);

/// What becomes of an abuser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    CutOff,
    /// An honest peer may do the same, so it is only held.
    Held,
}

/// One kind of abuse by frames.
struct Row {
    what: &'static str,
    fate: Fate,
    /// Sent behind the preface.
    opening: Vec<u8>,
    /// Sent again and again; the argument counts.
    burst: Box<dyn Fn(u32) -> Vec<u8>>,
    manner: Manner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Reads whatever comes.
    Reads,
    ReadsNothing,
    /// Waits for an answer to each of so many requests before it goes on.
    Asks(u32),
    /// Says its opening and no more.
    Waits,
}

fn row(what: &'static str, opening: Vec<u8>, burst: impl Fn(u32) -> Vec<u8> + 'static) -> Row {
    Row { what, fate: Fate::CutOff, opening, burst: Box::new(burst), manner: Manner::Reads }
}

/// The number of a burst's stream.
fn number(turn: u32, burst: u32, index: u32) -> u32 {
    (turn * burst + index) * 2 + 1
}

fn many(count: u32, one: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count).flat_map(one).collect()
}

fn setting(name: u8, value: u32) -> Vec<u8> {
    frame(frames::SETTINGS, 0, 0, &[&[0, name], &value.to_be_bytes()[..]].concat())
}

/// Fills a table of 4,096 bytes, which is there until the server's SETTINGS are acknowledged.
fn fill_table() -> Vec<u8> {
    [&[0x40, 1, b'a', 0x7f, 0x81, 0x1e], &[b'v'; 3_968][..]].concat()
}

fn rows(server: SocketAddr) -> Vec<Row> {
    let at = |port| SocketAddr::new(server.ip(), port).to_string();
    let connect_to = |port| {
        let to = at(port);
        move |stream| frames::connect(stream, &to)
    };
    let (reset_app, open_app, fail) = (connect_to(APP_PORT), connect_to(APP_PORT), connect_to(CLOSED_PORT));
    let headers = |stream, block: &[u8]| frame(frames::HEADERS, frames::END_HEADERS, stream, block);
    let get = frames::block(&[(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "x")]);
    let begun = || frame(frames::HEADERS, 0, 1, &[]);
    let continued = |payload: &[u8]| frame(frames::CONTINUATION, 0, 1, payload);
    let pings = |_| frame(frames::PING, 0, 0, b"pingpong").repeat(1_000);
    let update = |more: u32| move |_| frame(frames::WINDOW_UPDATE, 0, 0, &more.to_be_bytes()).repeat(500);
    let downloads = |window| {
        let ask = frame(frames::DATA, 0, 0, &(1_u64 << 30).to_be_bytes());
        let one = |index| {
            let mut ask = ask.clone();
            ask[5..9].copy_from_slice(&number(0, 0, index).to_be_bytes());
            [frames::connect(number(0, 0, index), &at(BULK_PORT)), ask].concat()
        };
        [setting(4, window), many(100, one)].concat()
    };
    let waits =
        |what, opening| Row { manner: Manner::Waits, fate: Fate::Held, ..row(what, opening, |_| Vec::new()) };
    let asks = |what, fate, burst: Box<dyn Fn(u32) -> Vec<u8>>| Row {
        manner: Manner::Asks(100),
        fate,
        ..row(what, vec![], burst)
    };
    vec![
        row("rapid reset", vec![], move |turn| {
            let reset = |stream| frame(frames::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
            many(100, |index| {
                let stream = number(turn, 100, index);
                [reset_app(stream), reset(stream)].concat()
            })
        }),
        row("streams beyond the limit", vec![], move |turn| {
            many(100, |index| open_app(number(turn, 100, index)))
        }),
        asks(
            "requests that are wrong",
            Fate::CutOff,
            Box::new(move |turn| many(100, |index| headers(number(turn, 100, index), &get))),
        ),
        asks(
            "requests that fail",
            Fate::Held,
            Box::new(move |turn| many(100, |index| fail(number(turn, 100, index)))),
        ),
        row("CONTINUATION, empty", begun(), move |_| continued(&[]).repeat(100)),
        row("CONTINUATION, large", begun(), move |_| continued(&[0x82; 8_000])),
        row("SETTINGS", vec![], |_| setting(3, 100).repeat(1_000)),
        row("PING", vec![], pings),
        Row { manner: Manner::ReadsNothing, ..row("PING, answers unread", vec![], pings) },
        row("PRIORITY", vec![], |_| frame(frames::PRIORITY, 0, 1, &[0; 5]).repeat(1_000)),
        row("frames of unknown types", vec![], |_| frame(0xbe, 0, 0, &[0; 100]).repeat(500)),
        row("DATA, empty", connect_to(APP_PORT)(1), |_| frame(frames::DATA, 0, 1, &[]).repeat(500)),
        row("window updates of 1", vec![], update(1)),
        row("windows beyond 2^31-1", vec![], update(0x7fff_ffff)),
        row("window updates of 0", vec![], update(0)),
        waits("100 downloads, windows of 0", downloads(0)),
        waits("100 downloads, windows of 1", downloads(1)),
        row("HPACK bombs", headers(1, &fill_table()), move |turn| {
            // 12,000 times the same 4,000 bytes: 48 MB of fields in one block.
            many(4, |index| headers(number(turn, 4, index + 1), &[0x80 | 62; 12_000]))
        }),
    ]
}

/// What came of one kind of abuse.
struct Outcome {
    connections: u32,
    /// How many of them the proxy ended.
    ended: u32,
    /// When it ended the first of them.
    first: Option<Duration>,
}

/// Abuses until `until`; a connection that is ended is followed by another one.
async fn abuse(peer: &HbonePeer, to: SocketAddr, row: &Row, until: Instant) -> Outcome {
    let started = Instant::now();
    let mut outcome = Outcome { connections: 0, ended: 0, first: None };
    while Instant::now() < until {
        let Ok(Ok(tls)) = timeout(STEP, peer.handshake(to)).await else { continue };
        outcome.connections += 1;
        let (reader, writer) = tokio::io::split(tls);
        let answers = Semaphore::new(0);
        let ended = async {
            tokio::select! {
                () = read(reader, row.manner, &answers) => {}
                _ = write(writer, row, &answers) => {}
            }
        };
        // The first one may take its time: what is looked at is whether it ends.
        let bound = if outcome.ended == 0 && row.fate == Fate::CutOff {
            STEP
        } else {
            until - Instant::now().min(until)
        };
        if timeout(bound, ended).await.is_ok() {
            outcome.ended += 1;
            outcome.first.get_or_insert(started.elapsed());
        }
    }
    outcome
}

/// Until the proxy ends the connection.
async fn read(mut from: ReadHalf<TlsStream<TcpStream>>, manner: Manner, answers: &Semaphore) {
    if manner == Manner::ReadsNothing {
        return std::future::pending().await;
    }
    while let Ok(frame) = Frame::read(&mut from).await {
        if frame.kind == frames::HEADERS {
            answers.add_permits(1);
        }
    }
}

async fn write(
    mut to: WriteHalf<TlsStream<TcpStream>>,
    row: &Row,
    answers: &Semaphore,
) -> std::io::Result<()> {
    to.write_all(&[PREFACE, &row.opening].concat()).await?;
    to.flush().await?;
    for turn in 0.. {
        match row.manner {
            Manner::Waits => return std::future::pending().await,
            Manner::Asks(count) if turn > 0 => {
                answers.acquire_many(count).await.expect("it is never closed").forget()
            }
            Manner::Asks(_) | Manner::Reads | Manner::ReadsNothing => {}
        }
        to.write_all(&(row.burst)(turn)).await?;
        to.flush().await?;
    }
    Ok(())
}

fn counted(proxy: &NodeProxy, name: &str) -> f64 {
    proxy.metrics().unwrap().sum(&format!("ringway_{name}_total"), &[])
}

/// Whether the neighbour waited too long. A machine may have become busier meanwhile, so what seems slow is compared
/// with a quiet time right after it, too.
fn is_slow(seen: &Seen, quiet: &Seen, neighbour: &Neighbour) -> bool {
    let slow = |quiet: &Seen| seen.p99() > quiet.p99() * 2 + WAIT_SLACK;
    if !slow(quiet) {
        return false;
    }
    std::thread::sleep(ROW);
    let again = neighbour.take();
    report(&format!("    slow; p99 {:.1?} of {} right after", again.p99(), again.requests()));
    slow(&again)
}

/// Compares with the quiet time, and says a line of the report.
fn judge(what: &str, outcome: &str, seen: &Seen, quiet: &Seen, slack_bytes: u64) -> Option<String> {
    let mib = |bytes: u64| bytes >> 20;
    report(&format!(
        "{what:28} {outcome:40} p99 {:>8.1?} of {:>4} (quiet {:.1?}), resident {} MiB (quiet {})",
        seen.p99(),
        seen.requests(),
        quiet.p99(),
        mib(seen.resident_bytes),
        mib(quiet.resident_bytes),
    ));
    let large = seen.resident_bytes > quiet.resident_bytes * 2 + slack_bytes;
    let failed = seen.failures.first();
    (large || failed.is_some() || seen.requests() == 0)
        .then(|| format!("{what}: large {large}, neighbours' failures: {failed:?}"))
}

/// Runs `work` as a machine would that shares no CPU with the proxies.
fn elsewhere<T>(work: impl Future<Output = T>) -> T {
    rustix::process::setpriority_process(None, NICE).expect("a thread's niceness");
    let result = block_on(work);
    // Root may take it back.
    rustix::process::setpriority_process(None, 0).expect("a thread's niceness");
    result
}

#[test]
fn abuse_is_cut_off_and_costs_neither_memory_nor_neighbours() {
    // On two shards, so that what is allowed on each is known.
    let world = World::start_with(&[("ZTUNNEL_WORKER_THREADS", "2")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _bulk = Server::start(&world.server, BULK_PORT, source);
    let baseline = Baseline::take(&world);
    let peer = HbonePeer::new(&world.stranger, &world.cluster.authority(), CLIENT);
    let to = world.server.at(HBONE_PORT);
    let neighbour = Neighbour::default();
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&neighbour);
        scope.spawn(|| neighbour.run(&world.client, service(), world.far()));
        std::thread::sleep(ROW / 4);
        neighbour.take();
        std::thread::sleep(ROW);
        let quiet = neighbour.take();
        assert!(quiet.failures.is_empty() && quiet.requests() > 20, "{:?}", quiet.failures.first());
        for row in rows(world.server.at(0)) {
            // A busy machine is slow now and then; abuse that costs neighbours does so every time.
            let mut tries = 1..3;
            let (outcome, cut, seen) = loop {
                let before = counted(world.far(), "tunnels_cut_off");
                let outcome = elsewhere(abuse(&peer, to, &row, Instant::now() + ROW));
                let cut = counted(world.far(), "tunnels_cut_off") - before;
                let seen = neighbour.take();
                if !is_slow(&seen, &quiet, &neighbour) {
                    break (outcome, cut, seen);
                }
                if tries.next().is_none() {
                    wrong.push(format!("{}: neighbours wait too long", row.what));
                    break (outcome, cut, seen);
                }
            };
            let Outcome { connections, ended, first } = outcome;
            let first = first.map_or_else(String::new, |first| format!(", the first after {first:.0?}"));
            let text = format!("{cut} of {connections} cut off{first}");
            wrong.extend(judge(row.what, &text, &seen, &quiet, MEMORY_SLACK_BYTES));
            let as_it_should = match row.fate {
                Fate::CutOff => ended > 0 && cut >= f64::from(ended),
                Fate::Held => connections > 0 && ended == 0 && cut == 0.0,
            };
            if !as_it_should {
                wrong.push(format!("{}: {ended} of {connections} ended, {cut} counted", row.what));
            }
        }
        wrong.extend(elsewhere(crowd(&world, &peer, to, &neighbour, &quiet)));
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    drop(peer);
    baseline.is_back(&world);
}

/// Those that begin and don't go on, all at once, beside thousands of tunnels that carry nothing.
async fn crowd(
    world: &World,
    peer: &HbonePeer,
    to: SocketAddr,
    neighbour: &Neighbour,
    quiet: &Seen,
) -> Vec<String> {
    let far = world.far();
    let before =
        ["tls_handshake_failures", "tunnels_cut_off", "tunnels_surplus"].map(|name| counted(far, name));
    let tasks = LocalSet::new();
    let (waiting, idle) = tasks
        .run_until(async {
            let mut waiting = JoinSet::new();
            for _ in 0..HALF_OPEN {
                let stream = world.stranger.space.connect(to, STEP).unwrap();
                stream.set_nonblocking(true).unwrap();
                let mut stream = TcpStream::from_std(stream).unwrap();
                waiting.spawn_local(async move {
                    let _ = stream.write_all(b"\x16\x03\x01").await;
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                });
            }
            let mut idle = JoinSet::new();
            let turns = Arc::new(Semaphore::new(HANDSHAKES_AT_ONCE));
            for number in 0..SILENT + SLOW + IDLE {
                let turn = turns.clone().acquire_owned().await.unwrap();
                let peer = peer.clone();
                let shaken = async move {
                    let tls = peer.handshake(to).await;
                    drop(turn);
                    tls
                };
                if number < SILENT {
                    waiting.spawn_local(async move {
                        let Ok(mut tls) = shaken.await else { return };
                        let _ = tls.read_to_end(&mut Vec::new()).await;
                    });
                } else if number < SILENT + SLOW {
                    waiting.spawn_local(async move {
                        let Ok(tls) = shaken.await else { return };
                        dribble(tls).await;
                    });
                } else {
                    idle.spawn_local(async move {
                        let Ok(tls) = shaken.await else { return };
                        let Ok((_kept, connection)) = h2::client::handshake(tls).await else { return };
                        let _ = connection.await;
                    });
                }
            }
            let all = turns.acquire_many(u32::try_from(HANDSHAKES_AT_ONCE).unwrap()).await;
            drop(all);
            let until = tokio::time::Instant::now() + GIVEN_UP;
            let gone = async { while waiting.join_next().await.is_some() {} };
            let _ = tokio::time::timeout_at(until, gone).await;
            let fewer = async { while idle.len() > IDLE_KEPT && idle.join_next().await.is_some() {} };
            let _ = tokio::time::timeout_at(until, fewer).await;
            (waiting.len(), idle.len())
        })
        .await;
    let after =
        ["tls_handshake_failures", "tunnels_cut_off", "tunnels_surplus"].map(|name| counted(far, name));
    let text = format!("{waiting} of {} wait, {idle} of {IDLE} idle", HALF_OPEN + SILENT + SLOW);
    let crowd = HALF_OPEN + SILENT + SLOW + IDLE;
    let slack_bytes = MEMORY_SLACK_BYTES + u64::try_from(crowd).unwrap() * CROWD_BYTES;
    let (what, seen) = ("begun, silent, slow, idle", neighbour.take());
    let mut wrong: Vec<_> = judge(what, &text, &seen, quiet, slack_bytes).into_iter().collect();
    if is_slow(&seen, quiet, neighbour) {
        wrong.push(format!("{what}: neighbours wait too long"));
    }
    let least = [HALF_OPEN, SILENT + SLOW, IDLE - IDLE_KEPT];
    let counts: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    if waiting > 0 || idle > IDLE_KEPT || counts.iter().zip(least).any(|(count, least)| *count < least as f64)
    {
        wrong.push(format!("{text}; counted {counts:?}, expected {least:?} at least"));
    }
    wrong
}

/// A header block that goes on and on: an empty CONTINUATION each half second.
async fn dribble(tls: TlsStream<TcpStream>) {
    let (mut reader, mut writer) = tokio::io::split(tls);
    let begun = [PREFACE, &frame(frames::HEADERS, 0, 1, &[])].concat();
    let write = async {
        writer.write_all(&begun).await?;
        loop {
            writer.flush().await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            writer.write_all(&frame(frames::CONTINUATION, 0, 1, &[])).await?;
        }
    };
    let mut heard = Vec::new();
    tokio::select! {
        _ = reader.read_to_end(&mut heard) => {}
        outcome = write => { let _: std::io::Result<()> = outcome; }
    }
}

/// A failed assertion must not leave the neighbour running.
struct StopOnDrop<'a>(&'a Neighbour);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
