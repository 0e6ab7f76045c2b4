//! Pods come, go, change and break; the CNI agent restarts and misbehaves. What runs goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ringway::demo::agent::{Agent, AgentPod, Manner};
use ringway::demo::agent_messages::{KeepWorkload, Payload, SnapshotSent};
use ringway::demo::cluster::agent_pod;
use ringway::demo::node::READY_PORT;
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::sockets;
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service, try_dial};

fn say(stream: &mut TcpStream, word: u8) -> std::io::Result<()> {
    stream.write_all(&[word])?;
    let mut heard = [0];
    stream.read_exact(&mut heard)?;
    assert_eq!(heard, [word]);
    Ok(())
}

fn works(from: &Pod) -> bool {
    try_dial(from, service()).and_then(|mut stream| say(&mut stream, 1)).is_ok()
}

fn readiness(world: &World) -> (u16, String) {
    world.near().get(READY_PORT, "/healthz/ready").unwrap()
}

fn is_ready(world: &World) -> bool {
    readiness(world).0 == 200
}

#[test]
fn a_deleted_pods_connections_and_listeners_end_at_once() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let mut held: Vec<_> = (0..20).map(|_| dial(&world.client, service())).collect();
    held.push(dial(&world.stranger, world.server.at(APP_PORT)));
    for stream in &mut held {
        say(stream, 1).unwrap();
    }
    // One that is stuck: nobody reads at the client's end.
    let stuck = dial(&world.client, service());
    stuck.set_nonblocking(true).unwrap();
    while (&stuck).write(&[0; 65_536]).is_ok() {}
    let started = Instant::now();
    world.cluster.agent(2).unwrap().delete("uid-server").unwrap();
    for stream in &mut held {
        let ended = stream.read(&mut [0]);
        assert!(
            matches!(ended, Ok(0))
                || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
        );
    }
    assert!(started.elapsed() < Duration::from_secs(2), "it took {:?}", started.elapsed());
    assert_eq!(sockets::proxy_listeners(&world.server.space), 0);
    assert!(!works(&world.client), "the pod is gone");
    drop((held, stuck));
    world.cluster.agent(2).unwrap().add(agent_pod(&world.server).unwrap()).unwrap();
    assert!(works(&world.client), "the pod is back");
    baseline.is_back(&world);
}

#[test]
fn a_restart_of_the_cni_agent_keeps_pods_and_connections_and_shows_in_readiness() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    say(&mut held, 1).unwrap();
    let path = world.cluster.stop_agent(1).unwrap();
    ringway_e2e::eventually("readiness names the missing agent", STEP, || {
        readiness(&world) == (500, "not ready, pending: workload proxy manager\n".to_owned())
    });
    say(&mut held, 2).unwrap();
    assert!(works(&world.client), "new connections while the agent is away");
    let known = [agent_pod(&world.client).unwrap()];
    let agent = Agent::listen_with(&path, Manner::Ordinary, known).unwrap();
    agent.wait_for_snapshot(1, Duration::from_secs(20)).unwrap();
    world.cluster.set_agent(1, agent);
    ringway_e2e::eventually("ready again", STEP, || is_ready(&world));
    say(&mut held, 3).unwrap();
    assert!(works(&world.client));
    // A pod that left while the agent was away is missing in the snapshot: it ends.
    let path = world.cluster.stop_agent(1).unwrap();
    let agent = Agent::listen(&path).unwrap();
    agent.wait_for_snapshot(1, Duration::from_secs(20)).unwrap();
    world.cluster.set_agent(1, agent);
    assert!(matches!(held.read(&mut [0]), Ok(0)) || say(&mut held, 4).is_err());
    ringway_e2e::eventually("its listeners are gone", STEP, || {
        sockets::proxy_listeners(&world.client.space) == 0
    });
}

#[test]
fn the_same_pod_again_changes_nothing_and_a_new_namespace_replaces_the_old() {
    let world = World::start();
    let app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    say(&mut held, 1).unwrap();
    for _ in 0..3 {
        world.cluster.agent(2).unwrap().add(agent_pod(&world.server).unwrap()).unwrap();
        say(&mut held, 2).unwrap();
    }
    drop(app);
    let server = world.server.clone();
    world.cluster.topology.remake_pod(&server).unwrap();
    server.capture().unwrap();
    let _app = Server::start(&server, APP_PORT, echo);
    assert!(sockets::proxy_listeners(&server.space) == 0);
    world.cluster.agent(2).unwrap().add(agent_pod(&server).unwrap()).unwrap();
    assert!(sockets::proxy_listeners(&server.space) > 0);
    ringway_e2e::eventually("the pod in its new namespace is reached", STEP, || works(&world.client));
    let dump = world.far().dump().unwrap();
    assert_eq!(dump["workloadState"].as_object().unwrap().len(), 1, "{}", dump["workloadState"]);
}

