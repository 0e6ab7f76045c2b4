//! Finished log lines on their way to the one writer. Shards never wait: what doesn't fit is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crossbeam::channel::{Sender, TrySendError};

pub use crate::base::level::Level;
use crate::base::limits::LOG_BYTES_QUEUED;

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
    queued_bytes: AtomicUsize,
    access_level: AtomicU8,
}

impl LineSink {
    pub fn new(queue: Sender<Lines>) -> Self {
        let shared = Shared { access_level: AtomicU8::new(Level::Info as u8), ..Shared::default() };
        Self { queue, shared: Arc::new(shared) }
    }

    /// Hands lines to the writer, or counts them as dropped.
    pub fn send(&self, lines: Lines) {
        // Several threads may pass this at once: the bound is exceeded by a batch of each at most.
        if self.shared.queued_bytes.load(Ordering::Relaxed).saturating_add(lines.bytes.len())
            > LOG_BYTES_QUEUED
        {
            return self.count_lost(lines.count);
        }
        self.count_queued(lines.bytes.len());
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) = self.queue.try_send(lines) {
            self.count_taken(lost.bytes.len());
            self.count_lost(lost.count);
        }
    }

    /// So many bytes are on their way to the writer.
    pub fn count_queued(&self, bytes: usize) {
        self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// They are no more: written, or lost.
    pub fn count_taken(&self, bytes: usize) {
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
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
