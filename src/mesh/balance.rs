//! Which endpoint of a service a connection gets, and which of its addresses (reference sections 5.3 to 5.5).
//! One pass, no allocation: the choice is a weighted reservoir of one.

use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::service::{IpFamilies, LoadBalancer, LoadBalancerMode, Scope, Service};
use crate::mesh::snapshot::{Serving, Snapshot};
use crate::mesh::workload::Workload;

/// What the port of a look-up means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A port that the service must have.
    Standard,
    /// The HBONE port of a waypoint, which may be missing from its service.
    Waypoint,
}

/// One endpoint, chosen.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    pub workload: &'a Arc<Workload>,
    /// Where the endpoint listens for that service port; `None`: nobody knows.
    pub port: Option<u16>,
}

/// An endpoint of `service` for its `port`, at random by capacity among the best that the balancer's mode leaves.
pub fn pick<'a>(
    snapshot: &'a Snapshot,
    service: &'a Service,
    port: u16,
    source: &Workload,
    purpose: Purpose,
    random: &mut fastrand::Rng,
) -> Option<Chosen<'a>> {
    let listed = service.target_port(port);
    if purpose == Purpose::Standard && listed.is_none() {
        return None;
    }
    let mut best = Reservoir::default();
    for serving in snapshot.endpoints(&service.key) {
        let Some(workload) = serving.workload else { continue };
        let mapped = mapped_port(&serving, port);
        if !is_reachable(workload, source) || !is_able(workload, mapped, listed, purpose) {
            continue;
        }
        let Some(rank) = rank(service.load_balancer.as_ref(), source, workload) else { continue };
        let tunnel = workload.application_tunnel.and_then(|tunnel| tunnel.port).map(|_| port);
        let target = mapped.or(listed.filter(|target| *target > 0)).or(tunnel);
        best.offer(rank, workload.capacity, Chosen { workload, port: target }, random);
    }
    best.chosen
}

/// The port that the endpoint itself maps; 0 is no port.
fn mapped_port(serving: &Serving<'_>, port: u16) -> Option<u16> {
    serving
        .ports
        .iter()
        .find(|pair| pair.service == port)
        .map(|pair| pair.target)
        .filter(|target| *target > 0)
}

/// Without an address or name, only by the gateway of another network.
fn is_reachable(workload: &Workload, source: &Workload) -> bool {
    !workload.addresses.is_empty()
        || !workload.hostname.is_empty()
        || (workload.network != source.network && workload.network_gateway.is_some())
}

fn is_able(workload: &Workload, mapped: Option<u16>, listed: Option<u16>, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Standard => listed.is_some_and(|target| target > 0) || mapped.is_some(),
        Purpose::Waypoint => listed.is_some() || mapped.is_some() || workload.application_tunnel.is_some(),
    }
}

/// How well an endpoint fits the preferences; `None`: not at all allowed.
fn rank(balancer: Option<&LoadBalancer>, source: &Workload, workload: &Workload) -> Option<usize> {
    let Some(balancer) = balancer else { return Some(0) };
    let preferences = balancer.routing_preferences.as_slice();
    match balancer.mode {
        LoadBalancerMode::Standard => Some(0),
        LoadBalancerMode::Strict => {
            preferences.iter().all(|scope| matches(*scope, source, workload)).then_some(0)
        }
        // Whoever asks for an endpoint of a passthrough service by its host name gets the nearest (reference 5.4).
        LoadBalancerMode::Failover | LoadBalancerMode::Passthrough => {
            Some(nearness(preferences, source, workload))
        }
    }
}

/// Leading preferences that match. A first preference for the network outweighs all others together, but failing
/// it doesn't end the comparison.
fn nearness(preferences: &[Scope], source: &Workload, workload: &Workload) -> usize {
    let leading = |preferences: &[Scope]| {
        preferences.iter().take_while(|scope| matches(**scope, source, workload)).count()
    };
    match preferences {
        [Scope::Network, rest @ ..] if matches(Scope::Network, source, workload) => {
            1 + rest.len() + leading(rest)
        }
        [Scope::Network, rest @ ..] => leading(rest),
        preferences => leading(preferences),
    }
}

fn matches(scope: Scope, source: &Workload, workload: &Workload) -> bool {
    match scope {
        Scope::Region => source.locality.region == workload.locality.region,
        Scope::Zone => source.locality.zone == workload.locality.zone,
        Scope::Subzone => source.locality.subzone == workload.locality.subzone,
        Scope::Node => source.node == workload.node,
        Scope::Cluster => source.cluster_id == workload.cluster_id,
        Scope::Network => source.network == workload.network,
    }
}

/// Keeps one of the offers of the best rank, each with a chance by its weight.
#[derive(Default)]
struct Reservoir<'a> {
    rank: usize,
    total: u64,
    chosen: Option<Chosen<'a>>,
}

impl<'a> Reservoir<'a> {
    fn offer(&mut self, rank: usize, weight: u32, offer: Chosen<'a>, random: &mut fastrand::Rng) {
        if rank < self.rank {
            return;
        }
        if rank > self.rank {
            *self = Self { rank, ..Self::default() };
        }
        self.total += u64::from(weight);
        if weight > 0 && random.u64(0..self.total) < u64::from(weight) {
            self.chosen = Some(offer);
        }
    }
}

/// One of `weights` at random, a weight of 0 never; `None` where all are 0.
pub fn pick_weighted<'a, T>(
    choices: impl Iterator<Item = (&'a T, u32)>,
    random: &mut fastrand::Rng,
) -> Option<&'a T> {
    let (mut total, mut chosen) = (0_u64, None);
    for (choice, weight) in choices.filter(|(_, weight)| *weight > 0) {
        total += u64::from(weight);
        if random.u64(0..total) < u64::from(weight) {
            chosen = Some(choice);
        }
    }
    chosen
}

/// The address of a workload to use for a connection that was meant for `target`: the very same, else one of its
/// family, else the first that the service's families allow. `ipv6: false` rules out IPv6 addresses but `target`.
pub fn pick_address(
    workload: &Workload,
    target: IpAddr,
    families: Option<IpFamilies>,
    ipv6: bool,
) -> Option<IpAddr> {
    if workload.addresses.contains(&target) {
        return Some(target);
    }
    let allowed = |ip: &&IpAddr| match families {
        Some(IpFamilies::Ipv4) => ip.is_ipv4(),
        Some(IpFamilies::Ipv6) => ipv6 && ip.is_ipv6(),
        Some(IpFamilies::Dual) | None => ipv6 || ip.is_ipv4(),
    };
    let mut candidates = workload.addresses.iter().filter(allowed);
    candidates.clone().find(|ip| ip.is_ipv4() == target.is_ipv4()).or_else(|| candidates.next()).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::mesh::fixture::{gateway, mesh, pod, service, serving, with};
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

    /// How often each is chosen of 3,000 times.
    fn chosen(of: &Service, endpoints: &[Workload]) -> BTreeMap<String, u32> {
        let snapshot = mesh(endpoints.iter().cloned().map(Into::into).chain([of.clone().into()]));
        let source = placed("client", "here", "r1", "z1");
        let mut random = fastrand::Rng::with_seed(3);
        let mut times = BTreeMap::new();
        for _ in 0..3_000 {
            if let Some(chosen) = pick(&snapshot, of, 80, &source, Purpose::Standard, &mut random) {
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
            pick(&snapshot, &way, 15008, &waypoint, Purpose::Waypoint, &mut random).map(|chosen| chosen.port)
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
}
