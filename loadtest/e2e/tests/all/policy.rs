//! Policies: who may connect, and what happens to open connections when that changes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ringway::demo::mesh_file::{allow, deny, namespace_policy};
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service, try_dial};

const CLIENT: &str = "cluster.local/ns/default/sa/client";
const OTHER: &str = "cluster.local/ns/default/sa/somebody-else";

fn open(from: &Pod, to: SocketAddr) -> TcpStream {
    let mut stream = dial(from, to);
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{} -> {to}: {error}", from.name));
    stream
}

fn is_refused(from: &Pod, to: SocketAddr) -> bool {
    // A plaintext connection may be ended before `connect` comes back.
    let Ok(mut stream) = try_dial(from, to) else { return true };
    let _ = stream.write_all(b"?");
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn has_ended(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn a_policy_that_denies_closes_what_is_open_and_refuses_what_comes() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let mut held = open(&world.client, service());
    let mut strangers = open(&world.stranger, world.server.at(APP_PORT));
    world.change_policies(vec![deny("no-client", CLIENT)]);
    ringway_e2e::eventually("the denied connection is closed", Duration::from_secs(1), || {
        has_ended(&mut held)
    });
    assert!(!has_ended(&mut strangers), "the policy doesn't name the stranger");
    lines::wait_for(world.far(), "closed by policy", |line| {
        line["error"] == "connection closed due to policy change" && text(line, "src.workload") == "client"
    });
    assert!(is_refused(&world.client, service()));
    lines::wait_for(world.near(), "refused, as the client's node sees it", |line| {
        line["error"] == "http status: 401 Unauthorized" && line["level"] == "error"
    });
    lines::wait_for(world.far(), "refused, as the server's node sees it", |line| {
        line["error"] == "connection closed due to policy rejection: explicitly denied by: default/no-client"
    });
    let denied = world.far().metrics().unwrap();
    let labels = ["reporter=\"destination\"", "response_flags=\"DENY\""];
    assert_eq!(denied.sum("istio_tcp_connections_closed_total", &labels), 2.0);
    assert_eq!(denied.sum("istio_tcp_connections_failed_total", &labels), 2.0);
    world.change_policies(Vec::new());
    open(&world.client, service());
    drop((held, strangers));
    baseline.is_back(&world);
}

#[test]
fn an_allow_policy_for_others_closes_everybody_else_with_and_without_identity() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = open(&world.client, service());
    let mut strangers = open(&world.stranger, world.server.at6(APP_PORT));
    world.change_policies(vec![allow("only-client", CLIENT)]);
    ringway_e2e::eventually("plaintext is closed", Duration::from_secs(1), || has_ended(&mut strangers));
    assert!(!has_ended(&mut held), "the client is allowed");
    assert!(is_refused(&world.stranger, world.server.at(APP_PORT)));
    open(&world.client, service());
    world.change_policies(vec![allow("only-others", OTHER)]);
    ringway_e2e::eventually("the client's is closed", Duration::from_secs(1), || has_ended(&mut held));
    assert!(is_refused(&world.client, service()));
    lines::wait_for(world.far(), "none allowed", |line| {
        line["error"] == "connection closed due to policy rejection: allow policies exist, but none allowed"
    });
}

#[test]
fn policies_that_do_not_concern_a_connection_leave_it_alone() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = open(&world.client, service());
    world.change_policies(vec![
        deny("no-other", OTHER),
        namespace_policy("other-port", "Deny", "{destinationPorts: [9]}"),
        namespace_policy("other-source", "Deny", "{sourceIps: [\"192.0.2.0/24\"]}"),
        deny("dry", CLIENT).replace("dryRun: false", "dryRun: true"),
        deny("elsewhere", CLIENT).replace("namespace: default", "namespace: elsewhere"),
    ]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!has_ended(&mut held));
    open(&world.client, service());
}

