//! Where an inbound CONNECT goes (reference sections 7.2 to 7.4 and 7.7). Whatever it asks for, it only ever reaches
//! the address it came to; what is checked here is whether it may ask, and which port it means.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::base::net::Upstream;
use crate::mesh::authority::{Authority, NotAnAuthority};
use crate::mesh::service::{Service, ServiceKey};
use crate::mesh::snapshot::{Found, Snapshot};
use crate::mesh::workload::{GatewayAddress, GatewayDestination, TunnelProtocol, Workload};

/// One CONNECT that came to a local workload.
#[derive(Clone, Copy)]
pub struct InboundRequest<'a> {
    pub snapshot: &'a Snapshot,
    /// The network of this proxy.
    pub network: &'a str,
    pub local: &'a Workload,
    /// The address that the HBONE connection was made to.
    pub connection_dst: IpAddr,
    pub authority: &'a str,
    pub illegal_ports: &'a [u16],
}

/// Where it goes.
#[derive(Clone, PartialEq, Debug)]
pub struct Inbound {
    pub upstream: Upstream,
    /// The service that a host name as authority names; none for an address, then any of the workload's.
    pub named: Option<Arc<Service>>,
    /// How the application wants to be told about the caller, if at all.
    pub tunnel: Option<Tunnel>,
}

/// The application's own way of being called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    pub protocol: TunnelProtocol,
    /// What the caller asked for, to be written into the header.
    pub target: SocketAddr,
}

/// Why it goes nowhere. The texts are the reference's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InboundRefuse {
    #[error(transparent)]
    NoAuthority(#[from] NotAnAuthority),
    #[error("ip mismatch: {connection} != {asked}")]
    IpMismatch { connection: IpAddr, asked: IpAddr },
    #[error("no service or workload for hostname: {0}")]
    UnknownHost(String),
    #[error("requested service {host}:{port} found, but cannot resolve port")]
    NoPort { host: String, port: u16 },
    #[error("requested service {0} found, but has no IP addresses")]
    NoAddress(String),
    #[error("attempted recursive call to ourselves")]
    SelfCall,
}

impl InboundRefuse {
    /// The HTTP status to answer with.
    pub fn status(&self) -> u16 {
        match self {
            Self::NoAuthority(_) | Self::IpMismatch { .. } => 400,
            Self::UnknownHost(_) | Self::NoPort { .. } | Self::NoAddress(_) | Self::SelfCall => 503,
        }
    }
}

impl Inbound {
    /// The service that the caller meant, for the labels.
    pub fn service(
        &self,
        snapshot: &Snapshot,
        local: &Workload,
        forwarded_host: Option<&str>,
    ) -> Option<Arc<Service>> {
        let port = self.upstream.port();
        match &self.named {
            Some(service) => guess(snapshot, local, [service].into_iter(), forwarded_host, port),
            None => guess_service(snapshot, local, forwarded_host, port),
        }
    }
}

/// Decides where an inbound CONNECT goes.
pub fn inbound(request: &InboundRequest<'_>) -> Result<Inbound, InboundRefuse> {
    let InboundRequest { snapshot, local, connection_dst, .. } = *request;
    let authority = Authority::parse(request.authority)?;
    validate(request, authority)?;
    let (port, named) = match authority {
        Authority::Address(address) => (address.port(), None),
        Authority::Host { name, port } => {
            let service = snapshot
                .service_by_host(name, Some(&local.namespace))
                .ok_or_else(|| InboundRefuse::UnknownHost(name.to_owned()))?;
            let target = local_port(snapshot, local, service, port)
                .ok_or_else(|| InboundRefuse::NoPort { host: name.to_owned(), port })?;
            (target, Some(service))
        }
    };
    if request.illegal_ports.contains(&port) {
        return Err(InboundRefuse::SelfCall);
    }
    let (mut upstream_port, mut tunnel) = (port, None);
    if let Some(wanted) = local.application_tunnel {
        upstream_port = wanted.port.unwrap_or(port);
        let target = tunnel_target(request, authority, named)?;
        tunnel = Some(Tunnel { protocol: wanted.protocol, target });
    }
    let upstream = Upstream(SocketAddr::new(connection_dst, upstream_port));
    Ok(Inbound { upstream, named: named.cloned(), tunnel })
}

