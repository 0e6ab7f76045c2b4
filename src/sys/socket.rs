//! Outgoing sockets: made in the thread's namespace, non-blocking, close-on-exec, and connected with the
//! original source where asked (reference section 7.5). Not the waiting: the caller awaits writability, then
//! `connect_result`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::sys::option;

/// The congestion control that every kernel has and every process may choose (tcp(7)).
const UNPACED: &[u8] = b"reno";

/// One connection to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dial {
    pub to: SocketAddr,
    /// The caller's address to keep as source; needs CAP_NET_ADMIN and routes that bring the replies back.
    pub from: Option<IpAddr>,
    pub mark: Option<u32>,
    pub keepalive: Option<Keepalive>,
    /// Whether the far side is on this machine: a pod's own application.
    pub on_node: bool,
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
pub fn dial(dial: &Dial) -> Result<Dialled, DialError> {
    let blank = blank(dial.to).map_err(|error| DialError::Socket { to: dial.to, error })?;
    dial_on(blank, dial)
}

/// A socket that could be dialled to `to`. It belongs to the calling thread's namespace for life, so that `dial_on`
/// may be called from anywhere.
pub fn blank(to: SocketAddr) -> io::Result<OwnedFd> {
    let kind = Type::STREAM.nonblocking().cloexec();
    Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP)).map(Into::into)
}

/// Issues the connect on a blank socket.
///
/// A source equal to the destination's address is not kept: the kernel would see a connection of the pod to
/// itself.
pub fn dial_on(blank: OwnedFd, dial: &Dial) -> Result<Dialled, DialError> {
    let to = dial.to;
    let wanted = dial.from.map(|from| from.to_canonical()).filter(|from| *from != to.ip().to_canonical());
    let socket = Socket::from(blank);
    if let Some(mark) = dial.mark {
        socket.set_mark(mark).map_err(|error| DialError::Mark { to, mark, error })?;
    }
    tune(socket.as_fd(), dial.keepalive.as_ref());
    if dial.on_node {
        unpace(socket.as_fd());
    }
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

/// Options of every TCP connection, accepted or dialled: no delay, keepalive where given. What the kernel
/// refuses is left as it is (reference section 11.4).
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

/// For a connection that stays on this machine: no congestion control that paces. Nothing is lost or queued on the way,
/// so where the node's default is BBR its timers would only cost CPU (decisions/congestion-control-on-the-node.md).
/// Connections that a listener accepts inherit it. What the kernel refuses is left as it is.
pub fn unpace(fd: BorrowedFd<'_>) {
    let _ = SockRef::from(&fd).set_tcp_congestion(UNPACED);
}

/// Start-up check of the right to mark packets: SO_MARK on a socket that is thrown away.
pub fn probe_mark(mark: u32) -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?.set_mark(mark)
}

