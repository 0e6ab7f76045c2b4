//! The mesh at one moment, immutable and shared. A clone costs a few reference counts, a change O(log n): every map
//! is persistent. `mesh::delta` makes one snapshot from another; here is only the reading side.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::base::text::Text;
use crate::mesh::choices::{Choices, Lazy};
use crate::mesh::index::Index;
use crate::mesh::policy::{Policy, PolicyScope};
use crate::mesh::policy_set::PolicySet;
use crate::mesh::service::{Endpoint, Service, ServiceKey};
use crate::mesh::workload::{GatewayAddress, Health, PortPair, Protocol, Workload};

pub(crate) type PersistentMap<K, V> =
    imbl::GenericHashMap<K, V, foldhash::fast::RandomState, imbl::shared_ptr::DefaultSharedPtr>;

/// The mesh at one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Set by the control thread once all sources have spoken. Before, nothing passes.
    pub synced: bool,
    pub(crate) version: u64,
    /// By uid.
    pub(crate) workloads: Index,
    /// By address alone: few networks share one, and the reader compares the network.
    pub(crate) addresses: Index,
    /// Workloads of this node by pod name.
    pub(crate) local: Index,
    /// Workloads that have a host name, by it.
    pub(crate) workload_hosts: Index,
    /// By the services they name, known or not: the unknown ones are what the dump calls staged.
    pub(crate) endpoints: Index,
    pub(crate) services: PersistentMap<ServiceKey, Held>,
    pub(crate) vips: PersistentMap<IpAddr, Services>,
    pub(crate) cidrs: PersistentMap<IpNet, Services>,
    pub(crate) service_hosts: PersistentMap<Text, Services>,
    /// Services whose host name is a wildcard.
    pub(crate) wildcard_hosts: usize,
    pub(crate) policies: PersistentMap<Text, Arc<Policy>>,
    /// Global policies (empty text) and those of a namespace.
    pub(crate) scoped: PersistentMap<Text, Arc<PolicySet>>,
    /// Store keys of policies that could not be understood whole.
    pub(crate) unreadable: PersistentMap<Text, ()>,
}

/// Services that share an address or host name, sorted by key.
pub(crate) type Services = Arc<[Arc<Service>]>;

/// A service with the endpoints that came with it rather than from its workloads.
#[derive(Clone, PartialEq)]
pub(crate) struct Held {
    pub service: Arc<Service>,
    pub given: Arc<[Endpoint]>,
    pub choices: Lazy,
}

/// One endpoint of a service as the snapshot sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Serving<'a> {
    pub uid: &'a Text,
    /// `None` where a file names a workload that isn't known: it can't be chosen.
    pub workload: Option<&'a Arc<Workload>>,
    pub ports: &'a [PortPair],
    pub status: Health,
}

impl<'a> Serving<'a> {
    /// The endpoint that a workload is of a service, where it names it.
    fn of(workload: &'a Arc<Workload>, service: &ServiceKey) -> Option<Self> {
        let ports = workload.ports_for(service)?;
        Some(Self { uid: &workload.uid, workload: Some(workload), ports, status: workload.status })
    }
}

/// What an address stands for.
#[derive(Clone, Copy)]
pub enum Found<'a> {
    Workload(&'a Arc<Workload>),
    Service(&'a Arc<Service>),
}

impl<'a> Found<'a> {
    pub fn waypoint(self) -> Option<&'a GatewayAddress> {
        match self {
            Self::Workload(workload) => workload.waypoint.as_deref(),
            Self::Service(service) => service.waypoint.as_deref(),
        }
    }
}

