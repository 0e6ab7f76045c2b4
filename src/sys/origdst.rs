//! Where a captured connection wanted to go, before netfilter turned it to us.

use std::os::fd::BorrowedFd;

use socket2::SockRef;

use crate::base::net::{Captured, Source};
use crate::sys::io;

/// The destination that the application behind `source` used: conntrack's record of a REDIRECT (SO_ORIGINAL_DST, or
/// IP6T_SO_ORIGINAL_DST for IPv6), else the socket's own local address, which under TPROXY is the same thing.
pub fn original_destination(fd: BorrowedFd<'_>, source: Source) -> std::io::Result<Captured> {
    let socket = SockRef::from(&fd);
    // Asked by the connection's real family: the IPv4 look-up of an IPv6 connection would use a made-up
    // address.
    let recorded = if source.ip().is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    match recorded.ok().and_then(|addr| addr.as_socket()) {
        Some(recorded) => Ok(Captured::new(recorded)),
        None => io::local(fd).map(Captured::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::listener::{ListenerPlan, accept, listen};
    use crate::sys::testing::{Space, wait_readable};
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_redirected_connection_tells_where_it_wanted_to_go() {
        let space = Space::new("redirect");
        space.ip("addr add 10.9.0.1/32 dev lo");
        space.ip("addr add fd09::1/128 dev lo nodad");
        // Some way out, so that the first routing look-up succeeds.
        space.ip("route add default dev lo src 10.9.0.1");
        space.ip("-6 route add default dev lo src fd09::1");
        for tables in ["iptables", "ip6tables"] {
            space.exec(&format!(
                "{tables} -w -t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 15001"
            ));
        }
        let addr = "[::]:15001".parse().unwrap();
        let plan = ListenerPlan { addr, mark: None, reuse_port: true, transparent: None };
        space
            .netns()
            .run(|| {
                let listener = listen(&plan).unwrap().fd;
                for wanted in ["10.20.30.40:80", "[fd77::5]:80", "127.0.0.1:15001", "[::1]:15001"] {
                    let wanted: SocketAddr = wanted.parse().unwrap();
                    let _client = TcpStream::connect(wanted).unwrap();
                    wait_readable(listener.as_fd());
                    let (fd, source) = accept(listener.as_fd()).unwrap();
                    let found = original_destination(fd.as_fd(), Source::new(source)).unwrap();
                    assert_eq!(found, Captured(wanted));
                }
            })
            .unwrap();
    }

    #[test]
    fn a_socket_without_internet_address_is_an_error() {
        let (one, _two) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(original_destination(one.as_fd(), Source::new("10.0.0.1:1".parse().unwrap())).is_err());
    }
}
