//! Why a connection could not be carried, as data: log text, response flag and whose fault follow from it.
//! Texts are the reference's (section 6.5), since people grep for them.

use std::io;

use crate::base::fault::Whose;
use crate::mesh::admit::{Denial, InboundRefuse};
use crate::mesh::labels::Flag;
use crate::mesh::plan::Refuse;
use crate::shard::ending::Fault;
use crate::sys::listener::is_descriptor_shortage;

/// Clonable, so that one failed dial can be told to everybody who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    #[error("connection timed out, maybe a NetworkPolicy is blocking HBONE port 15008: deadline has elapsed")]
    TunnelConnectDeadline,
    #[error("io error: deadline has elapsed")]
    ConnectDeadline,
    #[error("io error: {text}")]
    Io { kind: io::ErrorKind, text: String },
    /// This process or its node is short of descriptors, memory or ports.
    #[error("io error: {0}")]
    Shortage(String),
    #[error("tls error: {0}")]
    TlsSetup(String),
    /// The reference reports a failed handshake as an io error, flag CONNECT.
    #[error("io error: {0}")]
    TlsHandshake(String),
    #[error("tls handshake error: {0}")]
    InboundHandshake(String),
    #[error("h2 failed: {0}")]
    Http2(String),
    #[error("identity error: {0}")]
    Identity(String),
    /// The same where a peer calls.
    #[error("signing error: {0}")]
    Signing(String),
    #[error("http status: {0}")]
    Status(Status),
    #[error("connection failed: {0}")]
    Application(String),
    #[error("connection closed due to policy change")]
    PolicyChange,
    #[error("connection closed: this workload is no longer the waypoint of what was asked for")]
    WaypointChange,
    #[error("connection closed due to policy rejection: {0}")]
    PolicyRejection(Denial),
    #[error("connection closed: peer certificate revoked by CRL")]
    Revoked,
    #[error("connection closed due to connection drain")]
    Drained,
    #[error("connection closed: half-closed and idle")]
    HalfCloseIdle,
    #[error("failed to fetch information about local workload: {0}")]
    LocalWorkload(String),
    /// On-demand mode: the control plane has neither told of this name nor said that it doesn't have it.
    #[error("the control plane has not answered the look-up of {0}")]
    LookUp(crate::base::text::Text),
    /// A name that neither the mesh nor a name server has an address for.
    #[error("dns lookup: {0}")]
    NameUnknown(String),
    #[error("dns lookup: {0}")]
    NameUnanswered(String),
    #[error(transparent)]
    Refused(#[from] Refuse),
    #[error(transparent)]
    InboundRefused(#[from] InboundRefuse),
    /// Bytes from the client on their way, after the far side was reached.
    #[error("send: {0}")]
    Send(Fault),
    /// Bytes to the client on their way.
    #[error("receive: {0}")]
    Receive(Fault),
    #[error("expected method CONNECT, got {0}")]
    NotConnect(String),
    #[error("pool draining")]
    PoolDraining,
}

const KERNEL_REASONS: [(io::ErrorKind, &str); 6] = [
    (io::ErrorKind::ConnectionRefused, "connection_refused"),
    (io::ErrorKind::ConnectionReset, "connection_reset"),
    (io::ErrorKind::BrokenPipe, "connection_reset"),
    (io::ErrorKind::NetworkUnreachable, "network_unreachable"),
    (io::ErrorKind::HostUnreachable, "host_unreachable"),
    (io::ErrorKind::TimedOut, "connect_timeout"),
];

/// An HTTP status with its reason phrase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u16);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = match self.0 {
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            429 => "Too Many Requests",
            500 => "Internal Server Error",
            502 => "Bad Gateway",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            _ => return write!(f, "{}", self.0),
        };
        write!(f, "{} {reason}", self.0)
    }
}

impl Failure {
    pub fn io(error: &io::Error) -> Self {
        let short = error.kind() == io::ErrorKind::AddrNotAvailable || is_descriptor_shortage(error);
        let text = error.to_string();
        if short { Self::Shortage(text) } else { Self::Io { kind: error.kind(), text } }
    }

    /// As it is told where a peer's tunnel couldn't be taken (reference section 7.1).
    pub fn at_signing(self) -> Self {
        if let Self::Identity(why) = self { Self::Signing(why) } else { self }
    }

