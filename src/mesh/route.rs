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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::delta::Change;
    use crate::mesh::fixture::{gateway, mesh, pod, service, serving, with};
    use crate::mesh::service::{HealthPolicy, IpFamilies, LoadBalancer};
    use crate::mesh::workload::NetworkMode;

    /// `client` asks for `target` in a mesh of these things, from the client's own address.
    fn ask(things: Vec<Change>, target: &str) -> Result<Plan, Refuse> {
        ask_as(&pod("client", &["10.0.0.1"]), things, target)
    }

    fn ask_as(source: &Workload, things: Vec<Change>, target: &str) -> Result<Plan, Refuse> {
        let snapshot = mesh(things.into_iter().chain([source.clone().into()]));
        let request = Request {
            snapshot: &snapshot,
            network: "",
            source,
            caller: source.addresses[0],
            target: Captured(target.parse().unwrap()),
            ipv6: true,
        };
        route(&request, &mut fastrand::Rng::with_seed(7))
    }

    /// Carrier, what is dialled, authority.
    fn told(plan: &Result<Plan, Refuse>) -> (Carrier, String, Option<&str>) {
        let plan = plan.as_ref().unwrap();
        (plan.carrier, plan.upstream.to_string(), plan.authority.as_deref())
    }

    fn names(plan: &Result<Plan, Refuse>) -> Vec<String> {
        plan.as_ref().unwrap().expected.iter().map(ToString::to_string).collect()
    }

    fn passthrough_balancer() -> Option<LoadBalancer> {
        Some(LoadBalancer {
            routing_preferences: Vec::new(),
            mode: LoadBalancerMode::Passthrough,
            health_policy: HealthPolicy::OnlyHealthy,
        })
    }

    #[test]
    fn what_nobody_knows_is_passed_through() {
        let plan = ask(vec![], "192.0.2.1:443");
        assert_eq!(told(&plan), (Carrier::Tcp, "192.0.2.1:443".into(), None));
        let plan = plan.unwrap();
        assert!(plan.destination.is_none() && plan.service.is_none() && plan.expected.is_empty());
    }

    #[test]
    fn before_the_first_sync_nothing_passes() {
        let source = pod("client", &["10.0.0.1"]);
        let request = Request {
            snapshot: &Snapshot::default(),
            network: "",
            source: &source,
            caller: source.addresses[0],
            target: Captured("192.0.2.1:443".parse().unwrap()),
            ipv6: true,
        };
        assert_eq!(route(&request, &mut fastrand::Rng::new()), Err(Refuse::NotSynced));
    }

    #[test]
    fn known_workloads_are_reached_as_they_can_be() {
        let plan = ask(vec![pod("server", &["10.0.0.2"]).into()], "10.0.0.2:80");
        assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some("10.0.0.2:80")));
        assert_eq!(names(&plan), ["spiffe://cluster.local/ns/default/sa/server"]);
        let plain = Workload { protocol: Protocol::Tcp, ..pod("server", &["10.0.0.2"]) };
        let plan = ask(vec![plain.into()], "10.0.0.2:80");
        assert_eq!(told(&plan), (Carrier::Tcp, "10.0.0.2:80".into(), None));
        assert_eq!(&*plan.unwrap().destination.unwrap().name, "server");
    }

    #[test]
    fn an_address_of_another_network_is_not_the_workload_there() {
        let far = with(pod("server", &["10.0.0.2"]), |common| common.network = "remote".into());
        let plan = ask(vec![far.into()], "10.0.0.2:80").unwrap();
        assert_eq!((plan.carrier, plan.destination), (Carrier::Tcp, None));
    }

    #[test]
    fn services_map_their_ports_by_number_or_by_endpoint() {
        for (service_target, mapped, port) in
            [(8080, vec![], 8080), (0, vec![(80, 9090)], 9090), (8080, vec![(80, 9090)], 9090)]
        {
            let web = service("web", &["10.1.0.1"], &[(80, service_target)]);
            let server = serving(pod("server", &["10.0.0.2"]), "web", &mapped);
            let plan = ask(vec![web.into(), server.into()], "10.1.0.1:80");
            let authority = format!("10.0.0.2:{port}");
            assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some(&*authority)));
            assert_eq!(&*plan.unwrap().service.unwrap().name, "web");
        }
    }

    #[test]
    fn a_service_without_a_usable_endpoint_has_no_healthy_upstream() {
        let web = |ports: &[(u16, u16)]| service("web", &["10.1.0.1"], ports);
        let server = |ports: &[(u16, u16)]| serving(pod("server", &["10.0.0.2"]), "web", ports);
        let sick = Workload { status: crate::mesh::workload::Health::Unhealthy, ..server(&[(80, 80)]) };
        let weightless = Workload { capacity: 0, ..server(&[(80, 80)]) };
        let nowhere = Workload { addresses: vec![], ..server(&[(80, 80)]) };
        for things in [
            vec![web(&[(80, 80)]).into()],
            vec![web(&[(81, 81)]).into(), server(&[(80, 80)]).into()],
            vec![web(&[(80, 0)]).into(), server(&[]).into()],
            vec![web(&[(80, 80)]).into(), sick.into()],
            vec![web(&[(80, 80)]).into(), weightless.into()],
            vec![web(&[(80, 80)]).into(), nowhere.into()],
        ] {
            let refusal = ask(things, "10.1.0.1:80").unwrap_err();
            assert_eq!(refusal.to_string(), "no healthy upstream: 10.1.0.1:80");
        }
    }

    #[test]
    fn passthrough_services_are_passed_through_but_not_past_their_waypoint() {
        let web =
            Service { load_balancer: passthrough_balancer(), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
        let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
        let plan = ask(vec![web.clone().into(), server.clone().into()], "10.1.0.1:80");
        assert_eq!(told(&plan), (Carrier::Tcp, "10.1.0.1:80".into(), None));
        assert!(plan.unwrap().service.is_none());
        let guarded = Service { waypoint: gateway("10.0.0.9", 15008), ..web };
        let plan =
            ask(vec![guarded.into(), server.into(), pod("waypoint", &["10.0.0.9"]).into()], "10.1.0.1:80");
        assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.9:15008".into(), Some("10.1.0.1:80")));
    }

    #[test]
    fn service_waypoints_are_found_by_address_by_service_and_by_weight() {
        let way = service("way", &["10.1.0.9"], &[(15008, 15018)]);
        let way = Service { subject_alt_names: vec!["spiffe://td/ns/x/sa/y".into(), "junk".into()], ..way };
        let waypoint = serving(pod("waypoint", &["10.0.0.9", "fd00::9"]), "way", &[]);
        let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
        let web = service("web", &["10.1.0.1"], &[(80, 80)]);
        for (to, dialled) in
            [("10.0.0.9", "10.0.0.9:15008"), ("10.1.0.9", "10.0.0.9:15018"), ("way", "10.0.0.9:15018")]
        {
            let web = Service { waypoint: gateway(to, 15008), ..web.clone() };
            let things = vec![web.into(), server.clone().into(), way.clone().into(), waypoint.clone().into()];
            let plan = ask(things, "10.1.0.1:80");
            assert_eq!(told(&plan), (Carrier::Hbone, dialled.into(), Some("10.1.0.1:80")), "{to}");
            let plan = plan.unwrap();
            assert_eq!((&*plan.destination.unwrap().name, &*plan.service.unwrap().name), ("waypoint", "web"));
            let of_service = if to == "10.0.0.9" { 1 } else { 2 };
            assert_eq!(plan.expected.len(), of_service, "{to}");
        }
        let weighted = |weight| {
            let choice = (gateway("10.0.0.9", 15008).unwrap(), weight);
            Service { waypoint: gateway("10.0.0.8", 15008), weighted_waypoints: vec![choice], ..web.clone() }
        };
        let others = [waypoint.into(), pod("other", &["10.0.0.8"]).into()];
        for (weight, dialled) in [(1, "10.0.0.9:15008"), (0, "10.0.0.8:15008")] {
            let plan =
                ask([weighted(weight).into()].into_iter().chain(others.clone()).collect(), "10.1.0.1:80");
            assert_eq!(plan.unwrap().upstream.to_string(), dialled);
        }
    }

    #[test]
    fn an_unknown_waypoint_is_never_gone_around() {
        for (to, text) in [
            ("10.0.0.9", "unknown waypoint: waypoint /10.0.0.9 not found"),
            ("way", "unknown waypoint: waypoint way.default.svc.cluster.local not found"),
        ] {
            let web = Service { waypoint: gateway(to, 15008), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
            let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
            let server = with(server, |common| common.waypoint = gateway(to, 15008));
            for target in ["10.1.0.1:80", "10.0.0.2:80"] {
                let refusal = ask(vec![web.clone().into(), server.clone().into()], target).unwrap_err();
                assert_eq!(refusal.to_string(), text);
            }
        }
    }

    #[test]
    fn workload_waypoints_take_what_is_not_meant_for_a_service() {
        let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
        let server = with(server, |common| common.waypoint = gateway("fd00::9", 15008));
        let things = || {
            let waypoint = pod("waypoint", &["fd00::9", "10.0.0.9"]);
            vec![server.clone().into(), waypoint.into(), service("web", &["10.1.0.1"], &[(80, 80)]).into()]
        };
        let plan = ask(things(), "10.0.0.2:80");
        assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.9:15008".into(), Some("10.0.0.2:80")));
        assert!(plan.unwrap().service.is_none());
        let plan = ask(things(), "10.1.0.1:80");
        assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some("10.0.0.2:80")));
    }

    #[test]
    fn the_waypoint_itself_goes_on_but_whoever_shares_only_its_account_does_not() {
        let server = |to| with(pod("server", &["10.0.0.2"]), |common| common.waypoint = gateway(to, 15008));
        let waypoint = serving(pod("waypoint", &["10.0.0.9"]), "way", &[(15008, 15008)]);
        let way = service("way", &["10.1.0.9"], &[(15008, 15008)]);
        for to in ["10.0.0.9", "10.1.0.9", "way"] {
            let things = || vec![server(to).into(), way.clone().into(), waypoint.clone().into()];
            let plan = ask_as(&waypoint, things(), "10.0.0.2:80");
            assert_eq!(plan.unwrap().upstream.to_string(), "10.0.0.2:15008", "{to}");
            let twin = pod("twin", &["10.0.0.7"]);
            let twin = with(twin, |common| common.service_account = "waypoint".into());
            let plan = ask_as(&twin, things(), "10.0.0.2:80");
            assert_eq!(plan.unwrap().upstream.to_string(), "10.0.0.9:15008", "{to}");
        }
    }

    #[test]
    fn the_callers_own_waypoint_is_ignored() {
        let source = pod("client", &["10.0.0.1"]);
        let source = with(source, |common| common.waypoint = gateway("10.0.0.9", 15008));
        let plan = ask_as(&source, vec![pod("server", &["10.0.0.2"]).into()], "10.0.0.2:80");
        assert_eq!(plan.unwrap().upstream.to_string(), "10.0.0.2:15008");
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        let web = service("web", &["10.1.0.1"], &[(80, 80)]);
        let far = |gateway| {
            with(serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]), |common| {
                common.network = "remote".into();
                common.network_gateway = gateway;
            })
        };
        let named = with(far(None), |common| {
            common.hostname = "h.example".into();
            common.network = "".into();
        });
        let named = Workload { addresses: vec![], ..named };
        for (server, text) in [
            (far(gateway("10.0.0.9", 15008)), "unsupported feature: a destination in another network"),
            (far(None), "no valid routing destination for workload: server"),
            (named, "unsupported feature: a workload known by its host name only"),
        ] {
            let refusal = ask(vec![web.clone().into(), server.into()], "10.1.0.1:80").unwrap_err();
            assert_eq!(refusal.to_string(), text);
        }
    }

    #[test]
    fn addresses_keep_the_family_where_they_can() {
        let server = serving(pod("server", &["10.0.0.2", "fd00::2"]), "web", &[(80, 80)]);
        for (families, target, dialled) in [
            (None, "10.1.0.1:80", "10.0.0.2:15008"),
            (None, "[fd01::1]:80", "[fd00::2]:15008"),
            (Some(IpFamilies::Dual), "[fd01::1]:80", "[fd00::2]:15008"),
            (Some(IpFamilies::Ipv4), "[fd01::1]:80", "10.0.0.2:15008"),
            (Some(IpFamilies::Ipv6), "10.1.0.1:80", "[fd00::2]:15008"),
        ] {
            let web = service("web", &["10.1.0.1", "fd01::1"], &[(80, 80)]);
            let web = Service { ip_families: families, ..web };
            let plan = ask(vec![web.into(), server.clone().into()], target);
            assert_eq!(plan.unwrap().upstream.to_string(), dialled, "{families:?} {target}");
        }
    }

    #[test]
    fn host_network_workloads_are_found_by_service_only() {
        let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 8080)]);
        let server = Workload { network_mode: NetworkMode::HostNetwork, protocol: Protocol::Tcp, ..server };
        let things = || vec![server.clone().into(), service("web", &["10.1.0.1"], &[(80, 80)]).into()];
        let direct = ask(things(), "10.0.0.2:22").unwrap();
        assert_eq!((direct.carrier, direct.destination), (Carrier::Tcp, None));
        let plan = ask(things(), "10.1.0.1:80");
        assert_eq!(told(&plan), (Carrier::Tcp, "10.0.0.2:8080".into(), None));
    }

    #[test]
    fn calls_to_our_own_ports_on_the_loopback_are_ours() {
        let target = |text: &str| Captured(text.parse().unwrap());
        assert!(self_call(target("127.0.0.1:15001"), &[15001]) && self_call(target("[::1]:15001"), &[15001]));
        assert!(
            !self_call(target("127.0.0.1:80"), &[15001]) && !self_call(target("10.0.0.1:15001"), &[15001])
        );
    }
}
