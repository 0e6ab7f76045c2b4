//! Where an outbound connection goes (reference section 6.2). Pure: one look at one snapshot gives a plan or the
//! reason why not. What isn't built yet (other networks' gateways, host names resolved on demand) is refused by
//! name: nothing is ever sent past the waypoint or gateway it should have taken.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::base::fault::Whose;
use crate::base::net::{Captured, Upstream};
use crate::base::text::Text;
use crate::mesh::balance::{self, Chosen, Purpose};
use crate::mesh::identity::Identity;
use crate::mesh::service::{LoadBalancerMode, Service};
use crate::mesh::snapshot::{Found, Snapshot};
use crate::mesh::workload::{GatewayAddress, GatewayDestination, Protocol, Workload};

/// Where every workload in the mesh takes HBONE.
pub const HBONE_PORT: u16 = 15008;

/// One connection that wants to go somewhere.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub snapshot: &'a Snapshot,
    /// The network of this proxy.
    pub network: &'a str,
    /// The pod that calls.
    pub source: &'a Workload,
    /// The address it calls from.
    pub caller: IpAddr,
    pub target: Captured,
    pub ipv6: bool,
}

/// How to carry one connection, and to whom.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    pub carrier: Carrier,
    /// What is dialled: the workload, its HBONE port, or the waypoint.
    pub upstream: Upstream,
    /// The `:authority` of the CONNECT; none for plain TCP.
    pub authority: Option<Text>,
    /// Any one of these must be in the peer's certificate; empty for plain TCP.
    pub expected: Arc<[Identity]>,
    /// The next hop's workload; none for passthrough.
    pub destination: Option<Arc<Workload>>,
    /// The service that the client addressed.
    pub service: Option<Arc<Service>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    Tcp,
    Hbone,
}

/// Why a connection goes nowhere. The texts are the reference's (section 6.5).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refuse {
    #[error("attempted recursive call to ourselves")]
    SelfCall,
    #[error("the mesh is not known yet")]
    NotSynced,
    #[error("no healthy upstream: {0}")]
    NoHealthyUpstream(SocketAddr),
    #[error("unknown waypoint: waypoint {0} not found")]
    UnknownWaypoint(Text),
    #[error("no valid target port for workload: {0}")]
    NoTargetPort(Text),
    #[error("no valid routing destination for workload: {0}")]
    NoValidDestination(Text),
    #[error("unsupported feature: {0}")]
    Unsupported(&'static str),
}

impl Refuse {
    /// Whose fault it is.
    pub fn whose(&self) -> Whose {
        match self {
            Self::SelfCall => Whose::Client,
            Self::NotSynced | Self::Unsupported(_) => Whose::Us,
            Self::NoHealthyUpstream(_)
            | Self::UnknownWaypoint(_)
            | Self::NoTargetPort(_)
            | Self::NoValidDestination(_) => Whose::Mesh,
        }
    }
}

/// Whether a captured connection would come straight back to one of our own listeners.
pub fn self_call(target: Captured, illegal_ports: &[u16]) -> bool {
    target.ip().is_loopback() && illegal_ports.contains(&target.port())
}

/// Decides where a connection goes.
pub fn route(request: &Request<'_>, random: &mut fastrand::Rng) -> Result<Plan, Refuse> {
    let Request { snapshot, source, target, .. } = *request;
    if !snapshot.synced {
        return Err(Refuse::NotSynced);
    }
    let namespace = Some(&*source.namespace);
    let meant = match snapshot.lookup(request.network, target.ip(), namespace) {
        Some(Found::Service(service)) => Some(service),
        Some(Found::Workload(_)) | None => None,
    };
    if let Some(service) = meant
        && let Some(waypoint) = waypoint_of(service, random)
    {
        return through_waypoint(request, waypoint, Some(service), random);
    }

    // The reference looks on the caller's own network from here on, and lets virtual addresses go first.
    let at_vip = snapshot.service_at(&source.network, target.ip(), namespace);
    let chosen = match at_vip {
        Some(service) if service.mode() == LoadBalancerMode::Passthrough => None,
        Some(service) => balance::pick(snapshot, service, target.port(), source, Purpose::Standard, random),
        None => snapshot
            .workload_at(&source.network, target.ip())
            .map(|workload| Chosen { workload, port: Some(target.port()) }),
    };
    match (chosen, at_vip) {
        (None, _) if meant.is_some_and(|service| service.mode() != LoadBalancerMode::Passthrough) => {
            Err(Refuse::NoHealthyUpstream(target.0))
        }
        (None, _) => Ok(passthrough(target)),
        (Some(chosen), None) => match &chosen.workload.waypoint {
            Some(waypoint) if !is_waypoint(request, waypoint) => {
                through_waypoint(request, waypoint, None, random)
            }
            Some(_) | None => direct(request, chosen, None),
        },
        (Some(chosen), Some(service)) => direct(request, chosen, Some(service)),
    }
}

/// Plain TCP to wherever the client wanted to go: nobody in the mesh is known there.
fn passthrough(target: Captured) -> Plan {
    Plan {
        carrier: Carrier::Tcp,
        upstream: Upstream(target.0),
        authority: None,
        expected: Arc::new([]),
        destination: None,
        service: None,
    }
}

