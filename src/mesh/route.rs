//! Where an outbound connection goes (reference sections 6.2 and 6.3). Pure: one look at one snapshot gives a plan, a
//! host name to resolve first, or the reason why not. Nothing is ever sent past the waypoint or gateway that it
//! should have taken.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::base::fault::Whose;
use crate::base::net::{Captured, Upstream};
use crate::base::text::Text;
use crate::mesh::balance::{self, Chosen, Purpose, Wanted};
use crate::mesh::identity::Identity;
use crate::mesh::seen::View;
use crate::mesh::service::{LoadBalancerMode, Service};
use crate::mesh::snapshot::{Found, Snapshot};
use crate::mesh::why::Note;
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
    /// What is known of endpoints beyond the snapshot.
    pub view: View<'a>,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Routed {
    Go(Plan),
    /// The next hop is known by its host name only.
    Resolve(Box<Named>),
}

/// How to carry one connection, and to whom.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    pub carrier: Carrier,
    /// What is dialled: the workload, its HBONE port, the waypoint or the gateway.
    pub upstream: Upstream,
    /// The `:authority` of the CONNECT (of both, where there are two); none for plain TCP.
    pub authority: Option<Text>,
    /// Any one of these must be in the peer's certificate; empty for plain TCP.
    pub expected: Arc<[Identity]>,
    /// The next hop's workload; none for passthrough.
    pub destination: Option<Arc<Workload>>,
    /// The service that the client addressed.
    pub service: Option<Arc<Service>>,
    /// The endpoint that was chosen among others; none where only this way is right.
    pub picked: Option<Text>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Carrier {
    Tcp,
    Hbone,
    /// Through the gateway of another network; any one of these must be in the certificate at the inner end (none:
    /// nobody is believed).
    DoubleHbone {
        expected: Arc<[Identity]>,
    },
}

/// A plan that lacks its address.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    pub host: Text,
    uid: Text,
    target: IpAddr,
    plan: Plan,
    /// The port of the authority, where the authority names the address that is still to be found.
    end: Option<u16>,
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
    #[error("unknown network gateway: network gateway {0} not found")]
    UnknownGateway(Text),
    #[error("no service for target address: {0}")]
    NoService(SocketAddr),
    #[error("no valid target port for workload: {0}")]
    NoTargetPort(Text),
    #[error("no valid routing destination for workload: {0}")]
    NoValidDestination(Text),
    #[error("no ip addresses were resolved for workload: {0}")]
    Unresolved(Text),
    #[error("ip addresses were resolved for workload {0}, but valid dns response had no A/AAAA records")]
    NoUsableAddress(Text),
    #[error("unsupported feature: {0}")]
    Unsupported(&'static str),
}

impl Refuse {
    /// Why, in one word (deploy/docs/access-log.md).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SelfCall => "self_call",
            Self::NotSynced => "mesh_not_synced",
            Self::NoHealthyUpstream(_) => "no_healthy_upstream",
            Self::UnknownWaypoint(_) => "unknown_waypoint",
            Self::UnknownGateway(_) => "unknown_gateway",
            Self::NoService(_) => "no_service",
            Self::NoTargetPort(_) => "no_target_port",
            Self::NoValidDestination(_) => "no_valid_destination",
            Self::Unresolved(_) => "name_unanswered",
            Self::NoUsableAddress(_) => "no_usable_address",
            Self::Unsupported(_) => "unsupported",
        }
    }

    /// Whose fault it is.
    pub fn whose(&self) -> Whose {
        match self {
            Self::SelfCall => Whose::Client,
            Self::NotSynced | Self::Unsupported(_) => Whose::Us,
            Self::NoHealthyUpstream(_)
            | Self::UnknownWaypoint(_)
            | Self::UnknownGateway(_)
            | Self::NoService(_)
            | Self::NoTargetPort(_)
            | Self::NoValidDestination(_)
            | Self::Unresolved(_)
            | Self::NoUsableAddress(_) => Whose::Mesh,
        }
    }
}

