//! Name servers that lose, lie, flood or stay silent, askers that send nonsense, and a want of ports: what is asked is
//! answered rightly or fails in time, and the mesh's own names don't notice.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringway_e2e::eventually;
use ringway_e2e::lines::text;
use ringway_e2e::names::{A, Heard, NameServer, Say, ask, asked_name, query, question_end, rcode, reply};
use ringway_e2e::world::{STEP, World};
use rustix::process::Signal;

use crate::dns::{FAR, ON, address, ordinary, world};

#[test]
fn a_lost_or_forged_reply_is_no_answer_and_the_true_one_is() {
    let (world, names) = world(&[("RINGWAY_DNS_CACHE", "false")]);
    let server = NameServer::start(&names, |heard, _| {
        let forged = || reply(&heard.message, 0, &[(A, 20, vec![6, 6, 6, 6])]);
        let spoilt = |at: usize, with: u8| {
            let mut message = forged();
            message[at] ^= with;
            Say::Reply(message)
        };
        let name = asked_name(&heard.message);
        let tries = name.split('.').next_back().unwrap_or_default();
        let later = Say::Later(Duration::from_millis(150), address(heard));
        match tries {
            "lost" => LOST.with_first(heard),
            "id" => vec![spoilt(0, 0x55), later],
            "question" => vec![spoilt(13, 0x01), later],
            "type" => vec![spoilt(question_end(&heard.message) - 3, 0x10), later],
            "query" => vec![spoilt(2, 0x80), later],
            "source" => vec![Say::Elsewhere(forged()), later],
            "garbage" => vec![Say::Reply(vec![0xff; 30]), Say::Reply(Vec::new()), later],
            "flood" => (0..2_000).map(|_| spoilt(0, 0x55)).chain([Say::Reply(address(heard))]).collect(),
            "silent" => vec![],
            _ => vec![Say::Reply(address(heard))],
        }
    });
    for kind in ["lost", "id", "question", "type", "query", "source", "garbage", "flood"] {
        let started = Instant::now();
        let answer = ask(&world.client, names.at(53), &query(7, &format!("a.{kind}"), A), STEP);
        let answer = answer.unwrap_or_else(|| panic!("no answer: {kind}"));
        assert_eq!((rcode(&answer), &answer[answer.len() - 4..]), (0, &FAR[..]), "{kind}");
        assert!(started.elapsed() < Duration::from_secs(4), "{kind} took {:?}", started.elapsed());
    }
    // A silent server costs its asker the patience, and nobody else anything.
    std::thread::scope(|scope| {
        let silent: Vec<_> = (0..20)
            .map(|number| {
                let (client, server) = (&world.client, names.at(53));
                scope.spawn(move || {
                    let started = Instant::now();
                    let answer = ask(client, server, &query(number, "a.silent", A), Duration::from_secs(6));
                    (answer.map(|answer| rcode(&answer)), started.elapsed())
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        for name in ["web", "elsewhere.example"] {
            let started = Instant::now();
            assert!(ask(&world.client, names.at(53), &query(1, name, A), STEP).is_some());
            assert!(started.elapsed() < Duration::from_millis(500), "{name}: {:?}", started.elapsed());
        }
        for one in silent {
            let (rcode, took) = one.join().unwrap();
            assert_eq!(rcode, Some(2), "SERVFAIL while its asker still waits");
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
    });
    let metrics = world.near().metrics().unwrap();
    assert_eq!(metrics.sum("istio_dns_upstream_failures_total", &[]), 20.0);
    // What a socket's buffer doesn't hold of a flood is the kernel's to drop; it holds some 270.
    assert!(metrics.sum("ringway_dns_strays_total", &[]) >= 200.0);
    let heard = server.heard();
    let flows: BTreeSet<_> = heard.iter().map(|one| (one.from.port(), one.id())).collect();
    assert_eq!(flows.len(), heard.len(), "no port and id twice");
}

/// Replies to nothing the first time.
struct FirstLost(std::sync::Mutex<bool>);

static LOST: FirstLost = FirstLost(std::sync::Mutex::new(false));

impl FirstLost {
    fn with_first(&self, heard: &Heard) -> Vec<Say> {
        let mut lost = self.0.lock().unwrap();
        if std::mem::replace(&mut *lost, true) { vec![Say::Reply(address(heard))] } else { vec![] }
    }
}

#[test]
fn nonsense_is_answered_by_the_rfcs_or_not_at_all_and_hurts_nobody() {
    let (world, names) = world(&[]);
    let server = NameServer::start(&names, ordinary);
    let at = names.at(53);
    let good = query(6, "web", A);
    let spoilt = |at: usize, with: u8| {
        let mut message = good.clone();
        message[at] = with;
        message
    };
    for (what, message) in [
        ("a response", spoilt(2, 0x81)),
        ("two questions", spoilt(5, 2)),
        ("a loop", spoilt(12, 0xc0)),
        ("a long label", spoilt(12, 0x7f)),
        ("half a question", good[..15].to_vec()),
    ] {
        let answer = ask(&world.client, at, &message, STEP).unwrap_or_else(|| panic!("no answer: {what}"));
        assert_eq!((rcode(&answer), answer[2] & 0x80), (1, 0x80), "{what}");
    }
    for message in [&[][..], &[1], &[0xff; 11]] {
        assert_eq!(ask(&world.client, at, message, Duration::from_millis(150)), None);
    }
    let socket = world.client.space.enter(|| UdpSocket::bind(world.client.at(0)).unwrap()).unwrap();
    let mut random = 7_u64;
    for length in 0..3_000 {
        let bytes: Vec<u8> = (0..length % 600)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random.to_be_bytes()[0]
            })
            .collect();
        let _ = socket.send_to(&bytes, at);
    }
    // Half a message, then nothing: closed after the idle time; a length of nothing is skipped.
    let mut half = world.client.space.connect(at, STEP).unwrap();
    half.set_read_timeout(Some(STEP)).unwrap();
    std::io::Write::write_all(&mut half, &[0, 0, 0, 40, 1, 2, 3]).unwrap();
    let started = Instant::now();
    assert_eq!(std::io::Read::read(&mut half, &mut [0; 9]).unwrap(), 0);
    assert!(started.elapsed() > Duration::from_secs(3), "closed after {:?}", started.elapsed());
    assert_eq!(rcode(&ask(&world.client, at, &good, STEP).unwrap()), 0);
    drop(server);
}

/// Field report E13.
#[test]
fn when_ports_run_out_queries_fail_and_the_mesh_goes_on() {
    let (world, names) = world(&[]);
    let server = NameServer::start(&names, |heard, _| match asked_name(&heard.message).as_str() {
        "silent.example" => vec![],
        _ => vec![Say::Reply(address(heard))],
    });
    let client = &world.client;
    let ask_from = |port: u16, id: u16, name: &str, within: u64| {
        let bind = client.at(port);
        let socket = client.space.enter(|| UdpSocket::bind(bind).unwrap()).unwrap();
        socket.connect(names.at(53)).unwrap();
        socket.send(&query(id, name, A)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(within))).unwrap();
        let mut buffer = [0; 512];
        socket.recv(&mut buffer).ok().map(|_| buffer[3] & 15)
    };
    client.space.set("net/ipv4/ip_local_port_range", "50000 50007").unwrap();
    let flood = client.space.enter(|| UdpSocket::bind(client.at(20_000)).unwrap()).unwrap();
    flood.connect(names.at(53)).unwrap();
    let ticks = cpu_ticks(world.near().pid());
    let started = Instant::now();
    for id in 0..400 {
        flood.send(&query(id, "silent.example", A)).unwrap();
    }
    assert_eq!(ask_from(20_001, 1, "web", 1_000), Some(0), "the mesh's own names need no port");
    eventually("those that got no port are told so", STEP, || {
        world.near().metrics().unwrap().sum("istio_dns_upstream_failures_total", &[]) >= 390.0
    });
    let spent = Duration::from_millis(10 * (cpu_ticks(world.near().pid()) - ticks));
    assert!(spent < started.elapsed() / 2, "{spent:?} of CPU in {:?}", started.elapsed());
    let told = |lines: Vec<serde_json::Value>| {
        lines.iter().filter(|line| text(line, "message").contains("could not be forwarded")).count()
    };
    assert!(told(world.near().log_lines().unwrap()) <= 4, "the log is flooded");
    eventually("ports are free again", STEP, || ask_from(20_002, 2, "elsewhere.example", 2_000) == Some(0));
    drop(server);
}

/// Each waits there for seconds, so one that asks much must not pile them up.
#[test]
fn queries_of_a_pod_that_the_mesh_does_not_know_yet_are_bounded() {
    let world = World::start_with(&[ON], |world| {
        world.cluster.mesh.workloads.retain(|workload| workload.name != "client");
    });
    let client = &world.client;
    let flood = client.space.enter(|| UdpSocket::bind(client.at(20_000)).unwrap()).unwrap();
    flood.connect(world.server.at(53)).unwrap();
    flood.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut refused, mut buffer) = (0, [0; 512]);
    for id in 0..2_000 {
        flood.send(&query(id, "web", A)).unwrap();
        // The first 512 have their places for five seconds.
        if id >= 600 && flood.recv(&mut buffer).is_ok() {
            assert_eq!(rcode(&buffer), 2, "SERVFAIL");
            refused += 1;
        }
    }
    assert!(refused >= 1_000, "{refused} of 2,000 were refused at once");
    let counted = world.near().metrics().unwrap().sum("ringway_dns_crowded_total", &[]);
    assert!(counted >= f64::from(refused), "{counted} counted of {refused}");
}

/// User and system time of a process, in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn an_upgrade_loses_no_query() {
    let (mut world, names) = world(&[]);
    let server = NameServer::start(&names, ordinary);
    let (client, at) = (world.client.clone(), names.at(53));
    let stop = Arc::new(AtomicBool::new(false));
    let askers: Vec<_> = ["web", "far.example"]
        .into_iter()
        .map(|name| {
            let (client, stop) = (client.clone(), stop.clone());
            std::thread::spawn(move || {
                let (mut asked, mut lost) = (0_u16, 0);
                while !stop.load(Ordering::Relaxed) {
                    let answer = ask(&client, at, &query(asked, name, A), Duration::from_secs(2));
                    lost += u32::from(answer.is_none_or(|answer| rcode(&answer) != 0));
                    asked += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                (asked, lost)
            })
        })
        .collect();
    let mut successor = world.cluster.start_successor(1, &[], &[]).unwrap();
    successor.wait_ready(Duration::from_secs(20)).unwrap();
    let mut old = world.cluster.take_over(1, successor).unwrap();
    old.signal(Signal::TERM).unwrap();
    old.wait(Duration::from_secs(20)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    stop.store(true, Ordering::Relaxed);
    for asker in askers {
        let (asked, lost) = asker.join().unwrap();
        assert!(asked > 50 && lost <= 1, "{lost} of {asked} queries were lost");
    }
    drop(server);
}

#[test]
fn forty_thousand_queries_are_answered_in_a_few_seconds() {
    const EACH: u16 = 10_000;
    const WINDOW: u16 = 32;
    let (world, names) = world(&[]);
    let (started, ticks) = (Instant::now(), cpu_ticks(world.near().pid()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let bind = world.client.at(0);
                let socket = world.client.space.enter(|| UdpSocket::bind(bind).unwrap()).unwrap();
                socket.connect(names.at(53)).unwrap();
                socket.set_read_timeout(Some(STEP)).unwrap();
                let mut buffer = [0; 512];
                for first in (0..EACH).step_by(WINDOW.into()) {
                    (first..first + WINDOW).for_each(|id| {
                        socket.send(&query(id, "web.default.svc.cluster.local", A)).unwrap();
                    });
                    for _ in 0..WINDOW {
                        let count = socket.recv(&mut buffer).expect("an answer");
                        assert_eq!((buffer[3] & 15, &buffer[count - 4..count]), (0, &[10, 77, 200, 1][..]));
                    }
                }
            });
        }
    });
    let queries = 4 * u32::from(EACH);
    let cpu = Duration::from_millis(10 * (cpu_ticks(world.near().pid()) - ticks)) / queries;
    println!("{queries} queries in {:?}, {cpu:?} of CPU each", started.elapsed());
    // Not optimised, and on a busy machine.
    assert!(cpu < Duration::from_micros(200), "{cpu:?} of CPU a query");
}
