//! Changes of the mesh, and how a snapshot takes them. Whatever the order in which changes came, the outcome is
//! the snapshot that its contents alone would make: endpoints follow from the workloads that name a service, known
//! or not yet, and a health policy filters when it is read, so nothing has to be sent again when either changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::base::text::Text;
use crate::mesh::group::{ByUid, Group, PersistentMap};
use crate::mesh::policy::Policy;
use crate::mesh::service::{Endpoint, Service, ServiceKey};
use crate::mesh::snapshot::{Held, Services, Snapshot, scope_name};
use crate::mesh::workload::{NetworkMode, Workload};

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

/// The snapshot after `changes`. Of several changes of one thing the last counts, and what says nothing new leaves
/// even the version as it was: a full push after a reconnect costs a comparison each. `local_node`: whose workloads are
/// found by `Snapshot::local_workload`; all, where it isn't set.
pub fn apply(
    snapshot: &Snapshot,
    changes: impl IntoIterator<Item = Change>,
    local_node: Option<&str>,
) -> Snapshot {
    let mut next = snapshot.clone();
    let mut batch = Batch::default();
    for change in changes {
        batch.take(&next, change);
    }
    batch.forget_repetitions(snapshot);
    if batch.is_empty() {
        return next;
    }
    next.version = snapshot.version.wrapping_add(1);
    if !batch.policies.is_empty() {
        next.policy_version = snapshot.policy_version.wrapping_add(1);
    }
    batch.carry_out(&mut next, local_node.filter(|node| !node.is_empty()));
    next
}

/// The last word on each thing. A thing that goes and comes in one batch is one replacement.
#[derive(Default)]
struct Batch {
    workloads: BTreeMap<Text, Option<Arc<Workload>>>,
    services: BTreeMap<ServiceKey, Option<Held>>,
    policies: BTreeMap<Text, Option<Arc<Policy>>>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.workloads.is_empty() && self.services.is_empty() && self.policies.is_empty()
    }

    fn take(&mut self, before: &Snapshot, change: Change) {
        match change {
            Change::Workload(workload) => {
                self.workloads.insert(workload.uid.clone(), Some(workload));
            }
            Change::RemoveWorkload(uid) => {
                self.workloads.insert(uid, None);
            }
            Change::Service { service, endpoints } => {
                let key = service.key.clone();
                self.services.insert(key, Some(Held { service, given: endpoints.into() }));
            }
            Change::RemoveService(key) => {
                self.services.insert(key, None);
            }
            Change::RemoveAddress(name) => {
                let workload = match self.workloads.get(&name) {
                    Some(pending) => pending.is_some(),
                    None => before.workload(&name).is_some(),
                };
                if workload {
                    self.workloads.insert(name, None);
                } else if let Ok(key) = name.parse() {
                    self.services.insert(key, None);
                }
            }
            Change::Policy { key, policy } => {
                self.policies.insert(key, Some(policy));
            }
            Change::RemovePolicy(key) => {
                self.policies.insert(key, None);
            }
        }
    }

    fn forget_repetitions(&mut self, before: &Snapshot) {
        self.workloads.retain(|uid, new| before.workload(uid) != new.as_ref());
        self.services.retain(|key, new| before.services.get(key) != new.as_ref());
        self.policies.retain(|key, new| before.policies.get(key) != new.as_ref());
    }

    fn carry_out(self, next: &mut Snapshot, local_node: Option<&str>) {
        for (uid, workload) in self.workloads {
            if let Some(old) = next.workloads.remove_with_key(&*uid).map(|(member, ())| member.0) {
                let keep = workload.as_ref().map(|new| new.services.as_slice()).unwrap_or_default();
                unindex_workload(next, &old, keep, local_node);
            }
            if let Some(new) = workload {
                index_workload(next, &new, local_node);
                next.workloads.insert(ByUid(new), ());
            }
        }
        for (key, held) in self.services {
            if let Some(old) = next.services.remove(&key) {
                unindex_service(next, &old.service);
            }
            if let Some(new) = held {
                index_service(next, &new.service);
                next.services.insert(key, new);
            }
        }
        for (key, policy) in self.policies {
            if let Some(old) = next.policies.remove(&key) {
                file_policy(next, &key, &old, false);
            }
            if let Some(new) = policy {
                file_policy(next, &key, &new, true);
                next.policies.insert(key, new);
            }
        }
    }
}

