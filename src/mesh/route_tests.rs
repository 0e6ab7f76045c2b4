//! The table of section 6.2 of the reference, and what lies beside it.

use super::*;
use crate::mesh::delta::Change;
use crate::mesh::fixture::{gateway, key, mesh, pod, service, serving, with};
use crate::mesh::service::{HealthPolicy, IpFamilies, LoadBalancer, NetworkCidr, Scope, Visibility};
use crate::mesh::workload::{Health, NetworkMode};

/// `client` asks for `target` in a mesh of these things, from the client's own address.
fn ask(things: Vec<Change>, target: &str) -> Result<Plan, Refuse> {
    ask_as(&pod("client", &["10.0.0.1"]), things, target)
}

fn ask_as(source: &Workload, things: Vec<Change>, target: &str) -> Result<Plan, Refuse> {
    match route_as(source, things, target, View::default())? {
        Routed::Go(plan) => Ok(plan),
        Routed::Resolve(named) => panic!("{} is to be resolved", named.host),
    }
}

fn route_as(source: &Workload, things: Vec<Change>, target: &str, view: View<'_>) -> Result<Routed, Refuse> {
    let snapshot = mesh(things.into_iter().chain([source.clone().into()]));
    let request = Request {
        snapshot: &snapshot,
        network: "",
        source,
        caller: source.addresses[0],
        target: Captured(target.parse().unwrap()),
        ipv6: true,
        view,
    };
    route(&request, &mut fastrand::Rng::with_seed(7))
}

