//! The second try: a service's connection goes elsewhere where its endpoint can't be reached, and never where somebody
//! has decided, or where the application may have been heard.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringway::demo::mesh_file::{FileService, deny};
use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::eventually;
use ringway_e2e::hbone_server::HboneServer;
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, try_dial};
use serde_json::Value;

fn many() -> SocketAddr {
    "10.77.202.1:80".parse().unwrap()
}

/// A service of the server and of these; `prepare` makes them.
fn world_of(environment: &[(&str, &str)], prepare: impl FnOnce(&mut World) -> Vec<String>) -> World {
    World::start_with(environment, |world| {
        let service = FileService::new("many", &["10.77.202.1"], &[(80, APP_PORT)]);
        let mut names = prepare(world);
        names.push("server".to_owned());
        for name in names {
            world.cluster.mesh.workload(&name).unwrap().serves.push((service.hostname(), 80, APP_PORT));
        }
        world.cluster.mesh.services.push(service);
    })
}

/// A pod of the mesh without a proxy: port 15008 refuses.
fn deaf(world: &mut World, name: &str) -> String {
    let pod = world.cluster.plain_pod(2, name).unwrap();
    world.cluster.mesh.add(&pod, true);
    name.to_owned()
}

/// A pod of the mesh whose application doesn't listen: its proxy answers 503.
fn idle(world: &mut World, name: &str) -> String {
    world.cluster.mesh_pod(2, name).unwrap();
    name.to_owned()
}

fn talk(from: &Pod, to: SocketAddr, word: &str) -> Result<SocketAddr, String> {
    // It may have ended before `connect` came back.
    let mut stream = try_dial(from, to).map_err(|error| error.to_string())?;
    let at = stream.local_addr().map_err(|error| error.to_string())?;
    let mut heard = String::new();
    let said = stream.write_all(word.as_bytes()).and_then(|()| stream.shutdown(Shutdown::Write));
    let outcome = said.and_then(|()| stream.read_to_string(&mut heard));
    match outcome {
        Ok(_) if heard == word => Ok(at),
        outcome => Err(format!("{outcome:?} {heard:?}")),
    }
}

/// The completion lines of one direction in a proxy's log, once so many are there: a line is written a moment after
/// its connection's end.
fn completions(proxy: &NodeProxy, direction: &str, enough: usize) -> Vec<Value> {
    let lines = || {
        let mut lines = lines::completed(proxy);
        lines.retain(|line| line["direction"] == direction);
        lines
    };
    eventually("enough lines", STEP, || lines().len() >= enough);
    lines()
}

