//! Sockets of the yardstick proxies: captured listeners, original destinations, dials that keep the source.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::time::Duration;

use ringway::sys::option;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::netns::Namespace;

/// The mark by which the in-pod rules know the proxy's own packets (1337).
const MARK: u32 = 0x539;
const BACKLOG: i32 = 128;
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(180);
const KEEPALIVE_RETRIES: u32 = 9;

/// A listener in the pod, marked and transparent as an in-pod proxy's is.
pub fn listen_in(pod: &Namespace, port: u16) -> io::Result<TcpListener> {
    let socket = pod.within(|| Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)))??;
    socket.set_mark(MARK)?;
    socket.set_reuse_address(true)?;
    socket.set_ip_transparent_v4(true)?;
    socket.bind(&SockAddr::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Where the client wanted to go before the rules turned it to us.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddrV4> {
    let address = SockRef::from(stream).original_dst_v4()?;
    address.as_socket_ipv4().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
}

/// Connects from the pod; with `source`, the far side sees that address.
pub async fn dial_from(pod: &Namespace, to: SocketAddrV4, source: Option<Ipv4Addr>) -> io::Result<TcpStream> {
    let socket = pod.within(|| Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)))??;
    socket.set_mark(MARK)?;
    if let Some(source) = source.filter(|source| source != to.ip()) {
        socket.set_ip_transparent_v4(true)?;
        socket.set_freebind_v4(true)?;
        // Otherwise the yardstick soon measures the search for a port that no connection in TIME_WAIT holds.
        option::set_int(socket.as_fd(), libc::SOL_IP, option::IP_BIND_ADDRESS_NO_PORT, 1)?;
        socket.bind(&SockAddr::from(SocketAddrV4::new(source, 0)))?;
    }
    tune(&SockRef::from(&socket))?;
    socket.set_nonblocking(true)?;
    let connect = TcpSocket::from_std_stream(socket.into()).connect(SocketAddr::V4(to));
    tokio::time::timeout(CONNECT_DEADLINE, connect).await?
}

/// No delay and keepalive, on every leg.
pub fn tune(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE)
            .with_retries(KEEPALIVE_RETRIES),
    )
}

/// The IPv4 form of a peer's address.
pub fn v4(address: SocketAddr) -> io::Result<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(io::Error::from(io::ErrorKind::AddrNotAvailable)),
    }
}
