//! What the decision about an outbound connection comes to: how it is carried and to whom, or why it goes nowhere.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::base::fault::Whose;
use crate::base::limits::RESOLVED_ADDRESSES;
use crate::base::net::{Upstream, address_text};
use crate::base::text::Text;
use crate::mesh::identity::Identity;
use crate::mesh::service::Service;
use crate::mesh::workload::Workload;

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
    /// Where the next hop is known by its host name: the other addresses of that name, to be tried in this order.
    pub other_addresses: Vec<IpAddr>,
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
    pub(super) uid: Text,
    pub(super) target: IpAddr,
    /// With 0.0.0.0 in place of the address, also in the authority where that names it.
    pub(super) plan: Plan,
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
    /// `found`: `None` where nobody answered, or the name isn't known.
    pub fn at(self, found: Option<&[IpAddr]>, random: &mut fastrand::Rng) -> Result<Plan, Refuse> {
        let mut addresses = found.ok_or(Refuse::Unresolved(self.uid.clone()))?.to_vec();
        random.shuffle(&mut addresses);
        addresses.sort_by_key(|ip| ip.is_ipv4() != self.target.is_ipv4());
        addresses.truncate(RESOLVED_ADDRESSES);
        let plan = Plan { other_addresses: addresses, ..self.plan };
        plan.at_next_address().ok_or(Refuse::NoUsableAddress(self.uid))
    }
}

impl Plan {
    /// The same at the next of the other addresses that the next hop's name has; `None` where none is left.
    pub fn at_next_address(&self) -> Option<Self> {
        let (ip, left) = self.other_addresses.split_first()?;
        let mut plan = Self { other_addresses: left.to_vec(), ..self.clone() };
        if let Some(mut asked) = self.asked_of_next_hop() {
            asked.set_ip(*ip);
            plan.authority = Some(address_text(asked));
        }
        plan.upstream.0.set_ip(*ip);
        Some(plan)
    }

    /// Whether the next hop is the destination, rather than a waypoint or gateway before it.
    pub fn ends_at_next_hop(&self) -> bool {
        self.carrier == Carrier::Tcp || self.asked_of_next_hop().is_some()
    }

    /// The port that the next hop is asked for: its application's, where it is the destination.
    pub fn port(&self) -> u16 {
        self.asked_of_next_hop().map_or(self.upstream.port(), |asked| asked.port())
    }

    /// What the CONNECT asks for, where that is the next hop's own address.
    fn asked_of_next_hop(&self) -> Option<SocketAddr> {
        let authority = self.authority.as_deref().filter(|_| self.carrier == Carrier::Hbone)?;
        authority.parse().ok().filter(|asked: &SocketAddr| asked.ip() == self.upstream.ip())
    }
}
