//! One stream's state, small enough that thousands of idle ones cost nothing worth counting.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

use crate::base::limits;

use super::flow::{ReceiveWindow, SendWindow};

/// Streams by number; randomly seeded, since the peer chooses the numbers.
pub type Streams = HashMap<u32, Stream, foldhash::fast::RandomState>;

/// A stream that is open or half closed. A stream closed on both sides is not kept.
#[derive(Debug)]
pub struct Stream {
    pub send: SendWindow,
    pub receive: ReceiveWindow,
    /// We have sent END_STREAM.
    pub local_closed: bool,
    /// The peer has sent END_STREAM.
    pub remote_closed: bool,
    /// The final answer went by: sent (server) or received (client).
    pub answered: bool,
    /// `capacity` said 0; a Writable event is owed. A cell, because asking is not a change to the protocol.
    pub blocked: Cell<bool>,
}

const _: () = assert!(size_of::<Stream>() <= 64);

impl Stream {
    pub fn new(send: SendWindow, receive: ReceiveWindow) -> Self {
        Self {
            send,
            receive,
            local_closed: false,
            remote_closed: false,
            answered: false,
            blocked: Cell::new(false),
        }
    }

    pub fn closed(&self) -> bool {
        self.local_closed && self.remote_closed
    }
}

/// Which closed streams may still have frames on their way: those we reset. The oldest are forgotten one by
/// one, and from then on every closed stream up to them gets the benefit of the doubt.
#[derive(Debug, Default)]
pub struct Resets {
    recent: VecDeque<u32>,
    forgotten: u32,
}

impl Resets {
    pub fn remember(&mut self, stream: u32) {
        if self.recent.len() >= limits::RESETS_REMEMBERED
            && let Some(oldest) = self.recent.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.recent.push_back(stream);
    }

    pub fn may_have(&self, stream: u32) -> bool {
        stream <= self.forgotten || self.recent.contains(&stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgotten_resets_are_still_forgiven_and_others_are_not() {
        let mut resets = Resets::default();
        for index in 0..u32::try_from(limits::RESETS_REMEMBERED).unwrap() + 1 {
            resets.remember(index * 4 + 1);
        }
        assert!(resets.may_have(1));
        assert!(resets.may_have(9));
        assert!(!resets.may_have(7));
        assert!(resets.recent.len() <= limits::RESETS_REMEMBERED);
    }
}