impl Named {
    /// The whole plan, with one of the addresses that the name has: of the target's family where there is one.
    /// `None`: nobody answered, or the name isn't known.
    pub fn at(self, found: Option<&[IpAddr]>, random: &mut fastrand::Rng) -> Result<Plan, Refuse> {
        let found = found.ok_or(Refuse::Unresolved(self.uid.clone()))?;
        let is_alike = |ip: &&IpAddr| ip.is_ipv4() == self.target.is_ipv4();
        let alike: Vec<_> = found.iter().filter(is_alike).collect();
        let ip = random.choice(alike).or_else(|| random.choice(found));
        let ip = *ip.ok_or(Refuse::NoUsableAddress(self.uid))?;
        let mut plan = self.plan;
        plan.upstream.0.set_ip(ip);
        if let Some(port) = self.end {
            plan.authority = Some(SocketAddr::new(ip, port).to_string().into());
        }
        Ok(plan)
    }
}

impl Plan {
    /// Whether the next hop is the destination, rather than a waypoint or gateway before it.
    pub fn ends_at_next_hop(&self) -> bool {
        let asked = self.authority.as_deref().and_then(|authority| authority.parse::<SocketAddr>().ok());
        match self.carrier {
            Carrier::Tcp => true,
            Carrier::Hbone => asked.is_some_and(|asked| asked.ip() == self.upstream.ip()),
            Carrier::DoubleHbone { .. } => false,
        }
    }
}

/// Whether a captured connection would come straight back to one of our own listeners.
pub fn self_call(target: Captured, illegal_ports: &[u16]) -> bool {
    target.ip().is_loopback() && illegal_ports.contains(&target.port())
}

/// Decides where a connection goes.
pub fn route(request: &Request<'_>, random: &mut fastrand::Rng) -> Result<Routed, Refuse> {
    let Request { snapshot, source, target, .. } = *request;
    if !snapshot.synced {
        return Err(Refuse::NotSynced);
    }
    let namespace = Some(&*source.namespace);
    let meant = match snapshot.lookup(request.network, target.ip(), namespace) {
        Some(Found::Service(service)) => Some(service),
        Some(Found::Workload(_)) | None => None,
    };
    if let Some(service) = meant {
        request.view.note(|| Note::Service(service.key.clone()));
    }
    if let Some(service) = meant
        && let Some(waypoint) = waypoint_of(service, random)
    {
        return through_waypoint(request, waypoint, Some(service), random);
    }

    // The reference looks on the caller's own network from here on, and lets virtual addresses go first.
    let at_vip = snapshot.service_at(&source.network, target.ip(), namespace);
    let chosen = match at_vip {
        Some(service) if service.mode() == LoadBalancerMode::Passthrough => {
            request.view.note(|| Note::PassthroughService(service.key.clone()));
            None
        }
        Some(service) => balance::pick(&wanted(request, service, target.port(), Purpose::Standard), random),
        None => snapshot
            .workload_at(&source.network, target.ip())
            .map(|workload| Chosen { workload, port: Some(target.port()) }),
    };
    match (chosen, at_vip) {
        (None, _) if meant.is_some_and(|service| service.mode() != LoadBalancerMode::Passthrough) => {
            Err(Refuse::NoHealthyUpstream(target.0))
        }
        (None, _) => {
            request.view.note(|| Note::Passthrough);
            Ok(Routed::Go(passthrough(target)))
        }
        (Some(chosen), None) => {
            request.view.note(|| Note::Workload(chosen.workload.uid.clone()));
            match &chosen.workload.waypoint {
                Some(waypoint) if !is_waypoint(request, waypoint) => {
                    through_waypoint(request, waypoint, None, random)
                }
                Some(waypoint) => {
                    request.view.note(|| Note::CallerIsWaypoint(name(waypoint)));
                    direct(request, chosen, None, random)
                }
                None => direct(request, chosen, None, random),
            }
        }
        (Some(chosen), Some(service)) => direct(request, chosen, Some(service), random),
    }
}

fn wanted<'a>(request: &Request<'a>, service: &'a Service, port: u16, purpose: Purpose) -> Wanted<'a> {
    let Request { snapshot, source, view, .. } = *request;
    Wanted { snapshot, service, port, source, purpose, view }
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
        picked: None,
    }
}

