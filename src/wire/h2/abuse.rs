//! Counters that tell a peer at work from one that only costs: floods of frames that are each allowed.
//! They count in seconds of the connection's clock; a burst across a boundary may reach twice a bound.

use crate::base::limits;

use super::Violation;

#[derive(Debug)]
pub struct Watch {
    second_ms: u32,
    resets: u32,
    unanswered: u32,
    errors: u32,
    large: u32,
    overhead: u32,
    empty: u32,
    /// WINDOW_UPDATE frames the peer still has good reason to send.
    updates: u32,
    reply_bytes: usize,
}

impl Watch {
    pub fn new(now_ms: u32) -> Self {
        Self {
            second_ms: now_ms,
            resets: 0,
            unanswered: 0,
            errors: 0,
            large: 0,
            overhead: 0,
            empty: 0,
            updates: limits::WINDOW_UPDATES_AT_START,
            reply_bytes: 0,
        }
    }

    pub fn tick(&mut self, now_ms: u32) {
        if now_ms.wrapping_sub(self.second_ms) >= 1_000 {
            self.second_ms = now_ms;
            (self.resets, self.unanswered, self.errors, self.large, self.overhead) = (0, 0, 0, 0, 0);
        }
    }

    /// The peer reset a stream; `answered` if it had waited for the answer.
    pub fn reset(&mut self, answered: bool) -> Result<(), Violation> {
        let limit = limits::RESETS_A_SECOND;
        count(&mut self.resets, limit, Violation::Resets { limit })?;
        if answered {
            return Ok(());
        }
        let limit = limits::UNANSWERED_RESETS_A_SECOND;
        count(&mut self.unanswered, limit, Violation::UnansweredResets { limit })
    }

    /// A stream was refused or broke a rule.
    pub fn stream_error(&mut self) -> Result<(), Violation> {
        let limit = limits::STREAM_ERRORS_A_SECOND;
        count(&mut self.errors, limit, Violation::StreamErrors { limit })
    }

    /// A header list was longer than allowed.
    pub fn large_list(&mut self) -> Result<(), Violation> {
        let limit = limits::LARGE_LISTS_A_SECOND;
        count(&mut self.large, limit, Violation::LargeLists { limit })
    }

    /// A frame that moves nothing: PING, SETTINGS, PRIORITY, unknown types, frames of closed streams.
    pub fn overhead(&mut self) -> Result<(), Violation> {
        let limit = limits::OVERHEAD_FRAMES_A_SECOND;
        count(&mut self.overhead, limit, Violation::Overhead { limit })
    }

    /// A DATA frame that doesn't end its stream.
    pub fn data(&mut self, length: u32) -> Result<(), Violation> {
        if length > 0 {
            self.empty = 0;
            return Ok(());
        }
        let limit = limits::EMPTY_DATA_FRAMES_IN_A_ROW;
        count(&mut self.empty, limit, Violation::EmptyData { limit })
    }

    /// We sent a DATA frame, or opened a stream (`length` 0).
    pub fn sent(&mut self, length: u32) {
        let earned = limits::WINDOW_UPDATES_A_FRAME + length / limits::WINDOW_UPDATE_WORTH_BYTES;
        self.updates = self.updates.saturating_add(earned);
    }

    pub fn window_update(&mut self) -> Result<(), Violation> {
        self.updates = self.updates.checked_sub(1).ok_or(Violation::WindowUpdates)?;
        Ok(())
    }

    /// `more` bytes of answer join the `waiting` ones; what has been drained no longer counts.
    pub fn reply(&mut self, waiting: usize, more: usize) -> Result<(), Violation> {
        self.reply_bytes = self.reply_bytes.min(waiting) + more;
        let limit = limits::REPLIES_WAITING_BYTES;
        if self.reply_bytes > limit { Err(Violation::Replies { limit }) } else { Ok(()) }
    }
}

fn count(counter: &mut u32, limit: u32, violation: Violation) -> Result<(), Violation> {
    *counter = counter.saturating_add(1);
    if *counter > limit { Err(violation) } else { Ok(()) }
}
