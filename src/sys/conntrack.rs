//! Where a captured datagram wanted to go: the kernel's connection tracking knows, but tells it of TCP only by a socket
//! option. So it is asked by netlink (nfnetlink_conntrack), about one connection at a time; some 5 µs.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// A netlink socket of one network namespace, which it belongs to for life.
pub struct Conntrack {
    socket: OwnedFd,
    /// Of the last question: an answer to an earlier one isn't taken for its own.
    sequence: Cell<u32>,
}

const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 4_096;
/// NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
const GET: u16 = (1 << 8) | 1;
/// NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW: what a found connection is told by.
const FOUND: u16 = 1 << 8;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
/// The attribute holds attributes.
const NESTED: u16 = 1 << 15;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

impl Conntrack {
    /// Opens it in the thread's namespace. Errors: `EPROTONOSUPPORT` where the kernel lacks the module.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
        Ok(Self { socket, sequence: Cell::new(0) })
    }

    /// The destination of the datagrams from `client` that netfilter turned to `here`, as the client chose it.
    pub fn original_destination(&self, client: SocketAddr, here: SocketAddr) -> io::Result<SocketAddr> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let mut answer = [0; MESSAGE_BYTES];
        // The kernel answers within the call.
        send(self.socket.as_fd(), &question(client, here, sequence), SendFlags::DONTWAIT)?;
        loop {
            let (count, _) = recv(self.socket.as_fd(), &mut answer, RecvFlags::DONTWAIT)?;
            let told = answer.get(8..12).and_then(|bytes| bytes.first_chunk());
            if told.is_some_and(|bytes| u32::from_ne_bytes(*bytes) == sequence) {
                return read(answer.get(..count).unwrap_or_default());
            }
        }
    }
}

impl AsFd for Conntrack {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Asks for the connection whose replies go from `here` to `client`.
fn question(client: SocketAddr, here: SocketAddr, sequence: u32) -> Vec<u8> {
    let (source, destination) = address_attributes(here.is_ipv4());
    let ips = [attribute(source, &octets(here.ip())), attribute(destination, &octets(client.ip()))].concat();
    let ports = [
        attribute(PROTOCOL_NUMBER, &[libc::IPPROTO_UDP.to_be_bytes()[3]]),
        attribute(SOURCE_PORT, &here.port().to_be_bytes()),
        attribute(DESTINATION_PORT, &client.port().to_be_bytes()),
    ]
    .concat();
    let tuple = [attribute(TUPLE_IP | NESTED, &ips), attribute(TUPLE_PROTOCOL | NESTED, &ports)].concat();
    let tuple = attribute(TUPLE_REPLY | NESTED, &tuple);
    let length = u32::try_from(HEADER_BYTES + 4 + tuple.len()).unwrap_or_default();
    let mut message = Vec::with_capacity(HEADER_BYTES + 4 + tuple.len());
    message.extend(length.to_ne_bytes());
    message.extend(GET.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    // struct nfgenmsg: family, version, resource.
    let family = if here.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    message.extend([family.to_be_bytes()[3], 0, 0, 0]);
    message.extend(tuple);
    message
}

fn read(message: &[u8]) -> io::Result<SocketAddr> {
    let odd = || io::Error::from(io::ErrorKind::InvalidData);
    let kind =
        message.get(4..6).and_then(|bytes| bytes.first_chunk()).map(|bytes| u16::from_ne_bytes(*bytes));
    match kind.ok_or_else(odd)? {
        ERROR => {
            let bytes = message.get(HEADER_BYTES..).and_then(|rest| rest.first_chunk()).ok_or_else(odd)?;
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes(*bytes).saturating_neg()))
        }
        FOUND => destination(message.get(HEADER_BYTES + 4..).unwrap_or_default()).ok_or_else(odd),
        _ => Err(odd()),
    }
}

fn destination(attributes: &[u8]) -> Option<SocketAddr> {
    let tuple = find(attributes, TUPLE_ORIGINAL)?;
    let (ips, ports) = (find(tuple, TUPLE_IP)?, find(tuple, TUPLE_PROTOCOL)?);
    let four = find(ips, address_attributes(true).1).and_then(|octets| <[u8; 4]>::try_from(octets).ok());
    let six = find(ips, address_attributes(false).1).and_then(|octets| <[u8; 16]>::try_from(octets).ok());
    let ip = four.map(IpAddr::from).or(six.map(IpAddr::from))?;
    let port = find(ports, DESTINATION_PORT)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))?;
    Some(SocketAddr::new(ip, port))
}

/// Numbers of the attributes for source and destination address.
fn address_attributes(four: bool) -> (u16, u16) {
    if four { (1, 2) } else { (3, 4) }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// struct nlattr, padded to four bytes.
fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + data.len()).unwrap_or_default();
    let mut attribute = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    attribute.extend_from_slice(data);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, rest) = attributes.split_first_chunk()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let kind = u16::from_ne_bytes(*rest.first_chunk()?) & !NESTED;
        let data = attributes.get(4..length)?;
        if kind == wanted {
            return Some(data);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::sys::testing::{Space, ip};

    #[test]
    fn a_redirected_datagram_is_told_where_it_wanted_to_go() {
        let (pod, node) = (Space::new("captured"), Space::new("node"));
        ip(&format!("link add e0 netns {} type veth peer e0 netns {}", pod.name(), node.name()));
        for (space, last) in [(&pod, 1), (&node, 2)] {
            space.ip("link set e0 up");
            space.ip(&format!("addr add 10.9.0.{last}/24 dev e0"));
            space.ip(&format!("addr add fd09::{last}/64 dev e0 nodad"));
        }
        for tables in ["iptables", "ip6tables"] {
            pod.exec(&format!(
                "{tables} -w -t nat -A OUTPUT ! -o lo -p udp --dport 53 -j REDIRECT --to-ports 15053"
            ));
        }
        pod.netns()
            .run(|| {
                let conntrack = Conntrack::open().unwrap();
                for (here, to) in [("127.0.0.1:15053", "10.9.0.77:53"), ("[::1]:15053", "[fd09::77]:53")] {
                    let (here, to): (SocketAddr, SocketAddr) = (here.parse().unwrap(), to.parse().unwrap());
                    let listener = UdpSocket::bind(here).unwrap();
                    listener.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                    let any = if here.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                    let asker = UdpSocket::bind(any).unwrap();
                    asker.send_to(b"?", to).unwrap();
                    let (_, client) = listener.recv_from(&mut [0; 9]).unwrap();
                    assert_eq!(conntrack.original_destination(client, here).unwrap(), to);
                    let nobody = SocketAddr::new(client.ip(), client.port() ^ 1);
                    let error = conntrack.original_destination(nobody, here).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
                }
            })
            .unwrap();
    }

    #[test]
    fn nonsense_is_an_error() {
        for length in 0..64 {
            assert!(read(&vec![0xff; length]).is_err());
            assert_eq!(find(&vec![0xff; length], 1), None);
            assert_eq!(find(&vec![0; length], 1), None, "no endless loop at attributes without length");
        }
    }
}
