//! A tunnel within a stream of another: the inner half of what goes to another network (reference section 6.3). It
//! runs on one end of a socket pair whose other end is relayed over the outer stream; what that costs stands in
//! deploy/docs/decisions/nested-tunnels.md. It is reused, but only so often and so long that the gateway still
//! chooses among its backends.

use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::shard::pool::Carries;
use crate::shard::socket::Socket;
use crate::shard::tunnel::Tunnel;

/// An inner tunnel in its pool.
pub struct Nested {
    pub tunnel: Rc<Tunnel>,
    born: Instant,
    carried: Cell<u32>,
}

impl Nested {
    pub fn new(tunnel: Rc<Tunnel>) -> Self {
        Self { tunnel, born: Instant::now(), carried: Cell::new(0) }
    }

    /// Counts one more connection that it carries.
    pub fn carry(&self) {
        self.carried.set(self.carried.get().saturating_add(1));
    }

    fn is_spent(&self) -> bool {
        self.carried.get() >= limits::NESTED_CONNECTIONS
            || self.born.elapsed() >= Duration::from_millis(limits::NESTED_LIFE_MS)
    }
}

impl Carries for Nested {
    fn most_streams(&self) -> usize {
        self.tunnel.most_streams()
    }

    fn has_room(&self) -> bool {
        !self.is_spent() && self.tunnel.has_room()
    }

    fn is_finished(&self) -> bool {
        self.is_spent() || self.tunnel.is_finished()
    }

    fn idle_since(&self) -> Option<Instant> {
        self.tunnel.idle_since()
    }

    fn drain(&self) {
        self.tunnel.drain();
    }

    fn abort(&self) {
        self.tunnel.abort();
    }
}

/// Both ends of a stream within this process.
pub fn pair() -> std::io::Result<(Socket, Socket)> {
    let (near, far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    Ok((Socket::new(near.into())?, Socket::new(far.into())?))
}
