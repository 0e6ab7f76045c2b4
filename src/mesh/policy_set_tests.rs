//! Whole sets of policies, compared with the slow evaluator: filing hides nothing, whatever comes and goes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::mesh::admit::{Denial, Verdict, decide};
use crate::mesh::delta::{Change, apply};
use crate::mesh::fixture::{mesh, pod};
use crate::mesh::identity::TrustDomains;
use crate::mesh::policy::PolicyScope;
use crate::mesh::slow;

fn policies() -> impl Strategy<Value = Policy> {
    let scopes = select(vec![
        PolicyScope::Global,
        PolicyScope::Namespace,
        PolicyScope::Namespace,
        PolicyScope::WorkloadSelector,
    ]);
    let parts = (select(vec!["a", "b", "c", "d", "e"]), scopes, any::<[bool; 3]>(), slow::rules());
    parts.prop_map(|(name, scope, [deny, dry_run, elsewhere], rules)| Policy {
        name: name.into(),
        namespace: if elsewhere { "other" } else { "default" }.into(),
        scope,
        action: if deny { Action::Deny } else { Action::Allow },
        rules,
        dry_run,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn all_policies_together_decide_as_the_slow_evaluator(
        steps in proptest::collection::vec((policies(), any::<bool>()), 0..14),
        calls in proptest::collection::vec(slow::calls(), 1..4),
        aliases in any::<bool>(),
    ) {
        let (mut snapshot, mut plain) = (mesh([]), BTreeMap::new());
        for (policy, remove) in steps {
            let key: Text = format!("{}/{}", policy.namespace, policy.name).into();
            let change = if remove && plain.remove(&key).is_some() {
                Change::RemovePolicy(key)
            } else {
                plain.insert(key.clone(), policy.clone());
                Change::Policy { key, policy: Arc::new(policy) }
            };
            snapshot = apply(&snapshot, [change], None);
        }
        let plain: Vec<_> = plain.into_iter().collect();
        let domains = if aliases { TrustDomains::parse("td", "old").unwrap() } else { TrustDomains::default() };
        let mut workload = pod("server", &["10.0.0.1"]);
        workload.authorization_policies = vec!["default/a".into(), "other/b".into(), "default/missing".into()];
        for (source, identity, destination) in calls {
            let identity = identity.as_ref();
            let call = Call { source, identity, destination, workload: &workload, domains: &domains };
            let decision = decide(&snapshot, &call);
            let verdict = match &decision.verdict {
                Verdict::Allowed { by: Some(ground) } => format!("allowed by: {}", ground.name()),
                Verdict::Allowed { by: None } => "allowed".to_owned(),
                Verdict::Denied(denial) => denial.to_string(),
            };
            let mut rehearsed: Vec<_> = decision.rehearsal.matched.iter().map(|ground| {
                let would = if ground.policy.action == Action::Deny { "deny" } else { "allow" };
                format!("would {would}: {}", ground.name())
            }).collect();
            if decision.rehearsal.none_allowed {
                rehearsed.push("none would allow".into());
            }
            rehearsed.sort();
            prop_assert_eq!((verdict, rehearsed), slow::verdict(&plain, &call));
            if let Verdict::Allowed { by: Some(ground) } | Verdict::Denied(Denial::Explicit(ground)) =
                decision.verdict
            {
                let of_rules = 0..ground.policy.rules.len();
                let first = of_rules.clone().find(|rule| ground.policy.rule_matches(*rule, &call).is_some());
                prop_assert_eq!(first, Some(ground.rule));
                prop_assert_eq!(ground.policy.rule_matches(ground.rule, &call), Some(ground.held));
            }
        }
    }
}

fn looked_at(set: &PolicySet, call: &Call<'_>) -> usize {
    let mut looks = 0;
    set.consider(call, |_, _| looks += 1);
    looks
}

/// What the filing is for: of 10,000 policies that name others, none is looked at.
#[test]
fn only_rules_that_could_match_are_looked_at() {
    let mut set = PolicySet::default();
    let principal = |number: usize| Match {
        principals: vec![StringMatch::Exact(format!("td/ns/default/sa/{number}").into())],
        destination_ports: vec![80],
        ..Match::default()
    };
    let policy = |entries: Vec<Match>| {
        Arc::new(Policy {
            name: "p".into(),
            namespace: "default".into(),
            scope: PolicyScope::Namespace,
            action: Action::Deny,
            rules: entries.into_iter().map(|entry| vec![vec![entry]]).collect(),
            dry_run: false,
        })
    };
    for number in 0..1_000 {
        let own = (0..10).map(|rule| principal(number * 10 + rule)).collect();
        set.insert(&format!("default/{number}").into(), &policy(own));
    }
    let (workload, domains) = (pod("server", &[]), TrustDomains::default());
    let identity = "spiffe://td/ns/default/sa/4711".parse().unwrap();
    let call = |identity| Call {
        source: "10.0.0.1".parse().unwrap(),
        identity,
        destination: "10.0.0.2:80".parse().unwrap(),
        workload: &workload,
        domains: &domains,
    };
    assert_eq!(looked_at(&set, &call(Some(&identity))), 1);
    assert_eq!(looked_at(&set, &call(None)), 0);
    let ports = Match { destination_ports: vec![80, 81], ..Match::default() };
    let presence = Match { principals: vec![StringMatch::Presence], ..Match::default() };
    set.insert(&"default/ports".into(), &policy(vec![ports, presence]));
    assert_eq!(looked_at(&set, &call(None)), 2, "one for the port, one that asks for nothing exact");
    for key in (0..1_000).map(|number| format!("default/{number}")).chain(["default/ports".into()]) {
        set.remove(&key.into());
    }
    assert!(set.is_empty() && set.filed.is_empty());
    assert_eq!(set.by_kind, [0; KINDS]);
}
