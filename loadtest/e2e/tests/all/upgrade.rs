//! An upgrade as a DaemonSet does it: the next proxy comes up beside the old one, then the old one gets
//! SIGTERM.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringway::demo::cluster::READY_BOUND;
use ringway::demo::node::ended_well;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service};
use rustix::process::Signal;

fn once() -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&service(), STEP)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.write_all(b"once")?;
    stream.shutdown(Shutdown::Write)?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    if heard == b"once" { Ok(()) } else { Err(std::io::Error::other(format!("heard {heard:?}"))) }
}

/// Connections one after another; what failed.
fn run_until(stop: &AtomicBool, done: &AtomicU32) -> Vec<String> {
    let mut failures = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = once() {
            failures.push(error.to_string());
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    failures
}

/// A failed assertion must not leave the runners running.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_upgrade_of_both_nodes_fails_no_new_connection_and_cuts_no_old_one() {
    let mut world = World::start_with(&[("CONNECTION_TERMINATION_DEADLINE", "60s")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held: Vec<_> = (0..50).map(|_| dial(&world.client, service())).collect();
    let mut use_held = |word: u8| {
        for (number, stream) in held.iter_mut().enumerate() {
            stream.write_all(&[word]).unwrap_or_else(|error| panic!("held connection {number}: {error}"));
            let mut heard = [0];
            stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("held connection {number}: {error}"));
            assert_eq!(heard, [word]);
        }
    };
    use_held(1);
    let (stop, done, space) = (AtomicBool::new(false), AtomicU32::new(0), world.client.space.clone());
    let mut olds = Vec::new();
    std::thread::scope(|scope| {
        let _guard = StopOnDrop(&stop);
        let runners: Vec<_> =
            (0..4).map(|_| scope.spawn(|| space.enter(|| run_until(&stop, &done)).unwrap())).collect();
        for node in [1, 2, 1, 2] {
            let mut next = world.cluster.start_successor(node, &[], &[]).unwrap();
            next.wait_ready(READY_BOUND).unwrap();
            let mut old = world.cluster.take_over(node, next).unwrap();
            let from = done.load(Ordering::Relaxed);
            old.signal(Signal::TERM).unwrap();
            use_held(2 + node);
            ringway_e2e::eventually("300 connections in the drain", Duration::from_secs(60), || {
                done.load(Ordering::Relaxed) > from + 300
            });
            assert!(
                old.try_wait().unwrap().is_none() || olds.len() >= 2,
                "the first old process still has streams"
            );
            olds.push((node, old));
        }
        stop.store(true, Ordering::Relaxed);
        let failures: Vec<_> = runners.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let total = done.load(Ordering::Relaxed);
        assert!(total >= 1_000, "only {total} connections");
        assert!(
            failures.is_empty(),
            "{} of {total} connections failed: {:?}",
            failures.len(),
            &failures[..failures.len().min(5)]
        );
    });
    use_held(9);
    let started = Instant::now();
    drop(held);
    for (node, mut old) in olds {
        let status =
            old.wait(STEP).unwrap_or_else(|error| panic!("node {node}: {error}\n{}", old.last_words()));
        assert!(ended_well(status), "node {node}: {status}\n{}", old.last_words());
    }
    assert!(started.elapsed() < Duration::from_secs(5), "the end took {:?}", started.elapsed());
}

#[test]
fn a_drain_ends_at_its_deadline_with_code_0_and_counts_what_it_cut() {
    let mut world = World::start_with(&[("CONNECTION_TERMINATION_DEADLINE", "2s")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    held.write_all(b"?").unwrap();
    held.read_exact(&mut [0]).unwrap();
    world.near().signal(Signal::TERM).unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1_200) {
        held.write_all(b"?").unwrap();
        held.read_exact(&mut [0]).expect("the stream goes on until the deadline");
    }
    let ended = held.read(&mut [0]);
    assert!(!matches!(ended, Ok(1)));
    let took = started.elapsed();
    assert!((Duration::from_millis(1_500)..Duration::from_secs(4)).contains(&took), "cut after {took:?}");
    let near = world.cluster.proxy_mut(1).unwrap();
    let status = near.wait(STEP).unwrap();
    assert!(ended_well(status), "{status}");
    let text = near.output_text().unwrap();
    assert!(text.contains("received signal SIGTERM, starting shutdown"));
    assert!(text.contains("connection closed due to connection drain"), "the cut connection has its line");
}

#[test]
fn without_connections_it_ends_at_once_by_signal_and_by_admin() {
    let mut world = World::start_with(&[("CONNECTION_TERMINATION_DEADLINE", "60s")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    world.client.space.enter(once).unwrap().unwrap();
    let started = Instant::now();
    world.near().signal(Signal::TERM).unwrap();
    let status = world.cluster.proxy_mut(1).unwrap().wait(STEP).unwrap();
    assert!(ended_well(status), "{status}");
    let (code, body) = world.far().request("POST", ringway::demo::node::ADMIN_PORT, "/quitquitquit").unwrap();
    assert_eq!((code, body.as_str()), (200, "shutdown now\n"));
    let status = world.cluster.proxy_mut(2).unwrap().wait(STEP).unwrap();
    assert!(ended_well(status), "{status}");
    assert!(started.elapsed() < Duration::from_secs(6), "it took {:?}", started.elapsed());
    assert!(world.client.space.enter(once).unwrap().is_err(), "nobody listens any more: the pod is closed");
}
