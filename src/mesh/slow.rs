//! A slow, obvious evaluator of policies, and random ones to compare with it: for tests only.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;

use crate::base::text::Text;
use crate::mesh::admit::Call;
use crate::mesh::identity::Identity;
use crate::mesh::policy::{Action, Match, Policy, PolicyScope, ServiceAccountMatch, StringMatch};

/// What the policies say about a call, in words: the verdict, and what those on dry run would have said.
pub fn verdict(policies: &[(Text, Policy)], call: &Call<'_>) -> (String, Vec<String>) {
    let mut applying: Vec<&Policy> = Vec::new();
    for (key, policy) in policies {
        let applies = match policy.scope {
            PolicyScope::Global => true,
            PolicyScope::Namespace => policy.namespace == call.workload.namespace,
            PolicyScope::WorkloadSelector => call.workload.authorization_policies.contains(key),
        };
        if applies || call.workload.authorization_policies.contains(key) {
            applying.push(policy);
        }
    }
    applying.sort_by_key(|policy| (policy.namespace.clone(), policy.name.clone()));
    let of = |action, dry_run| {
        let of: Vec<&Policy> = applying
            .iter()
            .copied()
            .filter(|policy| policy.action == action && policy.dry_run == dry_run)
            .collect();
        of
    };
    let name = |policy: &Policy| format!("{}/{}", policy.namespace, policy.name);
    let matching = |all: &[&Policy]| -> Vec<String> {
        all.iter().filter(|policy| matches(policy, call)).map(|policy| name(policy)).collect()
    };
    let mut rehearsed: Vec<_> =
        matching(&of(Action::Deny, true)).into_iter().map(|name| format!("would deny: {name}")).collect();
    if let Some(by) = matching(&of(Action::Deny, false)).first() {
        return (format!("explicitly denied by: {by}"), rehearsed);
    }
    let (allows, dry_allows) = (of(Action::Allow, false), of(Action::Allow, true));
    let would_allow = matching(&dry_allows);
    if allows.is_empty() && !dry_allows.is_empty() && would_allow.is_empty() {
        rehearsed.push("none would allow".into());
    }
    rehearsed.extend(would_allow.into_iter().map(|name| format!("would allow: {name}")));
    rehearsed.sort();
    let verdict = match (allows.is_empty(), matching(&allows).first()) {
        (true, _) => "allowed".to_owned(),
        (false, Some(by)) => format!("allowed by: {by}"),
        (false, None) => "allow policies exist, but none allowed".to_owned(),
    };
    (verdict, rehearsed)
}

/// The reference's rules word by word (section 12.3), with every text made whole first.
pub fn matches(policy: &Policy, call: &Call<'_>) -> bool {
    policy.rules.iter().any(|rule| {
        rule.iter().all(|clause| {
            clause.is_empty() || clause.iter().any(|entry| entry_matches(policy.action, entry, call))
        })
    })
}

fn entry_matches(action: Action, entry: &Match, call: &Call<'_>) -> bool {
    if entry.unreadable {
        return action == Action::Deny;
    }
    let Call { source, identity, destination, domains, .. } = *call;
    let wholes: Vec<String> = identity.map_or_else(Vec::new, |identity| {
        let names = domains.equivalent(&identity.trust_domain);
        names
            .map(|name| format!("{name}/ns/{}/sa/{}", identity.namespace, identity.service_account))
            .collect()
    });
    let namespace = identity.map(|identity| identity.namespace.to_string()).unwrap_or_default();
    let text = |wanted: &StringMatch, text: &str| match wanted {
        StringMatch::Exact(exact) => text == &**exact,
        StringMatch::Prefix(prefix) => text.starts_with(&**prefix),
        StringMatch::Suffix(suffix) => text.ends_with(&**suffix),
        StringMatch::Presence => !text.is_empty(),
    };
    let of_namespace = |wanted: &StringMatch| text(wanted, &namespace);
    let of_principal = |wanted: &StringMatch| wholes.iter().any(|whole| text(wanted, whole));
    let of_account = |wanted: &ServiceAccountMatch| {
        wholes.first().is_some_and(|whole| {
            let parts: Vec<_> = whole.split('/').collect();
            *parts[2] == *wanted.namespace && *parts[4] == *wanted.service_account
        })
    };
    let mut said = Vec::new();
    let mut say = |empty: bool, held: bool| {
        if !empty {
            said.push(held);
        }
    };
    say(entry.namespaces.is_empty(), entry.namespaces.iter().any(of_namespace));
    say(entry.not_namespaces.is_empty(), !entry.not_namespaces.iter().any(of_namespace));
    say(entry.principals.is_empty(), entry.principals.iter().any(of_principal));
    say(entry.not_principals.is_empty(), !entry.not_principals.iter().any(of_principal));
    say(entry.service_accounts.is_empty(), entry.service_accounts.iter().any(of_account));
    say(entry.not_service_accounts.is_empty(), !entry.not_service_accounts.iter().any(of_account));
    let in_range = |ranges: &[IpNet], ip: IpAddr| ranges.iter().any(|range| range.contains(&ip));
    say(entry.source_ips.is_empty(), in_range(&entry.source_ips, source));
    say(entry.not_source_ips.is_empty(), !in_range(&entry.not_source_ips, source));
    say(entry.destination_ips.is_empty(), in_range(&entry.destination_ips, destination.ip()));
    say(entry.not_destination_ips.is_empty(), !in_range(&entry.not_destination_ips, destination.ip()));
    say(entry.destination_ports.is_empty(), entry.destination_ports.contains(&destination.port()));
    say(entry.not_destination_ports.is_empty(), !entry.not_destination_ports.contains(&destination.port()));
    !said.is_empty() && said.into_iter().all(|held| held)
}

