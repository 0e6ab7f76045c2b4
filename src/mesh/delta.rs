//! Changes of the mesh, and how a snapshot takes them. Whatever the order in which changes came, the outcome is
//! the snapshot that its contents alone would make: endpoints follow from the workloads that name a service, known
//! or not yet, and a health policy filters when it is read, so nothing has to be sent again when either changes.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;

use crate::base::text::Text;
use crate::mesh::choices::Lazy;
use crate::mesh::index::Index;
use crate::mesh::policy::Policy;
use crate::mesh::service::{Endpoint, Service, ServiceKey};
use crate::mesh::snapshot::{Held, PersistentMap, Services, Snapshot, scope_name};
use crate::mesh::workload::Workload;

/// One change. An upsert replaces what has the same key.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    Workload(Arc<Workload>),
    RemoveWorkload(Text),
    /// A service; `endpoints` are those a file gives beside the ones its workloads name.
    Service {
        service: Arc<Service>,
        endpoints: Vec<Endpoint>,
    },
    RemoveService(ServiceKey),
    /// The name of a workload (uid) or service (`namespace/hostname`), as the control plane removes addresses.
    RemoveAddress(Text),
    /// A policy under its store key: the resource name, or `namespace/name` from a file.
    Policy {
        key: Text,
        policy: Arc<Policy>,
    },
    RemovePolicy(Text),
}

/// The snapshot after `changes`, in their order. What says nothing new leaves even the version as it was: a full
/// push after a reconnect costs a comparison each. `local_node`: whose workloads are found by
/// `Snapshot::local_workload`; all, where it isn't set.
pub fn apply(
    snapshot: &Snapshot,
    changes: impl IntoIterator<Item = Change>,
    local_node: Option<&str>,
) -> Snapshot {
    let local_node = local_node.filter(|node| !node.is_empty());
    let mut next = snapshot.clone();
    let mut news = false;
    for change in changes {
        let told = match change {
            Change::Workload(workload) => set_workload(&mut next, &workload.uid, Some(&workload), local_node),
            Change::RemoveWorkload(uid) => set_workload(&mut next, &uid, None, local_node),
            Change::Service { service, endpoints } => {
                let key = service.key.clone();
                let held = Held { service, given: endpoints.into(), choices: Lazy::default() };
                set_service(&mut next, &key, Some(held))
            }
            Change::RemoveService(key) => set_service(&mut next, &key, None),
            Change::RemoveAddress(name) if next.workload(&name).is_some() => {
                set_workload(&mut next, &name, None, local_node)
            }
            Change::RemoveAddress(name) => name.parse().is_ok_and(|key| set_service(&mut next, &key, None)),
            Change::Policy { key, policy } => set_policy(&mut next, &key, Some(policy)),
            Change::RemovePolicy(key) => set_policy(&mut next, &key, None),
        };
        news |= told;
    }
    next.version = next.version.wrapping_add(u64::from(news));
    next
}

/// Puts `new` in the place of what is there, and tells whether that is news.
fn set_workload(
    next: &mut Snapshot,
    uid: &str,
    new: Option<&Arc<Workload>>,
    local_node: Option<&str>,
) -> bool {
    let old = next.workload(uid).cloned();
    if old.as_ref() == new {
        return false;
    }
    index_workload(next, old.as_ref(), new, local_node);
    true
}

fn set_service(next: &mut Snapshot, key: &ServiceKey, new: Option<Held>) -> bool {
    if next.services.get(key) == new.as_ref() {
        return false;
    }
    if let Some(old) = next.services.remove(key) {
        unindex_service(next, &old.service);
    }
    if let Some(new) = new {
        index_service(next, &new.service);
        next.services.insert(key.clone(), new);
    }
    true
}

fn set_policy(next: &mut Snapshot, key: &Text, new: Option<Arc<Policy>>) -> bool {
    if next.policies.get(key) == new.as_ref() {
        return false;
    }
    if let Some(old) = next.policies.remove(key) {
        file_policy(next, key, &old, false);
    }
    next.unreadable.remove(key);
    if let Some(new) = new {
        file_policy(next, key, &new, true);
        if new.is_unreadable() {
            next.unreadable.insert(key.clone(), ());
        }
        next.policies.insert(key.clone(), new);
    }
    true
}

