//! Finished log lines on their way to the one writer. Shards never wait: what doesn't fit is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crossbeam::channel::{Sender, TrySendError};

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

/// Levels of an access-log line, in the order of their verbosity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
}

impl LineSink {
    pub fn new(queue: Sender<Lines>) -> Self {
        let shared = Shared { access_level: AtomicU8::new(Level::Info as u8), ..Shared::default() };
        Self { queue, shared: Arc::new(shared) }
    }

    /// Hands lines to the writer, or counts them as dropped.
    pub fn send(&self, lines: Lines) {
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) = self.queue.try_send(lines) {
            self.shared.dropped.fetch_add(lost.count, Ordering::Relaxed);
        }
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
