//! The part that SOCKS5 and HTTP CONNECT have in common: a destination becomes an address, mesh first, and then goes
//! the way of a captured connection; and what a failure is to a client of either.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use crate::base::net::{Captured, Source};
use crate::base::text::Text;
use crate::mesh::plan::Refuse;
use crate::path::dialogue::tell;
use crate::path::outbound::{Outbound, There};
use crate::path::record::{Denied, deny};
use crate::shard::dns::ResolveError;
use crate::shard::failure::{Failure, Status};
use crate::shard::pod::PodWorld;
use crate::shard::socket::Held;
use crate::wire::access_log::{Direction, Via};
use crate::wire::destination::Destination;
use crate::wire::socks5::Reply;

/// One client that has said where it wants to go.
pub(super) struct Explicit<'a> {
    pub world: &'a Rc<PodWorld>,
    pub source: Source,
    pub via: Via,
}

impl Explicit<'_> {
    /// Reaches the destination; where that fails, it has been told and counted.
    pub async fn arrive(&self, to: &Destination, app: &Held) -> Result<There, Failure> {
        let Explicit { world, source, via } = *self;
        let since = Instant::now();
        let mut found = Vec::new();
        let address = match to {
            Destination::Address(address) => *address,
            Destination::Name { host, port } => match resolve(world, source, host).await {
                Ok((ip, others)) => {
                    found = others;
                    SocketAddr::new(ip, *port)
                }
                Err(failure) => {
                    let (src, name) = (source.0, Some(to.to_string().into()));
                    let dst = SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port));
                    let denied = Denied { direction: Direction::Outbound, src, dst, name, via: Some(via) };
                    deny(world, denied, &failure);
                    return Err(failure);
                }
            },
        };
        let target = Captured::new(address);
        Outbound { world, source, target, since, via: Some(via), others: &found }.arrive(app).await
    }
}

/// Tells the client of its success; nothing is left of the far side where it has gone meanwhile.
pub(super) async fn announce(there: There, app: &Held, success: &[u8]) -> Option<There> {
    match tell(app, success).await {
        Ok(()) => Some(there),
        Err(failure) => {
            there.give_up(failure);
            None
        }
    }
}

/// The addresses of a name, of the mesh first: the best, and the others. Those of a family that the pod has go first,
/// and of these the family by which the client calls, as in the reference.
async fn resolve(
    world: &Rc<PodWorld>,
    client: Source,
    host: &Text,
) -> Result<(IpAddr, Vec<IpAddr>), Failure> {
    let plain = host.strip_suffix('.').unwrap_or(host);
    // RFC 6761 section 6.3: never asked of a name server.
    if plain == "localhost" || plain.ends_with(".localhost") {
        return Ok((Ipv4Addr::LOCALHOST.into(), Vec::new()));
    }
    let (_, local) = world.shard.local_workload(&world.pod.info).await?;
    let mut found = Box::pin(world.resolve(host)).await.map_err(|error| match error {
        ResolveError::NoWorkload { error, .. } => error,
        ResolveError::Unanswered { .. } => Failure::NameUnanswered(error.to_string()),
        ResolveError::NotAHost(_) | ResolveError::NoSuchHost(_) | ResolveError::NoAddress(_) => {
            Failure::NameUnknown(error.to_string())
        }
    })?;
    let has = |ip: &IpAddr| local.addresses.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
    let rank = |ip: &IpAddr| (!has(ip), ip.is_ipv4() != client.ip().is_ipv4());
    found.sort_by_key(rank);
    let mut found = found.into_iter();
    let best = found.next().ok_or_else(|| Failure::NameUnknown(format!("host {host} has no address")))?;
    Ok((best, found.collect()))
}

/// What a failure is to the client, whichever proxy it speaks to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Somebody decided against it.
    Denied,
    Refused,
    NetworkUnreachable,
    HostUnreachable,
    Late,
    /// The mesh has nobody there who could serve.
    NobodyThere,
    /// The far side, or the way to it, is out of order.
    Broken,
    /// This proxy can't serve now.
    NotNow,
}