/// Carrier, what is dialled, authority.
fn told(plan: &Result<Plan, Refuse>) -> (Carrier, String, Option<&str>) {
    let plan = plan.as_ref().unwrap();
    (plan.carrier.clone(), plan.upstream.to_string(), plan.authority.as_deref())
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
        view: View::default(),
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
    let sick = Workload { status: Health::Unhealthy, ..server(&[(80, 80)]) };
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
    let web = Service { load_balancer: passthrough_balancer(), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
    let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
    let plan = ask(vec![web.clone().into(), server.clone().into()], "10.1.0.1:80");
    assert_eq!(told(&plan), (Carrier::Tcp, "10.1.0.1:80".into(), None));
    assert!(plan.unwrap().service.is_none());
    let guarded = Service { waypoint: gateway("10.0.0.9", 15008), ..web };
    let plan = ask(vec![guarded.into(), server.into(), pod("waypoint", &["10.0.0.9"]).into()], "10.1.0.1:80");
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
        let plan = ask([weighted(weight).into()].into_iter().chain(others.clone()).collect(), "10.1.0.1:80");
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
    // An address that is a workload's and a service's too is the workload's: its waypoint is not gone around.
    let both =
        [service("alias", &["10.0.0.2"], &[(80, 80)]).into(), serving(server.clone(), "alias", &[]).into()];
    let plan = ask(things().into_iter().chain(both).collect(), "10.0.0.2:80");
    assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.9:15008".into(), Some("10.0.0.2:80")));
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

/// A workload of the network `remote` behind `web`, reached by that gateway.
fn remote(gateway: Option<Arc<GatewayAddress>>) -> Workload {
    let far = serving(pod("far", &[]), "web", &[(80, 8080)]);
    with(far, |common| {
        common.network = "remote".into();
        common.network_gateway = gateway;
    })
}

/// A workload of the network `remote` that is the gateway there.
fn gateway_pod() -> Workload {
    with(pod("gw", &["192.0.2.9"]), |common| common.network = "remote".into())
}

fn gateway_on(network: &str, ip: &str, port: u16) -> Option<Arc<GatewayAddress>> {
    let destination = GatewayDestination::Address { network: network.into(), ip: ip.parse().unwrap() };
    Some(Arc::new(GatewayAddress { destination, hbone_mtls_port: port }))
}

fn with_names(service: Service, names: &[&str]) -> Service {
    Service { subject_alt_names: names.iter().map(|name| (*name).into()).collect(), ..service }
}

fn inner(plan: &Plan) -> Vec<String> {
    match &plan.carrier {
        Carrier::DoubleHbone { expected } => expected.iter().map(ToString::to_string).collect(),
        Carrier::Tcp | Carrier::Hbone => panic!("{:?}", plan.carrier),
    }
}

#[test]
fn another_network_is_reached_through_its_gateway() {
    let web = || with_names(service("web", &["10.1.0.1"], &[(80, 8080)]), &["spiffe://td/ns/a/sa/b", "junk"]);
    let east = service("east", &["10.1.0.7"], &[(15009, 15018)]);
    let east = with_names(east, &["spiffe://td/ns/gw/sa/gw"]);
    let east_pod = || serving(gateway_pod(), "east", &[]);
    for (gateway, dialled, outer) in [
        (gateway_on("remote", "192.0.2.9", 15008), "192.0.2.9:15008", 1),
        (gateway("east", 15009), "192.0.2.9:15018", 2),
        (gateway("10.1.0.7", 15009), "192.0.2.9:15018", 2),
    ] {
        let things = vec![web().into(), remote(gateway).into(), east_pod().into(), east.clone().into()];
        let plan = ask(things, "10.1.0.1:80").unwrap();
        assert_eq!(plan.upstream.to_string(), dialled);
        assert_eq!(plan.authority.as_deref(), Some("web.default.svc.cluster.local:80"));
        assert_eq!(inner(&plan), ["spiffe://td/ns/a/sa/b"]);
        assert_eq!(plan.expected.len(), outer);
        assert_eq!(plan.expected.last().unwrap().to_string(), "spiffe://cluster.local/ns/default/sa/gw");
        assert_eq!(&*plan.destination.unwrap().name, "gw");
        assert_eq!(&*plan.service.unwrap().name, "web");
        assert_eq!(plan.picked.as_deref(), Some("Kubernetes//Pod/default/far"));
    }
}

#[test]
fn a_remote_waypoint_is_reached_through_the_gateway_by_the_names_of_its_service() {
    let way = with_names(service("way", &["10.1.0.9"], &[(15008, 15008)]), &["spiffe://td/ns/w/sa/w"]);
    let far_way = serving(pod("far-way", &[]), "way", &[]);
    let far_way = with(far_way, |common| {
        common.network = "remote".into();
        common.network_gateway = gateway_on("remote", "192.0.2.9", 15008);
    });
    let web = with_names(service("web", &["10.1.0.1"], &[(80, 8080)]), &["spiffe://td/ns/a/sa/b"]);
    let web = Service { waypoint: gateway("way", 15008), ..web };
    let things =
        || vec![way.clone().into(), far_way.clone().into(), gateway_pod().into(), web.clone().into()];
    let plan = ask(things(), "10.1.0.1:80").unwrap();
    assert_eq!(inner(&plan), ["spiffe://td/ns/w/sa/w"]);
    let told = (plan.upstream.to_string(), plan.authority.as_deref());
    assert_eq!(told, ("192.0.2.9:15008".into(), Some("web.default.svc.cluster.local:80")));
    // A pod's address names no service that the gateway could be asked for.
    let server = with(pod("server", &["10.0.0.2"]), |common| common.waypoint = gateway("way", 15008));
    let refusal = ask(things().into_iter().chain([server.into()]).collect(), "10.0.0.2:80").unwrap_err();
    assert_eq!(refusal.to_string(), "no service for target address: 10.0.0.2:80");
}

#[test]
fn without_a_way_into_the_other_network_nothing_goes() {
    let web = service("web", &["10.1.0.1"], &[(80, 80)]);
    let addressed = |to| Workload { addresses: vec!["10.0.0.2".parse().unwrap()], ..remote(to) };
    for (far, text) in [
        (addressed(None), "no valid routing destination for workload: far"),
        (
            addressed(gateway_on("remote", "192.0.2.8", 15008)),
            "unknown network gateway: network gateway remote/192.0.2.8 not found",
        ),
        (
            remote(gateway("nosuch", 15008)),
            "unknown network gateway: network gateway nosuch.default.svc.cluster.local not found",
        ),
        (remote(None), "no healthy upstream: 10.1.0.1:80"),
    ] {
        let refusal = ask(vec![web.clone().into(), far.into(), gateway_pod().into()], "10.1.0.1:80");
        assert_eq!(refusal.unwrap_err().to_string(), text);
    }
    // No names at the far end: the plan stands, and its inner handshake believes nobody.
    let far = remote(gateway_on("remote", "192.0.2.9", 15008));
    let plan = ask(vec![web.into(), far.into(), gateway_pod().into()], "10.1.0.1:80").unwrap();
    assert_eq!(inner(&plan), [""; 0]);
}

#[test]
fn the_own_network_goes_first_and_the_other_takes_over() {
    let near = serving(pod("near", &["10.0.0.2"]), "web", &[(80, 80)]);
    let balancer = LoadBalancer {
        routing_preferences: vec![Scope::Network],
        mode: LoadBalancerMode::Failover,
        health_policy: HealthPolicy::OnlyHealthy,
    };
    let web = Service { load_balancer: Some(balancer), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
    let far = remote(gateway_on("remote", "192.0.2.9", 15008));
    let things =
        |near: Workload| vec![web.clone().into(), far.clone().into(), gateway_pod().into(), near.into()];
    assert_eq!(ask(things(near.clone()), "10.1.0.1:80").unwrap().carrier, Carrier::Hbone);
    let sick = Workload { status: Health::Unhealthy, ..near };
    let plan = ask(things(sick), "10.1.0.1:80").unwrap();
    assert_eq!(plan.authority.as_deref(), Some("web.default.svc.cluster.local:80"));
}

/// An external workload without addresses behind `web`.
fn named(protocol: Protocol) -> Workload {
    let named = with(serving(pod("named", &[]), "web", &[(80, 8080)]), |common| {
        common.hostname = "h.example".into();
    });
    Workload { protocol, ..named }
}

#[test]
fn a_host_name_is_to_be_resolved_and_then_stands_where_an_address_would() {
    let web = service("web", &["10.1.0.1", "fd01::1"], &[(80, 8080)]);
    let resolve = |protocol, target| {
        let things = vec![web.clone().into(), named(protocol).into()];
        match route_as(&pod("client", &["10.0.0.1"]), things, target, View::default()).unwrap() {
            Routed::Resolve(named) => *named,
            Routed::Go(plan) => panic!("{plan:?}"),
        }
    };
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (four, six) = (ip("192.0.2.1"), ip("fd00::1"));
    let mut random = fastrand::Rng::with_seed(1);
    for (protocol, target, found, dialled, authority) in [
        (Protocol::Tcp, "10.1.0.1:80", vec![six, four], "192.0.2.1:8080", None),
        (Protocol::Tcp, "[fd01::1]:80", vec![six, four], "[fd00::1]:8080", None),
        (Protocol::Tcp, "[fd01::1]:80", vec![four], "192.0.2.1:8080", None),
        (Protocol::Hbone, "10.1.0.1:80", vec![four], "192.0.2.1:15008", Some("192.0.2.1:8080")),
        (Protocol::Hbone, "10.1.0.1:80", vec![six], "[fd00::1]:15008", Some("[fd00::1]:8080")),
    ] {
        let named = resolve(protocol, target);
        assert_eq!(&*named.host, "h.example");
        let plan = named.at(Some(&found), &mut random).unwrap();
        assert_eq!((plan.upstream.to_string(), plan.authority.as_deref()), (dialled.into(), authority));
    }
    // Each address is tried once, those of the target's family first.
    let named = resolve(Protocol::Hbone, "10.1.0.1:80");
    let mut plan = named.at(Some(&[six, four, ip("192.0.2.2")]), &mut random).unwrap();
    let mut tried = vec![(plan.upstream.ip(), plan.authority.clone().unwrap().to_string(), plan.port())];
    while let Some(next) = plan.at_next_address() {
        plan = next;
        tried.push((plan.upstream.ip(), plan.authority.clone().unwrap().to_string(), plan.port()));
    }
    tried[..2].sort();
    let asked = |(ip, text): (IpAddr, &str)| (ip, text.to_owned(), 8080);
    let (one, other) = ((four, "192.0.2.1:8080"), (ip("192.0.2.2"), "192.0.2.2:8080"));
    assert_eq!(tried, [one, other, (six, "[fd00::1]:8080")].map(asked));
    let refusal = |found| resolve(Protocol::Tcp, "10.1.0.1:80").at(found, &mut fastrand::Rng::new());
    let text = "no ip addresses were resolved for workload: Kubernetes//Pod/default/named";
    assert_eq!(refusal(None).unwrap_err().to_string(), text);
    let text = "ip addresses were resolved for workload Kubernetes//Pod/default/named, but valid dns response had \
                no A/AAAA records";
    assert_eq!(refusal(Some(&[][..])).unwrap_err().to_string(), text);
}

#[test]
fn a_waypoint_may_be_known_by_its_host_name_only() {
    let waypoint = with(serving(pod("wp", &[]), "way", &[]), |common| common.hostname = key("wp").hostname);
    let way = service("way", &[], &[(15008, 15008)]);
    for to in ["way", "wp"] {
        let web = Service { waypoint: gateway(to, 15008), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
        let things = vec![web.into(), way.clone().into(), waypoint.clone().into()];
        let routed = route_as(&pod("client", &["10.0.0.1"]), things, "10.1.0.1:80", View::default()).unwrap();
        let Routed::Resolve(named) = routed else { panic!("{to}") };
        let found = ["192.0.2.4".parse().unwrap()];
        let plan = named.at(Some(&found), &mut fastrand::Rng::new()).unwrap();
        let told = (plan.upstream.to_string(), plan.authority.as_deref());
        assert_eq!(told, ("192.0.2.4:15008".into(), Some("10.1.0.1:80")), "{to}");
    }
}

#[test]
fn weighted_waypoints_are_sampled_by_weight() {
    let way = |ip: &str, weight| (gateway(ip, 15008).unwrap(), weight);
    let web = Service {
        weighted_waypoints: vec![way("10.0.0.8", 1), way("10.0.0.9", 3), way("10.0.0.7", 0)],
        ..service("web", &["10.1.0.1"], &[(80, 80)])
    };
    let client = pod("client", &["10.0.0.1"]);
    let pods = ["10.0.0.7", "10.0.0.8", "10.0.0.9"].map(|ip| pod(ip, &[ip]).into());
    let snapshot = mesh(pods.into_iter().chain([web.into(), client.clone().into()]));
    let mut random = fastrand::Rng::with_seed(3);
    let mut times = std::collections::BTreeMap::new();
    for _ in 0..4_000 {
        let request = Request {
            snapshot: &snapshot,
            network: "",
            source: &client,
            caller: client.addresses[0],
            target: Captured("10.1.0.1:80".parse().unwrap()),
            ipv6: true,
            view: View::default(),
        };
        let Routed::Go(plan) = route(&request, &mut random).unwrap() else { panic!() };
        *times.entry(plan.upstream.to_string()).or_insert(0) += 1;
    }
    assert_eq!(times.keys().collect::<Vec<_>>(), ["10.0.0.8:15008", "10.0.0.9:15008"]);
    assert!((900..1_100).contains(&times["10.0.0.8:15008"]), "{times:?}");
}

#[test]
fn a_service_waypoint_has_no_mercy_with_the_waypoint_itself() {
    // Section 6.2, step A: its own captured traffic to the address goes to the waypoint again.
    let waypoint = pod("waypoint", &["10.0.0.9"]);
    let web = Service { waypoint: gateway("10.0.0.9", 15008), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
    let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
    let plan = ask_as(&waypoint, vec![web.into(), server.into()], "10.1.0.1:80");
    assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.9:15008".into(), Some("10.1.0.1:80")));
}

#[test]
fn ranges_of_addresses_are_services_too_and_hidden_services_are_nobodys() {
    let range = NetworkCidr { network: "".into(), cidr: "10.8.0.0/16".parse().unwrap() };
    let wide = Service { cidr_vips: vec![range], ..service("web", &[], &[(443, 8443)]) };
    let server = serving(pod("server", &["10.0.0.2"]), "web", &[]);
    let plan = ask(vec![wide.clone().into(), server.clone().into()], "10.8.3.4:443");
    assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some("10.0.0.2:8443")));
    let guarded = Service { waypoint: gateway("10.0.0.2", 15008), ..wide.clone() };
    let plan = ask(vec![guarded.into(), server.clone().into()], "10.8.3.4:443");
    assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some("10.8.3.4:443")));
    let stranger = with(pod("client", &["10.0.0.1"]), |common| common.namespace = "other".into());
    let hidden = Service { visibility: Visibility::Namespace, ..wide };
    let plan = ask_as(&stranger, vec![hidden.into(), server.into()], "10.8.3.4:443");
    assert_eq!(told(&plan), (Carrier::Tcp, "10.8.3.4:443".into(), None));
}

#[test]
fn of_several_workloads_at_one_address_the_pod_counts() {
    let server = pod("server", &["10.0.0.2"]);
    let entry = Workload {
        uid: "cluster/networking.istio.io/WorkloadEntry/default/entry".into(),
        ..pod("entry", &["10.0.0.2"])
    };
    let plan = ask(vec![entry.clone().into(), server.into()], "10.0.0.2:80");
    assert_eq!(names(&plan), ["spiffe://cluster.local/ns/default/sa/server"]);
    let plan = ask(vec![entry.into()], "10.0.0.2:80");
    assert_eq!(names(&plan), ["spiffe://cluster.local/ns/default/sa/entry"]);
}

#[test]
fn a_pods_address_goes_before_a_service_only_where_the_waypoint_is_sought() {
    // Section 6.2: step A takes the workload, step B the virtual address.
    let both = pod("both", &["10.1.0.1"]);
    let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
    let web = Service { waypoint: gateway("10.0.0.9", 15008), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
    let plan = ask(vec![both.into(), server.into(), web.into()], "10.1.0.1:80");
    assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some("10.0.0.2:80")));
}

