//! Readers that stop: they lose nothing, hold little, and slow nobody else on their tunnel.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringway::demo::node::NodeProxy;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::serve::{Server, echo, source};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service};
use ringway_e2e::{pattern, report};

/// The share of timers that are on time though clients, servers and two proxies want the same CPUs.
const SOON: f64 = 0.5;

/// 99th percentile of requests of 64 bytes, one after another: the least of three series, since what else the machine
/// does only ever adds to it, and what is to be seen would be in all of them.
fn mice(stream: &mut TcpStream) -> Duration {
    let mut series = || {
        let mut times = Vec::with_capacity(1_000);
        let mut bytes = [5; 64];
        for _ in 0..1_000 {
            let started = Instant::now();
            stream.write_all(&bytes).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            times.push(started.elapsed());
        }
        times.sort_unstable();
        times[990]
    };
    series().min(series()).min(series())
}

/// Fills a connection until nothing more goes in for half a second; how much went in.
fn fill(stream: &TcpStream) -> u64 {
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut chunk, mut last) = (0_u64, vec![0; 65_536], Instant::now());
    while last.elapsed() < Duration::from_millis(500) {
        pattern(9, sent, &mut chunk);
        match (&mut &*stream).write(&chunk) {
            Ok(count) => {
                sent += u64::try_from(count).unwrap();
                last = Instant::now();
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

#[test]
fn a_server_that_stops_reading_gets_everything_later_and_slows_no_neighbour() {
    let world = World::start();
    let listener = world.server.space.listen(world.server.at(7_000)).unwrap();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let mut mouse = dial(&world.client, service());
    let alone = mice(&mut mouse);
    let memory: Vec<_> = world.cluster.proxies().map(|proxy| proxy.resident_bytes().unwrap()).collect();
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let near = dial(&world.client, world.server.at(7_000));
        let (far, _) = listener.accept().unwrap();
        let sent = fill(&near);
        stalled.push((near, far, sent));
    }
    let beside = mice(&mut mouse);
    assert!(
        beside < alone * 3 + Duration::from_millis(10),
        "p99 alone {alone:?}, beside stalled streams {beside:?}"
    );
    for _ in 0..20 {
        let mut fresh = dial(&world.client, service());
        fresh.write_all(b"?").unwrap();
        fresh.read_exact(&mut [0]).expect("a new connection beside stalled ones");
    }
    for (proxy, before) in world.cluster.proxies().zip(memory) {
        let grown = proxy.resident_bytes().unwrap().saturating_sub(before);
        assert!(grown < 8 * (4 << 20) + (16 << 20), "8 stalled streams hold {grown} bytes in one proxy");
    }
    std::thread::sleep(Duration::from_secs(3));
    for (near, mut far, sent) in stalled {
        near.shutdown(std::net::Shutdown::Write).unwrap();
        far.set_read_timeout(Some(STEP)).unwrap();
        let (mut got, mut at) = (Vec::new(), 0_u64);
        far.read_to_end(&mut got).unwrap();
        assert_eq!(u64::try_from(got.len()).unwrap(), sent);
        let mut expected = vec![0; 65_536];
        for part in got.chunks(65_536) {
            pattern(9, at, &mut expected);
            assert!(part == &expected[..part.len()], "bytes changed after {at}");
            at += u64::try_from(part.len()).unwrap();
        }
    }
    drop(mouse);
    baseline.is_back(&world);
}

#[test]
fn clients_that_do_not_read_their_downloads_stop_no_other_stream() {
    let world = World::start();
    let _source = Server::start(&world.server, 8_081, source);
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let mut unread: Vec<_> = (0..12).map(|_| dial(&world.client, world.server.at(8_081))).collect();
    for stream in &mut unread {
        stream.write_all(&(64_u64 << 20).to_be_bytes()).unwrap();
    }
    std::thread::sleep(Duration::from_secs(1));
    let mut mouse = dial(&world.client, service());
    let beside = mice(&mut mouse);
    assert!(beside < Duration::from_millis(20), "p99 beside 12 unread downloads: {beside:?}");
    // One of them is read after all, to its end.
    let mut total = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match unread[0].read(&mut buffer).unwrap() {
            0 => break,
            count => total += count,
        }
    }
    assert_eq!(total, 64 << 20);
    drop((unread, mouse));
    baseline.is_back(&world);
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let world = World::start();
    let _source = Server::start(&world.server, 8_081, source);
    let mut stream = dial(&world.client, world.server.at(8_081));
    let total = 256_u64 * 1_024;
    stream.write_all(&total.to_be_bytes()).unwrap();
    let (mut got, mut buffer) = (Vec::new(), [0; 1_024]);
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        got.extend_from_slice(&buffer[..count]);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut expected = vec![0; usize::try_from(total).unwrap()];
    pattern(total, 0, &mut expected);
    assert!(got == expected);
}

/// How often timers of its shards were looked at, and how often they were at most 5 ms late.
fn timers(proxy: &NodeProxy) -> (f64, f64) {
    let page = proxy.metrics().unwrap();
    let name = "ringway_shard_tick_delay_seconds";
    let count = page.sum(&format!("{name}_count"), &[]);
    (count, page.sum(&format!("{name}_bucket"), &["le=\"0.005\""]))
}

#[test]
fn a_busy_shard_lets_nothing_else_wait_for_long() {
    const DOWNLOADS: usize = 4;
    let world = World::start();
    let _source = Server::start(&world.server, 8_081, source);
    let stop = AtomicBool::new(false);
    let proxies = [world.near(), world.far()];
    let before = proxies.map(timers);
    let bytes: usize = std::thread::scope(|scope| {
        let download = || {
            let mut stream = dial(&world.client, world.server.at(8_081));
            stream.write_all(&(1_u64 << 40).to_be_bytes()).unwrap();
            let (mut buffer, mut total) = (vec![0; 1 << 20], 0);
            while !stop.load(Ordering::Relaxed) {
                total += stream.read(&mut buffer).unwrap();
            }
            total
        };
        let downloads: Vec<_> = (0..DOWNLOADS).map(|_| scope.spawn(download)).collect();
        // Scrapes and dumps all the while: they are answered by the shards too.
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(4) {
            for proxy in proxies {
                proxy.metrics().unwrap();
                proxy.get(15_000, "/config_dump").unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        downloads.into_iter().map(|download| download.join().unwrap()).sum()
    });
    for (proxy, before) in proxies.into_iter().zip(before) {
        let (count, soon) = timers(proxy);
        let (count, soon) = (count - before.0, soon - before.1);
        let longest = proxy.metrics().unwrap().sum("ringway_shard_longest_stall_seconds", &[]);
        report(&format!(
            "{} MB, timers at most 5 ms late: {soon} of {count}, the longest {longest} s",
            bytes >> 20
        ));
        assert!(count > 50.0, "a busy shard looks often: {count}");
        assert!(soon > count * SOON, "{soon} of {count} were at most 5 ms late");
    }
}
