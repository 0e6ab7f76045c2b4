//! Meshes of any size as istiod would send them, the same for the same seed; and single pods and services.

use std::collections::BTreeMap;

use bytes::Bytes;
use ringway::wire::pb::security::{
    Action, Authorization, Clause, Match, Rule, Scope, StringMatch, string_match::MatchType,
};
use ringway::wire::pb::workload::{
    Locality, NetworkAddress, Port, PortList, Service, TunnelProtocol, Workload, WorkloadStatus, WorkloadType,
};

use crate::mesh::{Change, Item};

/// Pods of the fleet have addresses from here up (RFC 6598's range holds four million), services' from the other.
const FIRST_POD: u32 = u32::from_be_bytes([100, 64, 0, 0]);
const FIRST_SERVICE: u32 = u32::from_be_bytes([172, 16, 0, 0]);
const PODS_A_NODE: u32 = 50;
const SERVICES_A_NAMESPACE: u32 = 10;

/// Workloads spread over services, ten services a namespace, fifty workloads a node, three zones.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub workloads: u32,
    /// At least one.
    pub services: u32,
    pub seed: u64,
}

impl Fleet {
    /// All of it in one change. `generation` is told in each workload's revision: another one changes all of them.
    pub fn everything(self, generation: u32) -> Change {
        let services = (0..self.services).map(|service| Item::Service(self.service(service)));
        let policies = (0..self.services).step_by(20).map(|service| Item::Policy(self.policy(service)));
        let put = services.chain(policies).chain(self.all_workloads(generation)).collect();
        Change { put, remove: vec![] }
    }

    pub fn all_workloads(self, generation: u32) -> impl Iterator<Item = Item> {
        (0..self.workloads).map(move |workload| self.workload(workload, generation).into())
    }

    pub fn workload(self, number: u32, generation: u32) -> Workload {
        let service = self.service_of(number);
        let (namespace, app) = (self.namespace(service), app(service));
        let random = mix(self.seed ^ u64::from(number));
        let name = format!("{app}-{:09x}-{:05x}", mix(u64::from(service)) >> 28, random >> 44);
        let zone = (number / PODS_A_NODE) % 3;
        let hostname = format!("{namespace}/{app}.{namespace}.svc.cluster.local");
        let policies =
            if service.is_multiple_of(20) { vec![format!("{namespace}/{app}-callers")] } else { vec![] };
        Workload {
            uid: format!("Kubernetes//Pod/{namespace}/{name}"),
            name,
            namespace,
            addresses: vec![self.pod_address(number)],
            tunnel_protocol: TunnelProtocol::Hbone.into(),
            service_account: app.clone(),
            node: format!("ip-10-{zone}-{}.eu-central-1.compute.internal", number / PODS_A_NODE),
            canonical_name: app.clone(),
            canonical_revision: if generation == 0 { "latest".to_owned() } else { format!("v{generation}") },
            workload_type: WorkloadType::Pod.into(),
            workload_name: app,
            status: WorkloadStatus::Healthy.into(),
            cluster_id: "Kubernetes".to_owned(),
            services: BTreeMap::from([(hostname, PortList { ports: ports() })]),
            locality: Some(Locality {
                region: "eu-central-1".to_owned(),
                zone: format!("eu-central-1{}", ["a", "b", "c"][zone as usize]),
                subzone: String::new(),
            }),
            authorization_policies: policies,
            ..Workload::default()
        }
    }

    pub fn service(self, number: u32) -> Service {
        let (namespace, name) = (self.namespace(number), app(number));
        Service {
            hostname: format!("{name}.{namespace}.svc.cluster.local"),
            name,
            namespace,
            addresses: vec![NetworkAddress {
                address: ip(FIRST_SERVICE + number),
                ..NetworkAddress::default()
            }],
            ports: ports(),
            canonical: true,
            ..Service::default()
        }
    }

