//! What the CNI agent says on its socket: one protobuf a datagram, a descriptor beside each `add`.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use prost::{Message, Oneof};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};

#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(int32, tag = "1")]
    pub version: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct WorkloadInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub service_account: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AddWorkload {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(message, optional, tag = "2")]
    pub workload_info: Option<WorkloadInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DelWorkload {
    #[prost(string, tag = "2")]
    pub uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeepWorkload {
    #[prost(string, tag = "1")]
    pub uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SnapshotSent {}

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(oneof = "Payload", tags = "1, 2, 3, 5")]
    pub payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Payload {
    #[prost(message, tag = "1")]
    Add(AddWorkload),
    #[prost(message, tag = "2")]
    Del(DelWorkload),
    #[prost(message, tag = "3")]
    SnapshotSent(SnapshotSent),
    #[prost(message, tag = "5")]
    Keep(KeepWorkload),
}

#[derive(Clone, PartialEq, Message)]
pub struct Ack {
    #[prost(string, tag = "1")]
    pub error: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub ack: Option<Ack>,
}

/// The agent reads into a buffer of this size; what is longer is an error to it.
const RECEIVE_BYTES: usize = 1_024;

/// A SEQPACKET socket that takes connections.
pub struct Listener(OwnedFd);

impl Listener {
    /// Removes a stale socket file first, as the agent does.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, 16)?;
        Ok(Self(socket))
    }

    /// The next connection, or none within the time.
    pub fn accept(&self, within: Duration) -> io::Result<Option<Connection>> {
        if !readable(self.0.as_fd(), within)? {
            return Ok(None);
        }
        match accept_with(&self.0, SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(Connection(socket))),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// One proxy's connection.
pub struct Connection(OwnedFd);

impl Connection {
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], within: Duration) -> io::Result<()> {
        set_socket_timeout(&self.0, Timeout::Send, Some(within))?;
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("at most four descriptors fit"));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// One datagram; none where nothing came within the time. The end of the stream is an empty datagram.
    pub fn receive(&self, within: Duration) -> io::Result<Option<Vec<u8>>> {
        if !readable(self.0.as_fd(), within)? {
            return Ok(None);
        }
        let mut buffer = vec![0; RECEIVE_BYTES];
        let (_, length) = recv(&self.0, buffer.as_mut_slice(), RecvFlags::TRUNC)?;
        if length > RECEIVE_BYTES {
            return Err(io::Error::other(format!("the proxy sent {length} bytes, at most 1024 are allowed")));
        }
        buffer.truncate(length);
        Ok(Some(buffer))
    }
}

fn readable(socket: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    let wait = Timespec::try_from(within).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&wait)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
