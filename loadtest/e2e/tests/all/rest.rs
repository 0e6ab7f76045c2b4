//! A node on which nothing happens: its proxies sleep, and hold little memory.

use std::time::{Duration, Instant};

use ringway::demo::node::NodeProxy;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::threads::voluntary_switches;
use ringway_e2e::world::{APP_PORT, STEP, World, service, talk};
use ringway_e2e::{eventually, lines};

/// Several times what it is: two looks a second at the mesh's file, and now and then a heartbeat.
const WAKE_UPS_A_SECOND: f64 = 15.0;
/// A program of the development profile, which is larger than a release.
const RESIDENT_BYTES: u64 = 20 << 20;

/// Between two moments some seconds apart. A slow machine makes the time longer, not the figure larger.
fn wake_ups_a_second(proxy: &NodeProxy) -> f64 {
    let (started, before) = (Instant::now(), voluntary_switches(proxy.pid()).unwrap());
    std::thread::sleep(Duration::from_secs(2));
    let after = voluntary_switches(proxy.pid()).unwrap();
    f64::from(u32::try_from(after.saturating_sub(before)).unwrap()) / started.elapsed().as_secs_f64()
}

#[test]
fn proxies_with_pods_and_without_connections_sleep() {
    let world = World::start();
    for proxy in [world.near(), world.far()] {
        eventually("the proxy comes to rest", STEP, || wake_ups_a_second(proxy) < WAKE_UPS_A_SECOND);
        eventually("it holds no more than it needs", STEP, || {
            proxy.resident_bytes().unwrap() < RESIDENT_BYTES
        });
    }
    // What sleeps wakes: a connection is carried, and what follows it is looked after.
    let _server = Server::start(&world.server, APP_PORT, echo);
    talk(&world.client, service(), "awake");
    eventually("the connection's line is written", STEP, || !lines::completed(world.near()).is_empty());
    eventually("the proxy rests beside an idle tunnel", STEP, || {
        wake_ups_a_second(world.near()) < WAKE_UPS_A_SECOND
    });
}