/// Files the new state of a workload in the place of the old one.
fn index_workload(
    next: &mut Snapshot,
    old: Option<&Arc<Workload>>,
    new: Option<&Arc<Workload>>,
    local_node: Option<&str>,
) {
    reindex(&mut next.workloads, old, new, |workload| Some(&*workload.uid));
    reindex(&mut next.addresses, old, new, |workload| workload.own_addresses());
    reindex(&mut next.endpoints, old, new, |workload| workload.services.iter().map(|(key, _)| key));
    for (key, _) in old.into_iter().chain(new).flat_map(|workload| &workload.services) {
        // Always, made or not: readers of the snapshot before may make theirs at this moment.
        if let Some(held) = next.services.get_mut(key) {
            held.choices = Lazy::default();
        }
    }
    reindex(&mut next.workload_hosts, old, new, |workload| {
        Some(&*workload.hostname).filter(|hostname| !hostname.is_empty())
    });
    reindex(&mut next.local, old, new, |workload| {
        Some(&*workload.name).filter(|_| local_node.is_none_or(|node| *workload.node == *node))
    });
}

/// `keys`: what a workload is found by in this index.
fn reindex<'a, K: Hash + PartialEq + ?Sized + 'a, I: IntoIterator<Item = &'a K>>(
    index: &mut Index,
    old: Option<&'a Arc<Workload>>,
    new: Option<&'a Arc<Workload>>,
    keys: impl Fn(&'a Workload) -> I,
) {
    let is_kept = |key: &K| new.is_some_and(|new| keys(new).into_iter().any(|other| other == key));
    if let Some(old) = old {
        keys(old).into_iter().filter(|key| !is_kept(key)).for_each(|key| index.remove(key, &old.uid));
    }
    if let Some(new) = new {
        keys(new).into_iter().for_each(|key| index.insert(key, new));
    }
}

fn index_service(next: &mut Snapshot, service: &Arc<Service>) {
    for ip in service.vips.iter().map(|vip| vip.ip).collect::<BTreeSet<_>>() {
        enlist(&mut next.vips, ip, service);
    }
    for range in service.cidr_vips.iter().map(|vip| vip.cidr.trunc()).collect::<BTreeSet<_>>() {
        enlist(&mut next.cidrs, range, service);
    }
    enlist(&mut next.service_hosts, service.key.hostname.clone(), service);
    next.wildcard_hosts += usize::from(is_wildcard(service));
}

fn unindex_service(next: &mut Snapshot, service: &Service) {
    for vip in &service.vips {
        strike(&mut next.vips, &vip.ip, &service.key);
    }
    for vip in &service.cidr_vips {
        strike(&mut next.cidrs, &vip.cidr.trunc(), &service.key);
    }
    strike(&mut next.service_hosts, &service.key.hostname, &service.key);
    next.wildcard_hosts -= usize::from(is_wildcard(service));
}

fn is_wildcard(service: &Service) -> bool {
    service.key.hostname.starts_with("*.")
}

fn enlist<K: Clone + Eq + Hash>(lists: &mut PersistentMap<K, Services>, key: K, service: &Arc<Service>) {
    let known = lists.get(&key).map_or(&[][..], |services| services);
    let mut services = known.to_vec();
    let place = services.partition_point(|other| other.key < service.key);
    services.insert(place, service.clone());
    lists.insert(key, services.into());
}

fn strike<K: Clone + Eq + Hash>(lists: &mut PersistentMap<K, Services>, key: &K, service: &ServiceKey) {
    let Some(known) = lists.get(key) else { return };
    let left: Services = known.iter().filter(|other| other.key != *service).cloned().collect();
    if left.is_empty() {
        lists.remove(key);
    } else {
        lists.insert(key.clone(), left);
    }
}

