//! A connection's record before it opens. Where it may still go elsewhere, it opens once it has got there or failed, so
//! that its labels are final; dropped before that, it is a connection that was ended.

use std::rc::Rc;
use std::time::Instant;

use crate::path::record::{About, Record};
use crate::shard::Shard;

/// See above.
pub(super) struct Opening {
    shard: Rc<Shard>,
    started: Instant,
    attempts: u32,
    state: Option<State>,
}

enum State {
    Open(Record),
    Waiting(Box<About>),
}

impl Opening {
    /// `settled`: there is only one way to go, so the record opens at once.
    pub fn new(shard: &Rc<Shard>, about: About, settled: bool) -> Self {
        let state =
            if settled { State::Open(Record::open(shard, about)) } else { State::Waiting(Box::new(about)) };
        Self { shard: shard.clone(), started: Instant::now(), attempts: 1, state: Some(state) }
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    /// Endpoints tried, the one that is being tried included.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Another endpoint is tried.
    pub fn again(&mut self, about: About) {
        self.attempts += 1;
        self.state = Some(State::Waiting(Box::new(about)));
    }

    /// What the far side says of itself.
    pub fn learn(&mut self, change: impl FnOnce(&mut About)) {
        if let Some(State::Waiting(about)) = &mut self.state {
            change(about);
        }
    }

    /// The way is known for good. (Only this and the drop take the state out, so it is always in.)
    #[expect(clippy::expect_used, reason = "consumes self, and nothing else empties it but the drop")]
    pub fn open(mut self) -> Record {
        self.take().expect("not dropped yet")
    }

    fn take(&mut self) -> Option<Record> {
        Some(match self.state.take()? {
            State::Open(record) => record,
            State::Waiting(about) => Record::open_since(&self.shard, *about, self.started, self.attempts),
        })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        // Dropped unclosed, the record tells why.
        drop(self.take());
    }
}
