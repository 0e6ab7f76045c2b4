//! Datagram sockets: bound ones that serve a pod, and connected ones that ask a name server. Non-blocking, made in the
//! thread's namespace. A connected one takes datagrams of its peer only, and hears of ports that nobody listens on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags, recv, recvfrom, send, sendto};
use socket2::{Domain, Protocol, Socket, Type};

use crate::base::limits::DNS_QUEUE_BYTES;
use crate::sys::listener::{ListenError, ListenerPlan, Listening};
use crate::sys::option;

/// A bound socket. Sharing the port is a must where it is asked for: a second socket would get nothing.
pub fn bind(plan: &ListenerPlan) -> Result<Listening, ListenError> {
    let addr = plan.addr;
    let failed = |error| ListenError::Bind { addr, error };
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(addr), kind, Some(Protocol::UDP)).map_err(failed)?;
    if let Some(mark) = plan.mark {
        socket.set_mark(mark).map_err(|error| ListenError::Mark { addr, mark, error })?;
    }
    if plan.reuse_port {
        socket.set_reuse_port(true).map_err(failed)?;
    }
    // Where the right for it is lacking, the machine's default has to do.
    let _ = option::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, DNS_QUEUE_BYTES);
    socket.bind(&addr.into()).map_err(failed)?;
    Ok(Listening { fd: socket.into(), transparent: false, warning: None })
}

/// A socket that could be connected to `to`; see `sys::socket::blank`.
pub fn blank(to: SocketAddr) -> io::Result<OwnedFd> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    Socket::new(Domain::for_address(to), kind, Some(Protocol::UDP)).map(Into::into)
}

/// Connects a blank socket. The kernel gives it a random free port.
pub fn connect(blank: OwnedFd, to: SocketAddr, mark: Option<u32>) -> io::Result<OwnedFd> {
    let socket = Socket::from(blank);
    if let Some(mark) = mark {
        socket.set_mark(mark)?;
    }
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// The next datagram and its sender; what doesn't fit is cut off. An error of one peer is not the socket's: it goes on.
pub fn receive_from(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    loop {
        match recvfrom(fd, &mut *into, RecvFlags::DONTWAIT) {
            Ok((count, _, Some(from))) => {
                let Ok(from) = SocketAddr::try_from(from) else { continue };
                return Ok((count.min(into.len()), from));
            }
            Ok((_, _, None)) => {}
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNREFUSED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub fn send_to(fd: BorrowedFd<'_>, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
    sendto(fd, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to)?;
    Ok(())
}

/// The next datagram of the peer.
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(fd, &mut *into, RecvFlags::DONTWAIT) {
            Ok((count, _)) => return Ok(count.min(into.len())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub fn send_datagram(fd: impl AsFd, datagram: &[u8]) -> io::Result<()> {
    send(fd, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sys::testing::{in_child, wait_readable};

    fn plan() -> ListenerPlan {
        ListenerPlan {
            addr: "127.0.0.1:0".parse().unwrap(),
            mark: None,
            reuse_port: true,
            transparent: Some(false),
        }
    }

    #[test]
    fn datagrams_come_with_their_sender_and_answers_go_back() {
        let bound = bind(&plan()).unwrap().fd;
        let at = UdpSocket::from(bound.try_clone().unwrap()).local_addr().unwrap();
        let mut into = [0; 3];
        let nothing = receive_from(bound.as_fd(), &mut into).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let asker = connect(blank(at).unwrap(), at, None).unwrap();
        send_datagram(&asker, b"four").unwrap();
        wait_readable(bound.as_fd());
        let (count, from) = receive_from(bound.as_fd(), &mut into).unwrap();
        assert_eq!((count, &into), (3, b"fou"));
        send_to(bound.as_fd(), b"back", from).unwrap();
        // Somebody else's datagram never reaches a connected socket.
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"forged", from).unwrap();
        wait_readable(asker.as_fd());
        let mut into = [0; 10];
        assert_eq!(receive(asker.as_fd(), &mut into).unwrap(), 4);
        assert_eq!(receive(asker.as_fd(), &mut into).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn nobody_at_the_port_is_an_error_at_the_next_look() {
        // Other tests fork, and a child that holds the port keeps it open.
        in_child("sys::udp::tests::nobody_at_the_port_is_an_error_at_the_next_look", || {
            let bound = bind(&plan()).unwrap().fd;
            let at = UdpSocket::from(bound.try_clone().unwrap()).local_addr().unwrap();
            let asker = connect(blank(at).unwrap(), at, None).unwrap();
            drop(bound);
            send_datagram(&asker, b"?").unwrap();
            wait_readable(asker.as_fd());
            let refused = receive(asker.as_fd(), &mut [0; 10]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        });
    }

    #[test]
    fn a_port_is_shared_where_that_is_asked_for() {
        let first = bind(&plan()).unwrap().fd;
        let addr = UdpSocket::from(first.try_clone().unwrap()).local_addr().unwrap();
        bind(&ListenerPlan { addr, ..plan() }).unwrap();
        let alone = bind(&ListenerPlan { addr, reuse_port: false, ..plan() }).unwrap_err();
        assert_eq!(alone.io().kind(), io::ErrorKind::AddrInUse);
    }
}