#[test]
fn endpoints_that_cannot_be_reached_are_gone_around() {
    let world =
        world_of(&[("RINGWAY_EJECTION", "0s")], |world| vec![deaf(world, "deaf"), idle(world, "idle")]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    for number in 0..30 {
        talk(&world.client, many(), &format!("word {number}")).unwrap();
    }
    lines::wait_for(world.near(), "a second try", |line| line["attempts"].as_u64().is_some());
    baseline.is_back(&world);
    let lines = completions(world.near(), "outbound", 30);
    assert_eq!(lines.len(), 30, "one line a connection");
    assert!(lines.iter().all(|line| line.get("error").is_none() && text(line, "dst.workload") == "server"));
    let tries = |count: u64| lines.iter().filter(|line| line["attempts"] == count).count();
    // Each of the three is first by chance; the second is one of two.
    assert!(tries(2) > 2 && tries(3) > 2 && tries(2) + tries(3) < 30, "{} {}", tries(2), tries(3));
    let metrics = world.near().metrics().unwrap();
    assert_eq!(metrics.sum("istio_tcp_connections_failed_total", &["reporter=\"source\""]), 0.0);
    assert!(metrics.sum("ringway_second_tries_total", &[]) > 5.0);
}

#[test]
fn what_refused_is_left_out_for_a_while() {
    let world = world_of(&[], |world| vec![deaf(world, "deaf")]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    for number in 0..40 {
        talk(&world.client, many(), &format!("word {number}")).unwrap();
    }
    let refused = world.near().metrics().unwrap().sum("ringway_second_tries_total", &[]);
    // Once for each of the shards that serve the pod, and again where the time is over.
    assert!((1.0..=8.0).contains(&refused), "{refused}");
}

#[test]
fn tries_are_counted_and_end() {
    let world = world_of(&[("RINGWAY_RETRIES", "1"), ("RINGWAY_EJECTION", "0s")], |world| {
        (0..6).map(|number| deaf(world, &format!("deaf{number}"))).collect()
    });
    let _app = Server::start(&world.server, APP_PORT, echo);
    let failed = (0..20).filter(|_| talk(&world.client, many(), "x").is_err()).count();
    assert!(failed > 5, "{failed}");
    let error = "io error: Connection refused (os error 111)";
    lines::wait_for(world.near(), error, |line| line["attempts"] == 2 && text(line, "error") == error);
    let lines = completions(world.near(), "outbound", 20);
    assert!(lines.iter().all(|line| line["attempts"].as_u64().unwrap_or(1) <= 2));
}

#[test]
fn a_denial_and_a_pods_own_address_are_tried_once() {
    let mut world = world_of(&[], |world| vec![idle(world, "idle"), deaf(world, "deaf")]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    let deaf = world.cluster.mesh.workload("deaf").unwrap().addresses[0].clone();
    let at: SocketAddr = format!("{deaf}:{APP_PORT}").parse().unwrap();
    assert!(talk(&world.client, at, "x").is_err());
    let line = lines::wait_for(world.near(), "by address", |line| !text(line, "error").is_empty());
    assert!(line.get("attempts").is_none(), "{line}");
    world.change_policies(vec![deny("no-client", "cluster.local/ns/default/sa/client")]);
    let before = completions(world.near(), "outbound", 1).len();
    for _ in 0..10 {
        assert!(talk(&world.client, many(), "x").is_err());
    }
    let outbound = completions(world.near(), "outbound", before + 10);
    let denials =
        outbound.iter().filter(|line| text(line, "error") == "http status: 401 Unauthorized").count();
    assert_eq!(denials, 10, "{outbound:?}");
    let inbound = completions(world.far(), "inbound", denials);
    let rejections = inbound.iter().filter(|line| text(line, "error").contains("policy rejection")).count();
    // No connection was denied twice.
    assert_eq!(rejections, denials);
}

#[test]
fn what_may_have_been_heard_is_not_said_again() {
    let mut cutter = None;
    let world = world_of(&[("RINGWAY_EJECTION", "0s")], |world| {
        let pod = world.cluster.plain_pod(2, "cutter").unwrap();
        world.cluster.mesh.add(&pod, true);
        cutter = Some(pod);
        vec!["cutter".to_owned()]
    });
    let _app = Server::start(&world.server, APP_PORT, echo);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    let identity = "spiffe://cluster.local/ns/default/sa/cutter";
    // Hears the first words, then is gone without an answer.
    let _server =
        HboneServer::start(&cutter.unwrap(), &world.cluster.authority(), identity, move |mut call| {
            let told = told.clone();
            Box::pin(async move {
                if let Ok(Some(Ok(data))) =
                    tokio::time::timeout(Duration::from_millis(300), call.body.data()).await
                {
                    told.lock().unwrap().push(String::from_utf8(data.to_vec()).unwrap());
                }
                call.cut();
            })
        });
    let words: Vec<_> = (0..20).map(|number| format!("word {number}")).collect();
    let answered: Vec<_> =
        words.iter().filter(|word| talk(&world.client, many(), word).is_ok()).cloned().collect();
    let heard = heard.lock().unwrap();
    assert!(!heard.is_empty() && !answered.is_empty(), "{heard:?} {answered:?}");
    let both: Vec<_> = heard.iter().filter(|word| answered.contains(word)).collect();
    assert!(both.is_empty(), "heard twice: {both:?}");
}

#[test]
fn plain_endpoints_are_gone_around_too() {
    let world = world_of(&[("RINGWAY_EJECTION", "0s")], |world| {
        let pod = world.cluster.plain_pod(2, "plain").unwrap();
        world.cluster.mesh.add(&pod, false);
        vec!["plain".to_owned()]
    });
    let _app = Server::start(&world.server, APP_PORT, echo);
    for _ in 0..20 {
        talk(&world.client, many(), "x").unwrap();
    }
    lines::wait_for(world.near(), "a second try", |line| line["attempts"] == 2);
}
