//! Which endpoint of a service a connection gets, and which of its addresses (reference sections 5.3 to 5.5).
//! A service has a table of draws (`mesh::choices`); where that gives nobody, it is looked through in one pass, by a
//! weighted reservoir of one. No allocation either way.

use std::net::IpAddr;
use std::sync::Arc;

use crate::base::limits::TABLE_DRAWS;
use crate::mesh::choices::value;
use crate::mesh::seen::View;
use crate::mesh::service::{IpFamilies, LoadBalancer, LoadBalancerMode, Scope, Service};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::why::{Note, Unfit};
use crate::mesh::workload::{PortPair, Workload};

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

/// Which service's endpoint is wanted, for whom.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub snapshot: &'a Snapshot,
    pub service: &'a Service,
    pub port: u16,
    /// The workload that calls.
    pub source: &'a Workload,
    pub purpose: Purpose,
    pub view: View<'a>,
}

/// An endpoint at random by capacity among the best that the balancer's mode leaves; where the view says so the freer
/// one of two such. Never one that was tried, and one that is ejected only where no other is left.
pub fn pick<'a>(wanted: &Wanted<'a>, random: &mut fastrand::Rng) -> Option<Chosen<'a>> {
    let listed = wanted.service.target_port(wanted.port);
    wanted.view.note(|| among(wanted, listed));
    if wanted.purpose == Purpose::Standard && listed.is_none() {
        return None;
    }
    let first = pick_one(wanted, listed, random)?;
    if !wanted.view.least_connections {
        return Some(first);
    }
    let second = pick_one(wanted, listed, random)?;
    Some(if wanted.view.is_freer(second.workload, first.workload) { second } else { first })
}

fn pick_one<'a>(wanted: &Wanted<'a>, listed: Option<u16>, random: &mut fastrand::Rng) -> Option<Chosen<'a>> {
    if let Some(choices) = wanted.snapshot.choices(&wanted.service.key)
        && let Some(range) = choices.best(wanted.source)
    {
        for _ in 0..TABLE_DRAWS {
            let Some(workload) = range.draw(random) else { break };
            let ports = workload.ports_for(&wanted.service.key).unwrap_or_default();
            if let Some(chosen) = serve(wanted, workload, ports, listed)
                && !wanted.view.is_ejected(&workload.uid, chosen.port)
            {
                return Some(chosen);
            }
        }
    }
    look_through(wanted, listed, true, random).or_else(|| {
        // Without the ejected ones nothing is left.
        wanted.view.seen.and_then(|_| look_through(wanted, listed, false, random))
    })
}

/// Every endpoint, one after another: the plain meaning of all of this.
fn look_through<'a>(
    wanted: &Wanted<'a>,
    listed: Option<u16>,
    heed_ejections: bool,
    random: &mut fastrand::Rng,
) -> Option<Chosen<'a>> {
    let balancer = wanted.service.load_balancer.as_ref();
    let mut best = Reservoir::default();
    for serving in wanted.snapshot.endpoints(&wanted.service.key) {
        let Some(workload) = serving.workload else { continue };
        let Some(chosen) = serve(wanted, workload, serving.ports, listed) else { continue };
        let Some(rank) = rank(balancer, wanted.source, workload) else { continue };
        if heed_ejections && wanted.view.is_ejected(&workload.uid, chosen.port) {
            continue;
        }
        best.offer(rank, workload.capacity, chosen, random);
    }
    best.chosen
}

/// Every endpoint, and what speaks against those that can't be chosen.
fn among(wanted: &Wanted<'_>, listed: Option<u16>) -> Note {
    let balancer = wanted.service.load_balancer.as_ref();
    let ranked = |workload: &Workload| rank(balancer, wanted.source, workload);
    let mut judged = Vec::new();
    for serving in wanted.snapshot.members(&wanted.service.key) {
        let able = serving.workload.and_then(|workload| serve(wanted, workload, serving.ports, listed));
        let unfit = match serving.workload {
            None => Some(Unfit::Unknown),
            Some(_) if !wanted.service.accepts(serving.status) => Some(Unfit::Unhealthy),
            Some(workload) if wanted.view.is_tried(&workload.uid) => Some(Unfit::Tried),
            Some(workload) if !is_reachable(workload, wanted.source) => Some(Unfit::Unreachable),
            Some(_) if able.is_none() => Some(Unfit::NoPort),
            Some(workload) if ranked(workload).is_none() => Some(Unfit::Elsewhere),
            Some(workload) if workload.capacity == 0 => Some(Unfit::NoCapacity),
            Some(workload) if wanted.view.is_ejected(&workload.uid, able.and_then(|able| able.port)) => {
                Some(Unfit::Ejected)
            }
            Some(_) => None,
        };
        let rank = serving.workload.and_then(|workload| ranked(workload)).unwrap_or_default();
        judged.push((serving.uid.clone(), unfit, rank));
    }
    let best = judged.iter().filter(|(_, unfit, _)| unfit.is_none()).map(|(_, _, rank)| *rank).max();
    judged.sort();
    let endpoints = judged.into_iter().map(|(uid, unfit, rank)| {
        let farther = best.is_some_and(|best| rank < best).then_some(Unfit::Farther);
        (uid, unfit.or(farther))
    });
    let known_port = wanted.purpose == Purpose::Waypoint || listed.is_some();
    Note::Among {
        service: wanted.service.key.clone(),
        port: wanted.port,
        known_port,
        endpoints: endpoints.collect(),
    }
}

/// The endpoint with its port, if it can serve this at all. `ports`: those that it maps itself.
fn serve<'a>(
    wanted: &Wanted<'_>,
    workload: &'a Arc<Workload>,
    ports: &[PortPair],
    listed: Option<u16>,
) -> Option<Chosen<'a>> {
    let mapped = mapped_port(ports, wanted.port);
    let able = is_reachable(workload, wanted.source) && is_able(workload, mapped, listed, wanted.purpose);
    if !able || wanted.view.is_tried(&workload.uid) {
        return None;
    }
    let tunnel = workload.application_tunnel.and_then(|tunnel| tunnel.port).map(|_| wanted.port);
    let port = mapped.or(listed.filter(|target| *target > 0)).or(tunnel);
    Some(Chosen { workload, port })
}

/// The port that the endpoint itself maps; 0 is no port.
fn mapped_port(ports: &[PortPair], port: u16) -> Option<u16> {
    ports.iter().find(|pair| pair.service == port).map(|pair| pair.target).filter(|target| *target > 0)
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
    value(scope, source) == value(scope, workload)
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
#[path = "balance_tests.rs"]
mod tests;
