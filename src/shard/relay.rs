//! Bytes between an application's socket and a tunnel's stream. What comes down the tunnel is written by the
//! tunnel's own task; this one reads the application, hands over what waited, and carries both ends' endings:
//! FIN as END_STREAM, RST as RST_STREAM, and the same the other way round.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;

use crate::base::limits::RECORDS_A_TURN;
use crate::shard::buffers::{Buffers, HEADROOM_BYTES, SLOT_PAYLOAD_BYTES, payload_places};
use crate::shard::closer::{CloseReason, Closer};
use crate::shard::half_close::HalfClose;
use crate::shard::meter::{Meter, Way};
use crate::shard::ready::{Woke, wait};
use crate::shard::socket::Socket;
use crate::shard::stream::{Cut, Stream};
use crate::shard::tunnel::Tunnel;
use crate::wire::h2::Code;

/// Payloads up to this size are gathered with others of the same turn into one record.
const SMALL_BYTES: usize = 4 * 1024;
/// Payload taken from one application in a row before others get their turn.
const TURN_BYTES: usize = 512 * 1024;

/// How a relayed connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Both sides finished.
    Finished,
    /// One side reset it, and the other was told so.
    Reset,
    Closed(CloseReason),
}

/// Both ends of a relayed stream.
pub struct StreamRelay {
    pub app: Rc<Socket>,
    pub stream: Rc<Stream>,
    pub tunnel: Rc<Tunnel>,
    pub meter: Rc<Meter>,
    pub buffers: Rc<Buffers>,
    pub closer: Closer,
    /// Set at the end where both sides finished in order.
    pub clean: Cell<bool>,
}

/// What one turn of reading the application came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pumped {
    /// Wait until the application is readable.
    WaitApp,
    /// Wait until the stream may send again.
    WaitStream,
    Finished,
    Failed,
}

impl StreamRelay {
    /// Relays until both sides have ended or something ended both. Dropped before that, it resets both.
    #[expect(clippy::manual_async_fn, reason = "an async fn would hold all of it twice")]
    pub fn run(self) -> impl Future<Output = Ending> {
        async move {
            // What may not pass any more must not hand over a byte first.
            if let Some(reason) = self.closer.reason() {
                return Ending::Closed(reason);
            }
            self.stream.attach(self.app.clone(), self.meter.clone());
            let ending = self.carry().await;
            self.clean.set(ending == Ending::Finished);
            ending
        }
    }

    /// The way of what the application sends.
    fn way(&self) -> Way {
        self.stream.way.back()
    }

    async fn carry(&self) -> Ending {
        let mut readable = pin!(None);
        let mut writable = pin!(None);
        let mut slots = 1;
        // A caller has mostly spoken while the far side was reached; a server that was just dialled has not.
        let mut pumped = match self.way() {
            Way::ToServer => self.pump(&mut slots),
            Way::ToClient => Pumped::WaitApp,
        };
        let mut half_close = HalfClose::default();
        loop {
            if let Some(ending) = self.over(pumped, &mut half_close) {
                return ending;
            }
            if pumped == Pumped::WaitApp && readable.is_none() {
                readable.set(Some(self.app.readable()));
            }
            if !self.stream.has_waiting() {
                writable.set(None);
            } else if writable.is_none() {
                // Rare, so it is boxed: every idle connection would hold its room.
                writable.set(Some(Box::pin(self.app.writable())));
            }
            match wait(&self.stream.signal, readable.as_mut(), writable.as_mut()).await {
                Woke::Signal => {
                    if pumped == Pumped::WaitStream {
                        pumped = self.pump(&mut slots);
                    }
                }
                Woke::Readable => {
                    pumped = self.pump(&mut slots);
                }
                Woke::Writable => self.stream.hand_over_waiting(),
            }
        }
    }

    /// Whether the connection is over after what is known now.
    fn over(&self, pumped: Pumped, half_close: &mut HalfClose) -> Option<Ending> {
        if let Some(reason) = self.closer.reason() {
            return Some(Ending::Closed(reason));
        }
        if pumped == Pumped::Failed || self.stream.sink_failed().is_some() {
            return Some(Ending::Reset);
        }
        match self.stream.cut() {
            // A peer that resets without an error has no more to say and wants no more (RFC 9113 section 8.1).
            Some(Cut::Reset(Code::NO_ERROR)) if !self.stream.has_waiting() => return Some(Ending::Finished),
            Some(Cut::Reset(Code::NO_ERROR)) | None => {}
            Some(Cut::Revoked) => return Some(Ending::Closed(CloseReason::Revoked)),
            Some(Cut::Reset(_) | Cut::Lost) => return Some(Ending::Reset),
        }
        let finished = match (pumped == Pumped::Finished, self.stream.drained()) {
            (true, true) => return Some(Ending::Finished),
            (app, peer) => app || peer,
        };
        self.closer.watch(finished || pumped == Pumped::WaitStream);
        if self.closer.take_look() { half_close.look(&[&self.app], &self.meter, finished) } else { None }
    }

    fn read(&self, scratch: &mut [u8], wanted: usize) -> io::Result<usize> {
        if wanted <= SLOT_PAYLOAD_BYTES {
            return self
                .app
                .receive(scratch.get_mut(HEADROOM_BYTES..HEADROOM_BYTES + wanted).unwrap_or_default());
        }
        let mut places = payload_places(scratch, wanted);
        let used = wanted.div_ceil(SLOT_PAYLOAD_BYTES).min(RECORDS_A_TURN);
        self.app.receive_vectored(places.get_mut(..used).unwrap_or_default())
    }

    /// Reads the application and sends what it gave, until one of them has enough.
    fn pump(&self, slots: &mut usize) -> Pumped {
        let mut left = TURN_BYTES;
        loop {
            let room = self.tunnel.capacity(&self.stream);
            if room == 0 {
                return Pumped::WaitStream;
            }
            let wanted = room.min(*slots * SLOT_PAYLOAD_BYTES);
            let mut scratch = self.buffers.bulk.borrow_mut();
            let got = match self.read(&mut scratch, wanted) {
                Ok(0) => {
                    self.tunnel.finish(&self.stream);
                    self.stream.app_finished();
                    return Pumped::Finished;
                }
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Pumped::WaitApp,
                Err(_) => return Pumped::Failed,
            };
            self.meter.add(self.way(), got);
            if got <= SMALL_BYTES {
                let payload = scratch.get(HEADROOM_BYTES..HEADROOM_BYTES + got).unwrap_or_default();
                self.tunnel.send_small(&self.stream, payload);
            } else {
                self.tunnel.send_slots(&self.stream, &mut scratch, got);
            }
            if got < wanted {
                *slots = (got / SLOT_PAYLOAD_BYTES + 1).min(*slots);
                return Pumped::WaitApp;
            }
            *slots = (*slots * 2).min(RECORDS_A_TURN);
            left = left.saturating_sub(got);
            if left == 0 {
                // Readable at once where there is more; the ring puts others in between.
                return Pumped::WaitApp;
            }
        }
    }
}

impl Drop for StreamRelay {
    fn drop(&mut self) {
        if !self.clean.get() {
            self.tunnel.reset(&self.stream, Code::CANCEL);
            self.app.abort();
        }
        self.stream.detach();
        self.tunnel.release(&self.stream);
    }
}
