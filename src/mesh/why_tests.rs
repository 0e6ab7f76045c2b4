//! Explanations as a person reads them, and that taking notes changes nothing.

use super::*;
use crate::base::net::Captured;
use crate::mesh::delta::Change;
use crate::mesh::fixture::{gateway, mesh, pod, policy, service, serving, with};
use crate::mesh::policy::{Match, PolicyScope};
use crate::mesh::seen::View;
use crate::mesh::service::{LoadBalancer, LoadBalancerMode, Scope, Service};
use crate::mesh::workload::{Health, Workload};

fn explain(things: Vec<Change>, target: &str) -> Why {
    let client = with(pod("client", &["10.0.0.1"]), |common| common.locality.zone = "here".into());
    let snapshot = mesh(things.into_iter().chain([client.clone().into()]));
    let request = Request {
        snapshot: &snapshot,
        network: "",
        source: &client,
        caller: client.addresses[0],
        target: Captured(target.parse().unwrap()),
        ipv6: true,
        view: View::default(),
    };
    let told = why(&request, &TrustDomains::default(), &mut fastrand::Rng::with_seed(3));
    assert_eq!(
        told.route,
        route(&request, &mut fastrand::Rng::with_seed(3)),
        "noting has changed the outcome"
    );
    told
}

fn server(name: &str, last: u8, zone: &str) -> Workload {
    let server = serving(pod(name, &[&format!("10.0.0.{last}")]), "web", &[]);
    with(server, |common| common.locality.zone = zone.into())
}

#[test]
fn every_endpoint_is_told_with_what_speaks_against_it() {
    let near = Service {
        load_balancer: Some(LoadBalancer {
            routing_preferences: vec![Scope::Zone],
            mode: LoadBalancerMode::Failover,
            health_policy: crate::mesh::service::HealthPolicy::OnlyHealthy,
        }),
        ..service("web", &["10.1.0.1"], &[(80, 8080), (81, 0)])
    };
    let sick = Workload { status: Health::Unhealthy, ..server("sick", 3, "here") };
    let idle = Workload { capacity: 0, ..server("idle", 4, "here") };
    let things: Vec<Change> = [server("good", 2, "here"), sick, idle, server("far", 5, "there")]
        .map(Change::from)
        .into_iter()
        .chain([near.into()])
        .collect();
    let told = explain(things.clone(), "10.1.0.1:80");
    assert!(told.is_allowed());
    let text = told.to_string();
    for line in [
        "default/client -> 10.1.0.1:80",
        "the address is of service default/web.default.svc.cluster.local",
        "endpoints of default/web.default.svc.cluster.local for port 80:",
        "  Kubernetes//Pod/default/good: may be chosen",
        "  Kubernetes//Pod/default/sick: unhealthy",
        "  Kubernetes//Pod/default/idle: has no capacity",
        "  Kubernetes//Pod/default/far: others are nearer",
        "route: HBONE to 10.0.0.2:15008 (default/good), asking for 10.0.0.2:8080",
        "  who answers must be spiffe://cluster.local/ns/default/sa/good",
        "policies: allowed, none has to allow it",
    ] {
        assert!(text.lines().any(|told| told == line), "{line:?} isn't in\n{text}");
    }
    let without = explain(things.clone(), "10.1.0.1:81");
    assert!(!without.is_allowed());
    assert!(without.to_string().contains("good: doesn't serve the port"), "{without}");
    let unknown = explain(things, "10.1.0.1:99");
    assert!(unknown.to_string().contains("the service has no such port"), "{unknown}");
    assert!(
        unknown.to_string().ends_with("refused: no healthy upstream: 10.1.0.1:99\n=> not carried\n"),
        "{unknown}"
    );
}

#[test]
fn policies_are_told_with_the_place_that_decided() {
    let denies = Match { destination_ports: vec![8080], ..Match::default() };
    let deny =
        policy("no-8080", PolicyScope::Namespace, Action::Deny, vec![Match::default(), denies.clone()]);
    let told = explain(vec![server("a", 2, "").into(), deny.into()], "10.0.0.2:8080");
    assert!(!told.is_allowed());
    assert!(
        told.to_string().ends_with("policies: denied by default/no-8080 rules[0][0][1]\n=> not carried\n"),
        "{told}"
    );
    let mut dry = policy("try", PolicyScope::Namespace, Action::Allow, vec![denies]);
    dry.dry_run = true;
    let told = explain(vec![server("a", 2, "").into(), dry.into()], "10.0.0.2:80");
    assert!(told.is_allowed());
    assert!(
        told.to_string().ends_with("  on dry run, no ALLOW policy would allow it\n=> carried\n"),
        "{told}"
    );
}

#[test]
fn waypoints_and_strangers_are_told() {
    let mut behind = server("a", 2, "");
    behind.waypoint = gateway("10.0.0.9", 15_008);
    let things = vec![behind.into(), pod("waypoint", &["10.0.0.9"]).into()];
    let told = explain(things.clone(), "10.0.0.2:80");
    assert!(told.to_string().contains("it has waypoint /10.0.0.9\nroute: HBONE to 10.0.0.9:15008"), "{told}");
    assert!(told.to_string().ends_with("policies: decided beyond the next hop\n=> carried\n"), "{told}");
    assert_eq!(explain(things, "192.0.2.1:443").notes, [Note::Passthrough]);
}
