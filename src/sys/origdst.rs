//! Where a captured connection wanted to go, before netfilter turned it to us.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use socket2::SockRef;

use crate::base::net::{Captured, canonical};

/// The destination the application used: conntrack's record of a REDIRECT (SO_ORIGINAL_DST, or
/// IP6T_SO_ORIGINAL_DST for IPv6), else the socket's own local address, which under TPROXY is the same thing.
pub fn original_destination(fd: BorrowedFd<'_>) -> io::Result<Captured> {
    let socket = SockRef::from(&fd);
    let local = socket.local_addr()?.as_socket();
    // Asked by the connection's real family: the IPv4 look-up of an IPv6 connection would use a made-up address.
    let recorded = match local.map(canonical) {
        Some(SocketAddr::V6(_)) => socket.original_dst_v6(),
        Some(SocketAddr::V4(_)) | None => socket.original_dst_v4(),
    };
    match recorded.ok().and_then(|addr| addr.as_socket()).or(local) {
        Some(addr) => Ok(Captured::new(addr)),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket has no internet address")),
    }
}
