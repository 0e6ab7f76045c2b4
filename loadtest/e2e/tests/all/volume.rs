//! Much data, many connections: nothing is lost, nothing stays.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::{Baseline, live_connections, open_by_metrics};
use ringway_e2e::serve::{Digest, Server, digest, echo, source};
use ringway_e2e::verdicts::echo_on;
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service};
use ringway_e2e::{pattern, report};

const BULK_BYTES: usize = 64 << 20;
/// What the event loop's table of operations keeps until later operations, for 2,000 connections.
const ALLOWANCE_BYTES: u64 = 512 << 10;

fn upload(from: &Pod, to: SocketAddr, seed: u64) {
    let mut stream = dial(from, to);
    let (mut chunk, mut hash, mut sent) = (vec![0; 1 << 20], Digest::default(), 0);
    while sent < BULK_BYTES {
        pattern(seed, u64::try_from(sent).unwrap(), &mut chunk);
        hash.add(&chunk);
        stream.write_all(&chunk).unwrap();
        sent += chunk.len();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).unwrap();
    let (total, hashed) = answer.split_at(8);
    assert_eq!(u64::from_be_bytes(total.try_into().unwrap()), u64::try_from(BULK_BYTES).unwrap());
    assert_eq!(
        u64::from_be_bytes(hashed.try_into().unwrap()),
        hash.value(),
        "the bytes changed on their way"
    );
}

fn download(from: &Pod, to: SocketAddr) {
    let total = u64::try_from(BULK_BYTES).unwrap();
    let mut stream = dial(from, to);
    stream.write_all(&total.to_be_bytes()).unwrap();
    let (mut got, mut expected, mut at) = (vec![0; 1 << 20], vec![0; 1 << 20], 0);
    loop {
        let count = stream.read(&mut got).unwrap();
        if count == 0 {
            break;
        }
        pattern(total, at, &mut expected[..count]);
        assert!(got[..count] == expected[..count], "the bytes changed after {at}");
        at += u64::try_from(count).unwrap();
    }
    assert_eq!(at, total);
}

#[test]
fn sixty_four_mebibytes_arrive_unchanged_both_ways_on_every_way() {
    let world = World::start();
    let baseline = Baseline::take(&world);
    let _sinks = [&world.server, &world.stranger].map(|pod| Server::start(pod, APP_PORT, digest));
    let _sources = [&world.server, &world.stranger].map(|pod| Server::start(pod, 8_081, source));
    for (from, to) in
        [(&world.client, &world.server), (&world.stranger, &world.server), (&world.client, &world.stranger)]
    {
        std::thread::scope(|scope| {
            scope.spawn(|| upload(from, to.at(APP_PORT), 1));
            scope.spawn(|| download(from, to.at(8_081)));
        });
    }
    baseline.is_back(&world);
}

#[test]
fn two_thousand_connections_at_once_are_all_served_counted_and_gone_afterwards() {
    const COUNT: u16 = 2_000;
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let opened = world.near().metrics().unwrap().sum("istio_tcp_connections_opened_total", &[]);
    let mut held: Vec<_> = (0..COUNT).map(|_| dial(&world.client, service())).collect();
    for (number, stream) in held.iter_mut().enumerate() {
        stream.write_all(&u64::try_from(number).unwrap().to_be_bytes()).unwrap();
    }
    for (number, stream) in held.iter_mut().enumerate() {
        let mut heard = [0; 8];
        stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("connection {number}: {error}"));
        assert_eq!(u64::from_be_bytes(heard), u64::try_from(number).unwrap(), "crossed wires");
    }
    for proxy in [world.near(), world.far()] {
        assert_eq!(open_by_metrics(proxy), f64::from(COUNT));
        assert_eq!(live_connections(proxy), usize::from(COUNT));
    }
    let now = world.near().metrics().unwrap().sum("istio_tcp_connections_opened_total", &[]);
    assert_eq!(now - opened, f64::from(COUNT));
    let idle = [world.near(), world.far()].map(|proxy| proxy.cpu_time().unwrap());
    std::thread::sleep(Duration::from_secs(2));
    for (proxy, before) in [world.near(), world.far()].into_iter().zip(idle) {
        let used = proxy.cpu_time().unwrap() - before;
        assert!(used < Duration::from_millis(200), "2,000 idle connections cost {used:?} of CPU in 2 s");
    }
    drop(held);
    baseline.is_back(&world);
}