impl Snapshot {
    /// Grows with every change: a shard that saw this number has seen this snapshot.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn workload(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.workloads.member(uid, uid)
    }

    /// The workload at an address: pods before others, HBONE before plaintext, then the last uid (reference 5.1).
    pub fn workload_at(&self, network: &str, ip: IpAddr) -> Option<&Arc<Workload>> {
        let rank = |workload: &Workload| {
            2 * u8::from(workload.uid.contains("//Pod/")) + u8::from(workload.protocol == Protocol::Hbone)
        };
        self.addresses
            .find(&ip)
            .filter(|workload| *workload.network == *network && workload.own_addresses().contains(&ip))
            .max_by(|left, right| rank(left).cmp(&rank(right)).then_with(|| left.uid.cmp(&right.uid)))
    }

    /// The workload of a pod on this node, by name, namespace and service account.
    pub fn local_workload(&self, pod: (&str, &str, &str)) -> Option<&Arc<Workload>> {
        let (name, namespace, account) = pod;
        let is_it = |workload: &&Arc<Workload>| {
            *workload.name == *name
                && *workload.namespace == *namespace
                && *workload.service_account == *account
        };
        self.local.find(name).filter(is_it).max_by(|left, right| left.uid.cmp(&right.uid))
    }

    /// A workload by its own host name, as gateways may be named.
    pub fn workload_by_host(&self, key: &ServiceKey) -> Option<&Arc<Workload>> {
        self.workload_hosts
            .find(&*key.hostname)
            .filter(|workload| workload.namespace == key.namespace && workload.hostname == key.hostname)
            .max_by(|left, right| left.uid.cmp(&right.uid))
    }

    pub fn service(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.services.get(key).map(|held| &held.service)
    }

    /// The service behind a virtual address as a client of this namespace sees it (reference 5.2): an exact address
    /// goes before a range. `None` as namespace sees everything.
    pub fn service_at(
        &self,
        network: &str,
        ip: IpAddr,
        client_namespace: Option<&str>,
    ) -> Option<&Arc<Service>> {
        let exact = self.vips.get(&ip).map_or(&[][..], |services| services);
        let on_network =
            |service: &&Arc<Service>| service.vips.iter().any(|vip| vip.ip == ip && *vip.network == *network);
        preferred(exact.iter().filter(on_network), client_namespace)
            .or_else(|| self.service_by_range(network, ip, client_namespace))
    }

    /// Ranked by same namespace, prefix length, canonical; the first best by key stays.
    fn service_by_range(
        &self,
        network: &str,
        ip: IpAddr,
        client_namespace: Option<&str>,
    ) -> Option<&Arc<Service>> {
        if self.cidrs.is_empty() {
            return None;
        }
        let mut best = None;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        for length in (0..=longest).rev() {
            let Ok(range) = IpNet::new(ip, length).map(|range| range.trunc()) else { continue };
            for service in self.cidrs.get(&range).map_or(&[][..], |services| services) {
                let here = |entry: &crate::mesh::service::NetworkCidr| {
                    entry.cidr.trunc() == range && *entry.network == *network
                };
                if !service.is_visible_to(client_namespace) || !service.cidr_vips.iter().any(here) {
                    continue;
                }
                let rank = (is_of(service, client_namespace), length, service.canonical);
                if best.is_none_or(|(known, _)| rank > known) {
                    best = Some((rank, service));
                }
            }
        }
        best.map(|(_, service)| service)
    }

    /// The workload of this namespace and name; goes through all of them.
    pub fn workload_named(&self, namespace: &str, name: &str) -> Option<&Arc<Workload>> {
        let is_it = |workload: &&Arc<Workload>| *workload.name == *name && *workload.namespace == *namespace;
        self.workloads.iter().filter(is_it).min_by(|left, right| left.uid.cmp(&right.uid))
    }

    /// The service of an unqualified host name as a client of this namespace sees it.
    pub fn service_by_host(&self, host: &str, client_namespace: Option<&str>) -> Option<&Arc<Service>> {
        preferred(self.service_hosts.get(host)?.iter(), client_namespace)
    }

    /// All services of a host name, sorted by key; the name may be a wildcard (`*.example.com`).
    pub(crate) fn services_of_host(&self, host: &str) -> &[Arc<Service>] {
        self.service_hosts.get(host).map_or(&[], |services| services)
    }

    /// Whether any service is known by a wildcard: else none has to be looked for.
    pub(crate) fn has_wildcard_hosts(&self) -> bool {
        self.wildcard_hosts > 0
    }

    /// Workload before service, visible or not (reference 5.2).
    pub fn lookup(&self, network: &str, ip: IpAddr, client_namespace: Option<&str>) -> Option<Found<'_>> {
        self.workload_at(network, ip)
            .map(Found::Workload)
            .or_else(|| self.service_at(network, ip, client_namespace).map(Found::Service))
    }

    /// The endpoints of a service that its health policy admits, in no particular order.
    pub fn endpoints<'a>(&'a self, key: &'a ServiceKey) -> impl Iterator<Item = Serving<'a>> {
        let held = self.services.get(key);
        self.members(key).filter(move |serving| held.is_none_or(|held| held.service.accepts(serving.status)))
    }

    /// The endpoints of a service, healthy or not.
    pub fn members<'a>(&'a self, key: &'a ServiceKey) -> impl Iterator<Item = Serving<'a>> {
        let held = self.services.get(key);
        let derived = self.endpoints.find(key).filter_map(|workload| Serving::of(workload, key));
        let given = held
            .into_iter()
            .flat_map(|held| held.given.iter())
            .filter(|endpoint| {
                let named = self.workload(&endpoint.workload_uid);
                named.is_none_or(|workload| workload.ports_for(key).is_none())
            })
            .map(|endpoint| self.given(endpoint));
        derived.chain(given)
    }

    /// The endpoint that a workload is of a service, where the health policy admits it.
    pub fn endpoint<'a>(&'a self, key: &'a ServiceKey, uid: &str) -> Option<Serving<'a>> {
        let held = self.services.get(key)?;
        self.member(key, uid).filter(|serving| held.service.accepts(serving.status))
    }

    /// The endpoint that a workload is of a service, healthy or not.
    pub fn member<'a>(&'a self, key: &'a ServiceKey, uid: &str) -> Option<Serving<'a>> {
        let held = self.services.get(key)?;
        let derived = || Serving::of(self.workload(uid)?, key);
        let given = || {
            let endpoint = held.given.iter().find(|endpoint| *endpoint.workload_uid == *uid);
            endpoint.map(|endpoint| self.given(endpoint))
        };
        derived().or_else(given)
    }

    /// The table of a service's endpoints, made by whoever asks first after a change: which costs about as much as
    /// looking through them once (10,000 endpoints: 1.4 ms; benches/mesh.rs).
    pub(crate) fn choices(&self, key: &ServiceKey) -> Option<&Choices> {
        let held = self.services.get(key)?;
        held.choices.get_or_make(|| {
            // Those that a file gives change without their service being told.
            if !held.given.is_empty() {
                return None;
            }
            let members = self.endpoints.find(key).filter_map(|workload| Serving::of(workload, key));
            let admitted = members.filter(|serving| held.service.accepts(serving.status));
            Some(Choices::new(&held.service, admitted.filter_map(|serving| serving.workload.cloned())))
        })
    }

    fn given<'a>(&'a self, endpoint: &'a Endpoint) -> Serving<'a> {
        Serving {
            uid: &endpoint.workload_uid,
            workload: self.workload(&endpoint.workload_uid),
            ports: &endpoint.ports,
            status: endpoint.status,
        }
    }

    /// The policies that apply to a workload as destination without being named by it: global ones and its
    /// namespace's (reference 12.1).
    pub(crate) fn policy_sets<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = &'a Arc<PolicySet>> {
        let own = Some(&*workload.namespace).filter(|namespace| !namespace.is_empty());
        self.scoped.get("").into_iter().chain(own.and_then(|namespace| self.scoped.get(namespace)))
    }

    /// The policies that a workload names. Those that aren't known are left out; see `missing_policies`.
    pub fn named_policies<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a Arc<Policy>> {
        workload.authorization_policies.iter().filter_map(|key| self.policies.get(key))
    }

    /// Store keys of policies that could not be understood whole, sorted.
    pub fn unreadable_policies(&self) -> impl Iterator<Item = &Text> {
        sorted(self.unreadable.keys(), |key| (*key).clone())
    }

    /// Policies that a workload names and that nobody has sent.
    pub fn missing_policies<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a Text> {
        workload.authorization_policies.iter().filter(|key| !self.policies.contains_key(*key))
    }

    pub fn policy(&self, key: &str) -> Option<&Arc<Policy>> {
        self.policies.get(key)
    }

    /// All workloads, sorted by uid.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        sorted(self.workloads.iter(), |workload| workload.uid.clone())
    }

    /// All services, sorted by key.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        sorted(self.services.values().map(|held| &held.service), |service| service.key.clone())
    }

    /// All policies with their store keys, sorted by key.
    pub fn policies(&self) -> impl Iterator<Item = (&Text, &Arc<Policy>)> {
        sorted(self.policies.iter(), |(key, _)| (*key).clone())
    }

    /// Names of services that have endpoints but aren't known themselves, sorted.
    pub fn staged(&self) -> impl Iterator<Item = &ServiceKey> {
        let named = self.workloads.iter().flat_map(|workload| workload.services.iter().map(|(key, _)| key));
        named.filter(|key| !self.services.contains_key(*key)).collect::<BTreeSet<_>>().into_iter()
    }

    pub fn workload_count(&self) -> usize {
        self.workloads.len()
    }
}

