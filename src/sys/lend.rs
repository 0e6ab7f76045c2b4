//! Borrowing the descriptor of a holder whose type only knows the raw number (monoio's sockets).

use std::os::fd::{AsRawFd, BorrowedFd};

use monoio::net::udp::UdpSocket;
use monoio::net::{TcpListener, UnixStream};

/// Owns its descriptor and keeps it open while it lives; a bare number doesn't.
pub trait Holder: AsRawFd {}

impl Holder for TcpListener {}
impl Holder for UnixStream {}
impl Holder for UdpSocket {}

/// The descriptor that `holder` owns, for as long as `holder` is borrowed.
pub fn lend<T: Holder>(holder: &T) -> BorrowedFd<'_> {
    // SAFETY: a holder keeps its descriptor open while it lives, and the returned borrow can't outlive it.
    unsafe { BorrowedFd::borrow_raw(holder.as_raw_fd()) }
}