    /// A selector policy of a service's workloads: only callers of its namespace and two others.
    pub fn policy(self, number: u32) -> Authorization {
        let prefix = |text: String| StringMatch { match_type: Some(MatchType::Prefix(text)) };
        let callers = [number, number + 1, number + 2].map(|of| self.namespace(of % self.services));
        let principals = callers.into_iter().map(|of| prefix(format!("cluster.local/ns/{of}/"))).collect();
        let only = Match { principals, ..Match::default() };
        Authorization {
            name: format!("{}-callers", app(number)),
            namespace: self.namespace(number),
            scope: Scope::WorkloadSelector.into(),
            action: Action::Allow.into(),
            rules: vec![Rule { clauses: vec![Clause { matches: vec![only] }] }],
            dry_run: false,
        }
    }

    /// The step-th update of a churn: a workload that goes unready, comes back, or is rolled out anew.
    pub fn churn(self, step: u32) -> Workload {
        let random = mix(self.seed.wrapping_add(u64::from(step)).rotate_left(17));
        let number = u32::try_from(random % u64::from(self.workloads.max(1))).expect("below a u32");
        let mut workload = self.workload(number, step + 1);
        if random >> 63 == 1 {
            workload.status = WorkloadStatus::Unhealthy.into();
        }
        workload
    }

    /// 4 bytes.
    pub fn pod_address(self, number: u32) -> Bytes {
        ip(FIRST_POD + number)
    }

    fn service_of(self, workload: u32) -> u32 {
        workload % self.services.max(1)
    }

    fn namespace(self, service: u32) -> String {
        format!("team-{:03}", service / SERVICES_A_NAMESPACE)
    }
}

/// A pod of the mesh whose service account has its name.
pub fn pod(name: &str, namespace: &str, node: &str, addresses: &[std::net::IpAddr]) -> Workload {
    let octets = |address: &std::net::IpAddr| match address {
        std::net::IpAddr::V4(four) => Bytes::copy_from_slice(&four.octets()),
        std::net::IpAddr::V6(six) => Bytes::copy_from_slice(&six.octets()),
    };
    Workload {
        uid: format!("Kubernetes//Pod/{namespace}/{name}"),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        addresses: addresses.iter().map(octets).collect(),
        tunnel_protocol: TunnelProtocol::Hbone.into(),
        service_account: name.to_owned(),
        node: node.to_owned(),
        canonical_name: name.to_owned(),
        canonical_revision: "latest".to_owned(),
        workload_type: WorkloadType::Pod.into(),
        workload_name: name.to_owned(),
        cluster_id: "Kubernetes".to_owned(),
        ..Workload::default()
    }
}

fn app(service: u32) -> String {
    format!("app-{service:04}")
}

fn ports() -> Vec<Port> {
    vec![Port { service_port: 80, target_port: 8080 }, Port { service_port: 9090, target_port: 9090 }]
}

fn ip(address: u32) -> Bytes {
    Bytes::copy_from_slice(&address.to_be_bytes())
}

/// A well-mixed number of a number (Steele and others, splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FLEET: Fleet = Fleet { workloads: 5_000, services: 100, seed: 7 };

    #[test]
    fn names_and_addresses_are_unique_and_the_same_for_the_same_seed() {
        let all: Vec<Workload> = (0..FLEET.workloads).map(|number| FLEET.workload(number, 0)).collect();
        assert_eq!(all.iter().map(|one| &one.uid).collect::<BTreeSet<_>>().len(), 5_000);
        assert_eq!(all.iter().map(|one| &one.addresses[0]).collect::<BTreeSet<_>>().len(), 5_000);
        assert_eq!(all[17], FLEET.workload(17, 0));
        assert_ne!(all[17], Fleet { seed: 8, ..FLEET }.workload(17, 0));
    }

    #[test]
    fn workloads_name_services_and_policies_that_exist() {
        let names: BTreeSet<String> = FLEET.everything(0).put.iter().map(Item::name).collect();
        for number in 0..FLEET.workloads {
            let workload = FLEET.workload(number, 0);
            let named = workload.services.keys().chain(&workload.authorization_policies);
            named.for_each(|name| assert!(names.contains(name), "{name}"));
        }
    }

    #[test]
    fn churn_changes_a_workload_and_keeps_its_name() {
        for step in 0..100 {
            let after = FLEET.churn(step);
            let before = (0..FLEET.workloads).map(|number| FLEET.workload(number, 0));
            let before = before.filter(|one| one.uid == after.uid).collect::<Vec<_>>();
            assert_eq!(before.len(), 1);
            assert_ne!(before[0], after);
        }
    }
}
