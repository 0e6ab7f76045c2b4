//! The table of live connections: whom a change of the mesh asks again, and who loses.

use std::rc::Rc;
use std::sync::Arc;

use crate::bridge::report::LiveProtocol;
use crate::mesh::admit::Verdict;
use crate::mesh::delta::{Change, apply};
use crate::mesh::fixture::{gateway, mesh, pod, policy, service, serving, with};
use crate::mesh::policy::{Action, Match, Policy, PolicyScope};
use crate::mesh::service::Service;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::{Health, Workload};
use crate::shard::closer::{CloseReason, Closer};
use crate::shard::table::{Entry, Original, Subject, Table};

fn entry(port: u16, inbound: bool, asked: Option<&str>, closer: &Closer) -> Entry {
    let destination = format!("10.0.0.2:{port}").parse().unwrap();
    Entry {
        pod: "uid".into(),
        src: "10.0.0.1:40000".parse().unwrap(),
        original: if inbound {
            Original::Host(Some("server.default".into()))
        } else {
            Original::Captured(destination)
        },
        actual_dst: destination,
        protocol: LiveProtocol::Tcp,
        closer: closer.clone(),
        subject: inbound.then(|| {
            Box::new(Subject {
                source: "10.0.0.1".parse().unwrap(),
                identity: None,
                destination,
                asked: asked.map(|ip| ip.parse().unwrap()),
            })
        }),
        detail: None,
    }
}

/// One whole round: how many were asked, and the ports of those that may not go on.
fn ask(table: &Table, snapshot: &Snapshot) -> (usize, Vec<u16>) {
    let (mut asked, mut losers) = (0, Vec::new());
    for touched in table.touched(snapshot, "") {
        let mut next = Some(0);
        while let Some(from) = next {
            next = touched.group.each(from, 2, |entry, subject| {
                asked += 1;
                if table.objection(&touched, subject, snapshot).is_some() {
                    losers.push(entry.actual_dst.port());
                }
            });
        }
        touched.settle(snapshot);
    }
    losers.sort_unstable();
    (asked, losers)
}

fn deny(name: &str, namespace: &str, ports: &[u16]) -> Change {
    let ports = Match { destination_ports: ports.to_vec(), ..Match::default() };
    let policy = policy(name, PolicyScope::Namespace, Action::Deny, vec![ports]);
    Policy { namespace: namespace.into(), ..policy }.into()
}

#[test]
fn a_change_asks_exactly_those_it_can_touch_and_finds_the_losers() {
    let table = Rc::new(Table::default());
    let server = Arc::new(pod("server", &["10.0.0.2"]));
    let elsewhere = Arc::new(with(pod("other", &["10.0.0.3"]), |common| common.namespace = "other".into()));
    let open = mesh([Change::Workload(server.clone()), Change::Workload(elsewhere.clone())]);
    let closer = Closer::default();
    let mut entered = Vec::new();
    for port in 80..86 {
        entered.push(table.enter(entry(port, false, None, &closer)));
        entered.push(table.enter_at(&server, &open, entry(port, true, None, &closer)));
    }
    entered.push(table.enter_at(&elsewhere, &open, entry(81, true, None, &closer)));
    assert_eq!(ask(&table, &open), (0, vec![]));
    let denied = apply(&open, [deny("p", "default", &[81, 84])], None);
    assert_eq!(ask(&table, &denied), (6, vec![81, 84]));
    assert_eq!(ask(&table, &denied), (0, vec![]), "they have been asked about that");
    let other = apply(&denied, [deny("p", "other", &[81])], None);
    assert_eq!(ask(&table, &other), (1, vec![81]));
    let moved = with((*server).clone(), |common| common.namespace = "other".into());
    let moved = apply(&other, [moved.into()], None);
    assert_eq!(ask(&table, &moved), (6, vec![81]), "its namespace's policies count now");
    assert!(matches!(entered[3].decide(&denied).unwrap().verdict, Verdict::Denied(_)));
    assert!(matches!(entered[1].decide(&denied).unwrap().verdict, Verdict::Allowed { .. }));
    assert!(entered[2].decide(&denied).is_none(), "outbound");
}

#[test]
fn a_change_and_its_reversal_before_anybody_looked_touch_nobody() {
    let table = Rc::new(Table::default());
    let server = Arc::new(pod("server", &["10.0.0.2"]));
    let open = mesh([Change::Workload(server.clone())]);
    let _entered = table.enter_at(&server, &open, entry(80, true, None, &Closer::default()));
    let gone = [deny("p", "default", &[80]), Change::RemovePolicy("default/p".into())];
    assert_eq!(ask(&table, &apply(&open, gone, None)), (0, vec![]));
}

