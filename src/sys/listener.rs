//! Listening sockets and what comes in by them (reference sections 1.1 and 1.2). Made in the thread's
//! namespace. Not the accept loop: that is the shard's, as is the pause when descriptors run short.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, Socket, Type};

use crate::base::limits::LISTEN_BACKLOG;
use crate::base::net::canonical;

/// A listener to put up, TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerPlan {
    pub addr: SocketAddr,
    pub mark: Option<u32>,
    /// SO_REUSEPORT, so that several shards and two processes can share the port. Without it: SO_REUSEADDR.
    pub reuse_port: bool,
    /// `ENABLE_ORIG_SRC`: `Some(true)` must, `Some(false)` never, `None` best effort.
    pub transparent: Option<bool>,
}

/// A socket that listens (TCP) or is bound (UDP).
#[derive(Debug)]
pub struct Listening {
    pub fd: OwnedFd,
    /// Whether IP_TRANSPARENT is on, which decides about keeping sources where `ENABLE_ORIG_SRC` is unset.
    pub transparent: bool,
    /// SO_REUSEPORT was wanted and refused (TCP only; for UDP that is an error).
    pub warning: Option<ReusePortRefused>,
}

#[derive(Debug, thiserror::Error)]
#[error("setting set_reuseport failed: {error} addr: {addr}")]
pub struct ReusePortRefused {
    pub addr: SocketAddr,
    pub error: io::Error,
}

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("failed to bind to address {addr}: {error}")]
    Bind { addr: SocketAddr, error: io::Error },
    #[error("failed to bind to address {addr}: SO_MARK {mark:#x} (needs CAP_NET_ADMIN): {error}")]
    Mark { addr: SocketAddr, mark: u32, error: io::Error },
    #[error(
        "failed to bind to address {addr}: IP_TRANSPARENT (ENABLE_ORIG_SRC=true needs CAP_NET_ADMIN): {error}"
    )]
    Transparent { addr: SocketAddr, error: io::Error },
}

impl ListenError {
    /// The kernel's own error.
    pub fn io(&self) -> &io::Error {
        match self {
            Self::Bind { error, .. } | Self::Mark { error, .. } | Self::Transparent { error, .. } => error,
        }
    }
}

/// A TCP listener, non-blocking and close-on-exec. IPV6_V6ONLY is left alone: `[::]` takes IPv4 too.
pub fn listen(plan: &ListenerPlan) -> Result<Listening, ListenError> {
    let addr = plan.addr;
    let failed = |error| ListenError::Bind { addr, error };
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(addr), kind, Some(Protocol::TCP)).map_err(failed)?;
    mark(&socket, plan)?;
    let warning = share(&socket, plan).err().map(|error| ReusePortRefused { addr, error });
    let transparent = make_transparent(&socket, plan)?;
    socket.bind(&addr.into()).map_err(failed)?;
    socket.listen(LISTEN_BACKLOG).map_err(failed)?;
    Ok(Listening { fd: socket.into(), transparent, warning })
}

/// The next connection, non-blocking and close-on-exec, and its caller in canonical form. Errors that belong
/// to one connection (accept(2): it was reset or its network failed while it waited) take that one and go on.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    loop {
        match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((fd, caller)) => {
                // The peer may be gone already; then nobody can be named and nothing can be served.
                let Some(Ok(caller)) = caller.map(SocketAddr::try_from) else { continue };
                return Ok((fd, canonical(caller)));
            }
            Err(error) if of_one_connection(error.raw_os_error()) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether accept failed for want of a descriptor or memory: the connection still waits, so a loop would
/// spin.
pub fn is_descriptor_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

fn of_one_connection(errno: i32) -> bool {
    matches!(
        errno,
        libc::EINTR
            | libc::ECONNABORTED
            | libc::EPROTO
            | libc::ENOPROTOOPT
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
    )
}

fn mark(socket: &Socket, plan: &ListenerPlan) -> Result<(), ListenError> {
    let Some(mark) = plan.mark else { return Ok(()) };
    socket.set_mark(mark).map_err(|error| ListenError::Mark { addr: plan.addr, mark, error })
}

