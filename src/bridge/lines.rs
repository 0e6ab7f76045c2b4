//! Finished log lines on their way to the one writer. Shards never wait: what doesn't fit is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crossbeam::channel::{Sender, TrySendError};

pub use crate::base::level::Level;

/// Whole lines, each with its newline.
pub struct Lines {
    pub bytes: Vec<u8>,
    pub count: u64,
}

/// Where lines go; clones share the queue.
#[derive(Clone)]
pub struct LineSink {
    queue: Sender<Lines>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    dropped: AtomicU64,
    access_level: AtomicU8,
}

impl LineSink {
    pub fn new(queue: Sender<Lines>) -> Self {
        let shared = Shared { access_level: AtomicU8::new(Level::Info as u8), ..Shared::default() };
        Self { queue, shared: Arc::new(shared) }
    }

    /// Hands lines to the writer, or counts them as dropped.
    pub fn send(&self, lines: Lines) {
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) = self.queue.try_send(lines) {
            self.count_lost(lost.count);
        }
    }

    /// Counts lines that were lost after they had been queued, or that never reached the queue.
    pub fn count_lost(&self, lines: u64) {
        self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    /// Lines lost so far.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Whether the filter in force lets target `access` write at this level.
    pub fn access_enabled(&self, level: Level) -> bool {
        level as u8 <= self.shared.access_level.load(Ordering::Relaxed)
    }

    /// 0 turns the access log off; otherwise the value of the most verbose `Level` that is written.
    pub fn set_access_level(&self, level: u8) {
        self.shared.access_level.store(level, Ordering::Relaxed);
    }
}