impl Outcome {
    pub fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Refused(refuse) => Self::of_refusal(refuse),
            Failure::PolicyChange
            | Failure::WaypointChange
            | Failure::PolicyRejection(_)
            | Failure::Revoked
            | Failure::Status(Status(401 | 403)) => Self::Denied,
            // What a proxy says whose application refused; the way itself worked.
            Failure::Status(Status(503)) => Self::Refused,
            Failure::Io { kind: ErrorKind::ConnectionRefused, .. } => Self::Refused,
            Failure::Io { kind: ErrorKind::NetworkUnreachable, .. } => Self::NetworkUnreachable,
            Failure::Io { kind: ErrorKind::HostUnreachable, .. } | Failure::NameUnknown(_) => {
                Self::HostUnreachable
            }
            Failure::TunnelConnectDeadline
            | Failure::ConnectDeadline
            | Failure::LookUp(_)
            | Failure::NameUnanswered(_)
            | Failure::Status(Status(504))
            | Failure::Io { kind: ErrorKind::TimedOut, .. } => Self::Late,
            Failure::Io { .. }
            | Failure::TlsHandshake(_)
            | Failure::InboundHandshake(_)
            | Failure::Http2(_)
            | Failure::Status(_)
            | Failure::Application(_)
            | Failure::HalfCloseIdle
            | Failure::Send(_)
            | Failure::Receive(_)
            | Failure::InboundRefused(_)
            | Failure::NotConnect(_) => Self::Broken,
            Failure::Shortage(_)
            | Failure::TlsSetup(_)
            | Failure::Identity(_)
            | Failure::Signing(_)
            | Failure::LocalWorkload(_)
            | Failure::Drained
            | Failure::PoolDraining => Self::NotNow,
        }
    }

    fn of_refusal(refuse: &Refuse) -> Self {
        match refuse {
            Refuse::SelfCall => Self::Denied,
            Refuse::NotSynced | Refuse::Unsupported(_) => Self::NotNow,
            Refuse::NoHealthyUpstream(_)
            | Refuse::UnknownWaypoint(_)
            | Refuse::UnknownGateway(_)
            | Refuse::NoService(_)
            | Refuse::NoTargetPort(_)
            | Refuse::NoValidDestination(_)
            | Refuse::Unresolved(_)
            | Refuse::NoUsableAddress(_) => Self::NobodyThere,
        }
    }

    /// RFC 9110 sections 15.5.4 and 15.6.
    pub fn status(self) -> u16 {
        match self {
            Self::Denied => 403,
            Self::Refused | Self::NetworkUnreachable | Self::HostUnreachable | Self::Broken => 502,
            Self::NobodyThere | Self::NotNow => 503,
            Self::Late => 504,
        }
    }

    /// RFC 1928 section 6.
    pub fn reply(self) -> Reply {
        match self {
            Self::Denied => Reply::NotAllowed,
            Self::Refused => Reply::ConnectionRefused,
            Self::NetworkUnreachable => Reply::NetworkUnreachable,
            Self::HostUnreachable | Self::Late | Self::NobodyThere => Reply::HostUnreachable,
            Self::Broken | Self::NotNow => Reply::GeneralFailure,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_failure_has_a_status_and_a_reply_of_its_kind() {
        let os = |errno| Failure::io(&io::Error::from_raw_os_error(errno));
        let status = |status| Failure::Status(Status(status));
        for (failure, http, socks) in [
            (status(401), 403, 2),
            (status(403), 403, 2),
            (status(404), 502, 1),
            (status(500), 502, 1),
            (status(503), 502, 5),
            (status(504), 504, 4),
            (os(libc::ECONNREFUSED), 502, 5),
            (os(libc::ENETUNREACH), 502, 3),
            (os(libc::EHOSTUNREACH), 502, 4),
            (os(libc::ETIMEDOUT), 504, 4),
            (os(libc::ECONNRESET), 502, 1),
            (os(libc::EMFILE), 503, 1),
            (Failure::ConnectDeadline, 504, 4),
            (Failure::TunnelConnectDeadline, 504, 4),
            (Failure::NameUnknown("no such host: nobody".to_owned()), 502, 4),
            (Failure::NameUnanswered("silence".to_owned()), 504, 4),
            (Failure::Identity("unsigned".to_owned()), 503, 1),
            (Failure::Refused(Refuse::SelfCall), 403, 2),
            (Failure::Refused(Refuse::NotSynced), 503, 1),
            (Failure::Refused(Refuse::NoHealthyUpstream("10.0.0.1:80".parse().unwrap())), 503, 4),
        ] {
            let outcome = Outcome::of(&failure);
            assert_eq!((outcome.status(), outcome.reply().bytes()[1]), (http, socks), "{failure}");
        }
    }
}