fn share(socket: &Socket, plan: &ListenerPlan) -> io::Result<()> {
    if plan.reuse_port { socket.set_reuse_port(true) } else { socket.set_reuse_address(true) }
}

/// Only the IPv4 option, which works on dual-stack sockets too (reference section 1.2).
fn make_transparent(socket: &Socket, plan: &ListenerPlan) -> Result<bool, ListenError> {
    match plan.transparent {
        Some(false) => Ok(false),
        None => Ok(socket.set_ip_transparent_v4(true).is_ok()),
        Some(true) => socket
            .set_ip_transparent_v4(true)
            .map(|()| true)
            .map_err(|error| ListenError::Transparent { addr: plan.addr, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::{Space, in_child, wait_readable};
    use rustix::process::{Resource, Rlimit, setrlimit};
    use socket2::SockRef;
    use std::net::TcpStream;
    use std::os::fd::AsFd;

    const ANY: &str = "127.0.0.1:0";

    fn plan(addr: &str) -> ListenerPlan {
        ListenerPlan { addr: addr.parse().unwrap(), mark: Some(1337), reuse_port: true, transparent: None }
    }

    fn address(fd: &OwnedFd) -> SocketAddr {
        SockRef::from(fd).local_addr().unwrap().as_socket().unwrap()
    }

    #[test]
    fn a_dual_stack_listener_shares_its_port_and_names_callers_plainly() {
        let space = Space::new("listen");
        space
            .netns()
            .run(|| {
                let one = listen(&plan("[::]:15001")).unwrap();
                let two = listen(&plan("[::]:15001")).unwrap();
                assert!(one.transparent && one.warning.is_none(), "this test needs root");
                let socket = SockRef::from(&one.fd);
                assert_eq!(socket.mark().unwrap(), 1337);
                assert!(socket.nonblocking().unwrap() && socket.reuse_port().unwrap());
                assert!(!socket.reuse_address().unwrap() && !socket.only_v6().unwrap());
                drop(two);
                assert_eq!(accept(one.fd.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
                let client = TcpStream::connect("127.0.0.1:15001").unwrap();
                wait_readable(one.fd.as_fd());
                let (fd, caller) = accept(one.fd.as_fd()).unwrap();
                assert_eq!(caller, client.local_addr().unwrap());
                assert!(SockRef::from(&fd).nonblocking().unwrap());
                assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
                assert!(rustix::io::fcntl_getfd(&one.fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
            })
            .unwrap();
    }

    #[test]
    fn a_taken_port_is_an_error_that_names_it() {
        let alone = ListenerPlan { reuse_port: false, transparent: Some(false), ..plan(ANY) };
        let first = listen(&alone).unwrap();
        assert!(!first.transparent);
        let addr = address(&first.fd);
        let error = listen(&ListenerPlan { addr, ..alone }).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("failed to bind to address {addr}: ")), "{text}");
        assert_eq!(error.io().kind(), io::ErrorKind::AddrInUse);
        assert!(listen(&ListenerPlan { transparent: Some(true), ..plan(ANY) }).unwrap().transparent);
    }

    #[test]
    fn a_shortage_of_descriptors_is_recognised_and_the_connection_still_waits() {
        let name =
            "sys::listener::tests::a_shortage_of_descriptors_is_recognised_and_the_connection_still_waits";
        in_child(name, || {
            let listener = listen(&plan(ANY)).unwrap();
            let _client = TcpStream::connect(address(&listener.fd)).unwrap();
            wait_readable(listener.fd.as_fd());
            setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: Some(4_096) }).unwrap();
            let error = accept(listener.fd.as_fd()).unwrap_err();
            assert!(is_descriptor_shortage(&error), "{error}");
            setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum: Some(4_096) }).unwrap();
            accept(listener.fd.as_fd()).unwrap();
        });
        assert!(!is_descriptor_shortage(&io::ErrorKind::WouldBlock.into()));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
            assert!(is_descriptor_shortage(&io::Error::from_raw_os_error(errno)));
        }
    }
}
