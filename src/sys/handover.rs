//! Handing a port over to the next process without a reset. Closing one of several SO_REUSEPORT listeners
//! resets what waits in its queue and what is in mid-handshake, so the order is: `steer_away`, accept for
//! `HANDOVER_LINGER_MS` until the queue is empty, `steer_for_close`, `leave_lookups`, accept what is left, close.
//! Which sockets of a group get new connections is decided by `Share`, purely; the rest talks to the kernel.

use std::fs;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{sock_filter, sock_fprog};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use socket2::SockRef;

use crate::base::limits::NETLINK_READ_BYTES;
use crate::sys::option;

/// A listening socket of the calling thread's namespace, as the kernel tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listener {
    pub addr: SocketAddr,
    /// Connections that wait to be accepted.
    pub queued: u32,
    pub uid: u32,
    pub inode: u32,
}

/// Which indexes of a reuseport group get new connections: `count` of them from `first`.
///
/// A group fills in listen order, so the leaver's sockets are its first `ours` indexes; a socket that leaves
/// gives its slot to the last one (net/core/sock_reuseport.c).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    pub first: u32,
    pub count: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    #[error("no successor: {ours} of {total} listeners are ours")]
    NoSuccessor { ours: usize, total: usize },
    #[error("cannot steer new connections away: {0}")]
    Attach(#[from] io::Error),
}

impl Share {
    /// All of the successor's sockets: for the time in which no socket of the group closes.
    pub fn of_successor(ours: usize, total: usize) -> Option<Self> {
        let count = u32::try_from(total.checked_sub(ours)?).ok().filter(|count| *count > 0)?;
        Some(Self { first: u32::try_from(ours).ok()?, count })
    }

    /// The one index that holds a socket of the successor while our sockets close one by one in any order,
    /// and that falls away with the last of them, so that the kernel shares connections out by hash again.
    /// There is none where the successor has fewer sockets than we have.
    pub fn while_closing(ours: usize, total: usize) -> Option<Self> {
        let theirs = total.checked_sub(ours)?;
        (theirs >= ours && theirs > 0).then_some(Self { first: u32::try_from(theirs).ok()?, count: 1 })
    }
}

/// Turns new connections of `fd`'s group to the successor's sockets, evenly. `ours`: how many sockets of the
/// group belong to the leaver, `total`: `group_of(fd)` once the successor listens.
pub fn steer_away(fd: BorrowedFd<'_>, ours: usize, total: usize) -> Result<(), SteerError> {
    let share = Share::of_successor(ours, total).ok_or(SteerError::NoSuccessor { ours, total })?;
    Ok(attach(fd, share)?)
}

/// Narrows the steering to what stays right while our sockets close. Every shard calls it with the same
/// numbers just before it closes its socket. False: the successor has fewer sockets than we, so that a
/// connection that comes between two closings may be lost, unless `allow_migration` worked.
pub fn steer_for_close(fd: BorrowedFd<'_>, ours: usize, total: usize) -> Result<bool, SteerError> {
    let Some(share) = Share::while_closing(ours, total) else {
        return steer_away(fd, ours, total).map(|()| false);
    };
    attach(fd, share)?;
    Ok(true)
}

/// Takes a listener out of the kernel's look-ups and leaves its queue and its group alone: what waits or is in
/// mid-handshake can still be accepted. Without it a close has a gap: the socket leaves its group before it leaves
/// the table of listeners, and a call between the two goes to it alone and is reset (`inet_unhash` in
/// net/ipv4/inet_hashtables.c).
pub fn leave_lookups(fd: BorrowedFd<'_>) -> io::Result<()> {
    option::set(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX, &NO_INTERFACE)
}

/// socket(7); not in every libc's headers.
const SO_BINDTOIFINDEX: libc::c_int = 62;
/// The kernel numbers interfaces from 1, and doesn't ask whether this one exists.
const NO_INTERFACE: libc::c_int = libc::c_int::MAX;

/// Lets the kernel move waiting connections to another socket of the group at a close (Linux 5.14), for the
/// calling thread's namespace. Best effort: /proc/sys is often read-only in a container.
pub fn allow_migration() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/tcp_migrate_req", "1")
}

/// The size of `fd`'s reuseport group: the listeners on the same address by the same user. IPv4 and IPv6
/// sockets never share a group.
pub fn group_of(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let addr = SockRef::from(&fd).local_addr()?.as_socket();
    let addr = addr.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no internet socket"))?;
    let user = rustix::process::geteuid().as_raw();
    let same = |found: &&Listener| found.addr.ip() == addr.ip() && found.uid == user;
    Ok(listeners(addr.port())?.iter().filter(same).count())
}

/// Listening sockets on `port` in the calling thread's namespace, by NETLINK_SOCK_DIAG (sock_diag(7)).
pub fn listeners(port: u16) -> io::Result<Vec<Listener>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut found = dump(&socket, libc::AF_INET, port)?;
    found.extend(dump(&socket, libc::AF_INET6, port)?);
    Ok(found)
}

