//! A workload: a pod, a virtual machine or an external endpoint, as the mesh knows it.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::base::text::{Interner, Pool, Text};
use crate::mesh::identity::Identity;
use crate::mesh::service::ServiceKey;

/// One workload. A value of this type is valid: addresses parsed, enums known, names defaulted.
/// What it has in common with others reads as if it were its own.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Primary key, e.g. `Kubernetes//Pod/default/web-1`.
    pub uid: Text,
    pub name: Text,
    pub addresses: Vec<IpAddr>,
    pub node: Text,
    pub network_mode: NetworkMode,
    pub protocol: Protocol,
    pub native_tunnel: bool,
    pub status: Health,
    pub capacity: u32,
    pub common: Arc<Common>,
}

/// What the workloads of one deployment have in common in one place; three quarters of what is known of each.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Common {
    pub namespace: Text,
    pub network: Text,
    pub trust_domain: Text,
    pub service_account: Text,
    pub waypoint: Option<Arc<GatewayAddress>>,
    pub network_gateway: Option<Arc<GatewayAddress>>,
    pub workload_name: Text,
    pub workload_type: Text,
    pub canonical_name: Text,
    pub canonical_revision: Text,
    pub hostname: Text,
    pub application_tunnel: Option<ApplicationTunnel>,
    /// `namespace/name` of the selector policies that name this workload.
    pub authorization_policies: Vec<Text>,
    pub cluster_id: Text,
    pub locality: Locality,
    /// The services this workload serves, with the port map of each (service port -> target port).
    pub services: Vec<(ServiceKey, Vec<PortPair>)>,
}

/// What workloads share, while they are read. Owned by one thread.
#[derive(Default)]
pub struct Shared {
    pub texts: Interner,
    pub commons: Pool<Common>,
}

impl Deref for Workload {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// A change makes the common part the workload's own first.
impl DerefMut for Workload {
    fn deref_mut(&mut self) -> &mut Common {
        Arc::make_mut(&mut self.common)
    }
}

impl Workload {
    /// A healthy plaintext pod of capacity 1 without addresses; everything unsaid is empty.
    pub fn plain(uid: &str, namespace: &str, name: &str) -> Self {
        Self {
            uid: uid.into(),
            name: name.into(),
            addresses: Vec::new(),
            node: Text::default(),
            network_mode: NetworkMode::Standard,
            protocol: Protocol::Tcp,
            native_tunnel: false,
            status: Health::Healthy,
            capacity: 1,
            common: Arc::new(Common { namespace: namespace.into(), ..Common::default() }),
        }
    }

    /// Addresses that find it. Host-network workloads share their node's, so no address tells them apart.
    pub fn own_addresses(&self) -> &[IpAddr] {
        match self.network_mode {
            NetworkMode::Standard => &self.addresses,
            NetworkMode::HostNetwork => &[],
        }
    }

    /// The ports this workload maps for a service, if it serves it.
    pub fn ports_for(&self, service: &ServiceKey) -> Option<&[PortPair]> {
        self.services.iter().find(|(key, _)| key == service).map(|(_, ports)| ports.as_slice())
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Locality {
    pub region: Text,
    pub zone: Text,
    pub subzone: Text,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ApplicationTunnel {
    pub protocol: TunnelProtocol,
    pub port: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
