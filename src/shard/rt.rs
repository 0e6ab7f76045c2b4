//! The event loop of a shard: io_uring, or epoll where the kernel refuses a ring. Which one is decided once for all
//! shards, before they start.

use std::future::Future;
use std::io;

use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};

/// Entries of a shard's submission queue; a full one is submitted early, so this isn't a limit of connections.
const RING_ENTRIES: u32 = 1024;

/// How a shard waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventLoop {
    IoUring,
    Epoll,
}

impl EventLoop {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}

/// Runs a future and everything it spawns on this thread, until it ends.
pub fn block_on<F: Future>(event_loop: EventLoop, work: F) -> io::Result<F::Output> {
    match event_loop {
        EventLoop::IoUring => {
            let mut runtime =
                RuntimeBuilder::<IoUringDriver>::new().with_entries(RING_ENTRIES).enable_timer().build()?;
            Ok(runtime.block_on(work))
        }
        EventLoop::Epoll => {
            let mut runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build()?;
            Ok(runtime.block_on(work))
        }
    }
}