    /// `response_flags` of the closed and failed metrics.
    pub fn flag(&self) -> Flag {
        match self {
            Self::TunnelConnectDeadline => Flag::NetworkPolicy,
            Self::TlsSetup(_) => Flag::TlsFailure,
            Self::Http2(_) => Flag::Http2Handshake,
            Self::Identity(_) | Self::Signing(_) => Flag::Identity,
            Self::PolicyChange | Self::WaypointChange | Self::PolicyRejection(_) => Flag::Deny,
            Self::Revoked => Flag::CertificateRevoked,
            // The reference drops the connection's task here, and its flag stays unset.
            Self::Drained => Flag::None,
            Self::ConnectDeadline
            | Self::Io { .. }
            | Self::Shortage(_)
            | Self::TlsHandshake(_)
            | Self::InboundHandshake(_)
            | Self::Status(_)
            | Self::Application(_)
            | Self::HalfCloseIdle
            | Self::LocalWorkload(_)
            | Self::LookUp(_)
            | Self::NameUnknown(_)
            | Self::NameUnanswered(_)
            | Self::Refused(_)
            | Self::InboundRefused(_)
            | Self::NotConnect(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::PoolDraining => Flag::Connect,
        }
    }

    /// Why, in one word for programs that count: `reason` of the access log, explained in deploy/docs/access-log.md.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TunnelConnectDeadline | Self::ConnectDeadline => "connect_timeout",
            Self::Io { kind, .. } => {
                let known = KERNEL_REASONS.iter().find(|(of, _)| of == kind);
                known.map_or("io_error", |(_, reason)| reason)
            }
            Self::Shortage(_) => "resource_shortage",
            Self::TlsSetup(_) => "tls_setup",
            Self::TlsHandshake(_) | Self::InboundHandshake(_) => "tls_handshake",
            Self::Http2(_) => "http2",
            Self::Identity(_) | Self::Signing(_) => "no_certificate",
            Self::Status(Status(401 | 403)) => "denied_by_peer",
            Self::Status(_) => "refused_by_peer",
            Self::Application(_) => "application_unreachable",
            Self::PolicyChange => "policy_change",
            Self::WaypointChange => "waypoint_change",
            Self::PolicyRejection(denial) => denial.reason(),
            Self::Revoked => "certificate_revoked",
            Self::Drained | Self::PoolDraining => "drain",
            Self::HalfCloseIdle => "half_close_idle",
            Self::Send(_) | Self::Receive(_) => "relay_failed",
            Self::LocalWorkload(_) => "workload_unknown",
            Self::LookUp(_) => "look_up_timeout",
            Self::NameUnknown(_) => "name_unknown",
            Self::NameUnanswered(_) => "name_unanswered",
            Self::Refused(refuse) => refuse.reason(),
            Self::InboundRefused(refuse) => refuse.reason(),
            Self::NotConnect(_) => "not_connect",
        }
    }

    /// Whether another endpoint may do better: this one wasn't reached, or can't serve now. A denial is a decision, and
    /// what is our own fault is so everywhere.
    pub fn another_may_do(&self) -> bool {
        match self {
            Self::TunnelConnectDeadline
            | Self::ConnectDeadline
            | Self::Io { .. }
            | Self::TlsHandshake(_)
            | Self::Revoked
            | Self::Http2(_) => true,
            Self::Status(Status(status)) => *status >= 500,
            Self::TlsSetup(_)
            | Self::Shortage(_)
            | Self::InboundHandshake(_)
            | Self::Identity(_)
            | Self::Signing(_)
            | Self::Application(_)
            | Self::PolicyChange
            | Self::WaypointChange
            | Self::PolicyRejection(_)
            | Self::Drained
            | Self::HalfCloseIdle
            | Self::LocalWorkload(_)
            | Self::LookUp(_)
            | Self::NameUnknown(_)
            | Self::NameUnanswered(_)
            | Self::Refused(_)
            | Self::InboundRefused(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::NotConnect(_)
            | Self::PoolDraining => false,
        }
    }

    /// Who has to change something.
    pub fn whose(&self) -> Whose {
        match self {
            Self::Refused(refuse) => refuse.whose(),
            Self::HalfCloseIdle => Whose::Client,
            Self::TunnelConnectDeadline
            | Self::ConnectDeadline
            | Self::Io { .. }
            | Self::TlsHandshake(_)
            | Self::InboundHandshake(_)
            | Self::Http2(_)
            | Self::Status(_)
            | Self::InboundRefused(_)
            | Self::NotConnect(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Revoked
            | Self::Application(_) => Whose::Peer,
            Self::PolicyChange
            | Self::WaypointChange
            | Self::PolicyRejection(_)
            | Self::LocalWorkload(_)
            | Self::LookUp(_)
            | Self::NameUnknown(_)
            | Self::NameUnanswered(_)
            | Self::Identity(_)
            | Self::Signing(_) => Whose::Mesh,
            Self::TlsSetup(_) | Self::Shortage(_) | Self::Drained | Self::PoolDraining => Whose::Us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of the access log explains every reason that a line can give.
    #[test]
    fn every_reason_is_explained_to_operators() {
        let page = include_str!("../../deploy/docs/access-log.md");
        let refuse = Failure::Refused;
        let text = || "x".to_owned();
        let at = std::net::SocketAddr::from(([10, 0, 0, 1], 80));
        let io = |kind| Failure::Io { kind, text: text() };
        let failures = [
            Failure::TunnelConnectDeadline,
            Failure::ConnectDeadline,
            io(io::ErrorKind::ConnectionRefused),
            io(io::ErrorKind::ConnectionReset),
            io(io::ErrorKind::BrokenPipe),
            io(io::ErrorKind::NetworkUnreachable),
            io(io::ErrorKind::HostUnreachable),
            io(io::ErrorKind::TimedOut),
            io(io::ErrorKind::Other),
            Failure::Shortage(text()),
            Failure::TlsSetup(text()),
            Failure::TlsHandshake(text()),
            Failure::InboundHandshake(text()),
            Failure::Http2(text()),
            Failure::Identity(text()),
            Failure::Signing(text()),
            Failure::Status(Status(401)),
            Failure::Status(Status(503)),
            Failure::Application(text()),
            Failure::PolicyChange,
            Failure::WaypointChange,
            Failure::PolicyRejection(Denial::NoneAllowed),
            Failure::PolicyRejection(Denial::NotSynced),
            Failure::Revoked,
            Failure::Drained,
            Failure::PoolDraining,
            Failure::HalfCloseIdle,
            Failure::Send(Fault::PingTimeout),
            Failure::LocalWorkload(text()),
            Failure::LookUp("x".into()),
            Failure::NameUnknown(text()),
            Failure::NameUnanswered(text()),
            Failure::NotConnect(text()),
            refuse(Refuse::SelfCall),
            refuse(Refuse::NotSynced),
            refuse(Refuse::NoHealthyUpstream(at)),
            refuse(Refuse::UnknownWaypoint("x".into())),
            refuse(Refuse::UnknownGateway("x".into())),
            refuse(Refuse::NoService(at)),
            refuse(Refuse::NoTargetPort("x".into())),
            refuse(Refuse::NoValidDestination("x".into())),
            refuse(Refuse::Unresolved("x".into())),
            refuse(Refuse::NoUsableAddress("x".into())),
            refuse(Refuse::Unsupported("x")),
            Failure::InboundRefused(InboundRefuse::IpMismatch { connection: at.ip(), asked: at.ip() }),
            Failure::InboundRefused(InboundRefuse::UnknownHost(text())),
            Failure::InboundRefused(InboundRefuse::NoPort { host: text(), port: 1 }),
            Failure::InboundRefused(InboundRefuse::NoAddress(text())),
            Failure::InboundRefused(InboundRefuse::SelfCall),
        ];
        let reasons = failures.iter().map(Failure::reason).chain(["policy_denied", "no_authority", "reset"]);
        for reason in reasons {
            assert!(page.contains(&format!("| `{reason}` |")), "{reason} isn't in access-log.md");
        }
    }

    #[test]
    fn another_endpoint_may_do_where_this_one_was_not_reached_and_nobody_decided() {
        let refused = Failure::io(&io::Error::from_raw_os_error(libc::ECONNREFUSED));
        let short = Failure::io(&io::Error::from_raw_os_error(libc::EMFILE));
        for (failure, may) in [
            (refused, true),
            (short, false),
            (Failure::TunnelConnectDeadline, true),
            (Failure::TlsHandshake("alert".to_owned()), true),
            (Failure::Http2("gone".to_owned()), true),
            (Failure::Status(Status(503)), true),
            (Failure::Status(Status(401)), false),
            (Failure::Status(Status(400)), false),
            (Failure::Identity("unsigned".to_owned()), false),
            (Failure::Refused(Refuse::SelfCall), false),
            (Failure::PoolDraining, false),
        ] {
            assert_eq!(failure.another_may_do(), may, "{failure}");
        }
    }
}
