//! Ranks, weights, what was tried and what is ejected; and the table against the plain look.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::*;
use crate::base::text::Text;
use crate::mesh::delta::{Change, apply};
use crate::mesh::fixture::{gateway, mesh, pod, service, serving, with};
use crate::mesh::seen::Seen;
use crate::mesh::service::HealthPolicy;
use crate::mesh::workload::{ApplicationTunnel, Locality, TunnelProtocol};

fn balancer(mode: LoadBalancerMode, routing_preferences: &[Scope]) -> Option<LoadBalancer> {
    let routing_preferences = routing_preferences.to_vec();
    Some(LoadBalancer { routing_preferences, mode, health_policy: HealthPolicy::OnlyHealthy })
}

fn placed(name: &str, network: &str, region: &str, zone: &str) -> Workload {
    let locality = Locality { region: region.into(), zone: zone.into(), subzone: "".into() };
    let workload = with(pod(name, &["10.0.0.2"]), |common| {
        common.network = network.into();
        common.locality = locality;
    });
    serving(workload, "web", &[(80, 80)])
}

fn wanted<'a>(snapshot: &'a Snapshot, service: &'a Service, source: &'a Workload) -> Wanted<'a> {
    Wanted { snapshot, service, port: 80, source, purpose: Purpose::Standard, view: View::default() }
}

/// How often each is chosen of 3,000 times.
fn chosen(of: &Service, endpoints: &[Workload]) -> BTreeMap<String, u32> {
    let snapshot = mesh(endpoints.iter().cloned().map(Into::into).chain([of.clone().into()]));
    let source = placed("client", "here", "r1", "z1");
    let mut random = fastrand::Rng::with_seed(3);
    let mut times = BTreeMap::new();
    for _ in 0..3_000 {
        if let Some(chosen) = pick(&wanted(&snapshot, of, &source), &mut random) {
            *times.entry(chosen.workload.name.to_string()).or_default() += 1;
        }
    }
    times
}

fn names(times: &BTreeMap<String, u32>) -> Vec<&str> {
    times.keys().map(String::as_str).collect()
}

#[test]
fn capacity_is_a_chance() {
    let with = |name: &str, capacity| Workload { capacity, ..placed(name, "here", "r1", "z1") };
    let web = service("web", &[], &[(80, 80)]);
    let times = chosen(&web, &[with("one", 1), with("two", 2), with("none", 0)]);
    assert_eq!(names(&times), ["one", "two"]);
    assert!((900..1_100).contains(&times["one"]), "{times:?}");
    let many: Vec<_> = (0..30).map(|number| with(&format!("n{number}"), 1)).collect();
    let times = chosen(&web, &many);
    assert_eq!(times.len(), 30);
    assert!(times.values().all(|count| (50..160).contains(count)), "{times:?}");
}

#[test]
fn failover_takes_the_nearest_and_strict_only_the_near() {
    let all = [
        placed("all", "here", "r1", "z1"),
        placed("region", "here", "r1", "z2"),
        placed("network", "here", "r2", "z1"),
        placed("far-region", "far", "r1", "z1"),
        placed("nowhere", "far", "r2", "z2"),
    ];
    let scopes = [Scope::Network, Scope::Region, Scope::Zone];
    let failover = Service {
        load_balancer: balancer(LoadBalancerMode::Failover, &scopes),
        ..service("web", &[], &[(80, 80)])
    };
    for (first, name) in ["all", "region", "network", "far-region", "nowhere"].into_iter().enumerate() {
        let times = chosen(&failover, &all[first..]);
        assert_eq!(names(&times), [name]);
    }
    let without = balancer(LoadBalancerMode::Failover, &[Scope::Region, Scope::Zone]);
    let failover = Service { load_balancer: without, ..failover };
    assert_eq!(names(&chosen(&failover, &all)), ["all", "far-region"]);
    let strict = Service { load_balancer: balancer(LoadBalancerMode::Strict, &scopes), ..failover };
    assert_eq!(names(&chosen(&strict, &all)), ["all"]);
    assert!(chosen(&strict, &all[1..]).is_empty());
    let standard = Service { load_balancer: None, ..strict };
    assert_eq!(chosen(&standard, &all).len(), 5);
}

