//! A thousand changes of policies a second, so made that at each moment there is one right verdict: the client is let
//! through, the attacker isn't. Policies about nobody come and go; those that let everybody in and those that keep
//! the attacker out take each other's place.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringway::demo::topology::Pod;
use ringway::wire::pb::security::{
    Action, Address, Authorization, Clause, Match, Rule, Scope, ServiceAccountMatch, StringMatch,
    string_match::MatchType,
};
use ringway_e2e::eventually;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::standin_world::{StandinWorld, workload};
use ringway_e2e::verdicts::{echo_on, exchange, has_ended};
use ringway_e2e::world::{APP_PORT, STEP, dial, service};
use ringway_standin::heard::Kind;
use ringway_standin::mesh::{AUTHORIZATION, Change, Item};

const CHANGES: u32 = 5_000;
const PACE: Duration = Duration::from_millis(1);
/// Names of policies about nobody.
const OTHERS: u32 = 150;
/// A change whose verdict is another one is in force so soon after the storm.
const SOON: Duration = Duration::from_secs(1);

fn policy(name: &str, action: Action, only: Match) -> Item {
    Item::Policy(Authorization {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        scope: Scope::Namespace.into(),
        action: action.into(),
        rules: vec![Rule { clauses: vec![Clause { matches: vec![only] }] }],
        dry_run: false,
    })
}

fn principal(account: &str) -> Match {
    let exact = MatchType::Exact(format!("cluster.local/ns/default/sa/{account}"));
    Match { principals: vec![StringMatch { match_type: Some(exact) }], ..Match::default() }
}

/// The attacker, said in ways that take turns, each under a name of its own.
fn attackers(attacker: &Pod) -> [Match; 3] {
    let name = attacker.name.clone();
    let account = ServiceAccountMatch { namespace: "default".into(), service_account: name.clone() };
    let address = Address { address: attacker.v4.octets().to_vec().into(), length: 32 };
    [
        principal(&name),
        Match { service_accounts: vec![account], ..Match::default() },
        Match { source_ips: vec![address], ..Match::default() },
    ]
}

/// Everybody of the mesh, the attacker too: only a DENY keeps it out.
fn everybody() -> [Match; 3] {
    let text = |match_type| vec![StringMatch { match_type: Some(match_type) }];
    let prefix = MatchType::Prefix("cluster.local/ns/".to_owned());
    let address = Address { address: vec![10, 77, 0, 0].into(), length: 16 };
    [
        Match { namespaces: text(MatchType::Exact("default".to_owned())), ..Match::default() },
        Match { principals: text(prefix), ..Match::default() },
        Match { source_ips: vec![address], ..Match::default() },
    ]
}

/// The step-th of these ways takes the place of the one before it, in one response.
fn turn(action: Action, kind: &str, ways: [Match; 3], step: u32) -> Change {
    let name = |step: u32| format!("{kind}-{}", step % 3);
    let way = ways.into_iter().nth(usize::try_from(step % 3).unwrap()).unwrap();
    let remove = vec![(AUTHORIZATION, format!("default/{}", name(step + 2)))];
    Change { put: vec![policy(&name(step), action, way)], remove }
}

/// The step-th change of the storm.
fn change(step: u32, attacker: &Pod) -> Change {
    match step % 10 {
        0 => turn(Action::Deny, "deny", attackers(attacker), step / 10),
        5 => turn(Action::Allow, "allow", everybody(), step / 10),
        _ => {
            let number = step.wrapping_mul(7) % OTHERS;
            let name = format!("other-{number}");
            if step.is_multiple_of(3) {
                return Change { put: vec![], remove: vec![(AUTHORIZATION, format!("default/{name}"))] };
            }
            let action = if number.is_multiple_of(2) { Action::Deny } else { Action::Allow };
            Change { put: vec![policy(&name, action, principal(&format!("nobody-{step}")))], remove: vec![] }
        }
    }
}

