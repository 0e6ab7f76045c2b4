//! The event loop of a shard: io_uring, or epoll where the kernel refuses a ring. Which one is decided once for all
//! shards, before they start.

use std::future::Future;
use std::io;

use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, Runtime, RuntimeBuilder};

/// Entries of a shard's submission queue; a full one is submitted early, so this isn't a limit of connections.
const RING_ENTRIES: u32 = 1024;

type RingRuntime = Runtime<TimeDriver<IoUringDriver>>;

/// `cooperative` (kernel 5.19): a completion waits until the shard enters the kernel anyway, instead of interrupting it
/// with a signal. At 64 busy connections the interrupts were a tenth of the shard's CPU.
fn ring(cooperative: bool) -> io::Result<RingRuntime> {
    let mut ring = io_uring::IoUring::builder();
    if cooperative {
        ring.setup_coop_taskrun().setup_single_issuer();
    }
    RuntimeBuilder::<IoUringDriver>::new()
        .uring_builder(ring)
        .with_entries(RING_ENTRIES)
        .enable_timer()
        .build()
}

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
            let mut runtime = ring(true).or_else(|_| ring(false))?;
            Ok(runtime.block_on(work))
        }
        EventLoop::Epoll => {
            let mut runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build()?;
            Ok(runtime.block_on(work))
        }
    }
}
