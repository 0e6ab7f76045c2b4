//! Kernels and containers that refuse: no io_uring, too few descriptors, a dead network.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use ringway::demo::cluster::READY_BOUND;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::serve::{Server, digest, echo};
use ringway_e2e::sockets;
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service, try_dial};

fn traffic_works(world: &World) {
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _sink = Server::start(&world.server, 8_081, digest);
    let mut streams: Vec<_> = (0..200).map(|_| dial(&world.client, service())).collect();
    for stream in &mut streams {
        stream.write_all(b"hello").unwrap();
    }
    for stream in &mut streams {
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
    let mut stream = dial(&world.client, world.server.at(8_081));
    for _ in 0..128 {
        stream.write_all(&[7; 65_536]).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], (128_u64 * 65_536).to_be_bytes());
}

#[test]
fn epoll_on_request_carries_the_same_traffic() {
    let world = World::start_with(&[("RINGWAY_EVENT_LOOP", "epoll")], |_| {});
    let baseline = Baseline::take(&world);
    traffic_works(&world);
    for proxy in [world.near(), world.far()] {
        let rings =
            std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap().flatten().filter(|entry| {
                std::fs::read_link(entry.path())
                    .is_ok_and(|target| target.to_string_lossy().contains("io_uring"))
            });
        assert_eq!(rings.count(), 0, "a ring although epoll was asked for");
        assert!(proxy.metrics().unwrap().sum("ringway_event_loop", &["kind=\"epoll\""]) >= 1.0);
    }
    baseline.is_back(&world);
}

#[test]
fn where_seccomp_denies_io_uring_it_says_so_once_and_runs_on_epoll() {
    // The filter is inherited by what its thread starts, so the whole world begins on a thread of its own.
    let run = std::thread::spawn(|| {
        ringway_e2e::seccomp::refuse_io_uring().unwrap();
        let world = World::start();
        traffic_works(&world);
        for proxy in [world.near(), world.far()] {
            let lines = proxy.log_lines().unwrap();
            let said: Vec<_> = lines
                .iter()
                .filter(|line| {
                    line["level"] == "warn"
                        && line["message"].as_str().unwrap_or_default().contains("io_uring")
                })
                .collect();
            assert_eq!(said.len(), 1, "one warning: {said:?}");
            let text = said[0]["message"].as_str().unwrap();
            assert!(text.contains("seccomp") && text.contains("EPERM"), "{text}");
            assert!(proxy.metrics().unwrap().sum("ringway_event_loop", &["kind=\"epoll\""]) >= 1.0);
        }
    });
    if let Err(panic) = run.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn io_uring_is_what_runs_where_the_kernel_has_it() {
    let world = World::start();
    traffic_works(&world);
    for proxy in [world.near(), world.far()] {
        assert!(proxy.metrics().unwrap().sum("ringway_event_loop", &["kind=\"io_uring\""]) >= 1.0);
    }
}

#[test]
fn without_descriptors_old_connections_flow_nothing_spins_and_it_recovers() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    // Node 1 again, with few descriptors: what it has at rest, and room for a few dozen connections.
    let at_rest = world.near().open_descriptors().unwrap();
    let listening = sockets::proxy_listeners(&world.client.space);
    let limit = format!("--nofile={}", at_rest + 60);
    let mut fresh = world.cluster.start_successor(1, &["prlimit", &limit], &[]).unwrap();
    fresh.wait_ready(READY_BOUND).unwrap();
    drop(world.cluster.take_over(1, fresh));
    // The kernel takes the rings of a killed process down after its end, and its listeners with them.
    ringway_e2e::eventually("the killed process listens no more", STEP, || {
        sockets::proxy_listeners(&world.client.space) == listening
    });
    let mut old = dial(&world.client, service());
    old.write_all(b"1").unwrap();
    old.read_exact(&mut [0]).unwrap();
    // What isn't accepted waits in the queues of two shards, 128 each.
    let crowd: Vec<_> = (0..180).filter_map(|_| try_dial(&world.client, service()).ok()).collect();
    std::thread::sleep(Duration::from_millis(500));
    let before = world.near().cpu_time().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let used = world.near().cpu_time().unwrap() - before;
    assert!(used < Duration::from_millis(500), "it spins: {used:?} of CPU in 2 s");
    for word in 0..10 {
        old.write_all(&[word]).unwrap();
        let mut heard = [0];
        old.read_exact(&mut heard).unwrap();
        assert_eq!(heard, [word], "the old connection");
    }
    drop(crowd);
    ringway_e2e::eventually("new connections work again", Duration::from_secs(15), || {
        let Ok(mut stream) = try_dial(&world.client, service()) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.write_all(b"2").is_ok() && stream.read_exact(&mut [0]).is_ok()
    });
    ringway_e2e::eventually("readiness answers", STEP, || {
        world
            .near()
            .get(ringway::demo::node::READY_PORT, "/healthz/ready")
            .is_ok_and(|(status, _)| status == 200)
    });
}