/// Mostly empty lists, now and then one or two values.
fn some<T: Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![5 => Just(Vec::new()), 1 => proptest::collection::vec(select(values), 1..3)]
}

fn texts() -> Vec<StringMatch> {
    let pieces =
        ["", "a", "td", "td/ns/a", "td/ns/a/sa/b", "/sa/b", "b", "ns/a/sa/", "td/ns/ab", "d/ns/a/sa/b"];
    let kinds = [StringMatch::Exact, StringMatch::Prefix, StringMatch::Suffix];
    let all = kinds.iter().flat_map(|kind| pieces.iter().map(|piece| kind((*piece).into())));
    all.chain([StringMatch::Presence]).collect()
}

pub fn entries() -> impl Strategy<Value = Match> {
    let ranges = || {
        let texts = ["10.0.0.0/8", "10.0.0.1/32", "0.0.0.0/0", "::/0", "fd00::/8", "192.0.2.0/24"];
        some(texts.iter().map(|text| text.parse::<IpNet>().unwrap()).collect())
    };
    let account = |namespace: &str, account: &str| ServiceAccountMatch {
        namespace: namespace.into(),
        service_account: account.into(),
    };
    let accounts = move || some(vec![account("a", "b"), account("a", "c"), account("b", "b")]);
    let ports = || some(vec![80, 81]);
    let identity = (some(texts()), some(texts()), some(texts()), some(texts()), accounts(), accounts());
    let addresses = (ranges(), ranges(), ranges(), ranges(), ports(), ports());
    (identity, addresses, proptest::bool::weighted(0.05)).prop_map(|(identity, addresses, unreadable)| {
        Match {
            namespaces: identity.0,
            not_namespaces: identity.1,
            principals: identity.2,
            not_principals: identity.3,
            service_accounts: identity.4,
            not_service_accounts: identity.5,
            source_ips: addresses.0,
            not_source_ips: addresses.1,
            destination_ips: addresses.2,
            not_destination_ips: addresses.3,
            destination_ports: addresses.4,
            not_destination_ports: addresses.5,
            unreadable,
        }
    })
}

/// The rules of a policy: few of everything.
pub fn rules() -> impl Strategy<Value = Vec<Vec<Vec<Match>>>> {
    use proptest::collection::vec;
    vec(vec(vec(entries(), 0..3), 0..3), 0..3)
}

/// Source, identity, destination of a call that some of these matches are about.
pub fn calls() -> impl Strategy<Value = (IpAddr, Option<Identity>, SocketAddr)> {
    let source = select(vec!["10.0.0.1", "10.9.9.9", "192.0.2.1", "fd00::1"]);
    let identity = select(vec![
        None,
        Some("spiffe://td/ns/a/sa/b"),
        Some("spiffe://old/ns/a/sa/b"),
        Some("spiffe://td/ns/ab/sa/c"),
        Some("spiffe://t/ns/b/sa/b"),
    ]);
    let destination = select(vec!["10.0.0.1:80", "[fd00::1]:81", "192.0.2.1:80"]);
    (source, identity, destination).prop_map(|(source, identity, destination)| {
        let identity = identity.map(|text: &str| text.parse().unwrap());
        (source.parse().unwrap(), identity, destination.parse().unwrap())
    })
}
