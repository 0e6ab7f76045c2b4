//! A connected TCP socket of this shard. The ring (or epoll) tells when it is ready; the bytes then move by one
//! direct, non-blocking call, so the kernel never owns a buffer of ours and a wait may be dropped at any time.
//! Why not ring reads and writes: deploy/docs/decisions/direct-data-calls.md.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use monoio::net::UnixStream;

use crate::base::net::canonical;
use crate::sys;

/// One connection. Dropping it closes it (with FIN, unless `abort` was called or unread data is left).
pub struct Socket {
    /// Of whatever family it is: monoio's TCP stream would keep 72 bytes of addresses that nobody asks it for, this one
    /// waits just the same, and all else is done on the descriptor.
    stream: UnixStream,
}

/// An application that waits until its far side is reached. Dropped before that, it is reset.
pub struct Held(Option<Socket>);

impl Held {
    pub fn new(socket: Socket) -> Self {
        Self(Some(socket))
    }

    /// The application, to look at what it has said.
    pub fn socket(&self) -> Option<&Socket> {
        self.0.as_ref()
    }

    /// The far side is there. (Only this takes the socket out, so it is always in.)
    #[expect(clippy::expect_used, reason = "consumes self, and nothing else empties it")]
    pub fn reached(mut self) -> Socket {
        self.0.take().expect("held until now")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.abort();
        }
    }
}

impl Socket {
    /// Takes over a non-blocking socket.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::from_std(fd.into())? })
    }

    /// Waits until a read would tell something: bytes, the end, or an error.
    pub fn readable(&self) -> impl Future<Output = io::Result<()>> {
        self.stream.readable(false)
    }

    pub fn writable(&self) -> impl Future<Output = io::Result<()>> {
        self.stream.writable(false)
    }

    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        sys::io::recv(self.fd(), buffer)
    }

    /// Reads without taking: the same bytes come again.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        sys::io::peek(self.fd(), buffer)
    }

    pub fn receive_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        sys::io::recv_vectored(self.fd(), buffers)
    }

    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        sys::io::send(self.fd(), bytes)
    }

    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::io::send_vectored(self.fd(), parts)
    }

    /// Sends FIN. A peer that is gone already makes this meaningless, not wrong.
    pub fn finish(&self) {
        let _ = sys::io::shutdown(self.fd(), Shutdown::Write);
    }

    /// Whether the connection died instead of ending: it was reset, or its keepalive ran out. One that both sides
    /// ended is not gone: it may still hold bytes for us. Tells it once.
    pub fn is_gone(&self) -> bool {
        sys::io::was_reset(self.fd()).unwrap_or(false)
    }

    /// Sends RST now, whoever else still holds the socket. Where it is over already, nothing happens. A stream within
    /// the process knows no RST: it ends.
    pub fn abort(&self) {
        if sys::io::reset(self.fd()).is_err() {
            let _ = sys::io::shutdown(self.fd(), Shutdown::Both);
        }
    }

    /// Sends all of it, waiting where the peer doesn't read.
    pub async fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send(bytes) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Our own address, in canonical form.
    pub fn local(&self) -> io::Result<SocketAddr> {
        sys::io::local(self.fd()).map(canonical)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        sys::lend::lend(&self.stream)
    }
}
