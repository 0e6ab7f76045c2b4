//! Why a connection goes where it goes and is let in or not, as data and as text for people. The decisions are
//! `mesh::route`'s and `mesh::admit`'s own, made with somebody taking notes: nothing is decided twice.

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;

use crate::base::text::Text;
use crate::mesh::admit::{Call, Decision, Denial, Verdict, decide};
use crate::mesh::identity::TrustDomains;
use crate::mesh::plan::{Carrier, Plan, Refuse};
use crate::mesh::policy::Action;
use crate::mesh::route::{Request, Routed, route};
use crate::mesh::service::ServiceKey;

/// What a decision came by, in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// The address is this service's, as the caller sees it.
    Service(ServiceKey),
    /// The address is this workload's own.
    Workload(Text),
    /// The service wants its callers passed through to wherever they were going.
    PassthroughService(ServiceKey),
    /// Nobody in the mesh is known at the address.
    Passthrough,
    Waypoint(Text),
    /// The destination has this waypoint, and the caller is it.
    CallerIsWaypoint(Text),
    Gateway {
        network: Text,
        gateway: Text,
    },
    /// An endpoint of a service is chosen: each one, and what speaks against it.
    Among {
        service: ServiceKey,
        port: u16,
        /// Whether the service has that port.
        known_port: bool,
        endpoints: Vec<(Text, Option<Unfit>)>,
    },
}

/// Why an endpoint isn't chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unfit {
    Unhealthy,
    /// Named by the service, but nobody has told of the workload.
    Unknown,
    /// This connection has tried it.
    Tried,
    /// It has neither address nor name nor gateway.
    Unreachable,
    /// Nobody knows where it listens for the port.
    NoPort,
    /// A strict preference rules it out.
    Elsewhere,
    NoCapacity,
    /// It refused lately.
    Ejected,
    /// Others are nearer.
    Farther,
}

impl Unfit {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unhealthy => "unhealthy",
            Self::Unknown => "its workload isn't known",
            Self::Tried => "tried in vain",
            Self::Unreachable => "has no address",
            Self::NoPort => "doesn't serve the port",
            Self::Elsewhere => "not where the service demands it",
            Self::NoCapacity => "has no capacity",
            Self::Ejected => "refused lately",
            Self::Farther => "others are nearer",
        }
    }
}

/// Takes the notes of one decision.
#[derive(Default)]
pub struct Notes(RefCell<Vec<Note>>);

impl Notes {
    pub fn add(&self, note: Note) {
        self.0.borrow_mut().push(note);
    }
}

/// A connection, explained.
#[derive(Clone, PartialEq, Debug)]
pub struct Why {
    pub from: Text,
    pub to: SocketAddr,
    pub notes: Vec<Note>,
    pub route: Result<Routed, Refuse>,
    /// What the policies at the destination say, by this node's knowledge; none where the next hop isn't the
    /// destination, or isn't in the mesh.
    pub policies: Option<Decision>,
}

/// Explains what would become of a connection now. Where chance decides, this is one of the outcomes.
pub fn why(request: &Request<'_>, domains: &TrustDomains, random: &mut fastrand::Rng) -> Why {
    let notes = Notes::default();
    let mut request = *request;
    request.view.notes = Some(&notes);
    let route = route(&request, random);
    let policies = match &route {
        Ok(Routed::Go(plan)) => policies(&request, plan, domains),
        Ok(Routed::Resolve(_)) | Err(_) => None,
    };
    let from = format!("{}/{}", request.source.namespace, request.source.name).into();
    Why { from, to: request.target.0, notes: notes.0.take(), route, policies }
}

fn policies(request: &Request<'_>, plan: &Plan, domains: &TrustDomains) -> Option<Decision> {
    let workload = plan.destination.as_deref().filter(|_| plan.ends_at_next_hop())?;
    let identity = request.source.identity();
    let (identity, destination) = match (&plan.carrier, &plan.authority) {
        (Carrier::Tcp, _) => (None, plan.upstream.0),
        (Carrier::Hbone | Carrier::DoubleHbone { .. }, Some(authority)) => {
            (Some(&identity), authority.parse().ok()?)
        }
        (Carrier::Hbone | Carrier::DoubleHbone { .. }, None) => return None,
    };
    let call = Call { source: request.caller, identity, destination, workload, domains };
    Some(decide(request.snapshot, &call))
}

