//! The event loop of a shard: io_uring, or epoll where the kernel refuses a ring. Which one is decided once for all
//! shards, before they start.

use std::future::Future;
use std::io;

use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, Runtime, RuntimeBuilder};

/// Entries of a shard's submission queue; a full one is submitted early, so this isn't a limit of connections.
const RING_ENTRIES: u32 = 1024;

type RingRuntime = Runtime<TimeDriver<IoUringDriver>>;

/// When completions are worked on, best first; older kernels know fewer.
#[derive(Clone, Copy)]
enum Completions {
    /// Where the shard waits for them and nowhere else, all at once (kernel 6.1). At 64 busy connections the rest
    /// cost a sixth of the shard's CPU.
    Deferred,
    /// Where the shard enters the kernel anyway (5.19).
    Cooperative,
    /// By a signal at any moment.
    Interrupting,
}

fn ring(completions: Completions) -> io::Result<RingRuntime> {
    let mut ring = io_uring::IoUring::builder();
    match completions {
        Completions::Deferred => ring.setup_defer_taskrun().setup_single_issuer(),
        Completions::Cooperative => ring.setup_coop_taskrun().setup_single_issuer(),
        Completions::Interrupting => &mut ring,
    };
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
            let mut runtime = ring(Completions::Deferred)
                .or_else(|_| ring(Completions::Cooperative))
                .or_else(|_| ring(Completions::Interrupting))?;
            Ok(runtime.block_on(work))
        }
        EventLoop::Epoll => {
            let mut runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build()?;
            Ok(runtime.block_on(work))
        }
    }
}
