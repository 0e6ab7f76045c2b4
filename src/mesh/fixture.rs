//! Small meshes for tests: pods, services and policies in one line each.

use std::sync::Arc;

use crate::mesh::delta::{Change, apply};
use crate::mesh::policy::{Action, Match, Policy, PolicyScope};
use crate::mesh::service::{NetworkIp, Service, ServiceKey};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::{Common, GatewayAddress, GatewayDestination, PortPair, Protocol, Workload};

/// An HBONE pod of namespace `default` whose service account is its name.
pub fn pod(name: &str, addresses: &[&str]) -> Workload {
    let plain = Workload::plain(&format!("Kubernetes//Pod/default/{name}"), "default", name);
    let pod = with(plain, |common| {
        common.trust_domain = "cluster.local".into();
        common.service_account = name.into();
    });
    let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
    Workload { addresses, protocol: Protocol::Hbone, ..pod }
}

/// The workload with another common part.
pub fn with(mut workload: Workload, change: impl FnOnce(&mut Common)) -> Workload {
    change(&mut workload);
    workload
}

/// `default/{name}.default.svc.cluster.local`.
pub fn key(name: &str) -> ServiceKey {
    format!("default/{name}.default.svc.cluster.local").parse().unwrap()
}

/// A service of namespace `default` on the default network.
pub fn service(name: &str, vips: &[&str], ports: &[(u16, u16)]) -> Service {
    let vip = |ip: &&str| NetworkIp { network: "".into(), ip: ip.parse().unwrap() };
    Service {
        vips: vips.iter().map(vip).collect(),
        ports: pairs(ports),
        ..Service::plain("default", &key(name).hostname, name)
    }
}

pub fn pairs(ports: &[(u16, u16)]) -> Vec<PortPair> {
    ports.iter().map(|&(service, target)| PortPair { service, target }).collect()
}

/// The workload as an endpoint of a service of namespace `default`.
pub fn serving(mut workload: Workload, name: &str, ports: &[(u16, u16)]) -> Workload {
    workload.services.push((key(name), pairs(ports)));
    workload
}

pub fn gateway(to: &str, port: u16) -> Option<Arc<GatewayAddress>> {
    let destination = match to.parse() {
        Ok(ip) => GatewayDestination::Address { network: "".into(), ip },
        Err(_) => GatewayDestination::Hostname(key(to)),
    };
    Some(Arc::new(GatewayAddress { destination, hbone_mtls_port: port }))
}

pub fn policy(name: &str, scope: PolicyScope, action: Action, matches: Vec<Match>) -> Policy {
    Policy {
        name: name.into(),
        namespace: "default".into(),
        scope,
        action,
        rules: vec![vec![matches]],
        dry_run: false,
    }
}

impl From<Workload> for Change {
    fn from(workload: Workload) -> Self {
        Self::Workload(Arc::new(workload))
    }
}

impl From<Service> for Change {
    fn from(service: Service) -> Self {
        Self::Service { service: Arc::new(service), endpoints: Vec::new() }
    }
}

impl From<Policy> for Change {
    fn from(policy: Policy) -> Self {
        let key = format!("{}/{}", policy.namespace, policy.name).into();
        Self::Policy { key, policy: Arc::new(policy) }
    }
}

/// A synced snapshot of these.
pub fn mesh(changes: impl IntoIterator<Item = Change>) -> Snapshot {
    Snapshot { synced: true, ..apply(&Snapshot::default(), changes, None) }
}
