//! Verdicts, case by case.

use super::*;
use crate::mesh::fixture::{mesh, pod, policy};
use crate::mesh::policy::{Match, PolicyScope, StringMatch};

fn port(port: u16) -> Match {
    Match { destination_ports: vec![port], ..Match::default() }
}

fn verdict(policies: Vec<Policy>, server: &Workload) -> Verdict {
    let client = "spiffe://cluster.local/ns/default/sa/client".parse().unwrap();
    let snapshot = mesh(policies.into_iter().map(Into::into));
    admit(
        &snapshot,
        &Call {
            source: "10.0.0.1".parse().unwrap(),
            identity: Some(&client),
            destination: "10.0.0.2:80".parse().unwrap(),
            workload: server,
            domains: &TrustDomains::default(),
        },
    )
}

/// `-` for allowed by nobody in particular, the name of the policy that allowed, or the text of the denial.
fn told(policies: Vec<Policy>) -> String {
    let mut server = pod("server", &["10.0.0.2"]);
    server.authorization_policies = vec!["default/chosen".into(), "default/unknown".into()];
    match verdict(policies, &server) {
        Verdict::Allowed { by: None } => "-".into(),
        Verdict::Allowed { by: Some(ground) } => ground.policy.name.to_string(),
        Verdict::Denied(denial) => denial.to_string(),
    }
}

#[test]
fn denials_go_first_then_any_allowance_then_nobody() {
    use Action::{Allow, Deny};
    use PolicyScope::{Global, Namespace, WorkloadSelector};
    let none = "allow policies exist, but none allowed";
    assert_eq!(told(vec![]), "-");
    assert_eq!(told(vec![policy("a", Namespace, Allow, vec![port(80)])]), "a");
    assert_eq!(told(vec![policy("a", Namespace, Allow, vec![port(81)])]), none);
    assert_eq!(told(vec![policy("d", Namespace, Deny, vec![port(81)])]), "-");
    let both =
        vec![policy("a", Namespace, Allow, vec![port(80)]), policy("z", Namespace, Deny, vec![port(80)])];
    assert_eq!(told(both), "explicitly denied by: default/z");
    let second =
        vec![policy("a", Namespace, Allow, vec![port(81)]), policy("b", Namespace, Allow, vec![port(80)])];
    assert_eq!(told(second), "b");
    assert_eq!(
        told(vec![policy("chosen", WorkloadSelector, Deny, vec![port(80)])]),
        "explicitly denied by: default/chosen"
    );
    assert_eq!(told(vec![policy("other", WorkloadSelector, Deny, vec![port(80)])]), "-");
    let root = Policy { namespace: "istio-system".into(), ..policy("g", Global, Deny, vec![port(80)]) };
    assert_eq!(told(vec![root]), "explicitly denied by: istio-system/g");
    let far = Policy { namespace: "far".into(), ..policy("n", Namespace, Deny, vec![port(80)]) };
    assert_eq!(told(vec![far]), "-");
}

#[test]
fn a_dry_run_is_never_enforced() {
    let dry =
        |action| Policy { dry_run: true, ..policy("p", PolicyScope::Namespace, action, vec![port(80)]) };
    assert_eq!(told(vec![dry(Action::Deny)]), "-");
    let missing =
        Policy { dry_run: true, ..policy("p", PolicyScope::Namespace, Action::Allow, vec![port(81)]) };
    assert_eq!(told(vec![missing]), "-");
    let strict = policy("strict", PolicyScope::Namespace, Action::Allow, vec![port(81)]);
    let text = "allow policies exist, but none allowed";
    assert_eq!(told(vec![dry(Action::Allow), strict]), text);
}

#[test]
fn what_cannot_be_read_denies() {
    let unreadable = || vec![Match { unreadable: true, ..Match::default() }, port(81)];
    let scope = PolicyScope::Namespace;
    assert_eq!(told(vec![policy("d", scope, Action::Deny, unreadable())]), "explicitly denied by: default/d");
    let text = "allow policies exist, but none allowed";
    assert_eq!(told(vec![policy("a", scope, Action::Allow, unreadable())]), text);
}

#[test]
fn a_scope_change_is_filed_anew() {
    let server = pod("server", &["10.0.0.2"]);
    let call = Call {
        source: "10.0.0.1".parse().unwrap(),
        identity: None,
        destination: "10.0.0.2:80".parse().unwrap(),
        workload: &server,
        domains: &TrustDomains::default(),
    };
    let deny = |scope| policy("p", scope, Action::Deny, vec![port(80)]).into();
    let mut snapshot = mesh([deny(PolicyScope::Namespace)]);
    assert!(matches!(admit(&snapshot, &call), Verdict::Denied(_)));
    snapshot = crate::mesh::delta::apply(&snapshot, [deny(PolicyScope::WorkloadSelector)], None);
    assert_eq!(admit(&snapshot, &call), Verdict::Allowed { by: None });
    snapshot = crate::mesh::delta::apply(&snapshot, [deny(PolicyScope::Global)], None);
    assert!(matches!(admit(&snapshot, &call), Verdict::Denied(_)));
}

#[test]
fn the_ground_says_which_rule_and_match() {
    let mut guarded = policy("a", PolicyScope::Namespace, Action::Allow, vec![]);
    guarded.rules = vec![vec![vec![port(81)]], vec![vec![], vec![port(81), port(80)]]];
    let server = pod("server", &["10.0.0.2"]);
    let Verdict::Allowed { by: Some(ground) } = verdict(vec![guarded], &server) else { panic!("denied") };
    assert_eq!((ground.rule, ground.held, ground.place()), (1, Some((1, 1)), "rules[1][1][1]".to_owned()));
}

#[test]
fn without_a_snapshot_nobody_is_admitted() {
    let server = pod("server", &["10.0.0.2"]);
    let call = Call {
        source: "10.0.0.1".parse().unwrap(),
        identity: None,
        destination: "10.0.0.2:80".parse().unwrap(),
        workload: &server,
        domains: &TrustDomains::default(),
    };
    assert_eq!(admit(&Snapshot::default(), &call), Verdict::Denied(Denial::NotSynced));
}

/// The captured trap: a principal with its scheme never matches.
#[test]
fn principals_are_written_without_their_scheme() {
    let principal =
        |text: &str| Match { principals: vec![StringMatch::Exact(text.into())], ..Match::default() };
    let allow = |text| policy("a", PolicyScope::Namespace, Action::Allow, vec![principal(text)]);
    assert_eq!(told(vec![allow("cluster.local/ns/default/sa/client")]), "a");
    let text = "allow policies exist, but none allowed";
    assert_eq!(told(vec![allow("spiffe://cluster.local/ns/default/sa/client")]), text);
}
