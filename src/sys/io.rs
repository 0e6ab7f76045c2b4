//! Non-blocking data calls on borrowed stream sockets, without an event loop. EINTR is retried, `WouldBlock`
//! is the caller's to wait on, and a dead peer is an error, never a signal. By rustix, whose calls are the kernel's
//! own: the C library puts a look for a cancelled thread around each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::zeroed;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::retry_on_intr;
use rustix::net::{self, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::SockRef;

use crate::sys::option;

/// Reads what is there; `Ok(0)` is the peer's FIN (or an empty buffer).
pub fn recv(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    let (got, _) = retry_on_intr(|| net::recv(fd, &mut *into, RecvFlags::DONTWAIT))?;
    Ok(got)
}

/// Like `recv`, but what is read stays where it is.
pub fn peek(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    let (got, _) = retry_on_intr(|| net::recv(fd, &mut *into, RecvFlags::DONTWAIT | RecvFlags::PEEK))?;
    Ok(got)
}

/// Reads into several places in a row. At most 1,024 (UIO_MAXIOV), more is `EMSGSIZE`.
pub fn recv_vectored(fd: BorrowedFd<'_>, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let mut control = RecvAncillaryBuffer::default();
    let got = retry_on_intr(|| net::recvmsg(fd, into, &mut control, RecvFlags::DONTWAIT))?;
    Ok(got.bytes)
}

/// Writes what the socket takes, which may be less than all.
pub fn send(fd: BorrowedFd<'_>, from: &[u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| net::send(fd, from, SEND_FLAGS))?)
}

/// Writes from several places in a row. At most 1,024 (UIO_MAXIOV), more is `EMSGSIZE`.
pub fn send_vectored(fd: BorrowedFd<'_>, from: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut control = SendAncillaryBuffer::default();
    Ok(retry_on_intr(|| net::sendmsg(fd, from, &mut control, SEND_FLAGS))?)
}

/// The socket's own address; an error where it has none of the internet's.
pub fn local(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    SockRef::from(&fd).local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Ends one or both directions; a connection that is gone already counts as done.
pub fn shutdown(fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
    match SockRef::from(&fd).shutdown(how) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        done => done,
    }
}

/// Sends RST at once, without closing the descriptor: the peer must see that the stream did not end well.
/// Connecting a TCP socket to no address ends it so (connect(2), AF_UNSPEC).
pub fn reset(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sockaddr, of family AF_UNSPEC (0).
    let nowhere: libc::sockaddr = unsafe { zeroed() };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr>()).unwrap_or(0);
    // SAFETY: `fd` is open while it is borrowed, and `nowhere` holds `length` readable bytes.
    match unsafe { libc::connect(fd.as_raw_fd(), &raw const nowhere, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where a TCP connection stands (tcp_states.h), as far as a relay cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Connecting,
    Established,
    /// The peer sent FIN, we did not.
    PeerFinished,
    /// We sent FIN, the peer did not.
    WeFinished,
    /// Both did, and the last acknowledgement is on its way.
    Closing,
    /// Nothing is left: both ended, a reset, a timeout, or never connected.
    Closed,
    Listening,
}

/// The connection's state by TCP_INFO.
pub fn state(fd: BorrowedFd<'_>) -> io::Result<State> {
    let info: libc::tcp_info = option::get(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(match info.tcpi_state {
        1 => State::Established,
        2 | 3 | 12 => State::Connecting,
        4 | 5 => State::WeFinished,
        8 => State::PeerFinished,
        6 | 9 | 11 => State::Closing,
        10 => State::Listening,
        _ => State::Closed,
    })
}

/// Whether the connection died instead of ending: a reset or a timeout. Takes the pending error from the
/// socket, so only the first one to ask (this, a read or a write) sees it.
pub fn was_reset(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(state(fd)? == State::Closed && SockRef::from(&fd).take_error()?.is_some())
}

const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::{tcp_pair, wait_readable};
    use std::os::fd::AsFd;

    #[test]
    fn bytes_pass_in_parts_and_an_empty_socket_would_block() {
        let (a, b) = tcp_pair();
        let (a, b) = (a.as_fd(), b.as_fd());
        let mut buffer = [0_u8; 64];
        assert_eq!(recv(b, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(peek(b, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(
            send_vectored(a, &[IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"two")]).unwrap(),
            6
        );
        assert_eq!(send(a, b"three").unwrap(), 5);
        wait_readable(b);
        assert_eq!((peek(b, &mut buffer).unwrap(), &buffer[..11]), (11, &b"onetwothree"[..]));
        let (mut first, mut second) = ([0; 4], [0; 7]);
        let mut parts = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(recv_vectored(b, &mut parts).unwrap(), 11);
        assert_eq!((&first, &second), (b"onet", b"wothree"));
        assert_eq!(recv(b, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn too_many_parts_are_an_error() {
        let (a, _b) = tcp_pair();
        let parts = vec![IoSlice::new(b"x"); 1_025];
        assert_eq!(send_vectored(a.as_fd(), &parts).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn a_full_socket_takes_a_part_then_blocks() {
        let (a, b) = tcp_pair();
        let chunk = vec![7_u8; 1 << 20];
        let mut sent = 0;
        loop {
            match send(a.as_fd(), &chunk) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(sent > 0);
        wait_readable(b.as_fd());
    }

    #[test]
    fn states_follow_an_orderly_close() {
        let (a, b) = tcp_pair();
        assert_eq!(state(a.as_fd()).unwrap(), State::Established);
        shutdown(a.as_fd(), Shutdown::Write).unwrap();
        wait_readable(b.as_fd());
        assert_eq!(recv(b.as_fd(), &mut [0; 8]).unwrap(), 0, "FIN");
        assert_eq!(state(b.as_fd()).unwrap(), State::PeerFinished);
        assert_eq!(state(a.as_fd()).unwrap(), State::WeFinished);
        shutdown(b.as_fd(), Shutdown::Write).unwrap();
        wait_readable(a.as_fd());
        assert!(!was_reset(a.as_fd()).unwrap() && !was_reset(b.as_fd()).unwrap());
        assert!(shutdown(a.as_fd(), Shutdown::Both).is_ok(), "a closed one counts as done");
    }

    #[test]
    fn a_reset_is_sent_and_told_from_an_end_and_writing_raises_no_signal() {
        let (a, b) = tcp_pair();
        reset(a.as_fd()).unwrap();
        wait_readable(b.as_fd());
        assert_eq!(state(b.as_fd()).unwrap(), State::Closed);
        assert!(was_reset(b.as_fd()).unwrap());
        let error = send(b.as_fd(), b"late").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
    }

    #[test]
    fn bytes_before_a_reset_can_be_read_and_then_it_is_an_error() {
        let (a, b) = tcp_pair();
        assert_eq!(send(a.as_fd(), b"first").unwrap(), 5);
        reset(a.as_fd()).unwrap();
        wait_readable(b.as_fd());
        assert_eq!(recv(b.as_fd(), &mut [0; 8]).unwrap(), 5);
        assert_eq!(recv(b.as_fd(), &mut [0; 8]).unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
    }
}