/// What is dialled next, before its address is known.
struct Hop<'a> {
    workload: &'a Arc<Workload>,
    /// The service that it was found by, for its address families and names.
    service: Option<&'a Arc<Service>>,
    port: u16,
}

/// What the CONNECT asks for.
enum Ask {
    /// No CONNECT at all.
    Nothing,
    For(Text),
    /// The hop's own address with this port.
    Port(u16),
}

fn direct(
    request: &Request<'_>,
    Chosen { workload, port }: Chosen<'_>,
    service: Option<&Arc<Service>>,
    random: &mut fastrand::Rng,
) -> Result<Routed, Refuse> {
    if workload.network != request.source.network {
        let service = service.ok_or(Refuse::NoService(request.target.0))?;
        return through_gateway(request, workload, service, &service.subject_alt_names, random);
    }
    let end = port.ok_or_else(|| Refuse::NoTargetPort(workload.name.clone()))?;
    let (carrier, port, ask) = match workload.protocol {
        Protocol::Tcp => (Carrier::Tcp, end, Ask::Nothing),
        Protocol::Hbone => (Carrier::Hbone, HBONE_PORT, Ask::Port(end)),
    };
    let picked = service.map(|_| workload.uid.clone());
    plan(request, &Hop { workload, service, port }, carrier, ask, Meant { service, picked })
}

/// HBONE to a waypoint, which is told where the client wanted to go.
fn through_waypoint(
    request: &Request<'_>,
    waypoint: &GatewayAddress,
    meant: Option<&Arc<Service>>,
    random: &mut fastrand::Rng,
) -> Result<Routed, Refuse> {
    let target = request.target.0;
    request.view.note(|| Note::Waypoint(name(waypoint)));
    let (Chosen { workload, port }, service) =
        next_hop(request, waypoint, random).ok_or_else(|| Refuse::UnknownWaypoint(name(waypoint)))?;
    if workload.network != request.source.network {
        // The gateway there is asked for the service by name, so there must be one.
        let meant = meant.ok_or(Refuse::NoService(target))?;
        let names = service.map_or(&[][..], |service| &service.subject_alt_names);
        return through_gateway(request, workload, meant, names, random);
    }
    let port = port.ok_or_else(|| Refuse::NoTargetPort(workload.name.clone()))?;
    let picked = meant.map(|_| workload.uid.clone());
    let hop = Hop { workload, service, port };
    plan(request, &hop, Carrier::Hbone, Ask::For(target.to_string().into()), Meant { service: meant, picked })
}

/// HBONE within HBONE to another network: its gateway is told the service's name and port, and so is the far end.
/// `names`: who may be at the far end.
fn through_gateway(
    request: &Request<'_>,
    remote: &Workload,
    meant: &Arc<Service>,
    names: &[Text],
    random: &mut fastrand::Rng,
) -> Result<Routed, Refuse> {
    let gateway =
        remote.network_gateway.as_ref().ok_or_else(|| Refuse::NoValidDestination(remote.name.clone()))?;
    let network = &remote.network;
    request.view.note(|| Note::Gateway { network: network.clone(), gateway: name(gateway) });
    let (Chosen { workload, port }, service) =
        next_hop(request, gateway, random).ok_or_else(|| Refuse::UnknownGateway(name(gateway)))?;
    let port = port.ok_or_else(|| Refuse::NoTargetPort(workload.name.clone()))?;
    let carrier = Carrier::DoubleHbone { expected: spiffe(names).collect() };
    // The port that the client asked for, not where some endpoint listens: the far side maps it.
    let authority = format!("{}:{}", meant.key.hostname, request.target.port());
    let meant = Meant { service: Some(meant), picked: Some(remote.uid.clone()) };
    plan(request, &Hop { workload, service, port }, carrier, Ask::For(authority.into()), meant)
}

/// What the client meant, and which of several endpoints it got.
struct Meant<'a> {
    service: Option<&'a Arc<Service>>,
    picked: Option<Text>,
}

