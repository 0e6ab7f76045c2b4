//! Where an inbound CONNECT goes (reference sections 7.2 to 7.4 and 7.7). Whatever it asks for, it only ever reaches
//! the address it came to; what is checked here is whether it may ask, and which port it means.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::base::net::Upstream;
use crate::mesh::authority::{Authority, NotAnAuthority};
use crate::mesh::service::Service;
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
    /// The address that was asked for, where that isn't the one that was called.
    pub asked: Option<IpAddr>,
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
    /// Why, in one word (deploy/docs/access-log.md).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoAuthority(_) => "no_authority",
            Self::IpMismatch { .. } => "ip_mismatch",
            Self::UnknownHost(_) => "unknown_host",
            Self::NoPort { .. } => "no_target_port",
            Self::NoAddress(_) => "no_usable_address",
            Self::SelfCall => "self_call",
        }
    }

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
    let mut asked = None;
    let (port, named) = match authority {
        Authority::Address(address) => {
            asked = Some(address.ip()).filter(|asked| *asked != connection_dst);
            (address.port(), None)
        }
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
    Ok(Inbound { upstream, asked, named: named.cloned(), tunnel })
}

/// The asked-for address must be the one that was called, or that of something this workload is the waypoint of.
fn validate(request: &InboundRequest<'_>, authority: Authority<'_>) -> Result<(), InboundRefuse> {
    let InboundRequest { snapshot, network, local, connection_dst, .. } = *request;
    let Authority::Address(address) = authority else { return Ok(()) };
    if may_ask_for(snapshot, network, local, connection_dst, address.ip()) {
        return Ok(());
    }
    Err(InboundRefuse::IpMismatch { connection: connection_dst, asked: address.ip() })
}

/// Whether a workload that was called at one address may be asked for another (reference section 7.3): for its own,
/// for any where it has an application tunnel, and for that of something it is the waypoint of.
fn may_ask_for(
    snapshot: &Snapshot,
    network: &str,
    local: &Workload,
    connection_dst: IpAddr,
    asked: IpAddr,
) -> bool {
    if asked == connection_dst || local.application_tunnel.is_some() {
        return true;
    }
    let waypoint = snapshot.lookup(network, asked, None).and_then(|found| found.waypoint());
    match waypoint.and_then(|waypoint| behind(snapshot, waypoint)) {
        Some(Found::Workload(workload)) => workload.addresses.contains(&connection_dst),
        Some(Found::Service(service)) => snapshot.endpoint(&service.key, &local.uid).is_some(),
        None => false,
    }
}

/// Whether what was asked for through this waypoint has another one by now, or none. A record that is gone doesn't say
/// so, and a waypoint that is being taken out of service (istiod calls it unhealthy at once) still serves what it has.
pub fn is_waypoint_no_more(
    snapshot: &Snapshot,
    network: &str,
    local: &Workload,
    connection_dst: IpAddr,
    asked: IpAddr,
) -> bool {
    if asked == connection_dst || local.application_tunnel.is_some() {
        return false;
    }
    let Some(found) = snapshot.lookup(network, asked, None) else { return false };
    let Some(waypoint) = found.waypoint() else { return true };
    match behind(snapshot, waypoint) {
        Some(Found::Workload(workload)) => !workload.addresses.contains(&connection_dst),
        Some(Found::Service(service)) => {
            local.ports_for(&service.key).is_none() && snapshot.member(&service.key, &local.uid).is_none()
        }
        None => {
            !matches!(waypoint.destination, GatewayDestination::Address { ip, .. } if ip == connection_dst)
        }
    }
}

