//! Unix SOCK_SEQPACKET with descriptors, as the CNI agent speaks it (reference sections 14.1 and B.1): one
//! message a packet, at most one descriptor with it. Blocking calls with time limits, for a small thread of
//! its own. Both sides live here: the agent's side serves the demo and the tests.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};

use crate::base::limits::{CNI_DESCRIPTORS_A_MESSAGE, CNI_SEND_DEADLINE_MS};

/// One connection, either side.
#[derive(Debug)]
pub struct SeqPacket {
    fd: OwnedFd,
}

/// One packet.
#[derive(Debug)]
pub struct Received {
    /// Bytes put into the buffer; zero is the peer's end.
    pub len: usize,
    /// At most one, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("nothing came within {0:?}")]
    Timeout(Duration),
    #[error("the message is longer than {0} bytes")]
    Truncated(usize),
    #[error("the message's descriptors did not fit (too many, or this process may open no more)")]
    ControlTruncated,
    #[error("the message came with {0} descriptors instead of one at most")]
    TooManyDescriptors(usize),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What `wait` ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wakeup {
    /// A message, or the peer's end, can be received.
    Message,
    /// The other descriptor is readable.
    Bell,
    Timeout,
}

/// Cannot connect, with what the path's owner and rights say where they may be the cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {}: {error}{rights}", path.display())]
pub struct ConnectError {
    pub path: PathBuf,
    pub error: io::Error,
    pub rights: Rights,
}

/// Mode, owner and security label of a socket file; empty where they don't matter.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rights(Option<String>);

impl SeqPacket {
    /// Connects to a listening socket file. Sends on it give up after `CNI_SEND_DEADLINE_MS`.
    pub fn connect(path: &Path) -> Result<Self, ConnectError> {
        try_connect(path).map_err(|error| {
            let rights = Rights::explaining(path, &error);
            ConnectError { path: path.to_owned(), error, rights }
        })
    }

    /// One packet, whole or not at all.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_parts(message, &[])
    }

    /// One packet with a descriptor, which stays the sender's own too.
    pub fn send_with_fd(&self, message: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
        self.send_parts(message, &[fd])
    }

    /// One packet with any number of descriptors (up to 4): what a broken agent might do.
    pub fn send_with_fds(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_parts(message, fds)
    }

    /// Receives one packet, within `timeout` where given. After an error other than `Timeout` the stream
    /// should be dropped: what was cut off is lost. Descriptors that came with a bad message are closed.
    pub fn recv(&self, into: &mut [u8], timeout: Option<Duration>) -> Result<Received, ReceiveError> {
        if let Some(limit) = timeout
            && self.wait(None, timeout)? == Wakeup::Timeout
        {
            return Err(ReceiveError::Timeout(limit));
        }
        let room = into.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CNI_DESCRIPTORS_A_MESSAGE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            let mut parts = [IoSliceMut::new(into)];
            match recvmsg(&self.fd, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                done => break done.map_err(io::Error::from)?,
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ReceiveError::ControlTruncated);
        }
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Err(ReceiveError::Truncated(room));
        }
        if fds.len() > 1 {
            return Err(ReceiveError::TooManyDescriptors(fds.len()));
        }
        Ok(Received { len: message.bytes, fds })
    }

    /// Waits for a message, or for `bell` (a drain, say); a message that is there wins.
    pub fn wait(&self, bell: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> io::Result<Wakeup> {
        wait(self.fd.as_fd(), bell, timeout)
    }

    fn send_parts(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CNI_DESCRIPTORS_A_MESSAGE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
        }
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}

impl AsFd for SeqPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The agent's side: a listening socket file, removed when dropped.
#[derive(Debug)]
pub struct SeqPacketListener {
    fd: OwnedFd,
    path: PathBuf,
}

impl SeqPacketListener {
    /// Binds, after removing a socket file that a dead process left behind.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let fd = seqpacket()?;
        bind(&fd, &SocketAddrUnix::new(path)?)?;
        listen(&fd, 16)?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// The next connection; `TimedOut` where none came within `timeout`.
    pub fn accept(&self, timeout: Option<Duration>) -> io::Result<SeqPacket> {
        if timeout.is_some() && wait(self.fd.as_fd(), None, timeout)? == Wakeup::Timeout {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let fd = accept_with(&self.fd, SocketFlags::CLOEXEC)?;
        limit_sends(&fd)?;
        Ok(SeqPacket { fd })
    }
}

impl AsFd for SeqPacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SeqPacketListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Rights {
    fn explaining(path: &Path, error: &io::Error) -> Self {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Self(None);
        }
        let about = match std::fs::metadata(path) {
            Ok(meta) => format!("mode {:o}, owner {}:{}", meta.mode() & 0o7777, meta.uid(), meta.gid()),
            Err(error) => format!("cannot stat it either: {error}"),
        };
        let mut label = [0_u8; 256];
        let label = match rustix::fs::getxattr(path, "security.selinux", &mut label[..]) {
            Ok(length) => String::from_utf8_lossy(label.get(..length).unwrap_or_default())
                .trim_end_matches('\0')
                .to_owned(),
            Err(_) => "none".to_owned(),
        };
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self(Some(format!("{about}, security label {label}; this process is {user}:{group}")))
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(text) => write!(f, " ({text})"),
            None => Ok(()),
        }
    }
}

fn try_connect(path: &Path) -> io::Result<SeqPacket> {
    let fd = seqpacket()?;
    limit_sends(&fd)?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(SeqPacket { fd })
}

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn limit_sends(fd: &OwnedFd) -> io::Result<()> {
    Ok(set_socket_timeout(fd, Timeout::Send, Some(Duration::from_millis(CNI_SEND_DEADLINE_MS)))?)
}

