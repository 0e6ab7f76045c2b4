//! A control plane that misbehaves: what was known stands, traffic goes on, and what is right again is in force.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use ringway::demo::topology::Pod;
use ringway::wire::pb::discovery::{Payload, Resource};
use ringway::wire::xds::{ADDRESS_TYPE, AUTHORIZATION_TYPE};
use ringway_e2e::eventually;
use ringway_e2e::lines;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::standin_world::{StandinWorld, workload};
use ringway_e2e::world::{APP_PORT, STEP, service, try_dial};
use ringway_standin::behaviour::{Fault, code};
use ringway_standin::certificates::Outcome;
use ringway_standin::heard::Kind;
use ringway_standin::mesh::Item;

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";

fn call(from: &Pod, to: SocketAddr) -> std::io::Result<()> {
    let mut stream = try_dial(from, to)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(b"word")?;
    let mut heard = [0; 4];
    stream.read_exact(&mut heard)
}

/// A workload that isn't there, with a name of its own; and whether the client's node knows it.
fn rumour(world: &StandinWorld, name: &str) -> ringway::wire::pb::workload::Workload {
    let mut made_up = workload(&world.server, false);
    (made_up.uid, made_up.name) = (format!("Kubernetes//Pod/default/{name}"), name.to_owned());
    made_up.addresses.clear();
    made_up
}

fn knows(world: &StandinWorld, kind: &str, name: &str) -> bool {
    let dump = world.near().dump().unwrap();
    dump[kind].as_array().unwrap().iter().any(|entry| entry["name"] == name)
}

fn resource(name: &str, value: &'static [u8]) -> Resource {
    let payload = Payload { type_url: ADDRESS_TYPE.into(), value: value.into() };
    Resource { name: name.into(), version: "1".into(), resource: Some(payload), aliases: Vec::new() }
}

