//! A workload: a pod, a virtual machine or an external endpoint, as the mesh knows it.

use std::net::IpAddr;
use std::sync::Arc;

use crate::base::text::Text;
use crate::mesh::identity::Identity;
use crate::mesh::service::ServiceKey;

/// One workload. A value of this type is valid: addresses parsed, enums known, names defaulted.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Primary key, e.g. `Kubernetes//Pod/default/web-1`.
    pub uid: Text,
    pub name: Text,
    pub namespace: Text,
    pub addresses: Vec<IpAddr>,
    pub network: Text,
    pub network_mode: NetworkMode,
    pub protocol: Protocol,
    pub trust_domain: Text,
    pub service_account: Text,
    pub waypoint: Option<Arc<GatewayAddress>>,
    pub network_gateway: Option<Arc<GatewayAddress>>,
    pub node: Text,
    pub workload_name: Text,
    pub workload_type: Text,
    pub canonical_name: Text,
    pub canonical_revision: Text,
    pub hostname: Text,
    pub native_tunnel: bool,
    pub application_tunnel: Option<ApplicationTunnel>,
    /// `namespace/name` of the selector policies that name this workload.
    pub authorization_policies: Vec<Text>,
    pub status: Health,
    pub cluster_id: Text,
    pub locality: Locality,
    /// The services this workload serves, with the port map of each (service port -> target port).
    pub services: Vec<(ServiceKey, Vec<PortPair>)>,
    pub capacity: u32,
}

impl Workload {
    /// A healthy plaintext pod of capacity 1 without addresses; everything unsaid is empty.
    pub fn plain(uid: &str, namespace: &str, name: &str) -> Self {
        let empty = Text::default();
        Self {
            uid: uid.into(),
            name: name.into(),
            namespace: namespace.into(),
            addresses: Vec::new(),
            network: empty.clone(),
            network_mode: NetworkMode::Standard,
            protocol: Protocol::Tcp,
            trust_domain: empty.clone(),
            service_account: empty.clone(),
            waypoint: None,
            network_gateway: None,
            node: empty.clone(),
            workload_name: empty.clone(),
            workload_type: empty.clone(),
            canonical_name: empty.clone(),
            canonical_revision: empty.clone(),
            hostname: empty.clone(),
            native_tunnel: false,
            application_tunnel: None,
            authorization_policies: Vec::new(),
            status: Health::Healthy,
            cluster_id: empty.clone(),
            locality: Locality::default(),
            services: Vec::new(),
            capacity: 1,
        }
    }

    /// The ports this workload maps for a service, empty where it doesn't serve it.
    pub fn ports_for(&self, service: &ServiceKey) -> &[PortPair] {
        self.services.iter().find(|(key, _)| key == service).map_or(&[], |(_, ports)| ports)
    }

    pub fn identity(&self) -> Identity {
        Identity {
            trust_domain: self.trust_domain.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }
}

/// Service port and the port that the workload listens on for it (0: unknown or named).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortPair {
    pub service: u16,
    pub target: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NetworkMode {
    #[default]
    Standard,
    HostNetwork,
}

/// How a workload is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    #[default]
    Tcp,
    Hbone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Health {
    #[default]
    Healthy,
    Unhealthy,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Locality {
    pub region: Text,
    pub zone: Text,
    pub subzone: Text,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApplicationTunnel {
    pub protocol: TunnelProtocol,
    pub port: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunnelProtocol {
    None,
    Proxy,
}

/// Where a waypoint or a network gateway is found.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GatewayAddress {
    pub destination: GatewayDestination,
    pub hbone_mtls_port: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum GatewayDestination {
    Address { network: Text, ip: IpAddr },
    Hostname(ServiceKey),
}