#[test]
fn a_pod_that_cannot_be_served_is_retried_and_hurts_nobody() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    say(&mut held, 1).unwrap();
    let bad = AgentPod {
        uid: "uid-bad".to_owned(),
        name: "bad".to_owned(),
        namespace: "default".to_owned(),
        service_account: "bad".to_owned(),
        netns: std::fs::File::open("/dev/null").unwrap().into(),
    };
    let error = world.cluster.agent(1).unwrap().add(bad).unwrap_err().to_string();
    assert!(error.contains("failure to start proxy"), "{error}");
    ringway_e2e::eventually("not ready while a pod is pending", STEP, || !is_ready(&world));
    let metrics = world.near().metrics().unwrap();
    assert_eq!(metrics.sum("workload_manager_pending_proxy_count", &[]), 1.0);
    assert_eq!(metrics.sum("workload_manager_active_proxy_count", &[]), 1.0);
    let dump = world.near().dump().unwrap();
    assert_eq!(dump["workloadState"]["uid-bad"]["state"], "Pending");
    say(&mut held, 2).unwrap();
    assert!(works(&world.client));
    std::thread::sleep(Duration::from_secs(6));
    let log = world.near().output_text().unwrap();
    assert!(log.contains("retrying workload"), "no retry after 5 s");
    world.cluster.agent(1).unwrap().delete("uid-bad").unwrap();
    ringway_e2e::eventually("ready again", STEP, || is_ready(&world));
    say(&mut held, 3).unwrap();
}

#[test]
fn whatever_the_agent_does_pods_are_served_and_an_orderly_one_makes_it_ready_again() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    for (turn, manner) in [
        Manner::Silent,
        Manner::DiesMidway,
        Manner::Repeats,
        Manner::Junk(vec![0xff; 64]),
        Manner::Junk(vec![0; 2_000]),
        Manner::Bare,
        Manner::Descriptors(2),
        Manner::Keeps,
    ]
    .into_iter()
    .enumerate()
    {
        let path = world.cluster.stop_agent(1).unwrap();
        let known = [agent_pod(&world.client).unwrap()];
        let odd = Agent::listen_with(&path, manner.clone(), known).unwrap();
        ringway_e2e::eventually(&format!("{manner:?}: the proxy connects"), Duration::from_secs(20), || {
            odd.accepted() > 0
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            world.cluster.proxy_mut(1).unwrap().try_wait().unwrap().is_none(),
            "{manner:?} ended the proxy"
        );
        say(&mut held, u8::try_from(turn).unwrap()).unwrap_or_else(|error| panic!("{manner:?}: {error}"));
        assert!(works(&world.client), "{manner:?}");
        if matches!(manner, Manner::Silent | Manner::DiesMidway) {
            assert!(!is_ready(&world), "{manner:?}: ready without a snapshot");
        }
        if matches!(manner, Manner::Repeats | Manner::Keeps) {
            ringway_e2e::eventually(&format!("{manner:?} is a whole snapshot"), STEP, || is_ready(&world));
            assert_eq!(odd.faults(), Vec::<String>::new(), "{manner:?}");
        }
        drop(odd);
        let known = [agent_pod(&world.client).unwrap()];
        let agent = Agent::listen_with(&path, Manner::Ordinary, known).unwrap();
        agent
            .wait_for_snapshot(1, Duration::from_secs(30))
            .unwrap_or_else(|error| panic!("after {manner:?}: {error}"));
        world.cluster.set_agent(1, agent);
        ringway_e2e::eventually(&format!("ready after {manner:?}"), STEP, || is_ready(&world));
        say(&mut held, 99).unwrap_or_else(|error| panic!("after {manner:?}: {error}"));
    }
}

#[test]
fn messages_out_of_place_are_answered_and_end_neither_pods_nor_process() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    for message in
        [Payload::Keep(KeepWorkload { uid: "uid-client".into() }), Payload::SnapshotSent(SnapshotSent {})]
    {
        let before = world.cluster.agent(1).unwrap().snapshots();
        let said = world.cluster.agent(1).unwrap().say(message.clone()).unwrap();
        assert!(said.contains("failure to process message"), "{message:?}: {said:?}");
        world.cluster.agent(1).unwrap().wait_for_snapshot(before + 1, Duration::from_secs(30)).unwrap();
        assert!(world.cluster.proxy_mut(1).unwrap().try_wait().unwrap().is_none());
        say(&mut held, 1).unwrap();
        ringway_e2e::eventually("ready again", STEP, || is_ready(&world));
    }
}

#[test]
fn a_pod_is_captured_before_the_add_is_acknowledged_and_waits_for_its_workload() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let late = world.cluster.topology.add_pod(1, "late").unwrap();
    late.capture().unwrap();
    world.cluster.agent(1).unwrap().add(agent_pod(&late).unwrap()).unwrap();
    // The mesh learns of it only now; its first connection is held until then.
    let mut stream = dial(&late, service());
    stream.write_all(b"?").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    world.cluster.mesh.add(&late, true);
    world.cluster.mesh.write().unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn twenty_rounds_of_add_and_remove_leave_a_captured_pod_and_nothing_else() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    for round in 0..20 {
        world.cluster.agent(1).unwrap().delete("uid-client").unwrap();
        assert_eq!(sockets::proxy_listeners(&world.client.space), 0, "round {round}");
        world.cluster.agent(1).unwrap().add(agent_pod(&world.client).unwrap()).unwrap();
        assert!(works(&world.client), "round {round}");
    }
    baseline.is_back(&world);
}
