//! The table of live connections: a policy change closes exactly those it denies.

use std::rc::Rc;
use std::sync::Arc;

use crate::bridge::report::LiveProtocol;
use crate::mesh::admit::Verdict;
use crate::mesh::fixture::{mesh, pod, policy};
use crate::mesh::policy::{Action, Match, PolicyScope};
use crate::mesh::workload::Workload;
use crate::shard::closer::{CloseReason, Closer};
use crate::shard::table::{Entry, Original, Subject, Table};

fn entry(port: u16, workload: Option<&Arc<Workload>>, closer: &Closer) -> Entry {
    let destination = format!("10.0.0.2:{port}").parse().unwrap();
    Entry {
        pod: "uid".into(),
        src: "10.0.0.1:40000".parse().unwrap(),
        original: match workload {
            Some(_) => Original::Host(Some("server.default".into())),
            None => Original::Captured(destination),
        },
        actual_dst: destination,
        protocol: LiveProtocol::Tcp,
        closer: closer.clone(),
        subject: workload.map(|workload| {
            Box::new(Subject {
                source: "10.0.0.1".parse().unwrap(),
                identity: None,
                destination,
                workload: workload.clone(),
            })
        }),
    }
}

#[test]
fn a_policy_change_closes_exactly_the_losers() {
    let table = Rc::new(Table::default());
    let server = Arc::new(pod("server", &["10.0.0.2"]));
    let closers: Vec<Closer> = (0..6).map(|_| Closer::default()).collect();
    let mut entered = Vec::new();
    for (port, closer) in (80..).zip(&closers) {
        // Every third one is outbound: no policy of ours decides about it.
        let subject = (port % 3 != 0).then_some(&server);
        entered.push(table.enter(entry(port, subject, closer)));
    }
    let open = mesh([]);
    assert_eq!(table.ask_again(&open), 0);
    let ports = Match { destination_ports: vec![81, 82, 84], ..Match::default() };
    let denied = mesh([policy("p", PolicyScope::Global, Action::Deny, vec![ports]).into()]);
    assert_eq!(table.ask_again(&denied), 1, "81 and 84 are outbound");
    let reasons: Vec<_> = closers.iter().map(Closer::reason).collect();
    assert_eq!(reasons, [None, None, Some(CloseReason::PolicyChange), None, None, None]);
    assert!(matches!(entered[2].admit(&denied), Some(Verdict::Denied(_))));
    assert!(matches!(entered[0].admit(&denied), Some(Verdict::Allowed { .. })));
    assert!(entered[1].admit(&denied).is_none());
}

#[test]
fn a_report_shows_what_is_open_and_nothing_else() {
    let table = Rc::new(Table::default());
    let server = Arc::new(pod("server", &["10.0.0.2"]));
    let outbound = table.enter(entry(80, None, &Closer::default()));
    let inbound = table.enter(entry(81, Some(&server), &Closer::default()));
    let report = table.report();
    assert_eq!((table.len(), report.len()), (2, 2));
    assert_eq!(report[0].original_dst.as_deref(), Some("10.0.0.2:80"));
    assert!(!report[0].inbound && report[1].inbound);
    assert_eq!(report[1].original_dst.as_deref(), Some("server.default"));
    drop(outbound);
    assert_eq!(table.report().len(), 1);
    let again = table.enter(entry(82, None, &Closer::default()));
    drop(inbound);
    assert_eq!(table.report()[0].actual_dst.port(), 82);
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
