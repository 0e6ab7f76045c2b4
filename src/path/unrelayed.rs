//! A stream between being asked for and being relayed: whoever holds it may be dropped at any time.

use std::rc::Rc;

use crate::shard::stream::Stream;
use crate::shard::tunnel::Tunnel;

/// Dropped, the stream is given up.
pub(super) struct Unrelayed {
    pub stream: Rc<Stream>,
    tunnel: Rc<Tunnel>,
    relayed: bool,
}

impl Unrelayed {
    pub fn new(tunnel: Rc<Tunnel>, stream: Rc<Stream>) -> Self {
        Self { stream, tunnel, relayed: false }
    }

    /// From here on it is a relay's.
    pub fn relayed(mut self) -> Rc<Stream> {
        self.relayed = true;
        self.stream.clone()
    }
}

impl Drop for Unrelayed {
    fn drop(&mut self) {
        if !self.relayed {
            self.tunnel.release(&self.stream);
        }
    }
}