/// Calls one after another until told to stop; what came out otherwise than right, and how many there were.
fn calls(from: &Pod, to: SocketAddr, stop: &AtomicBool, right: bool) -> (Vec<String>, usize) {
    let (mut wrong, mut count) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let outcome = exchange(from, to);
        if outcome.is_ok() != right {
            wrong.push(format!("call {count} of {}: {outcome:?}", from.name));
        }
        count += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    (wrong, count)
}

fn echoes(live: &mut [TcpStream], stop: &AtomicBool) -> (Vec<String>, usize) {
    let (mut wrong, mut count) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        for stream in live.iter_mut() {
            if let Err(error) = echo_on(stream) {
                wrong.push(format!("echo {count}: {error}"));
                return (wrong, count);
            }
            count += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    (wrong, count)
}

#[test]
fn a_thousand_policies_a_second_never_make_a_wrong_verdict() {
    let mut world = StandinWorld::build(&[]);
    let attacker = world.cluster.mesh_pod(1, "attacker").unwrap();
    let client = world.client.clone();
    let mesh = world.standin.mesh();
    mesh.put([workload(&attacker, false)]);
    mesh.apply(change(0, &attacker));
    mesh.apply(change(5, &attacker));
    world.cluster.start().unwrap();
    let app = Server::start(&world.server, APP_PORT, echo);
    let mut live: Vec<_> = (0..10).map(|_| dial(&client, service())).collect();
    live.iter_mut().for_each(|stream| echo_on(stream).unwrap());
    assert!(exchange(&attacker, service()).is_err());

    let stop = AtomicBool::new(false);
    world.standin.forget();
    let direct = world.server.at(APP_PORT);
    let (took, outcomes) = std::thread::scope(|scope| {
        let stopping = &stop;
        let (client, attacker, live) = (&client, &attacker, &mut live);
        let running = [
            scope.spawn(move || calls(client, service(), stopping, true)),
            scope.spawn(move || calls(attacker, service(), stopping, false)),
            scope.spawn(move || calls(attacker, direct, stopping, false)),
            scope.spawn(move || echoes(live, stopping)),
        ];
        let started = Instant::now();
        for step in 1..=CHANGES {
            let due = started + PACE * step;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            world.standin.mesh().apply(change(step, attacker));
        }
        let took = started.elapsed();
        stop.store(true, Ordering::Relaxed);
        (took, running.map(|thread| thread.join().unwrap()))
    });
    let rate = f64::from(CHANGES) / took.as_secs_f64();
    let responses = world.standin.responses();
    let counts: Vec<_> = outcomes.iter().map(|(_, count)| *count).collect();
    eprintln!("{rate:.0} changes/s in {responses} responses to two nodes; calls and echoes: {counts:?}");

    // What is right changes now: at once, however much came before.
    let now = Instant::now();
    world.standin.mesh().put([policy("no-client", Action::Deny, principal("client"))]);
    eventually("open connections are closed", SOON, || live.iter().all(has_ended));
    eventually("new ones are refused", SOON.saturating_sub(now.elapsed()), || {
        exchange(&client, service()).is_err()
    });
    eprintln!("after {:?} the change was in force", now.elapsed());

    let wrong: Vec<_> = outcomes.into_iter().flat_map(|(wrong, _)| wrong).collect();
    assert!(wrong.is_empty(), "{} wrong, the first: {:#?}", wrong.len(), &wrong[..wrong.len().min(10)]);
    assert!(app.peer_addresses().iter().all(|peer| *peer == client.at(0).ip()), "the attacker got through");
    assert!(counts.iter().all(|count| *count > 50), "too little traffic to tell: {counts:?}");
    assert!(rate > 900.0, "only {rate:.0} changes a second were told");
    // While the next response is on its way already, an acknowledgement of the one before is stale.
    let kinds = [Kind::Ack, Kind::Stale, Kind::Nack].map(|kind| world.standin.kinds(AUTHORIZATION, kind));
    assert!(kinds[0] + kinds[1] > 1_000 && kinds[2] == 0, "acknowledged, late, refused: {kinds:?}");
    world.standin.mesh().remove_policies(&["default/no-client"]);
    eventually("and back", STEP, || exchange(&client, service()).is_ok());
}