#[test]
fn a_best_rank_without_capacity_is_not_gone_around() {
    let near = Workload { capacity: 0, ..placed("near", "here", "r1", "z1") };
    let far = placed("far", "here", "r2", "z1");
    let failover = balancer(LoadBalancerMode::Failover, &[Scope::Region]);
    let web = Service { load_balancer: failover, ..service("web", &[], &[(80, 80)]) };
    for order in [[near.clone(), far.clone()], [far, near]] {
        assert!(chosen(&web, &order).is_empty());
    }
}

#[test]
fn the_homeless_need_a_gateway_of_another_network() {
    let web = service("web", &[], &[(80, 80)]);
    let homeless = |network: &str, to| Workload {
        addresses: vec![],
        ..with(placed("homeless", network, "r1", "z1"), |common| common.network_gateway = to)
    };
    assert!(chosen(&web, &[homeless("here", gateway("10.0.0.9", 1))]).is_empty());
    assert!(chosen(&web, &[homeless("far", None)]).is_empty());
    assert_eq!(chosen(&web, &[homeless("far", gateway("10.0.0.9", 1))]).len(), 1);
    let named = with(homeless("here", None), |common| common.hostname = "h".into());
    assert_eq!(chosen(&web, &[named]).len(), 1);
}

#[test]
fn a_waypoint_without_the_port_must_have_an_application_tunnel() {
    let way = service("web", &[], &[(80, 80)]);
    let port_of = |tunnel: Option<Option<u16>>| {
        let tunnel = tunnel.map(|port| ApplicationTunnel { protocol: TunnelProtocol::Proxy, port });
        let waypoint = placed("waypoint", "here", "r1", "z1");
        let waypoint = with(waypoint, |common| common.application_tunnel = tunnel);
        let snapshot = mesh([waypoint.clone().into(), way.clone().into()]);
        let mut random = fastrand::Rng::with_seed(1);
        let wanted = Wanted { port: 15008, purpose: Purpose::Waypoint, ..wanted(&snapshot, &way, &waypoint) };
        pick(&wanted, &mut random).map(|chosen| chosen.port)
    };
    assert_eq!(port_of(None), None);
    assert_eq!(port_of(Some(None)), Some(None));
    assert_eq!(port_of(Some(Some(15088))), Some(Some(15008)));
}

#[test]
fn ipv6_is_avoided_where_it_is_off() {
    let server = pod("server", &["fd00::1", "10.0.0.1"]);
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(pick_address(&server, ip("fd00::9"), None, true), Some(ip("fd00::1")));
    assert_eq!(pick_address(&server, ip("fd00::9"), None, false), Some(ip("10.0.0.1")));
    assert_eq!(pick_address(&server, ip("fd00::1"), None, false), Some(ip("fd00::1")));
    assert_eq!(pick_address(&server, ip("10.9.9.9"), Some(IpFamilies::Ipv6), false), None);
}

/// Who is chosen of many draws, as the view says.
fn drawn(snapshot: &Snapshot, of: &Service, view: View<'_>) -> BTreeMap<String, u32> {
    let source = placed("client", "here", "r1", "z1");
    let wanted = Wanted { view, ..wanted(snapshot, of, &source) };
    let mut random = fastrand::Rng::with_seed(5);
    let mut times = BTreeMap::new();
    for _ in 0..2_000 {
        if let Some(chosen) = pick(&wanted, &mut random) {
            *times.entry(chosen.workload.name.to_string()).or_default() += 1;
        }
    }
    times
}