/// Also where tunnels are kept for long: what stays is one a shard, and about the memory of before.
#[test]
fn twenty_seconds_after_a_burst_its_tunnels_and_its_memory_are_gone() {
    const COUNT: usize = 2_000;
    let world = World::start_with(&[("POOL_UNUSED_RELEASE_TIMEOUT", "5m")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    // The first connections load what every later one needs.
    for _ in 0..8 {
        echo_on(&mut dial(&world.client, service())).unwrap();
    }
    let proxies = [world.near(), world.far()];
    let tunnels = |proxy: &NodeProxy| proxy.metrics().unwrap().sum("ringway_tunnels", &[]);
    let before = proxies.map(|proxy| proxy.resident_bytes().unwrap());
    let mut held: Vec<_> = (0..COUNT).map(|_| dial(&world.client, service())).collect();
    held.iter_mut().for_each(|stream| echo_on(stream).unwrap());
    assert!(tunnels(world.near()) >= 20.0, "a hundred streams each");
    drop(held);
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(proxies.map(tunnels).map(|left| left <= 2.0), [true; 2], "one a shard of the client's node");
    for (proxy, before) in proxies.into_iter().zip(before) {
        let now = proxy.resident_bytes().unwrap();
        report(&format!("{before} bytes resident before the burst, {now} twenty seconds after it"));
        assert!(now < before + before * 15 / 100 + ALLOWANCE_BYTES, "{before} bytes before, {now} after");
    }
    echo_on(&mut dial(&world.client, service())).unwrap();
}

#[test]
fn two_thousand_short_connections_from_fifty_threads_all_succeed() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    world
        .client
        .space
        .enter(|| {
            std::thread::scope(|scope| {
                for _ in 0..50 {
                    scope.spawn(|| {
                        for number in 0..40_u8 {
                            let mut stream = std::net::TcpStream::connect_timeout(&service(), STEP).unwrap();
                            stream.set_read_timeout(Some(STEP)).unwrap();
                            stream.write_all(&[number]).unwrap();
                            stream.shutdown(Shutdown::Write).unwrap();
                            let mut heard = Vec::new();
                            stream.read_to_end(&mut heard).unwrap();
                            assert_eq!(heard, [number]);
                        }
                    });
                }
            });
        })
        .unwrap();
    for (proxy, reporter) in [(world.near(), "source"), (world.far(), "destination")] {
        let label = format!("reporter=\"{reporter}\"");
        ringway_e2e::eventually("every connection is counted as closed", STEP, || {
            proxy.metrics().unwrap().sum("istio_tcp_connections_closed_total", &[&label]) == 2_000.0
        });
    }
    baseline.is_back(&world);
}

#[test]
fn connections_of_one_pair_of_pods_go_by_tunnels_on_several_shards() {
    const SHARDS: [&str; 2] = ["shard=\"0\"", "shard=\"1\""];
    let world = World::start_with(&[("ZTUNNEL_WORKER_THREADS", "2")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    // All of them on one shard: one case in 2^31.
    let mut held: Vec<_> = (0..32).map(|_| dial(&world.client, service())).collect();
    for stream in &mut held {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    for (proxy, side) in [(world.near(), "side=\"client\""), (world.far(), "side=\"server\"")] {
        let page = proxy.metrics().unwrap();
        let tunnels = SHARDS.map(|shard| page.sum("ringway_tunnels", &[side, shard]));
        assert!(tunnels.iter().sum::<f64>() >= 2.0, "{side}: {tunnels:?}");
        let streams = SHARDS.map(|shard| page.sum("ringway_tunnel_streams", &[side, shard]));
        assert_eq!(streams.iter().sum::<f64>(), 32.0, "{side}: {streams:?}");
    }
    let near = world.near().metrics().unwrap();
    for shard in SHARDS {
        assert_eq!(near.sum("ringway_tunnels", &["side=\"client\"", shard]), 1.0, "{shard}");
    }
}