/// Addresses that find a workload. Host-network ones share their node's, so no address tells them apart.
fn addresses(workload: &Workload) -> &[IpAddr] {
    match workload.network_mode {
        NetworkMode::Standard => &workload.addresses,
        NetworkMode::HostNetwork => &[],
    }
}

fn is_local(workload: &Workload, local_node: Option<&str>) -> bool {
    local_node.is_none_or(|node| *workload.node == *node)
}

fn index_workload(next: &mut Snapshot, workload: &Arc<Workload>, local_node: Option<&str>) {
    for ip in addresses(workload) {
        join(&mut next.addresses, *ip, workload);
    }
    for (service, _) in &workload.services {
        join(&mut next.endpoints, service.clone(), workload);
    }
    if !workload.hostname.is_empty() {
        join(&mut next.workload_hosts, workload.hostname.clone(), workload);
    }
    if is_local(workload, local_node) {
        join(&mut next.local, workload.name.clone(), workload);
    }
}

/// `kept`: services that the workload's successor serves as well; its place there is overwritten, not emptied.
fn unindex_workload(
    next: &mut Snapshot,
    workload: &Workload,
    kept: &[(ServiceKey, Vec<crate::mesh::workload::PortPair>)],
    local_node: Option<&str>,
) {
    for ip in addresses(workload) {
        leave(&mut next.addresses, ip, &workload.uid);
    }
    for (service, _) in &workload.services {
        if !kept.iter().any(|(key, _)| key == service) {
            leave(&mut next.endpoints, service, &workload.uid);
        }
    }
    if !workload.hostname.is_empty() {
        leave(&mut next.workload_hosts, &workload.hostname, &workload.uid);
    }
    if is_local(workload, local_node) {
        leave(&mut next.local, &workload.name, &workload.uid);
    }
}

fn join<K: Clone + Eq + std::hash::Hash>(
    groups: &mut PersistentMap<K, Group>,
    key: K,
    workload: &Arc<Workload>,
) {
    groups.entry(key).or_default().insert(workload.clone());
}

fn leave<K: Clone + Eq + std::hash::Hash>(groups: &mut PersistentMap<K, Group>, key: &K, uid: &str) {
    let Some(group) = groups.get_mut(key) else { return };
    group.remove(uid);
    if group.is_empty() {
        groups.remove(key);
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
}

fn unindex_service(next: &mut Snapshot, service: &Service) {
    for vip in &service.vips {
        strike(&mut next.vips, &vip.ip, &service.key);
    }
    for vip in &service.cidr_vips {
        strike(&mut next.cidrs, &vip.cidr.trunc(), &service.key);
    }
    strike(&mut next.service_hosts, &service.key.hostname, &service.key);
}

fn enlist<K: Clone + Eq + std::hash::Hash>(
    lists: &mut PersistentMap<K, Services>,
    key: K,
    service: &Arc<Service>,
) {
    let known = lists.get(&key).map_or(&[][..], |services| services);
    let mut services = known.to_vec();
    let place = services.partition_point(|other| other.key < service.key);
    services.insert(place, service.clone());
    lists.insert(key, services.into());
}

fn strike<K: Clone + Eq + std::hash::Hash>(
    lists: &mut PersistentMap<K, Services>,
    key: &K,
    service: &ServiceKey,
) {
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
    let filed = Arc::make_mut(next.scoped.entry(scope.clone()).or_default());
    match (filed.binary_search_by(|(other, _)| other.cmp(key)), present) {
        (Ok(place), false) => {
            filed.remove(place);
        }
        (Err(place), true) => filed.insert(place, (key.clone(), policy.clone())),
        // Filed twice or not at all can't be: each policy is taken out under the scope it was filed with.
        (Ok(_), true) | (Err(_), false) => {}
    }
    if filed.is_empty() {
        next.scoped.remove(&scope);
    }
}