fn attach(fd: BorrowedFd<'_>, share: Share) -> io::Result<()> {
    let mut program = program(share);
    let length = u16::try_from(program.len()).unwrap_or(0);
    let filter = sock_fprog { len: length, filter: program.as_mut_ptr() };
    // The kernel copies the program during the call, in which `program` lives.
    option::set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &filter)
}

/// Returns a random index of the share. An index beyond the group makes the kernel use its hash.
fn program(share: Share) -> [sock_filter; 4] {
    let step = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    [
        step(LOAD_WORD_ABSOLUTE, AUXILIARY_RANDOM),
        step(MODULO, share.count.max(1)),
        step(ADD, share.first),
        step(RETURN_ACCUMULATOR, 0),
    ]
}

// linux/bpf_common.h and linux/filter.h.
const LOAD_WORD_ABSOLUTE: u16 = 0x20;
const MODULO: u16 = 0x94;
const ADD: u16 = 0x04;
const RETURN_ACCUMULATOR: u16 = 0x16;
/// SKF_AD_OFF + SKF_AD_RANDOM.
const AUXILIARY_RANDOM: u32 = 0xffff_f000 + 56;

const NETLINK_HEADER_BYTES: usize = 16;
/// inet_diag_req_v2: family, protocol, extensions, padding, states, socket id.
const REQUEST_BYTES: usize = 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP_LISTEN: u32 = 10;

fn dump(socket: &OwnedFd, family: i32, port: u16) -> io::Result<Vec<Listener>> {
    for _ in 0..8 {
        send(socket, &request(family, port), SendFlags::empty())?;
        match answers(socket)? {
            Dump::Whole(found) => return Ok(found.into_iter().filter(|it| it.addr.port() == port).collect()),
            Dump::Interrupted => {}
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "the kernel's socket table changed during every dump"))
}

enum Dump {
    Whole(Vec<Listener>),
    /// NLM_F_DUMP_INTR: the table changed meanwhile.
    Interrupted,
}

fn request(family: i32, port: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(NETLINK_HEADER_BYTES + REQUEST_BYTES);
    let length = u32::try_from(NETLINK_HEADER_BYTES + REQUEST_BYTES).unwrap_or(0);
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or(0);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    let protocol = u8::try_from(libc::IPPROTO_TCP).unwrap_or(0);
    bytes.extend([u8::try_from(family).unwrap_or(0), protocol, 0, 0]);
    bytes.extend((1_u32 << TCP_LISTEN).to_ne_bytes());
    // The kernel filters by the source port of the id.
    bytes.extend(port.to_be_bytes());
    bytes.resize(NETLINK_HEADER_BYTES + REQUEST_BYTES, 0);
    bytes
}

fn answers(socket: &OwnedFd) -> io::Result<Dump> {
    let mut buffer = vec![0_u8; NETLINK_READ_BYTES];
    let mut found = Vec::new();
    let mut interrupted = false;
    loop {
        let (count, _) = recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())?;
        let mut rest = buffer.get(..count).unwrap_or_default();
        while let Some((message, next)) = split(rest) {
            rest = next;
            interrupted |= i32::from(message.flags) & libc::NLM_F_DUMP_INTR != 0;
            match i32::from(message.kind) {
                libc::NLMSG_DONE if interrupted => return Ok(Dump::Interrupted),
                libc::NLMSG_DONE => return Ok(Dump::Whole(found)),
                libc::NLMSG_ERROR => match word(message.body, 0).map(u32::cast_signed) {
                    // A kernel without this family has no listeners of it.
                    Some(error) if error == -libc::ENOENT => return Ok(Dump::Whole(found)),
                    Some(error) => return Err(io::Error::from_raw_os_error(error.wrapping_neg())),
                    None => return Err(io::ErrorKind::InvalidData.into()),
                },
                _ => found.extend(listener(message.body)),
            }
        }
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

/// The first netlink message and what follows it (netlink(7)); `None` at the end or at a broken length.
fn split(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let length = usize::try_from(word(bytes, 0)?).ok()?;
    let body = bytes.get(NETLINK_HEADER_BYTES..length)?;
    let aligned = length.checked_next_multiple_of(size_of::<u32>())?;
    Some((
        Message { kind: half(bytes, 4)?, flags: half(bytes, 6)?, body },
        bytes.get(aligned..).unwrap_or_default(),
    ))
}

/// inet_diag_msg: family, state, timer, retransmits; id at 4 (ports, source at 8, destination at 24,
/// interface, cookie); expires, receive queue at 56, send queue, uid, inode.
fn listener(body: &[u8]) -> Option<Listener> {
    let port = u16::from_be_bytes(array(body, 4)?);
    let ip = match i32::from(*body.first()?) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(array::<4>(body, 8)?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(array::<16>(body, 8)?)),
        _ => return None,
    };
    let (queued, uid, inode) = (word(body, 56)?, word(body, 64)?, word(body, 68)?);
    Some(Listener { addr: SocketAddr::new(ip, port), queued, uid, inode })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_ne_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