fn sorted<T, K: Ord>(items: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> impl Iterator<Item = T> {
    let mut items: Vec<T> = items.collect();
    items.sort_by_cached_key(key);
    items.into_iter()
}

fn is_of(service: &Service, client_namespace: Option<&str>) -> bool {
    client_namespace.is_some_and(|namespace| *service.key.namespace == *namespace)
}

/// Of the visible ones: same namespace, else the last canonical, else the first.
fn preferred<'a>(
    services: impl Iterator<Item = &'a Arc<Service>>,
    client_namespace: Option<&str>,
) -> Option<&'a Arc<Service>> {
    let (mut canonical, mut first) = (None, None);
    for service in services.filter(|service| service.is_visible_to(client_namespace)) {
        if is_of(service, client_namespace) {
            return Some(service);
        }
        if service.canonical {
            canonical = Some(service);
        }
        first = first.or(Some(service));
    }
    canonical.or(first)
}

/// Where a policy of this scope is filed; selector policies are found by name only.
pub(crate) fn scope_name(policy: &Policy) -> Option<Text> {
    match policy.scope {
        PolicyScope::Global => Some(Text::default()),
        PolicyScope::Namespace => Some(policy.namespace.clone()),
        PolicyScope::WorkloadSelector => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::delta::apply;
    use crate::mesh::fixture::{mesh, pod};
    use crate::mesh::service::{NetworkCidr, NetworkIp, Visibility};

    fn of(namespace: &str, ips: &[&str], ranges: &[(&str, &str)]) -> Service {
        let range = |&(network, cidr): &(&str, &str)| NetworkCidr {
            network: network.into(),
            cidr: cidr.parse().unwrap(),
        };
        Service {
            vips: ips.iter().map(|ip| NetworkIp { network: "".into(), ip: ip.parse().unwrap() }).collect(),
            cidr_vips: ranges.iter().map(range).collect(),
            ..Service::plain(namespace, &format!("{namespace}.example"), namespace)
        }
    }

    fn found(services: &[Service], ip: &str, client: Option<&str>) -> Option<String> {
        let snapshot = mesh(services.iter().cloned().map(Into::into));
        snapshot.service_at("", ip.parse().unwrap(), client).map(|service| service.name.to_string())
    }

    #[test]
    fn a_shared_address_is_the_clients_own_then_canonical_then_first() {
        let hidden = Service { visibility: Visibility::Namespace, ..of("a", &["10.1.0.1"], &[]) };
        let canonical = Service { canonical: true, ..of("c", &["10.1.0.1"], &[]) };
        let all = [hidden.clone(), of("b", &["10.1.0.1"], &[]), canonical];
        let told = |client| found(&all, "10.1.0.1", client);
        assert_eq!(told(Some("a")).as_deref(), Some("a"));
        assert_eq!(told(Some("b")).as_deref(), Some("b"));
        assert_eq!(told(Some("x")).as_deref(), Some("c"));
        assert_eq!(found(&all[..2], "10.1.0.1", Some("x")).as_deref(), Some("b"));
        assert_eq!(found(std::slice::from_ref(&hidden), "10.1.0.1", Some("x")), None);
        assert_eq!(found(&[hidden], "10.1.0.1", None).as_deref(), Some("a"));
    }

    #[test]
    fn ranges_come_after_addresses_and_the_namespace_before_the_length() {
        let ranges = [
            of("wide", &[], &[("", "10.0.0.0/8"), ("", "fd00::/8")]),
            of("narrow", &[], &[("", "10.1.0.0/16")]),
            of("far", &[], &[("far", "10.1.1.0/24")]),
            of("exact", &["10.1.2.3"], &[]),
        ];
        let told = |ip, client| found(&ranges, ip, Some(client));
        assert_eq!(told("10.1.1.1", "x").as_deref(), Some("narrow"));
        assert_eq!(told("10.1.1.1", "wide").as_deref(), Some("wide"));
        assert_eq!(told("10.2.1.1", "x").as_deref(), Some("wide"));
        assert_eq!(told("10.1.2.3", "wide").as_deref(), Some("exact"));
        assert_eq!(told("fd00::1", "x").as_deref(), Some("wide"));
        assert_eq!(told("192.0.2.1", "x"), None);
        let hidden = Service { visibility: Visibility::Namespace, ..of("exact", &["10.1.2.3"], &[]) };
        let mixed = [ranges[0].clone(), hidden];
        assert_eq!(found(&mixed, "10.1.2.3", Some("x")).as_deref(), Some("wide"));
        let canonical = Service { canonical: true, ..of("z", &[], &[("", "10.0.0.0/8")]) };
        let twins = [ranges[0].clone(), canonical];
        assert_eq!(found(&twins, "10.1.2.3", Some("x")).as_deref(), Some("z"));
    }

    #[test]
    fn local_workloads_are_those_of_the_node_and_match_by_all_three_names() {
        let on = |name: &str, node: &str| Workload { node: node.into(), ..pod(name, &[]) };
        let things = || [on("a", "here").into(), on("b", "there").into()];
        let here = apply(&Snapshot::default(), things(), Some("here"));
        assert!(here.local_workload(("a", "default", "a")).is_some());
        assert!(here.local_workload(("a", "default", "other")).is_none());
        assert!(here.local_workload(("a", "other", "a")).is_none());
        assert!(here.local_workload(("b", "default", "b")).is_none());
        let anywhere = apply(&Snapshot::default(), things(), None);
        assert!(anywhere.local_workload(("b", "default", "b")).is_some());
    }

    #[test]
    fn missing_policies_are_told() {
        let mut workload = pod("a", &[]);
        workload.authorization_policies = vec!["default/none".into()];
        let missing: Vec<_> = mesh([]).missing_policies(&workload).map(ToString::to_string).collect();
        assert_eq!(missing, ["default/none"]);
    }
}