#[test]
fn the_unready_serve_only_where_the_service_says_so() {
    let sick = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
    let sick = Workload { status: Health::Unhealthy, ..sick };
    let balancer = LoadBalancer {
        routing_preferences: Vec::new(),
        mode: LoadBalancerMode::Standard,
        health_policy: HealthPolicy::AllowAll,
    };
    let web = Service { load_balancer: Some(balancer), ..service("web", &["10.1.0.1"], &[(80, 80)]) };
    let plan = ask(vec![web.into(), sick.clone().into()], "10.1.0.1:80");
    assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some("10.0.0.2:80")));
    // By its own address it is reached in any case.
    assert_eq!(ask(vec![sick.into()], "10.0.0.2:80").unwrap().carrier, Carrier::Hbone);
}

#[test]
fn a_headless_service_is_its_pods() {
    let server = serving(pod("server", &["10.0.0.2"]), "web", &[(80, 8080)]);
    let plan = ask(vec![service("web", &[], &[(80, 0)]).into(), server.into()], "10.0.0.2:8080");
    assert_eq!(told(&plan), (Carrier::Hbone, "10.0.0.2:15008".into(), Some("10.0.0.2:8080")));
    let plan = plan.unwrap();
    assert!(plan.service.is_none() && plan.picked.is_none());
}