fn direct(request: &Request<'_>, chosen: Chosen<'_>, service: Option<&Arc<Service>>) -> Result<Plan, Refuse> {
    let workload = chosen.workload;
    let ip = address(request, workload, service)?;
    let port = chosen.port.ok_or_else(|| Refuse::NoTargetPort(workload.name.clone()))?;
    let end = SocketAddr::new(ip, port);
    let (carrier, upstream, authority, expected) = match workload.protocol {
        Protocol::Tcp => (Carrier::Tcp, end, None, Arc::new([]) as Arc<[Identity]>),
        Protocol::Hbone => (
            Carrier::Hbone,
            SocketAddr::new(ip, HBONE_PORT),
            Some(end.to_string().into()),
            expected(workload, service),
        ),
    };
    Ok(Plan {
        carrier,
        upstream: Upstream(upstream),
        authority,
        expected,
        destination: Some(workload.clone()),
        service: service.cloned(),
    })
}

/// The address to dial, or why there is none to be had here.
fn address(
    request: &Request<'_>,
    workload: &Workload,
    service: Option<&Arc<Service>>,
) -> Result<IpAddr, Refuse> {
    if workload.network != request.source.network {
        return Err(match workload.network_gateway {
            Some(_) => Refuse::Unsupported("a destination in another network"),
            None => Refuse::NoValidDestination(workload.name.clone()),
        });
    }
    let families = service.and_then(|service| service.ip_families);
    match balance::pick_address(workload, request.target.ip(), families, request.ipv6) {
        Some(ip) => Ok(ip),
        None if workload.hostname.is_empty() => Err(Refuse::NoValidDestination(workload.name.clone())),
        None => Err(Refuse::Unsupported("a workload known by its host name only")),
    }
}

fn expected(workload: &Workload, service: Option<&Arc<Service>>) -> Arc<[Identity]> {
    let names = service.map_or(&[][..], |service| &service.subject_alt_names);
    names.iter().filter_map(|name| name.parse().ok()).chain([workload.identity()]).collect()
}

/// One of the weighted waypoints, else the only one.
fn waypoint_of<'a>(service: &'a Service, random: &mut fastrand::Rng) -> Option<&'a GatewayAddress> {
    let weighted = service.weighted_waypoints.iter().map(|(waypoint, weight)| (waypoint, *weight));
    balance::pick_weighted(weighted, random).or(service.waypoint.as_ref()).map(|waypoint| &**waypoint)
}

/// HBONE to a waypoint, which is told where the client wanted to go.
fn through_waypoint(
    request: &Request<'_>,
    waypoint: &GatewayAddress,
    meant: Option<&Arc<Service>>,
    random: &mut fastrand::Rng,
) -> Result<Plan, Refuse> {
    let Request { snapshot, source, target, .. } = *request;
    let port = waypoint.hbone_mtls_port;
    let service = waypoint_service(request, waypoint);
    let chosen = match (&waypoint.destination, service) {
        // Passthrough counts for virtual addresses only: there is nothing to pass through to.
        (GatewayDestination::Address { .. }, Some(service))
            if service.mode() == LoadBalancerMode::Passthrough =>
        {
            None
        }
        (_, Some(service)) => balance::pick(snapshot, service, port, source, Purpose::Waypoint, random),
        (_, None) => {
            waypoint_workload(snapshot, waypoint).map(|workload| Chosen { workload, port: Some(port) })
        }
    };
    let chosen = chosen.ok_or_else(|| Refuse::UnknownWaypoint(name(waypoint)))?;
    let ip = address(request, chosen.workload, service)?;
    let port = chosen.port.ok_or_else(|| Refuse::NoTargetPort(chosen.workload.name.clone()))?;
    Ok(Plan {
        carrier: Carrier::Hbone,
        upstream: Upstream(SocketAddr::new(ip, port)),
        authority: Some(target.to_string().into()),
        expected: expected(chosen.workload, service),
        destination: Some(chosen.workload.clone()),
        service: meant.cloned(),
    })
}

fn waypoint_service<'a>(request: &Request<'a>, waypoint: &'a GatewayAddress) -> Option<&'a Arc<Service>> {
    match &waypoint.destination {
        GatewayDestination::Address { network, ip } => {
            request.snapshot.service_at(network, *ip, Some(&request.source.namespace))
        }
        GatewayDestination::Hostname(key) => request.snapshot.service(key),
    }
}

fn waypoint_workload<'a>(snapshot: &'a Snapshot, waypoint: &GatewayAddress) -> Option<&'a Arc<Workload>> {
    match &waypoint.destination {
        GatewayDestination::Address { network, ip } => snapshot.workload_at(network, *ip),
        GatewayDestination::Hostname(key) => snapshot.workload_by_host(key),
    }
}

fn name(waypoint: &GatewayAddress) -> Text {
    match &waypoint.destination {
        GatewayDestination::Address { network, ip } => format!("{network}/{ip}").into(),
        GatewayDestination::Hostname(key) => key.hostname.clone(),
    }
}

/// Whether the caller is this waypoint: then its traffic has been through it and goes on.
fn is_waypoint(request: &Request<'_>, waypoint: &GatewayAddress) -> bool {
    let Request { snapshot, source, caller, .. } = *request;
    let is_caller = |workload: &Arc<Workload>| {
        workload.service_account == source.service_account
            && workload.namespace == source.namespace
            && workload.trust_domain == source.trust_domain
            && workload.addresses.contains(&caller)
    };
    match waypoint_service(request, waypoint) {
        Some(service) => {
            snapshot.endpoints(&service.key).filter_map(|serving| serving.workload).any(is_caller)
        }
        None => waypoint_workload(snapshot, waypoint).is_some_and(is_caller),
    }
}