#[test]
fn the_tried_are_never_taken_and_the_ejected_only_at_the_last() {
    let all = ["a", "b", "c"].map(|name| placed(name, "here", "r1", "z1"));
    let web = service("web", &[], &[(80, 80)]);
    let snapshot = mesh(all.iter().cloned().map(Into::into).chain([web.clone().into()]));
    let uid = |name: &str| Text::from(format!("Kubernetes//Pod/default/{name}"));
    let (now, time) = (Instant::now(), Duration::from_secs(1));
    let mut seen = Seen::default();
    let with = |tried: &[Text], seen: &Seen, at| {
        let view = View { tried, seen: Some((seen, at)), least_connections: false, notes: None };
        drawn(&snapshot, &web, view).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(with(&[uid("a")], &seen, now), ["b", "c"]);
    seen.eject(&uid("b"), 80, now, time);
    assert_eq!(with(&[uid("a")], &seen, now), ["c"]);
    assert_eq!(with(&[uid("a"), uid("c")], &seen, now), ["b"]);
    assert_eq!(with(&[uid("a"), uid("b"), uid("c")], &seen, now), [""; 0]);
    assert_eq!(with(&[], &seen, now + time), ["a", "b", "c"]);
    seen.eject(&uid("a"), 80, now, time);
    seen.eject(&uid("c"), 80, now, time);
    assert_eq!(with(&[], &seen, now), ["a", "b", "c"]);
}

#[test]
fn an_ejected_near_endpoint_gives_way_to_a_far_one() {
    let failover = balancer(LoadBalancerMode::Failover, &[Scope::Region]);
    let web = Service { load_balancer: failover, ..service("web", &[], &[(80, 80)]) };
    let (near, far) = (placed("near", "here", "r1", "z1"), placed("far", "here", "r2", "z1"));
    let snapshot = mesh([near.clone().into(), far.into(), web.clone().into()]);
    let now = Instant::now();
    let mut seen = Seen::default();
    seen.eject(&near.uid, 80, now, Duration::from_secs(1));
    let view = View { seen: Some((&seen, now)), ..View::default() };
    assert_eq!(names(&drawn(&snapshot, &web, view)), ["far"]);
}

#[test]
fn of_two_the_freer_one_is_taken() {
    let all: Vec<_> = (0..10).map(|number| placed(&format!("n{number}"), "here", "r1", "z1")).collect();
    let web = service("web", &[], &[(80, 80)]);
    let snapshot = mesh(all.iter().cloned().map(Into::into).chain([web.clone().into()]));
    let source = placed("client", "here", "r1", "z1");
    let mut random = fastrand::Rng::with_seed(5);
    let mut spread = |least_connections| {
        let mut seen = Seen::default();
        for _ in 0..1_000 {
            let view =
                View { tried: &[], seen: Some((&seen, Instant::now())), least_connections, notes: None };
            let wanted = Wanted { view, ..wanted(&snapshot, &web, &source) };
            let uid = pick(&wanted, &mut random).unwrap().workload.uid.clone();
            seen.enter(&uid);
        }
        let live = all.iter().map(|workload| seen.live(&workload.uid));
        live.clone().max().unwrap() - live.min().unwrap()
    };
    let (by_chance, by_two) = (spread(false), spread(true));
    // Two choices: the gap is log log n, however many there are.
    assert!(by_two <= 5 && by_chance > 10, "{by_two} {by_chance}");
}

/// A service large enough for a table.
fn crowd(random: &mut fastrand::Rng, of: &Service) -> (Snapshot, Vec<Workload>) {
    let count = random.usize(64..192);
    let text = |random: &mut fastrand::Rng, letter: &str| format!("{letter}{}", random.u8(1..4));
    let all: Vec<_> = (0..count)
        .map(|number| {
            let network = if random.u8(..) < 100 { "here" } else { "far" };
            let (region, zone) = (text(random, "r"), text(random, "z"));
            let workload = placed(&format!("w{number}"), network, &region, &zone);
            let addresses = if random.u8(..) < 20 { vec![] } else { workload.addresses.clone() };
            Workload { capacity: random.u32(0..3), addresses, ..workload }
        })
        .collect();
    (mesh(all.iter().cloned().map(Into::into).chain([of.clone().into()])), all)
}

/// Whom `look_through` may choose, by looking long enough.
fn plainly(wanted: &Wanted<'_>, random: &mut fastrand::Rng) -> BTreeMap<String, u32> {
    let listed = wanted.service.target_port(wanted.port);
    let mut times = BTreeMap::new();
    for _ in 0..4_000 {
        if let Some(chosen) = look_through(wanted, listed, true, random) {
            *times.entry(chosen.workload.name.to_string()).or_default() += 1;
        }
    }
    times
}

#[test]
fn a_table_chooses_as_the_plain_look_does() {
    let mut random = fastrand::Rng::with_seed(11);
    let (network, region, zone) = (Scope::Network, Scope::Region, Scope::Zone);
    for (mode, scopes) in [
        (LoadBalancerMode::Standard, &[][..]),
        (LoadBalancerMode::Strict, &[region]),
        (LoadBalancerMode::Strict, &[network, region, zone]),
        (LoadBalancerMode::Failover, &[region, zone]),
        (LoadBalancerMode::Failover, &[network, region, zone]),
        (LoadBalancerMode::Failover, &[zone, network]),
        (LoadBalancerMode::Passthrough, &[network, zone]),
    ] {
        let web = Service { load_balancer: balancer(mode, scopes), ..service("web", &[], &[(80, 80)]) };
        let (snapshot, _) = crowd(&mut random, &web);
        assert!(snapshot.choices(&web.key).is_some());
        for (net, reg, zon) in [("here", "r1", "z1"), ("far", "r2", "z3"), ("third", "r3", "z9")] {
            let source = placed("client", net, reg, zon);
            let wanted = wanted(&snapshot, &web, &source);
            let plain = plainly(&wanted, &mut random);
            let mut times = BTreeMap::new();
            for _ in 0..4_000 {
                if let Some(chosen) = pick(&wanted, &mut random) {
                    *times.entry(chosen.workload.name.to_string()).or_insert(0_u32) += 1;
                }
            }
            let case = format!("{mode:?} {scopes:?} from {net}");
            let far = |name: &String| {
                let (one, other) =
                    (plain.get(name).copied().unwrap_or(0), times.get(name).copied().unwrap_or(0));
                // Six standard deviations of a count.
                f64::from(one.abs_diff(other)) > 6.0 * f64::from(one + other).sqrt() + 6.0
            };
            assert!(!plain.keys().chain(times.keys()).any(far), "{case}: {plain:?} {times:?}");
            assert_eq!(plain.is_empty(), times.is_empty(), "{case}");
        }
    }
}

#[test]
fn a_table_follows_every_change() {
    let web = service("web", &[], &[(80, 80)]);
    let mut random = fastrand::Rng::with_seed(2);
    let (mut snapshot, all) = crowd(&mut random, &web);
    let able = |snapshot: &Snapshot| {
        let source = placed("client", "here", "r1", "z1");
        let wanted = wanted(snapshot, &web, &source);
        let mut random = fastrand::Rng::with_seed(1);
        (0..8_000)
            .filter_map(|_| pick(&wanted, &mut random))
            .map(|chosen| chosen.workload.uid.clone())
            .collect()
    };
    let mut before: BTreeSet<Text> = able(&snapshot);
    for gone in all.iter().filter(|workload| workload.capacity > 0).take(5) {
        let older = snapshot.clone();
        snapshot = apply(&snapshot, [Change::RemoveWorkload(gone.uid.clone())], None);
        // Whoever still reads the older one makes its table after the newer one was derived.
        let _: BTreeSet<Text> = able(&older);
        let now: BTreeSet<Text> = able(&snapshot);
        assert!(!now.contains(&gone.uid) && now.len() + 1 >= before.len(), "{}", gone.uid);
        before = now;
    }
    let new = placed("new", "here", "r1", "z1");
    snapshot = apply(&snapshot, [Workload { capacity: 50, ..new }.into()], None);
    assert!(able(&snapshot).contains("Kubernetes//Pod/default/new"));
    let sick = crate::mesh::workload::Health::Unhealthy;
    let fallen = Workload { status: sick, ..placed("new", "here", "r1", "z1") };
    snapshot = apply(&snapshot, [fallen.into()], None);
    assert!(!able(&snapshot).contains("Kubernetes//Pod/default/new"));
}