/// Waits for `fd`, or for `bell`; `fd` wins.
pub fn wait(
    fd: BorrowedFd<'_>,
    bell: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> io::Result<Wakeup> {
    let end = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let other = bell.unwrap_or(fd);
        let mut ready =
            [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut ready, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => return Ok(Wakeup::Timeout),
            Ok(_) => {}
        }
        let [first, _] = &ready;
        return Ok(if first.revents().is_empty() { Wakeup::Bell } else { Wakeup::Message });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;

    fn ends() -> (SeqPacket, SeqPacket) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let listener = SeqPacketListener::bind(&path).unwrap();
        let client = SeqPacket::connect(&path).unwrap();
        let agent = listener.accept(Some(Duration::from_secs(5))).unwrap();
        drop(listener);
        assert!(!path.exists(), "the socket file stays behind");
        (client, agent)
    }

    #[test]
    fn packets_keep_their_bounds_and_a_descriptor_arrives_close_on_exec() {
        let (client, agent) = ends();
        client.send(b"hello").unwrap();
        client.send(b"again").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(agent.recv(&mut buffer, None).unwrap().len, 5);
        assert_eq!(agent.recv(&mut buffer, None).unwrap().len, 5);
        let file = File::open("/proc/self/ns/net").unwrap();
        agent.send_with_fd(b"add", file.as_fd()).unwrap();
        agent.send(b"del").unwrap();
        let got = client.recv(&mut buffer, Some(Duration::from_secs(5))).unwrap();
        assert_eq!((got.len, got.fds.len()), (3, 1));
        let (fd, own) = (rustix::fs::fstat(&got.fds[0]).unwrap(), rustix::fs::fstat(&file).unwrap());
        assert_eq!(fd.st_ino, own.st_ino);
        assert!(rustix::io::fcntl_getfd(&got.fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert!(client.recv(&mut buffer, None).unwrap().fds.is_empty());
        drop(agent);
        assert_eq!(client.recv(&mut buffer, None).unwrap().len, 0, "the peer's end");
        assert_eq!(client.send(b"late").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_does_not_fit_is_an_error_of_its_own() {
        let (client, agent) = ends();
        let file = File::open("/dev/null").unwrap();
        let fd = file.as_fd();
        let mut buffer = [0; 1_024];
        agent.send(&[1; 1_025]).unwrap();
        assert!(matches!(client.recv(&mut buffer, None), Err(ReceiveError::Truncated(1_024))));
        agent.send(&[1; 1_024]).unwrap();
        assert_eq!(client.recv(&mut buffer, None).unwrap().len, 1_024);
        agent.send_with_fds(b"two", &[fd, fd]).unwrap();
        assert!(matches!(client.recv(&mut buffer, None), Err(ReceiveError::TooManyDescriptors(2))));
        let many = [fd; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(12))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&agent, &[IoSlice::new(b"many")], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(client.recv(&mut buffer, None), Err(ReceiveError::ControlTruncated)));
    }

    #[test]
    fn descriptors_of_a_bad_message_are_closed() {
        let (client, agent) = ends();
        let (held, sent) = std::os::unix::net::UnixStream::pair().unwrap();
        agent.send_with_fds(b"two", &[sent.as_fd(), sent.as_fd()]).unwrap();
        drop(sent);
        assert!(client.recv(&mut [0; 8], None).is_err());
        // The other end sees the end only when no copy is left anywhere.
        held.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(io::Read::read(&mut &held, &mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn waiting_ends_by_message_bell_or_time() {
        let (client, agent) = ends();
        let (bell, ringer) = std::os::unix::net::UnixStream::pair().unwrap();
        let soon = Some(Duration::from_millis(5));
        assert_eq!(client.wait(None, soon).unwrap(), Wakeup::Timeout);
        assert!(matches!(client.recv(&mut [0; 8], soon), Err(ReceiveError::Timeout(_))));
        io::Write::write_all(&mut &ringer, b"!").unwrap();
        assert_eq!(client.wait(Some(bell.as_fd()), None).unwrap(), Wakeup::Bell);
        agent.send(b"x").unwrap();
        assert_eq!(client.wait(Some(bell.as_fd()), None).unwrap(), Wakeup::Message);
    }

    #[test]
    fn a_failed_connect_names_the_path_and_a_stale_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let error = SeqPacket::connect(&path).unwrap_err();
        assert!(error.to_string().contains("agent.sock: No such file"), "{error}");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let error = SeqPacket::connect(&path).unwrap_err();
        assert!(matches!(error.error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EPROTOTYPE)));
        let listener = SeqPacketListener::bind(&path).unwrap();
        assert_eq!(listener.accept(Some(Duration::ZERO)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let long = directory.path().join("x".repeat(200));
        assert!(SeqPacket::connect(&long).is_err());
    }

    #[test]
    fn a_connect_without_rights_tells_mode_owner_and_label() {
        let name = "sys::fdpass::tests::a_connect_without_rights_tells_mode_owner_and_label";
        crate::sys::testing::in_child(name, || {
            let directory = tempfile::tempdir().unwrap();
            std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
            let path = directory.path().join("agent.sock");
            let _listener = SeqPacketListener::bind(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Only this thread becomes somebody else: the raw system call changes no other.
                    // SAFETY: plain numbers, no memory.
                    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 12_345, 12_345, 12_345) }, 0);
                    let text = SeqPacket::connect(&path).unwrap_err().to_string();
                    for part in ["agent.sock", "mode 600", "owner 0:0", "security label", "12345"] {
                        assert!(text.contains(part), "{part} is missing: {text}");
                    }
                });
            });
        });
    }
}