#[test]
fn the_last_known_record_counts_once_the_mesh_has_dropped_a_workload() {
    let table = Rc::new(Table::default());
    let server = Arc::new(pod("server", &["10.0.0.2"]));
    let open = mesh([Change::Workload(server.clone())]);
    let _entered = table.enter_at(&server, &open, entry(80, true, None, &Closer::default()));
    let gone = apply(&open, [Change::RemoveWorkload(server.uid.clone())], None);
    assert_eq!(ask(&table, &gone), (0, vec![]));
    assert_eq!(ask(&table, &apply(&gone, [deny("p", "default", &[80])], None)), (1, vec![80]));
}

#[test]
fn a_waypoint_keeps_what_it_is_asked_for_only_while_it_is_the_waypoint() {
    let table = Rc::new(Table::default());
    let waypoint = Arc::new(pod("waypoint", &["10.0.0.2"]));
    let served = |through: &str| Service {
        waypoint: gateway(through, 15_008),
        ..service("web", &["10.10.0.1"], &[(80, 80)])
    };
    let ours = mesh([Change::Workload(waypoint.clone()), served("10.0.0.2").into()]);
    let closer = Closer::default();
    let asked = table.enter_at(&waypoint, &ours, entry(80, true, Some("10.10.0.1"), &closer));
    let _own = table.enter_at(&waypoint, &ours, entry(81, true, None, &closer));
    assert_eq!(ask(&table, &ours), (0, vec![]));
    let others = apply(&ours, [served("10.0.0.9").into()], None);
    assert_eq!(ask(&table, &others), (2, vec![80]));
    drop(asked);
    assert_eq!(ask(&table, &others), (0, vec![]));
}

#[test]
fn a_waypoint_that_ends_keeps_what_it_has_until_it_is_another() {
    let table = Rc::new(Table::default());
    let waypoint = Arc::new(serving(pod("waypoint", &["10.0.0.2"]), "way", &[]));
    let served = |through: &str| Service {
        waypoint: gateway(through, 15_008),
        ..service("web", &["10.10.0.1"], &[(80, 80)])
    };
    let way = |name: &str| service(name, &[], &[(15_008, 15_008)]);
    let things =
        [Change::Workload(waypoint.clone()), way("way").into(), way("new").into(), served("way").into()];
    let ours = mesh(things);
    let closer = Closer::default();
    let _asked = table.enter_at(&waypoint, &ours, entry(80, true, Some("10.10.0.1"), &closer));
    let sick = Workload { status: Health::Unhealthy, ..(*waypoint).clone() };
    let ending = apply(&ours, [Change::Workload(Arc::new(sick))], None);
    assert_eq!(ask(&table, &ending), (0, vec![]));
    let gone = apply(&ending, [Change::RemoveWorkload(waypoint.uid.clone())], None);
    assert_eq!(ask(&table, &gone), (0, vec![]));
    let web = service("web", &[], &[]).key;
    assert_eq!(ask(&table, &apply(&gone, [Change::RemoveService(web)], None)), (0, vec![]));
    assert_eq!(ask(&table, &apply(&gone, [served("new").into()], None)), (1, vec![80]));
    let detached = Service { waypoint: None, ..served("way") };
    assert_eq!(ask(&table, &apply(&gone, [detached.into()], None)), (1, vec![80]));
}

#[test]
fn a_report_shows_what_is_open_and_nothing_else() {
    let table = Rc::new(Table::default());
    let server = Arc::new(pod("server", &["10.0.0.2"]));
    let outbound = table.enter(entry(80, false, None, &Closer::default()));
    let inbound = table.enter_at(&server, &mesh([]), entry(81, true, None, &Closer::default()));
    let shown = || {
        let (mut shown, snapshot) = (Vec::new(), mesh([]));
        for group in table.groups() {
            let none = group.slice(0, 100, |entry| shown.push(table.report(3, &group, entry, &snapshot)));
            assert_eq!(none, None);
        }
        shown
    };
    let report = shown();
    assert_eq!((table.len(), report.len()), (2, 2));
    assert_eq!(report[0].original_dst.as_deref(), Some("10.0.0.2:80"));
    assert!(!report[0].inbound && report[1].inbound && report[1].shard == 3);
    assert_eq!(report[1].original_dst.as_deref(), Some("server.default"));
    drop(outbound);
    assert_eq!(shown().len(), 1);
    let again = table.enter(entry(82, false, None, &Closer::default()));
    drop(inbound);
    assert_eq!(shown()[0].actual_dst.port(), 82);
    drop(again);
    assert!(table.is_empty());
}

#[test]
fn closing_tells_once_and_the_first_reason_stays() {
    let closer = Closer::default();
    let other = closer.clone();
    other.close(CloseReason::PolicyChange);
    closer.close(CloseReason::HalfCloseIdle);
    assert_eq!(closer.reason(), Some(CloseReason::PolicyChange));
}
