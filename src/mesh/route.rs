//! Where an outbound connection goes (reference sections 6.2 and 6.3). Pure: one look at one snapshot gives a plan, a
//! host name to resolve first, or the reason why not. Nothing is ever sent past the waypoint or gateway that it
//! should have taken.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::base::net::{Captured, Upstream, address_text};
use crate::base::text::Text;
use crate::mesh::balance::{self, Chosen, Purpose, Wanted};
use crate::mesh::identity::Identity;
use crate::mesh::plan::{Carrier, Named, Plan, Refuse};
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
    let found = snapshot.lookup(request.network, target.ip(), namespace);
    let meant = match found {
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

    let (chosen, at_vip) = match seen_by_caller(request, found) {
        Some(Found::Service(service)) if service.mode() == LoadBalancerMode::Passthrough => {
            request.view.note(|| Note::PassthroughService(service.key.clone()));
            (None, Some(service))
        }
        Some(Found::Service(service)) => {
            let wanted = wanted(request, service, target.port(), Purpose::Standard);
            (balance::pick(&wanted, random), Some(service))
        }
        Some(Found::Workload(workload)) => (Some(Chosen { workload, port: Some(target.port()) }), None),
        None => (None, None),
    };
    match (chosen, at_vip) {
        (None, _) if meant.is_some_and(|service| service.mode() != LoadBalancerMode::Passthrough) => {
            Err(Refuse::NoHealthyUpstream(target.0))
        }
        (None, _) => {
            request.view.note(|| Note::Passthrough);
            Ok(Routed::Go(passthrough(target)))
        }
        (Some(chosen), at_vip) => {
            if at_vip.is_none() {
                request.view.note(|| Note::Workload(chosen.workload.uid.clone()));
            }
            let own = chosen.workload.waypoint.as_ref();
            match own.filter(|_| meant.is_none() && chosen.workload.network == source.network) {
                Some(waypoint) if !is_waypoint(request, waypoint) => {
                    through_waypoint(request, waypoint, at_vip, random)
                }
                Some(waypoint) => {
                    request.view.note(|| Note::CallerIsWaypoint(name(waypoint)));
                    direct(request, chosen, at_vip, random)
                }
                None => direct(request, chosen, at_vip, random),
            }
        }
    }
}

/// What the target is on the caller's own network, where virtual addresses go first; `found`: on the proxy's, where
/// workloads do. The reference looks twice, too.
fn seen_by_caller<'a>(request: &Request<'a>, found: Option<Found<'a>>) -> Option<Found<'a>> {
    let Request { snapshot, source, target, .. } = *request;
    let service = || snapshot.service_at(&source.network, target.ip(), Some(&source.namespace));
    match found {
        // Nearly always it is one network, and that look has seen that there is no workload.
        None | Some(Found::Service(_)) if *source.network == *request.network => found,
        Some(Found::Workload(_)) if *source.network == *request.network => {
            service().map(Found::Service).or(found)
        }
        None | Some(Found::Service(_) | Found::Workload(_)) => {
            let workload = || snapshot.workload_at(&source.network, target.ip());
            service().map(Found::Service).or_else(|| workload().map(Found::Workload))
        }
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
        other_addresses: Vec::new(),
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
    plan(request, &hop, Carrier::Hbone, Ask::For(address_text(target)), Meant { service: meant, picked })
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
    let authority = match ask {
        Ask::Nothing => None,
        Ask::For(text) => Some(text),
        Ask::Port(end) => Some(address_text(SocketAddr::new(ip, end))),
    };
    let names = service.map_or(&[][..], |service| &service.subject_alt_names);
    let expected: Arc<[Identity]> = match carrier {
        Carrier::Tcp => Arc::new([]),
        Carrier::Hbone | Carrier::DoubleHbone { .. } if names.is_empty() => Arc::new([workload.identity()]),
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
        other_addresses: Vec::new(),
    };
    Ok(match found {
        Some(_) => Routed::Go(plan),
        None => {
            let (host, uid) = (workload.hostname.clone(), workload.uid.clone());
            Routed::Resolve(Box::new(Named { host, uid, target, plan }))
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