fn plan(
    request: &Request<'_>,
    hop: &Hop<'_>,
    carrier: Carrier,
    ask: Ask,
    meant: Meant<'_>,
) -> Result<Routed, Refuse> {
    let Hop { workload, service, port } = *hop;
    let target = request.target.ip();
    let families = service.and_then(|service| service.ip_families);
    let found = balance::pick_address(workload, target, families, request.ipv6);
    if found.is_none() && workload.hostname.is_empty() {
        return Err(Refuse::NoValidDestination(workload.name.clone()));
    }
    let ip = found.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let (authority, end) = match ask {
        Ask::Nothing => (None, None),
        Ask::For(text) => (Some(text), None),
        Ask::Port(end) => (Some(SocketAddr::new(ip, end).to_string().into()), Some(end)),
    };
    let names = service.map_or(&[][..], |service| &service.subject_alt_names);
    let expected: Arc<[Identity]> = match carrier {
        Carrier::Tcp => Arc::new([]),
        Carrier::Hbone | Carrier::DoubleHbone { .. } => spiffe(names).chain([workload.identity()]).collect(),
    };
    let plan = Plan {
        carrier,
        upstream: Upstream(SocketAddr::new(ip, port)),
        authority,
        expected,
        destination: Some(workload.clone()),
        service: meant.service.cloned(),
        picked: meant.picked,
    };
    Ok(match found {
        Some(_) => Routed::Go(plan),
        None => {
            let (host, uid) = (workload.hostname.clone(), workload.uid.clone());
            Routed::Resolve(Box::new(Named { host, uid, target, plan, end }))
        }
    })
}

/// Those of a service's names that are identities.
fn spiffe(names: &[Text]) -> impl Iterator<Item = Identity> {
    names.iter().filter_map(|name| name.parse().ok())
}

/// One of the weighted waypoints, else the only one.
fn waypoint_of<'a>(service: &'a Service, random: &mut fastrand::Rng) -> Option<&'a GatewayAddress> {
    let weighted = service.weighted_waypoints.iter().map(|(waypoint, weight)| (waypoint, *weight));
    balance::pick_weighted(weighted, random).or(service.waypoint.as_ref()).map(|waypoint| &**waypoint)
}

/// One of the workloads of a waypoint or a network's gateway, and the service that it stands behind.
fn next_hop<'a>(
    request: &Request<'a>,
    gateway: &'a GatewayAddress,
    random: &mut fastrand::Rng,
) -> Option<(Chosen<'a>, Option<&'a Arc<Service>>)> {
    let port = gateway.hbone_mtls_port;
    let service = gateway_service(request, gateway);
    let chosen = match (&gateway.destination, service) {
        // Passthrough counts for virtual addresses only: there is nothing to pass through to.
        (GatewayDestination::Address { .. }, Some(service))
            if service.mode() == LoadBalancerMode::Passthrough =>
        {
            None
        }
        (_, Some(service)) => balance::pick(&wanted(request, service, port, Purpose::Waypoint), random),
        (_, None) => gateway_workload(request.snapshot, gateway)
            .filter(|workload| !request.view.is_tried(&workload.uid))
            .map(|workload| Chosen { workload, port: Some(port) }),
    };
    Some((chosen?, service))
}

fn gateway_service<'a>(request: &Request<'a>, gateway: &'a GatewayAddress) -> Option<&'a Arc<Service>> {
    match &gateway.destination {
        GatewayDestination::Address { network, ip } => {
            request.snapshot.service_at(network, *ip, Some(&request.source.namespace))
        }
        GatewayDestination::Hostname(key) => request.snapshot.service(key),
    }
}

fn gateway_workload<'a>(snapshot: &'a Snapshot, gateway: &GatewayAddress) -> Option<&'a Arc<Workload>> {
    match &gateway.destination {
        GatewayDestination::Address { network, ip } => snapshot.workload_at(network, *ip),
        GatewayDestination::Hostname(key) => snapshot.workload_by_host(key),
    }
}

fn name(gateway: &GatewayAddress) -> Text {
    match &gateway.destination {
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
    match gateway_service(request, waypoint) {
        Some(service) => {
            snapshot.endpoints(&service.key).filter_map(|serving| serving.workload).any(is_caller)
        }
        None => gateway_workload(snapshot, waypoint).is_some_and(is_caller),
    }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