#[test]
fn keepalive_timers_run_on_every_leg() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _open = Server::start(&world.stranger, APP_PORT, echo);
    let mut held = [
        dial(&world.client, service()),
        dial(&world.client, world.stranger.at(APP_PORT)),
        dial(&world.stranger, world.server.at(APP_PORT)),
    ];
    for stream in &mut held {
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    // Data in flight shows another timer: let it settle.
    std::thread::sleep(Duration::from_millis(500));
    let client = sockets::connections(&world.client.space);
    let server = sockets::connections(&world.server.space);
    let app = format!(":{APP_PORT}");
    let from = |pod: &ringway::demo::topology::Pod| pod.v4.to_string();
    for (leg, all, fits) in [
        (
            "app to proxy",
            &client,
            Box::new(|one: &sockets::Socket| one.local.ends_with(":15001")) as Box<dyn Fn(&_) -> bool>,
        ),
        ("proxy to peer", &client, Box::new(|one: &sockets::Socket| one.peer.ends_with(":15008"))),
        (
            "passthrough out",
            &client,
            Box::new(|one: &sockets::Socket| {
                one.peer.contains(&from(&world.stranger)) && one.rest.contains("timer")
            }),
        ),
        ("peer to proxy", &server, Box::new(|one: &sockets::Socket| one.local.ends_with(":15008"))),
        ("plaintext in", &server, Box::new(|one: &sockets::Socket| one.local.ends_with(":15006"))),
        (
            "proxy to app, from the mesh",
            &server,
            Box::new(|one: &sockets::Socket| {
                one.local.contains(&from(&world.client)) && one.peer.ends_with(&app)
            }),
        ),
        (
            "proxy to app, plaintext",
            &server,
            Box::new(|one: &sockets::Socket| {
                one.local.contains(&from(&world.stranger)) && one.peer.ends_with(&app)
            }),
        ),
    ] {
        let found: Vec<_> = all.iter().filter(|one| fits(one)).collect();
        assert!(!found.is_empty(), "no socket is the leg {leg:?} in {all:#?}");
        for socket in found {
            assert!(socket.rest.contains("timer:(keepalive"), "{leg}: no keepalive timer on {socket:?}");
        }
    }
}

#[test]
fn a_peer_that_dies_silently_is_noticed_at_the_app_within_the_bound() {
    let fast = [("KEEPALIVE_TIME", "1s"), ("KEEPALIVE_INTERVAL", "1s"), ("KEEPALIVE_RETRIES", "3")];
    let world = World::start_with(&fast, |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _open = Server::start(&world.stranger, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    // Keepalive of the kernel for passthrough; for HBONE a ping each 10 s that is given up after 20 s.
    let mut held = [
        ("passthrough", dial(&world.client, world.stranger.at(APP_PORT)), Duration::from_secs(10)),
        ("hbone", dial(&world.client, service()), Duration::from_secs(45)),
    ];
    for (_, stream, _) in &mut held {
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    world.cluster.topology.wire.ip_batch("link set node2 down\n").unwrap();
    let started = Instant::now();
    for (way, stream, bound) in &mut held {
        stream.set_read_timeout(Some(*bound)).unwrap();
        let ended = stream.read(&mut [0]);
        let silent = ended
            .as_ref()
            .is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert!(!silent, "{way}: the app wasn't told within {bound:?}");
        assert!(started.elapsed() < *bound, "{way}: {:?}", started.elapsed());
    }
    world.cluster.topology.wire.ip_batch("link set node2 up\n").unwrap();
    let _ = &baseline;
    ringway_e2e::eventually("traffic flows again", Duration::from_secs(15), || {
        let Ok(mut stream) = try_dial(&world.client, service()) else { return false };
        stream.write_all(b"!").is_ok() && stream.read_exact(&mut [0]).is_ok()
    });
}

/// BBR in both pods where the kernel has it; else what they have anyway.
fn choose_congestion_control(world: &World) -> String {
    let [chosen, other] = [&world.client, &world.server].map(|pod| {
        // Refused where the kernel lacks it.
        let _ = pod.space.output("sysctl", &["-qw", "net.ipv4.tcp_congestion_control=bbr"]);
        let output = pod.space.output("sysctl", &["-n", "net.ipv4.tcp_congestion_control"]).unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    });
    assert!(
        chosen == other && chosen != "reno",
        "{chosen} and {other}: nobody could tell that reno was chosen"
    );
    chosen
}

#[test]
fn what_stays_on_the_node_is_not_paced_and_tunnels_keep_what_the_node_chose() {
    let mut chosen = String::new();
    let world = World::start_with(&[], |world| chosen = choose_congestion_control(world));
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    held.write_all(b"x").unwrap();
    held.read_exact(&mut [0]).unwrap();
    let app = format!(":{APP_PORT}");
    for pod in [&world.client, &world.server] {
        let mut seen = [0; 2];
        for (local, peer, name) in sockets::congestion_controls(&pod.space) {
            if local.ends_with(":15008") || peer.ends_with(":15008") {
                assert_eq!(name, chosen, "the tunnel {local} {peer}");
                seen[0] += 1;
            // The proxy's ends: accepted on 15001, dialled to the application.
            } else if local.ends_with(":15001") || peer.ends_with(&app) && pod.name == world.server.name {
                assert_eq!(name, "reno", "the proxy's end {local} {peer}");
                seen[1] += 1;
            }
        }
        assert_eq!(seen, [1, 1], "in {}: {:?}", pod.name, sockets::congestion_controls(&pod.space));
    }
}