#[test]
fn a_native_tunnel_changes_nothing_here() {
    let native = Workload { native_tunnel: true, protocol: Protocol::Tcp, ..pod("server", &["10.0.0.2"]) };
    let plan = ask(vec![native.into()], "10.0.0.2:80");
    assert_eq!(told(&plan), (Carrier::Tcp, "10.0.0.2:80".into(), None));
}

#[test]
fn a_second_try_goes_elsewhere() {
    let web = service("web", &["10.1.0.1"], &[(80, 80)]);
    let things = || {
        let servers = ["a", "b"].map(|name| serving(pod(name, &["10.0.0.2"]), "web", &[(80, 80)]).into());
        servers.into_iter().chain([web.clone().into()]).collect::<Vec<_>>()
    };
    let client = pod("client", &["10.0.0.1"]);
    let mut tried = Vec::new();
    for _ in 0..2 {
        let view = View { tried: &tried, ..View::default() };
        let Routed::Go(plan) = route_as(&client, things(), "10.1.0.1:80", view).unwrap() else { panic!() };
        let picked = plan.picked.unwrap();
        assert!(!tried.contains(&picked));
        tried.push(picked);
    }
    let view = View { tried: &tried, ..View::default() };
    let refusal = route_as(&client, things(), "10.1.0.1:80", view).unwrap_err();
    assert_eq!(refusal.to_string(), "no healthy upstream: 10.1.0.1:80");
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
    assert!(!self_call(target("127.0.0.1:80"), &[15001]) && !self_call(target("10.0.0.1:15001"), &[15001]));
}

#[test]
fn a_plan_says_whether_its_next_hop_is_the_end() {
    let server = || serving(pod("server", &["10.0.0.2"]), "web", &[(80, 80)]);
    let web = || service("web", &["10.1.0.1"], &[(80, 80)]);
    let ends = |things, target| ask(things, target).unwrap().ends_at_next_hop();
    assert!(ends(vec![web().into(), server().into()], "10.1.0.1:80"));
    assert!(ends(vec![Workload { protocol: Protocol::Tcp, ..server() }.into()], "10.0.0.2:80"));
    let guarded = Service { waypoint: gateway("10.0.0.9", 15008), ..web() };
    let things = vec![guarded.into(), server().into(), pod("waypoint", &["10.0.0.9"]).into()];
    assert!(!ends(things, "10.1.0.1:80"));
    let far = remote(gateway_on("remote", "192.0.2.9", 15008));
    assert!(!ends(vec![web().into(), far.into(), gateway_pod().into()], "10.1.0.1:80"));
}