/// What a waypoint's address or name leads to.
fn behind<'a>(snapshot: &'a Snapshot, waypoint: &GatewayAddress) -> Option<Found<'a>> {
    match &waypoint.destination {
        GatewayDestination::Address { network, ip } => snapshot.lookup(network, *ip, None),
        GatewayDestination::Hostname(key) => {
            let workload = || snapshot.workload_by_host(key).map(Found::Workload);
            snapshot.service(key).map(Found::Service).or_else(workload)
        }
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

/// Whether a request came through the gateway of another network, which it names: then the address that it comes
/// from is the gateway's, and says nothing of the caller (reference section 7.7). A name that can't be read is no
/// name of ours.
pub fn is_from_another_network(named: Option<&[u8]>, own: &str) -> bool {
    named.is_some_and(|named| !named.eq_ignore_ascii_case(own.as_bytes()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::delta::Change;
    use crate::mesh::fixture::{gateway, mesh, pod, service, serving};
    use crate::mesh::service::{NetworkIp, Visibility};
    use crate::mesh::workload::ApplicationTunnel;

    const SERVER: &str = "10.0.0.2";
    const WAYPOINT: &str = "10.0.0.3";
    const VIP: &str = "10.10.0.1";

    /// The workloads of the reference's matrix (section 18.5): which waypoint the server pod has, and which
    /// application tunnel the waypoint pod.
    fn matrix(of_pod: Option<&str>, tunnel: Option<u16>) -> Vec<Workload> {
        let mut server = serving(pod("server", &[SERVER]), "server", &[(81, 8181)]);
        server.waypoint = of_pod.and_then(|to| gateway(to, 15008));
        let mut waypoint = serving(pod("waypoint", &[WAYPOINT]), "waypoint", &[(15008, 15008)]);
        waypoint.application_tunnel =
            tunnel.map(|port| ApplicationTunnel { protocol: TunnelProtocol::Proxy, port: Some(port) });
        vec![server, waypoint, pod("client", &["10.0.0.1"])]
    }

    fn ask(
        workloads: &[Workload],
        of_service: Option<&str>,
        local: &str,
        authority: &str,
    ) -> Result<Inbound, InboundRefuse> {
        let server = Service {
            waypoint: of_service.and_then(|to| gateway(to, 15008)),
            ..service("server", &[VIP], &[(80, 8080), (81, 0), (82, 0), (83, 15001)])
        };
        let waypoint = service("waypoint", &["10.10.0.2"], &[(15008, 15008)]);
        let things: Vec<Change> = workloads.iter().cloned().map(Into::into).collect();
        let snapshot = mesh(things.into_iter().chain([server.into(), waypoint.into()]));
        let ip: IpAddr = local.parse().unwrap();
        inbound(&InboundRequest {
            snapshot: &snapshot,
            network: "",
            local: workloads.iter().find(|workload| workload.addresses.contains(&ip)).unwrap(),
            connection_dst: ip,
            authority,
            illegal_ports: &[15001, 15006, 15008],
        })
    }

    #[test]
    fn the_matrix_of_waypoints_and_authorities() {
        let (pod_8080, vip_8080) = ("10.0.0.2:8080", "10.10.0.1:8080");
        for (of_pod, of_service, local, authority, reached) in [
            (None, None, SERVER, pod_8080, Some("10.0.0.2:8080")),
            (None, None, SERVER, "server.default.svc.cluster.local:80", Some("10.0.0.2:8080")),
            (None, None, SERVER, "server.default.svc.cluster.local:81", Some("10.0.0.2:8181")),
            (Some(WAYPOINT), None, WAYPOINT, pod_8080, Some("10.0.0.3:8080")),
            (Some("10.10.0.2"), None, WAYPOINT, pod_8080, Some("10.0.0.3:8080")),
            (Some("waypoint"), None, WAYPOINT, pod_8080, Some("10.0.0.3:8080")),
            (None, Some(WAYPOINT), WAYPOINT, vip_8080, Some("10.0.0.3:8080")),
            (None, Some("10.10.0.2"), WAYPOINT, vip_8080, Some("10.0.0.3:8080")),
            (None, Some("waypoint"), WAYPOINT, vip_8080, Some("10.0.0.3:8080")),
            (None, None, SERVER, "10.0.0.1:8080", None),
            (None, None, WAYPOINT, "10.0.0.1:8080", None),
            (None, Some(WAYPOINT), WAYPOINT, pod_8080, None),
            (Some(WAYPOINT), None, WAYPOINT, vip_8080, None),
            (Some("10.0.0.1"), None, WAYPOINT, pod_8080, None),
            (None, None, SERVER, "127.0.0.1:15000", None),
            (None, None, SERVER, "169.254.169.254:80", None),
        ] {
            let case = format!("{of_pod:?} {of_service:?} {local} {authority}");
            let answer = ask(&matrix(of_pod, None), of_service, local, authority);
            match reached {
                Some(upstream) => assert_eq!(answer.unwrap().upstream.to_string(), upstream, "{case}"),
                None => {
                    let refusal = answer.unwrap_err();
                    let asked = authority.rsplit_once(':').unwrap().0;
                    assert_eq!(refusal.to_string(), format!("ip mismatch: {local} != {asked}"), "{case}");
                    assert_eq!(refusal.status(), 400);
                }
            }
        }
    }

    #[test]
    fn an_application_tunnel_is_told_what_was_asked_for() {
        let told = |authority| {
            let inbound = ask(&matrix(None, Some(15088)), None, WAYPOINT, authority).unwrap();
            (inbound.upstream.to_string(), inbound.tunnel.unwrap().target.to_string())
        };
        let reached = || "10.0.0.3:15088".to_owned();
        assert_eq!(told("10.0.0.2:8080"), (reached(), "10.0.0.2:8080".into()));
        assert_eq!(told("10.10.0.1:8080"), (reached(), "10.10.0.1:8080".into()));
        assert_eq!(told("server.default.svc.cluster.local:80"), (reached(), "10.10.0.1:80".into()));
    }

    #[test]
    fn a_named_service_shows_an_address_of_our_network_first() {
        let vip = |network: &str, ip: &str| NetworkIp { network: network.into(), ip: ip.parse().unwrap() };
        let mut local = pod("local", &["10.0.0.2"]);
        local.application_tunnel = Some(ApplicationTunnel { protocol: TunnelProtocol::None, port: None });
        let told = |vips: Vec<NetworkIp>| {
            let named = Service { vips, ..service("named", &[], &[(80, 8080)]) };
            let snapshot = mesh([local.clone().into(), named.into()]);
            inbound(&InboundRequest {
                snapshot: &snapshot,
                network: "",
                local: &local,
                connection_dst: local.addresses[0],
                authority: "named.default.svc.cluster.local:80",
                illegal_ports: &[],
            })
        };
        let target =
            |answer: Result<Inbound, InboundRefuse>| answer.unwrap().tunnel.unwrap().target.ip().to_string();
        let all = vec![vip("far", "10.9.0.1"), vip("", "fd00::1"), vip("", "10.1.0.1"), vip("", "10.1.0.2")];
        assert_eq!(target(told(all)), "10.1.0.2");
        assert_eq!(target(told(vec![vip("far", "10.9.0.1"), vip("", "fd00::1")])), "fd00::1");
        let refusal = told(vec![]).unwrap_err();
        let text = "requested service named.default.svc.cluster.local found, but has no IP addresses";
        assert_eq!((refusal.to_string().as_str(), refusal.status()), (text, 503));
    }

    #[test]
    fn refusals_have_the_references_texts_and_statuses() {
        for (authority, status, text) in [
            ("junk", 400, "no valid authority pseudo header: junk"),
            ("nosuch.host:80", 503, "no service or workload for hostname: nosuch.host"),
            (
                "server.default.svc.cluster.local:82",
                503,
                "requested service server.default.svc.cluster.local:82 found, but cannot resolve port",
            ),
            (
                "server.default.svc.cluster.local:9",
                503,
                "requested service server.default.svc.cluster.local:9 found, but cannot resolve port",
            ),
            ("server.default.svc.cluster.local:83", 503, "attempted recursive call to ourselves"),
            ("10.0.0.2:15008", 503, "attempted recursive call to ourselves"),
            ("10.0.0.9:15008", 400, "ip mismatch: 10.0.0.2 != 10.0.0.9"),
        ] {
            let refusal = ask(&matrix(None, None), None, SERVER, authority).unwrap_err();
            assert_eq!((refusal.to_string().as_str(), refusal.status()), (text, status));
        }
    }

    #[test]
    fn services_are_guessed_by_forwarded_host_then_by_port() {
        let local = serving(serving(pod("local", &["10.0.0.2"]), "one", &[]), "two", &[(90, 9090)]);
        let one = service("one", &[], &[(80, 8080)]);
        let two = service("two", &[], &[(80, 8080), (90, 0)]);
        let snapshot =
            mesh([local.clone().into(), one.into(), two.into(), service("three", &[], &[]).into()]);
        for (host, port, guessed) in [
            (None, 8080, Some("one")),
            (Some("two.default.svc.cluster.local"), 8080, Some("two")),
            (Some("two.default.svc.cluster.local"), 1, Some("two")),
            (Some("three.default.svc.cluster.local"), 8080, Some("one")),
            (None, 9090, Some("two")),
            (None, 1, None),
        ] {
            let found = guess_service(&snapshot, &local, host, port);
            assert_eq!(found.as_ref().map(|service| &*service.name), guessed, "{host:?} {port}");
        }
    }

    #[test]
    fn only_another_networks_name_makes_a_request_one_from_a_gateway() {
        for (named, own, from_gateway) in [
            (None, "near", false),
            (None, "", false),
            (Some(&b"near"[..]), "near", false),
            (Some(b"NEAR"), "Near", false),
            (Some(b""), "", false),
            (Some(b""), "near", true),
            (Some(b"far"), "near", true),
            (Some(b"far"), "", true),
            (Some(b"near "), "near", true),
            (Some(b"\xff\x00"), "near", true),
        ] {
            assert_eq!(is_from_another_network(named, own), from_gateway, "{named:?} {own}");
        }
    }

    #[test]
    fn a_host_of_several_namespaces_is_the_local_one_and_hidden_ones_are_not_seen() {
        let local = pod("local", &["10.0.0.2"]);
        let of = |namespace: &str, visibility| Service {
            ports: crate::mesh::fixture::pairs(&[(80, 8080)]),
            visibility,
            ..Service::plain(namespace, "shared.example", namespace)
        };
        let found = |services: Vec<Service>| {
            let snapshot = mesh(services.into_iter().map(Into::into));
            snapshot
                .service_by_host("shared.example", Some(&local.namespace))
                .map(|found| found.name.to_string())
        };
        let (public, hidden) = (Visibility::Public, Visibility::Namespace);
        assert_eq!(found(vec![of("a", public), of("default", hidden)]).as_deref(), Some("default"));
        assert_eq!(found(vec![of("a", hidden), of("b", public)]).as_deref(), Some("b"));
        assert_eq!(found(vec![of("a", hidden)]), None);
        let canonical = Service { canonical: true, ..of("b", public) };
        assert_eq!(found(vec![of("a", public), canonical]).as_deref(), Some("b"));
    }
}
