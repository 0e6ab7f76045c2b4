//! Outgoing sockets: made in the thread's namespace, non-blocking, close-on-exec, and connected with the original
//! source where asked (reference section 7.5). Not the waiting: the caller awaits writability, then `connect_result`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::sys::option;

/// One connection to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dial {
    pub to: SocketAddr,
    /// The caller's address to keep as source; needs CAP_NET_ADMIN and routes that bring the replies back.
    pub from: Option<IpAddr>,
    pub mark: Option<u32>,
    pub keepalive: Option<Keepalive>,
}

/// TCP keepalive of accepted and dialled sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    pub time: Duration,
    pub interval: Duration,
    pub retries: u32,
    /// TCP_USER_TIMEOUT = time + retries x interval.
    pub user_timeout: bool,
}

/// A socket whose connect has been issued; it is done when `connect_result` says so after writability.
#[derive(Debug)]
pub struct Dialled {
    pub fd: OwnedFd,
    /// Whether the original source is kept.
    pub spoofed: bool,
    /// Why it isn't, where it was wanted; the connect went ahead all the same.
    pub warning: Option<SpoofWarning>,
}

/// The original source could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum SpoofWarning {
    #[error("failed to set transparent: {0}")]
    Transparent(io::Error),
    #[error("failed to set freebind: {0}")]
    Freebind(io::Error),
    #[error("failed to bind local addr: {from}: {error}")]
    Bind { from: IpAddr, error: io::Error },
    #[error("failed to bind local addr: {from} is of another family than {to}")]
    Family { from: IpAddr, to: SocketAddr },
}

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("cannot create a socket for {to}: {error}")]
    Socket { to: SocketAddr, error: io::Error },
    #[error("failed to set mark {mark:#x} on the socket to {to} (needs CAP_NET_ADMIN): {error}")]
    Mark { to: SocketAddr, mark: u32, error: io::Error },
    #[error("cannot connect to {to}: {error}")]
    Connect { to: SocketAddr, error: io::Error },
}

impl DialError {
    /// The kernel's own error.
    pub fn io(&self) -> &io::Error {
        match self {
            Self::Socket { error, .. } | Self::Mark { error, .. } | Self::Connect { error, .. } => error,
        }
    }
}

/// Makes a socket in the calling thread's namespace and issues the connect.
///
/// A source equal to the destination's address is not kept: the kernel would see a connection of the pod to itself.
pub fn dial(dial: &Dial) -> Result<Dialled, DialError> {
    let to = dial.to;
    let wanted = dial.from.map(|from| from.to_canonical()).filter(|from| *from != to.ip().to_canonical());
    let socket = stream_for(to).map_err(|error| DialError::Socket { to, error })?;
    if let Some(mark) = dial.mark {
        socket.set_mark(mark).map_err(|error| DialError::Mark { to, mark, error })?;
    }
    tune(socket.as_fd(), dial.keepalive.as_ref());
    let kept = wanted.map(|from| keep_source(&socket, from, to));
    match socket.connect(&to.into()) {
        Ok(()) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {}
        Err(error) => return Err(DialError::Connect { to, error }),
    }
    let spoofed = matches!(kept, Some(Ok(())));
    Ok(Dialled { fd: socket.into(), spoofed, warning: kept.and_then(Result::err) })
}

/// The outcome of a connect, once the socket is writable: SO_ERROR, or `WouldBlock` where it still goes on.
pub fn connect_result(fd: BorrowedFd<'_>) -> io::Result<()> {
    let socket = SockRef::from(&fd);
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    // A socket that has no peer and no error is still connecting: a spurious wake-up.
    match socket.peer_addr() {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            if super::io::state(fd)? == super::io::State::Closed {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(error) => Err(error),
    }
}

/// Options of every TCP connection, accepted or dialled: no delay, keepalive where given. What the kernel refuses is
/// left as it is (reference section 11.4).
pub fn tune(fd: BorrowedFd<'_>, keepalive: Option<&Keepalive>) {
    let socket = SockRef::from(&fd);
    let _ = socket.set_tcp_nodelay(true);
    let Some(keepalive) = keepalive else { return };
    let parameters = TcpKeepalive::new()
        .with_time(keepalive.time)
        .with_interval(keepalive.interval)
        .with_retries(keepalive.retries);
    let _ = socket.set_tcp_keepalive(&parameters);
    if keepalive.user_timeout {
        let timeout = keepalive.time + keepalive.interval.saturating_mul(keepalive.retries);
        let _ = socket.set_tcp_user_timeout(Some(timeout));
    }
}

/// A UDP socket of the calling thread's namespace, connected to `to`: non-blocking, close-on-exec, marked.
pub fn dial_udp(to: SocketAddr, mark: Option<u32>) -> Result<OwnedFd, DialError> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::UDP))
        .map_err(|error| DialError::Socket { to, error })?;
    if let Some(mark) = mark {
        socket.set_mark(mark).map_err(|error| DialError::Mark { to, mark, error })?;
    }
    socket.connect(&to.into()).map_err(|error| DialError::Connect { to, error })?;
    Ok(socket.into())
}

/// Start-up check of the right to mark packets: SO_MARK on a socket that is thrown away.
pub fn probe_mark(mark: u32) -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?.set_mark(mark)
}

fn stream_for(to: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP))
}

fn keep_source(socket: &Socket, from: IpAddr, to: SocketAddr) -> Result<(), SpoofWarning> {
    let four = from.is_ipv4();
    if four != to.is_ipv4() {
        return Err(SpoofWarning::Family { from, to });
    }
    if four { socket.set_ip_transparent_v4(true) } else { socket.set_ip_transparent_v6(true) }
        .map_err(SpoofWarning::Transparent)?;
    if four { socket.set_freebind_v4(true) } else { socket.set_freebind_v6(true) }
        .map_err(SpoofWarning::Freebind)?;
    // Without this the bind reserves one of 28,000 ports for the source alone, whatever the destination.
    // Also on IPv6 sockets the option is IPv4's. A kernel that lacks it only runs out of ports earlier.
    let _ = option::set_int(socket.as_fd(), libc::SOL_IP, option::IP_BIND_ADDRESS_NO_PORT, 1);
    socket.bind(&SocketAddr::new(from, 0).into()).map_err(|error| SpoofWarning::Bind { from, error })
}