/// The lines that tell what policies decided, in the shape of the captured ones.
#[test]
fn decisions_are_told_and_counted_by_policy_and_a_dry_run_decides_nothing() {
    let mut world = World::start_with(&[("AUTHZ_POLICY_INFO_LOGGING", "true")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let said = |world: &World, message: &str, fits: &dyn Fn(&serde_json::Value) -> bool| {
        ringway_e2e::eventually(message, STEP, || {
            let lines = world.far().log_lines().unwrap();
            lines.iter().any(|line| {
                line["message"] == message
                    && line["scope"] == "ztunnel::state"
                    && line["level"] == "info"
                    && line["proxy"]["wl"] == "default/server"
                    && fits(line)
            })
        });
    };
    let peer = format!("{}:", world.client.v4);
    let tunnelled = |line: &serde_json::Value| {
        text(&line["inbound"], "id").len() == 32 && text(&line["inbound"], "peer").starts_with(&peer)
    };
    open(&world.client, service());
    said(&world, "no allow policies, allow", &tunnelled);
    let dry = |policy: String| policy.replace("dryRun: false", "dryRun: true");
    world.change_policies(vec![
        dry(deny("try-deny", CLIENT)),
        dry(allow("try-allow", OTHER)),
        dry(namespace_policy("try-port", "Deny", "{destinationPorts: [9]}")),
    ]);
    open(&world.client, service());
    said(&world, "dry-run: deny policy match", &|line| line["policy"] == "default/try-deny");
    said(&world, "dry-run: no allow policies match", &|line| line.get("policy").is_none());
    world.change_policies(vec![allow("let", CLIENT), dry(allow("try-allow", CLIENT))]);
    open(&world.client, service());
    said(&world, "dry-run: allow policy match", &|line| line["policy"] == "default/try-allow");
    said(&world, "allow policy match", &|line| {
        tunnelled(line) && line["policy"] == "default/let" && line["rule"] == "rules[0][0][0]"
    });
    assert!(is_refused(&world.stranger, world.server.at(APP_PORT)));
    said(&world, "no allow policies matched", &|line| line.get("inbound").is_none());
    world.change_policies(vec![deny("keep", CLIENT)]);
    assert!(is_refused(&world.client, service()));
    said(&world, "deny policy match", &|line| line["policy"] == "default/keep");
    let metrics = world.far().metrics().unwrap();
    for (name, policy, word, times) in [
        ("ringway_dry_run_verdicts_total", "default/try-deny", "result=\"deny\"", 1.0),
        ("ringway_dry_run_verdicts_total", "default/try-allow", "result=\"allow\"", 1.0),
        ("ringway_dry_run_verdicts_total", "unknown", "result=\"none_allowed\"", 1.0),
        ("ringway_dry_run_verdicts_total", "default/try-port", "result=\"deny\"", 0.0),
        ("ringway_policy_denials_total", "unknown", "reason=\"none_allowed\"", 1.0),
        ("ringway_policy_denials_total", "default/keep", "reason=\"explicit\"", 1.0),
    ] {
        let policy = format!("policy=\"{policy}\"");
        assert_eq!(metrics.sum(name, &[&policy, word]), times, "{name} {policy}");
    }
}

#[test]
fn source_addresses_and_ports_are_judged_in_both_families() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _other = Server::start(&world.server, 9_090, echo);
    let (v4, v6) = (world.client.v4, world.client.v6);
    world.change_policies(vec![namespace_policy(
        "no-client-v4",
        "Deny",
        &format!("{{sourceIps: [\"{v4}/32\"]}}"),
    )]);
    assert!(is_refused(&world.client, world.server.at(APP_PORT)));
    open(&world.client, world.server.at6(APP_PORT));
    world.change_policies(vec![
        namespace_policy("no-client-v6", "Deny", &format!("{{sourceIps: [\"{v6}/128\"]}}")),
        namespace_policy("no-9090", "Deny", "{destinationPorts: [9090]}"),
    ]);
    assert!(is_refused(&world.client, world.server.at6(APP_PORT)));
    assert!(is_refused(&world.client, world.server.at(9_090)));
    open(&world.client, world.server.at(APP_PORT));
    assert!(is_refused(&world.stranger, world.server.at(9_090)), "plaintext is judged by the same rules");
}

#[test]
fn a_policy_that_comes_and_goes_at_once_leaves_no_wrong_verdict() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    for _ in 0..10 {
        world.cluster.mesh.policies = vec![deny("blink", CLIENT)];
        world.cluster.mesh.write().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        world.cluster.mesh.policies.clear();
        world.cluster.mesh.write().unwrap();
    }
    world.change_policies(Vec::new());
    let until = Instant::now() + STEP;
    while is_refused(&world.client, service()) {
        assert!(Instant::now() < until, "a policy that is gone still denies");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut held = open(&world.client, service());
    std::thread::sleep(Duration::from_secs(1));
    assert!(!has_ended(&mut held));
}

#[test]
fn a_file_that_cannot_be_read_keeps_the_mesh_that_was() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    world.change_policies(vec![deny("no-other", OTHER)]);
    let mut held = open(&world.client, service());
    std::fs::write(world.cluster.mesh.path(), "workloads: [{uid: broken").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!has_ended(&mut held));
    open(&world.client, service());
    for proxy in [world.near(), world.far()] {
        let dump = proxy.dump().unwrap();
        assert_eq!(dump["policies"].as_array().unwrap().len(), 1);
        assert_eq!(dump["workloads"].as_array().unwrap().len(), 2);
    }
    world.change_policies(vec![deny("no-client", CLIENT)]);
    ringway_e2e::eventually("a good file works again", STEP, || has_ended(&mut held));
}