impl Why {
    /// Whether it would be carried, as far as this node knows.
    pub fn is_allowed(&self) -> bool {
        let denied = self.policies.as_ref().is_some_and(|said| matches!(said.verdict, Verdict::Denied(_)));
        self.route.is_ok() && !denied
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} -> {}", self.from, self.to)?;
        for note in &self.notes {
            write!(f, "{note}")?;
        }
        match &self.route {
            Err(refuse) => writeln!(f, "refused: {refuse}")?,
            Ok(Routed::Resolve(named)) => writeln!(f, "route: to whatever {} resolves to", named.host)?,
            Ok(Routed::Go(plan)) => tell_plan(plan, f)?,
        }
        match &self.policies {
            None if self.route.is_err() => {}
            None => writeln!(f, "policies: decided beyond the next hop")?,
            Some(said) => tell_decision(said, f)?,
        }
        writeln!(f, "=> {}", if self.is_allowed() { "carried" } else { "not carried" })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(key) => writeln!(f, "the address is of service {key}"),
            Self::Workload(uid) => writeln!(f, "the address is of workload {uid}"),
            Self::PassthroughService(key) => writeln!(f, "service {key} has its callers passed through"),
            Self::Passthrough => writeln!(f, "nobody in the mesh is behind it: passed through as it is"),
            Self::Waypoint(name) => writeln!(f, "it has waypoint {name}"),
            Self::CallerIsWaypoint(name) => {
                writeln!(f, "its waypoint {name} is the caller: on to the workload")
            }
            Self::Gateway { network, gateway } => {
                writeln!(f, "it is in network {network:?}, behind gateway {gateway}")
            }
            Self::Among { service, port, known_port, endpoints } => {
                writeln!(f, "endpoints of {service} for port {port}:")?;
                if !known_port {
                    writeln!(f, "  the service has no such port")?;
                }
                if endpoints.is_empty() {
                    writeln!(f, "  none")?;
                }
                for (uid, unfit) in endpoints {
                    writeln!(f, "  {uid}: {}", unfit.map_or("may be chosen", Unfit::as_str))?;
                }
                Ok(())
            }
        }
    }
}

fn tell_plan(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let by = match plan.carrier {
        Carrier::Tcp => "plain TCP",
        Carrier::Hbone => "HBONE",
        Carrier::DoubleHbone { .. } => "HBONE within HBONE",
    };
    write!(f, "route: {by} to {}", plan.upstream)?;
    if let Some(workload) = &plan.destination {
        write!(f, " ({}/{})", workload.namespace, workload.name)?;
    }
    if let Some(authority) = &plan.authority {
        write!(f, ", asking for {authority}")?;
    }
    writeln!(f)?;
    for identity in plan.expected.iter() {
        writeln!(f, "  who answers must be {identity}")?;
    }
    Ok(())
}

fn tell_decision(said: &Decision, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match &said.verdict {
        Verdict::Allowed { by: None } => writeln!(f, "policies: allowed, none has to allow it")?,
        Verdict::Allowed { by: Some(ground) } => {
            writeln!(f, "policies: allowed by {} {}", ground.name(), ground.place())?;
        }
        Verdict::Denied(Denial::Explicit(ground)) => {
            writeln!(f, "policies: denied by {} {}", ground.name(), ground.place())?;
        }
        Verdict::Denied(denial) => writeln!(f, "policies: denied, {denial}")?,
    }
    for ground in &said.rehearsal.matched {
        let would = if ground.policy.action == Action::Deny { "deny" } else { "allow" };
        writeln!(f, "  on dry run, {} {} would {would} it", ground.name(), ground.place())?;
    }
    if said.rehearsal.none_allowed {
        writeln!(f, "  on dry run, no ALLOW policy would allow it")?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