fn file_policy(next: &mut Snapshot, key: &Text, policy: &Arc<Policy>, present: bool) {
    let Some(scope) = scope_name(policy) else { return };
    let set = Arc::make_mut(next.scoped.entry(scope.clone()).or_default());
    if present {
        set.insert(key, policy);
    } else {
        set.remove(key);
    }
    if set.is_empty() {
        next.scoped.remove(&scope);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::mesh::fixture::{key, pairs, pod, policy, service, serving};
    use crate::mesh::policy::{Action, PolicyScope};
    use crate::mesh::service::{HealthPolicy, LoadBalancer, LoadBalancerMode, NetworkCidr};
    use crate::mesh::workload::{Health, NetworkMode};

    /// Everything a reader can ask, sorted, so that two snapshots can be compared.
    fn seen(snapshot: &Snapshot) -> Vec<String> {
        let mut seen = Vec::new();
        seen.extend(snapshot.workloads().map(|workload| format!("{workload:?}")));
        seen.extend(snapshot.services().map(|service| format!("{service:?}")));
        seen.extend(snapshot.policies().map(|policy| format!("{policy:?}")));
        seen.extend(snapshot.staged().map(|key| format!("staged {key}")));
        for name in NAMES {
            let mut uids: Vec<_> =
                snapshot.endpoints(&key(name)).map(|serving| format!("{name} {serving:?}")).collect();
            uids.sort();
            seen.extend(uids);
            seen.push(format!("{:?}", snapshot.local_workload((name, "default", name)).map(|w| &w.uid)));
            seen.push(format!("{:?}", snapshot.workload_by_host(&key(name)).map(|w| &w.uid)));
            seen.push(format!("{:?}", snapshot.service_by_host(&key(name).hostname, None).map(|s| &s.key)));
            let uid = format!("Kubernetes//Pod/default/{name}");
            seen.push(format!("{:?}", snapshot.endpoint(&key("a"), &uid)));
        }
        for last in 0..6_u8 {
            let ip = IpAddr::from([10, 0, 0, last]);
            for network in ["", "far"] {
                seen.push(format!("{:?}", snapshot.workload_at(network, ip).map(|workload| &workload.uid)));
                seen.push(format!(
                    "{:?}",
                    snapshot.service_at(network, ip, None).map(|service| &service.key)
                ));
            }
        }
        for namespace in ["default", "other"] {
            let mut at = pod("at", &[]);
            at.namespace = namespace.into();
            at.authorization_policies = vec!["default/a".into()];
            let sets = snapshot.policy_sets(&at).flat_map(|set| set.iter());
            let policies = sets.chain(snapshot.named_policies(&at)).map(|policy| &policy.name);
            seen.push(format!("{:?}", policies.collect::<Vec<_>>()));
        }
        seen
    }

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    fn names() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(NAMES.to_vec())
    }

    fn any_workload() -> impl Strategy<Value = Change> {
        let parts = (names(), 0..6_u8, names(), 0..3_u16, any::<[bool; 6]>());
        parts.prop_map(|(name, ip, serves, port, [pod_like, sick, host, far, named, remote])| {
            let mut workload = serving(pod(name, &[&format!("10.0.0.{ip}")]), serves, &[(80, port)]);
            if !pod_like {
                workload.uid = format!("entry/{name}").into();
            }
            if sick {
                workload.status = Health::Unhealthy;
            }
            if host {
                workload.network_mode = NetworkMode::HostNetwork;
            }
            if far {
                workload.network = "far".into();
            }
            if named {
                workload.hostname = key(name).hostname;
            }
            workload.node = if remote { "there" } else { "here" }.into();
            workload.into()
        })
    }

    fn any_service() -> impl Strategy<Value = Change> {
        let parts = (names(), 0..6_u8, any::<[bool; 4]>(), names());
        parts.prop_map(|(name, ip, [all, range, canonical, given], other)| {
            let mut service = service(name, &[&format!("10.0.0.{ip}")], &[(80, 80)]);
            service.canonical = canonical;
            if all {
                service.load_balancer = Some(LoadBalancer {
                    routing_preferences: Vec::new(),
                    mode: LoadBalancerMode::Standard,
                    health_policy: HealthPolicy::AllowAll,
                });
            }
            if range {
                let cidr = format!("10.0.0.{ip}/30").parse().unwrap();
                service.cidr_vips = vec![NetworkCidr { network: "".into(), cidr }];
            }
            let endpoint = Endpoint {
                workload_uid: format!("Kubernetes//Pod/default/{other}").into(),
                ports: pairs(&[(80, 99)]),
                status: Health::Healthy,
            };
            Change::Service {
                service: Arc::new(service),
                endpoints: given.then_some(endpoint).into_iter().collect(),
            }
        })
    }

    fn any_change() -> impl Strategy<Value = Change> {
        let scopes = proptest::sample::select(vec![
            PolicyScope::Global,
            PolicyScope::Namespace,
            PolicyScope::WorkloadSelector,
        ]);
        let uid = |name: &str| -> Text { format!("Kubernetes//Pod/default/{name}").into() };
        prop_oneof![
            4 => any_workload(),
            2 => any_service(),
            2 => (names(), scopes).prop_map(|(name, scope)| policy(name, scope, Action::Deny, vec![]).into()),
            1 => names().prop_map(move |name| Change::RemoveWorkload(uid(name))),
            1 => names().prop_map(move |name| Change::RemoveAddress(uid(name))),
            1 => names().prop_map(|name| Change::RemoveAddress(key(name).to_string().into())),
            1 => names().prop_map(|name| Change::RemoveService(key(name))),
            1 => names().prop_map(|name| Change::RemovePolicy(format!("default/{name}").into())),
        ]
    }

    /// The contents alone, as changes.
    fn from_scratch(snapshot: &Snapshot) -> Vec<Change> {
        let policies = snapshot
            .policies()
            .map(|(key, policy)| Change::Policy { key: key.clone(), policy: policy.clone() });
        let services = snapshot.services().map(|service| Change::Service {
            service: service.clone(),
            endpoints: snapshot.services[&service.key].given.to_vec(),
        });
        let workloads = snapshot.workloads().map(|workload| Change::Workload(workload.clone()));
        policies.chain(services).chain(workloads).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn any_deltas_lead_to_what_the_contents_alone_would(
            batches in proptest::collection::vec(proptest::collection::vec(any_change(), 0..12), 0..12),
            node in proptest::sample::select(vec![None, Some("here")]),
        ) {
            let (mut snapshot, mut stepwise) = (Snapshot::default(), Snapshot::default());
            for batch in batches {
                let (before, shown) = (snapshot.clone(), seen(&snapshot));
                for change in batch.clone() {
                    stepwise = apply(&stepwise, [change], node);
                }
                snapshot = apply(&snapshot, batch, node);
                prop_assert_eq!(seen(&before), shown, "an older snapshot has changed");
                let shown = seen(&snapshot);
                prop_assert_eq!(&seen(&stepwise), &shown);
                let scratch = apply(&Snapshot::default(), from_scratch(&snapshot), node);
                prop_assert_eq!(&seen(&scratch), &shown);
            }
            // Taken down again, nothing is left in any index.
            let gone = snapshot.workloads().map(|workload| Change::RemoveWorkload(workload.uid.clone()));
            let gone = gone.chain(snapshot.services().map(|service| Change::RemoveService(service.key.clone())));
            let gone = gone.chain(snapshot.policies().map(|(key, _)| Change::RemovePolicy(key.clone())));
            let bare = apply(&snapshot, gone, node);
            let left = [
                bare.workloads.len(), bare.addresses.len(), bare.local.len(), bare.workload_hosts.len(),
                bare.services.len(), bare.vips.len(), bare.cidrs.len(), bare.service_hosts.len(),
                bare.endpoints.len(), bare.policies.len(), bare.scoped.len(), bare.unreadable.len(),
            ];
            prop_assert_eq!(left, [0; 12]);
        }
    }

    #[test]
    fn a_repeated_push_changes_nothing() {
        let push =
            || vec![Change::from(pod("a", &["10.0.0.1"])), service("a", &["10.1.0.1"], &[(80, 80)]).into()];
        let once = apply(&Snapshot::default(), push(), None);
        let twice = apply(&once, push(), None);
        assert_eq!(once.version(), twice.version());
        let third = apply(&twice, [pod("b", &["10.0.0.2"]).into()], None);
        assert!(third.version() > twice.version());
    }

    #[test]
    fn endpoints_wait_for_their_service_and_follow_its_health_policy() {
        let sick =
            Workload { status: Health::Unhealthy, ..serving(pod("b", &["10.0.0.2"]), "a", &[(80, 80)]) };
        let well = serving(pod("a", &["10.0.0.1"]), "a", &[(80, 80)]);
        let staged = apply(&Snapshot::default(), [well.into(), sick.into()], None);
        assert_eq!(staged.staged().count(), 1);
        let healthy = service("a", &["10.1.0.1"], &[(80, 80)]);
        let all = Service {
            load_balancer: Some(LoadBalancer {
                routing_preferences: Vec::new(),
                mode: LoadBalancerMode::Standard,
                health_policy: HealthPolicy::AllowAll,
            }),
            ..healthy.clone()
        };
        let mut snapshot = apply(&staged, [healthy.clone().into()], None);
        assert_eq!((snapshot.staged().count(), snapshot.endpoints(&key("a")).count()), (0, 1));
        snapshot = apply(&snapshot, [all.into()], None);
        assert_eq!(snapshot.endpoints(&key("a")).count(), 2);
        snapshot = apply(&snapshot, [healthy.into()], None);
        assert_eq!(snapshot.endpoints(&key("a")).count(), 1);
    }

    #[test]
    fn a_shared_address_belongs_to_the_pod_while_it_lives() {
        let entry = Workload { uid: "entry".into(), ..pod("entry", &["10.0.0.1"]) };
        let both = apply(&Snapshot::default(), [pod("a", &["10.0.0.1"]).into(), entry.into()], None);
        let at = |snapshot: &Snapshot| {
            snapshot.workload_at("", "10.0.0.1".parse().unwrap()).map(|workload| workload.name.to_string())
        };
        assert_eq!(at(&both).as_deref(), Some("a"));
        let left = apply(&both, [Change::RemoveWorkload("Kubernetes//Pod/default/a".into())], None);
        assert_eq!(at(&left).as_deref(), Some("entry"));
    }
}
