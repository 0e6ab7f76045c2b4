//! A service: names and virtual addresses in front of workloads.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::base::text::Text;
use crate::mesh::workload::{GatewayAddress, Health, PortPair};

/// `namespace/hostname`, the name of a service everywhere.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ServiceKey {
    pub namespace: Text,
    pub hostname: Text,
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.hostname)
    }
}

/// One service without its endpoints, which the snapshot keeps beside it.
#[derive(Clone, PartialEq, Debug)]
pub struct Service {
    pub key: ServiceKey,
    pub name: Text,
    pub vips: Vec<NetworkIp>,
    pub cidr_vips: Vec<NetworkCidr>,
    /// Service port -> target port; a target of 0 is named, each endpoint resolves it.
    pub ports: Vec<PortPair>,
    pub subject_alt_names: Vec<Text>,
    pub waypoint: Option<Arc<GatewayAddress>>,
    pub weighted_waypoints: Vec<(Arc<GatewayAddress>, u32)>,
    pub load_balancer: Option<LoadBalancer>,
    pub ip_families: Option<IpFamilies>,
    pub canonical: bool,
    pub visibility: Visibility,
}

impl Service {
    /// A public service without addresses or ports; everything unsaid is empty.
    pub fn plain(namespace: &str, hostname: &str, name: &str) -> Self {
        Self {
            key: ServiceKey { namespace: namespace.into(), hostname: hostname.into() },
            name: name.into(),
            vips: Vec::new(),
            cidr_vips: Vec::new(),
            ports: Vec::new(),
            subject_alt_names: Vec::new(),
            waypoint: None,
            weighted_waypoints: Vec::new(),
            load_balancer: None,
            ip_families: None,
            canonical: false,
            visibility: Visibility::Public,
        }
    }

    /// Whether a client of this namespace may use the service; `None`: asked by nobody in particular.
    pub fn is_visible_to(&self, client_namespace: Option<&str>) -> bool {
        self.visibility == Visibility::Public
            || client_namespace.is_none_or(|namespace| *self.key.namespace == *namespace)
    }

    pub fn mode(&self) -> LoadBalancerMode {
        self.load_balancer.as_ref().map_or(LoadBalancerMode::Standard, |balancer| balancer.mode)
    }

    /// Whether endpoints in this state take part.
    pub fn accepts(&self, status: Health) -> bool {
        status == Health::Healthy
            || self.load_balancer.as_ref().is_some_and(|b| b.health_policy == HealthPolicy::AllowAll)
    }

    /// The target port of `service_port`, 0 where endpoints resolve it, none where the service lacks the port.
    pub fn target_port(&self, service_port: u16) -> Option<u16> {
        self.ports.iter().find(|pair| pair.service == service_port).map(|pair| pair.target)
    }
}

impl FromStr for ServiceKey {
    type Err = NotAServiceKey;

    fn from_str(text: &str) -> Result<Self, NotAServiceKey> {
        match text.split_once('/') {
            Some((namespace, hostname)) if !hostname.is_empty() && !hostname.contains('/') => {
                Ok(Self { namespace: namespace.into(), hostname: hostname.into() })
            }
            _ => Err(NotAServiceKey(text.to_owned())),
        }
    }
}

/// Text that names no service.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not of the form NAMESPACE/HOSTNAME")]
pub struct NotAServiceKey(pub String);

/// An address on a named network (the empty name is the default network).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NetworkIp {
    pub network: Text,
    pub ip: IpAddr,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NetworkCidr {
    pub network: Text,
    pub cidr: IpNet,
}

/// One workload behind a service.
#[derive(Clone, PartialEq, Debug)]
pub struct Endpoint {
    pub workload_uid: Text,
    /// Ports that this endpoint resolves itself; they go before the service's own.
    pub ports: Vec<PortPair>,
    pub status: Health,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadBalancer {
    pub routing_preferences: Vec<Scope>,
    pub mode: LoadBalancerMode,
    pub health_policy: HealthPolicy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    Region,
    Zone,
    Subzone,
    Node,
    Cluster,
    Network,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LoadBalancerMode {
    #[default]
    Standard,
    Strict,
    Failover,
    Passthrough,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HealthPolicy {
    #[default]
    OnlyHealthy,
    AllowAll,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpFamilies {
    Dual,
    Ipv4,
    Ipv6,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Visibility {
    #[default]
    Public,
    Namespace,
}