fn keep_source(socket: &Socket, from: IpAddr, to: SocketAddr) -> Result<(), SpoofWarning> {
    let four = from.is_ipv4();
    if four != to.is_ipv4() {
        return Err(SpoofWarning::Family { from, to });
    }
    // Includes what IP_FREEBIND allows, the bind to an address that isn't ours.
    if four { socket.set_ip_transparent_v4(true) } else { socket.set_ip_transparent_v6(true) }
        .map_err(SpoofWarning::Transparent)?;
    // Without this the bind reserves one of 28,000 ports for the source alone, whatever the destination.
    // Also on IPv6 sockets the option is IPv4's. A kernel that lacks it only runs out of ports earlier.
    let _ = option::set_int(socket.as_fd(), libc::SOL_IP, option::IP_BIND_ADDRESS_NO_PORT, 1);
    socket.bind(&SocketAddr::new(from, 0).into()).map_err(|error| SpoofWarning::Bind { from, error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::{Space, ip, wait_writable};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn plain(to: SocketAddr) -> Dial {
        Dial { to, from: None, mark: None, keepalive: None, on_node: false }
    }

    /// Two namespaces with a veth pair between them: 10.9.0.1 and fd09::1 here, 10.9.0.2 and fd09::2 there.
    fn pair() -> (Space, Space) {
        let (node, pod) = (Space::new("node"), Space::new("pod"));
        let (a, b) = (node.name(), pod.name());
        ip(&format!("link add v0 netns {a} type veth peer name v0 netns {b}"));
        for (space, last) in [(&node, 1), (&pod, 2)] {
            space.ip(&format!("addr add 10.9.0.{last}/24 dev v0"));
            space.ip(&format!("addr add fd09::{last}/64 dev v0 nodad"));
            space.ip("link set v0 up");
        }
        (node, pod)
    }

    /// The routes and rules that bring replies for a kept source back to the dialler (as in a pod).
    fn bring_replies_back(dialler: &Space) {
        for family in ["-4", "-6"] {
            dialler.ip(&format!("{family} rule add fwmark 0x111/0xfff pref 32764 lookup 100"));
        }
        dialler.ip("route add local 0.0.0.0/0 dev lo table 100");
        dialler.ip("-6 route add local ::/0 dev lo table 100");
        for tables in ["iptables", "ip6tables"] {
            let mangle = format!("{tables} -w -t mangle");
            dialler.exec(&format!(
                "{mangle} -A PREROUTING -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff"
            ));
            dialler.exec(&format!(
                "{mangle} -A OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark"
            ));
        }
    }

    /// Connects, sends one line, and returns what the server saw as source.
    fn seen_by(server: &TcpListener, dialled: Dialled) -> SocketAddr {
        wait_writable(dialled.fd.as_fd());
        connect_result(dialled.fd.as_fd()).unwrap();
        let mut client = TcpStream::from(dialled.fd);
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let (mut served, source) = server.accept().unwrap();
        client.write_all(b"ping").unwrap();
        let mut bytes = [0; 4];
        served.read_exact(&mut bytes).unwrap();
        served.write_all(&bytes).unwrap();
        client.read_exact(&mut bytes).unwrap();
        source
    }

    #[test]
    fn the_server_sees_the_original_source_and_the_replies_come_back() {
        // As inside a pod: the proxy and the application share the namespace, replies go over `lo`.
        let (_node, pod) = pair();
        bring_replies_back(&pod);
        for (app, caller) in [("10.9.0.2:0", "10.9.0.1"), ("[fd09::2]:0", "fd09::1")] {
            pod.netns()
                .run(|| {
                    let server = TcpListener::bind(app).unwrap();
                    let from: IpAddr = caller.parse().unwrap();
                    let plan =
                        Dial { from: Some(from), mark: Some(0x539), ..plain(server.local_addr().unwrap()) };
                    let dialled = dial(&plan).unwrap();
                    assert!(dialled.warning.is_none() && dialled.spoofed, "{:?}", dialled.warning);
                    assert_eq!(seen_by(&server, dialled).ip(), from);
                })
                .unwrap();
        }
    }

    #[test]
    fn a_source_is_kept_between_two_namespaces_over_a_veth() {
        let (node, pod) = pair();
        // A third address that nobody owns is routed back to the dialler, where it is local by policy.
        pod.ip("route add 10.77.0.0/16 via 10.9.0.1");
        node.ip("route add local 10.77.0.0/16 dev lo table 100");
        node.ip("rule add iif v0 pref 100 lookup 100");
        let server = pod.netns().run(|| TcpListener::bind("10.9.0.2:0").unwrap()).unwrap();
        let from: IpAddr = "10.77.1.2".parse().unwrap();
        let plan = Dial { from: Some(from), ..plain(server.local_addr().unwrap()) };
        let dialled = node.netns().run(|| dial(&plan).unwrap()).unwrap();
        assert!(dialled.warning.is_none(), "{:?}", dialled.warning);
        assert_eq!(seen_by(&server, dialled).ip(), from);
    }

    #[test]
    fn a_source_equal_to_the_destination_and_one_of_another_family_are_not_kept() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let mapped = Some("::ffff:127.0.0.1".parse().unwrap());
        let dialled = dial(&Dial { from: mapped, ..plain(to) }).unwrap();
        assert!(dialled.warning.is_none() && !dialled.spoofed);
        seen_by(&server, dialled);
        let other = dial(&Dial { from: Some("fd00::1".parse().unwrap()), ..plain(to) }).unwrap();
        assert!(matches!(other.warning, Some(SpoofWarning::Family { .. })) && !other.spoofed);
        assert_eq!(seen_by(&server, other).ip(), to.ip());
    }

    #[test]
    fn options_are_as_asked_and_the_descriptor_is_close_on_exec() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let keepalive = Keepalive {
            time: Duration::from_secs(180),
            interval: Duration::from_secs(90),
            retries: 7,
            user_timeout: true,
        };
        let plan =
            Dial { mark: Some(1337), keepalive: Some(keepalive), ..plain(server.local_addr().unwrap()) };
        let dialled = dial(&plan).unwrap();
        let socket = SockRef::from(&dialled.fd);
        assert_eq!(socket.mark().unwrap(), 1337);
        assert!(
            socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap() && socket.nonblocking().unwrap()
        );
        assert_eq!(socket.tcp_keepalive_time().unwrap().as_secs(), 180);
        assert_eq!(socket.tcp_keepalive_interval().unwrap().as_secs(), 90);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 7);
        assert_eq!(socket.tcp_user_timeout().unwrap().unwrap().as_secs(), 180 + 7 * 90);
        assert_eq!(congestion_control(&dialled.fd), congestion_control(&server), "the node's own");
        assert!(rustix::io::fcntl_getfd(&dialled.fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        probe_mark(1337).unwrap();
    }

    #[test]
    fn a_connection_on_the_node_is_not_paced_dialled_or_accepted() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let dialled = dial(&Dial { on_node: true, ..plain(to) }).unwrap();
        assert_eq!(congestion_control(&dialled.fd), "reno");
        let before = server.accept().unwrap().0;
        unpace(server.as_fd());
        let _client = TcpStream::connect(to).unwrap();
        assert_eq!(congestion_control(&server.accept().unwrap().0), "reno");
        let nodes = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        assert_eq!(congestion_control(&before), nodes.trim());
    }

    fn congestion_control(socket: &impl AsFd) -> String {
        let name = SockRef::from(socket).tcp_congestion().unwrap();
        String::from_utf8(name).unwrap().trim_end_matches('\0').to_owned()
    }

    #[test]
    fn a_refused_connect_says_so_and_one_that_goes_on_would_block() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = match dial(&plain(free)) {
            Ok(dialled) => {
                wait_writable(dialled.fd.as_fd());
                connect_result(dialled.fd.as_fd()).unwrap_err()
            }
            Err(DialError::Connect { error, .. }) => error,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);

        let (node, pod) = pair();
        pod.exec("iptables -w -A INPUT -p tcp --dport 81 -j DROP");
        let to = "10.9.0.2:81".parse().unwrap();
        let dialled = node.netns().run(|| dial(&plain(to)).unwrap()).unwrap();
        assert_eq!(connect_result(dialled.fd.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let nowhere = node.netns().run(|| dial(&plain("10.200.0.1:1".parse().unwrap()))).unwrap();
        assert_eq!(nowhere.unwrap_err().io().raw_os_error(), Some(libc::ENETUNREACH));
    }
}