#[test]
fn after_each_kind_of_broken_response_the_next_change_is_in_force_and_traffic_never_stopped() {
    let world = StandinWorld::start(&[]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    call(&world.client, service()).unwrap();
    let faults = [
        Fault::Half,
        Fault::Status(code::UNAVAILABLE, "not now".into()),
        Fault::Status(code::INTERNAL, "oh".into()),
        Fault::Reset,
        Fault::Close,
        Fault::Message(vec![0xff; 40].into()),
        Fault::Promised(3 << 30),
        Fault::TypeUrl("type.googleapis.com/nobody.Knows".into()),
        Fault::Also(vec![resource("junk", &[0x0a, 0x02, 0x1a, 0x01])]),
        Fault::Twice,
        Fault::Removed(vec!["nobody".into(), "default/nobody".into(), "///".into(), String::new()]),
        Fault::Padded(8 << 20),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let what = format!("{fault:?}");
        let what = what.get(..what.len().min(60)).unwrap_or_default();
        world.standin.behave(|how| how.faults.push_back(fault));
        // Both nodes are told of the first, and one of them gets it broken; the second goes to both.
        world.standin.mesh().put([rumour(&world, &format!("first-{number}"))]);
        call(&world.client, service()).unwrap_or_else(|error| panic!("{what}: {error}"));
        world.standin.mesh().put([rumour(&world, &format!("second-{number}"))]);
        eventually(what, STEP, || knows(&world, "workloads", &format!("second-{number}")));
        call(&world.client, service()).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert!(knows(&world, "services", "web") && knows(&world, "workloads", "server"));
}

#[test]
fn a_bad_resource_is_refused_by_name_and_its_neighbours_are_used() {
    let world = StandinWorld::start(&[]);
    // A workload whose only address has one byte.
    world.standin.behave(|how| {
        how.faults.extend(vec![Fault::Also(vec![resource("bad/one", &[0x0a, 0x03, 0x1a, 0x01, 7])]); 2])
    });
    world.standin.mesh().put([rumour(&world, "good")]);
    eventually("the good one is known", STEP, || knows(&world, "workloads", "good"));
    world
        .standin
        .eventually("a refusal from each node", STEP, |standin| standin.kinds(ADDRESS_TYPE, Kind::Nack) == 2);
    let refusals = world.standin.heard().into_iter().filter_map(|heard| heard.request.error_detail);
    for refusal in refusals {
        assert!(refusal.message.starts_with("bad/one: ") && !refusal.message.contains("good"), "{refusal:?}");
    }
}

/// A DENY with a field of tomorrow: it is in force at its strictest, and everybody who should know is told by name.
#[test]
fn a_policy_that_cannot_be_understood_denies_and_is_reported_by_name() {
    let world = StandinWorld::start(&[]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    call(&world.client, service()).unwrap();
    // Name, namespace, scope NAMESPACE, action DENY, and one rule of one clause of one match of an unknown field 99.
    let mut value = b"\x0a\x03new\x12\x07default\x18\x01\x20\x01".to_vec();
    value.extend(b"\x2a\x07\x0a\x05\x12\x03\x98\x06\x01");
    let (name, version) = ("default/new".to_owned(), "1".to_owned());
    world.standin.mesh().put([Item::Raw {
        type_url: AUTHORIZATION_TYPE,
        name,
        version,
        value: value.into(),
    }]);
    world.standin.eventually("both nodes answer that they don't understand it", STEP, |standin| {
        standin.kinds(AUTHORIZATION_TYPE, Kind::Nack) == 2
    });
    let told: Vec<_> =
        world.standin.heard().into_iter().filter_map(|heard| heard.request.error_detail).collect();
    assert!(told.iter().all(|told| told.message.starts_with("default/new: taken, and denies")), "{told:?}");
    let refused = call(&world.client, service()).unwrap_err();
    lines::wait_for(world.far(), "denied by it", |line| {
        line["error"] == "connection closed due to policy rejection: explicitly denied by: default/new"
    });
    let metrics = world.far().metrics().unwrap();
    let named = ["policy=\"default/new\""];
    assert_eq!(metrics.sum("ringway_policies_unreadable", &named), 1.0, "{refused}");
    let dump = world.far().dump().unwrap();
    assert_eq!(dump["policies"][0]["rules"][0][0][0]["unreadable"], true, "{dump}");
    world.standin.mesh().remove_policies(&["default/new"]);
    eventually("it is gone, and with it the denial", STEP, || call(&world.client, service()).is_ok());
    assert_eq!(world.far().metrics().unwrap().sum("ringway_policies_unreadable", &named), 0.0);
}

#[test]
fn what_vanished_while_the_control_plane_was_away_goes_whatever_kind_of_server_comes_back() {
    let mut world = StandinWorld::start(&[]);
    for (number, omits_nothing) in [false, true].into_iter().enumerate() {
        let (going, staying) = (format!("going-{number}"), format!("staying-{number}"));
        world.standin.mesh().put([rumour(&world, &going), rumour(&world, &staying)]);
        eventually("both are known", STEP, || {
            knows(&world, "workloads", &going) && knows(&world, "workloads", &staying)
        });
        world.standin.stop();
        world.standin.behave(|how| how.omits_nothing = omits_nothing);
        world.standin.mesh().remove_addresses(&[&format!("Kubernetes//Pod/default/{going}")]);
        world.standin.restart();
        let what = format!("{going} is forgotten (the server omits nothing: {omits_nothing})");
        eventually(&what, Duration::from_secs(20), || !knows(&world, "workloads", &going));
        assert!(knows(&world, "workloads", &staying) && knows(&world, "services", "web"));
    }
}

#[test]
fn a_connection_is_held_through_wrong_certificates_until_a_right_one_comes() {
    let mut world = StandinWorld::build(&[]);
    world.standin.sign(|how| {
        let resting = Outcome::Status(code::UNAVAILABLE, "the authority rests".into());
        how.by_identity.insert(CLIENT.to_owned(), resting);
    });
    world.cluster.start().unwrap();
    let _app = Server::start(&world.server, APP_PORT, echo);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| call(&world.client, service()));
        lines::wait_for_message(
            world.near(),
            &["a connection waits for the certificate of", CLIENT, "the authority rests"],
        );
        for wrong in
            [Outcome::WrongKey, Outcome::WrongIdentity("spiffe://cluster.local/ns/default/sa/other".into())]
        {
            let before = world.standin.asked().iter().filter(|asked| asked.identity == CLIENT).count();
            world.standin.sign(|how| drop(how.by_identity.insert(CLIENT.to_owned(), wrong)));
            world.standin.eventually("another attempt", Duration::from_secs(10), |standin| {
                standin.asked().iter().filter(|asked| asked.identity == CLIENT).count() > before
            });
            assert!(!calling.is_finished(), "carried with a wrong certificate, or given up");
        }
        world.standin.sign(|how| drop(how.by_identity.remove(CLIENT)));
        calling.join().unwrap().unwrap();
    });
}

#[test]
fn a_control_plane_that_falls_silent_is_left_within_a_minute() {
    let world = StandinWorld::start(&[]);
    let _app = Server::start(&world.server, APP_PORT, echo);
    // Certificates come from there too.
    call(&world.client, service()).unwrap();
    let before = world.standin.accepted();
    // TCP goes on acknowledging; only HTTP/2's own pings can tell.
    world.standin.freeze(true);
    world.standin.eventually("both nodes try another connection", Duration::from_secs(60), |standin| {
        standin.accepted() >= before + 2
    });
    call(&world.client, service()).unwrap();
    world.standin.freeze(false);
    world.standin.mesh().put([rumour(&world, "after")]);
    eventually("a new stream tells what is new", STEP * 2, || knows(&world, "workloads", "after"));
}