/// The asked-for address must be the one that was called, or that of something this workload is the waypoint of.
fn validate(request: &InboundRequest<'_>, authority: Authority<'_>) -> Result<(), InboundRefuse> {
    let InboundRequest { snapshot, local, connection_dst, .. } = *request;
    let Authority::Address(address) = authority else { return Ok(()) };
    if address.ip() == connection_dst || local.application_tunnel.is_some() {
        return Ok(());
    }
    let waypoint = match snapshot.lookup(request.network, address.ip(), None) {
        Some(Found::Workload(workload)) => workload.waypoint.as_ref(),
        Some(Found::Service(service)) => service.waypoint.as_ref(),
        None => None,
    };
    match waypoint {
        Some(waypoint) if is_here(request, waypoint) => Ok(()),
        Some(_) | None => Err(InboundRefuse::IpMismatch { connection: connection_dst, asked: address.ip() }),
    }
}

fn is_here(request: &InboundRequest<'_>, waypoint: &GatewayAddress) -> bool {
    let InboundRequest { snapshot, local, connection_dst, .. } = *request;
    let serves = |key: &ServiceKey| snapshot.endpoint(key, &local.uid).is_some();
    match &waypoint.destination {
        GatewayDestination::Address { network, ip } => match snapshot.lookup(network, *ip, None) {
            Some(Found::Workload(workload)) => workload.addresses.contains(&connection_dst),
            Some(Found::Service(service)) => serves(&service.key),
            None => false,
        },
        GatewayDestination::Hostname(key) => match snapshot.service(key) {
            Some(service) => serves(&service.key),
            None => snapshot
                .workload_by_host(key)
                .is_some_and(|workload| workload.addresses.contains(&connection_dst)),
        },
    }
}

/// Where the local workload listens for a port of a service.
fn local_port(snapshot: &Snapshot, local: &Workload, service: &Service, port: u16) -> Option<u16> {
    let own = snapshot
        .endpoint(&service.key, &local.uid)
        .and_then(|serving| serving.ports.iter().find(|pair| pair.service == port).map(|pair| pair.target));
    own.or_else(|| service.target_port(port)).filter(|target| *target > 0)
}

/// A service named by host shows one of its virtual addresses: of our network and IPv4 before IPv6, else any.
fn tunnel_target(
    request: &InboundRequest<'_>,
    authority: Authority<'_>,
    named: Option<&Arc<Service>>,
) -> Result<SocketAddr, InboundRefuse> {
    match authority {
        Authority::Address(address) => Ok(address),
        Authority::Host { name, port } => named
            .and_then(|service| {
                service.vips.iter().max_by_key(|vip| match (*vip.network == *request.network, vip.ip) {
                    (true, IpAddr::V4(_)) => 2,
                    (true, IpAddr::V6(_)) => 1,
                    (false, _) => 0,
                })
            })
            .map(|vip| SocketAddr::new(vip.ip, port))
            .ok_or_else(|| InboundRefuse::NoAddress(name.to_owned())),
    }
}

/// The service that a caller of `port` meant, among those the workload serves: the one that the Forwarded header
/// names, else the first one that leads to the port.
pub fn guess_service(
    snapshot: &Snapshot,
    local: &Workload,
    forwarded_host: Option<&str>,
    port: u16,
) -> Option<Arc<Service>> {
    let served = local.services.iter().filter_map(|(key, _)| snapshot.service(key));
    guess(snapshot, local, served, forwarded_host, port)
}

fn guess<'a>(
    snapshot: &'a Snapshot,
    local: &Workload,
    candidates: impl Iterator<Item = &'a Arc<Service>> + Clone,
    forwarded_host: Option<&str>,
    port: u16,
) -> Option<Arc<Service>> {
    let leads_here = |service: &&Arc<Service>| {
        service.ports.iter().any(|pair| pair.target == port)
            || snapshot
                .endpoint(&service.key, &local.uid)
                .is_some_and(|serving| serving.ports.iter().any(|pair| pair.target == port))
    };
    let is_named = |service: &&Arc<Service>| forwarded_host == Some(&*service.key.hostname);
    candidates.clone().find(is_named).or_else(|| candidates.clone().find(leads_here)).cloned()
}
