//! Bytes between two plain sockets: passthrough and inbound plaintext. Endings are carried as in `shard::relay`.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use crate::shard::buffers::Buffers;
use crate::shard::closer::Closer;
use crate::shard::ending::Ending;
use crate::shard::half_close::HalfClose;
use crate::shard::meter::{Meter, Way};
use crate::shard::ready::{give_way, poll_slot};
use crate::shard::socket::Socket;

/// First read of a quiet direction; it grows while reads fill it.
const FIRST_READ_BYTES: usize = 16 * 1024;
/// Bytes moved one way in a row before others get their turn.
const TURN_BYTES: usize = 512 * 1024;

/// Two sockets that belong together.
pub struct Splice {
    pub client: Socket,
    pub server: Socket,
    pub meter: Rc<Meter>,
    pub buffers: Rc<Buffers>,
    pub closer: Closer,
    /// Set at the end where both sides finished in order.
    pub clean: Cell<bool>,
}

/// One direction. `waiting` is what the far side didn't take; while there is any, nothing more is read.
struct Direction {
    way: Way,
    waiting: Vec<u8>,
    sent: usize,
    read_bytes: usize,
    state: Flow,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    Open,
    Ended,
    Failed(ErrorKind),
}

impl Splice {
    /// Relays until both sides have ended or something ended both. Dropped before that, it resets both.
    #[expect(clippy::manual_async_fn, reason = "an async fn would hold all of it twice")]
    pub fn run(self) -> impl Future<Output = Ending> {
        async move {
            let ending = self.carry().await;
            self.clean.set(ending == Ending::Finished);
            ending
        }
    }

    async fn carry(&self) -> Ending {
        let signal = self.closer.signal();
        let mut up = Direction::new(Way::ToServer);
        let mut down = Direction::new(Way::ToClient);
        let mut half_close = HalfClose::default();
        let mut up_ready = pin!(None);
        let mut down_ready = pin!(None);
        loop {
            if let Some(reason) = self.closer.reason() {
                return Ending::Closed(reason);
            }
            let finished = match (up.state, down.state) {
                (Flow::Failed(kind), _) => return Ending::after_io(up.way, kind),
                (_, Flow::Failed(kind)) => return Ending::after_io(down.way, kind),
                (Flow::Ended, Flow::Ended) => return Ending::Finished,
                (up, down) => up == Flow::Ended || down == Flow::Ended,
            };
            self.closer.watch(finished || up.wants_write() || down.wants_write());
            if self.closer.take_look()
                && let Some(ending) = half_close.look(&[&self.client, &self.server], &self.meter, finished)
            {
                return ending;
            }
            if up_ready.is_none() && up.state == Flow::Open {
                up_ready.set(Some(ready(&self.client, &self.server, up.wants_read())));
            }
            if down_ready.is_none() && down.state == Flow::Open {
                down_ready.set(Some(ready(&self.server, &self.client, down.wants_read())));
            }
            let mut polls = 0;
            let (to_server, to_client) = poll_fn(|context| {
                polls += 1;
                let told = signal.poll(context).is_ready();
                let to_server = poll_slot(up_ready.as_mut(), context);
                let to_client = poll_slot(down_ready.as_mut(), context);
                if told | to_server | to_client { Poll::Ready((to_server, to_client)) } else { Poll::Pending }
            })
            .await;
            if polls == 1 && (to_server || to_client) {
                Box::pin(give_way()).await;
            }
            if to_server {
                up.turn(&self.client, &self.server, self);
            }
            if to_client {
                down.turn(&self.server, &self.client, self);
            }
        }
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        if !self.clean.get() {
            self.client.abort();
            self.server.abort();
        }
    }
}

/// A direction waits either for something to read or, with bytes in hand, for room: one future serves both.
async fn ready(from: &Socket, to: &Socket, reads: bool) {
    // An error shows at the next call on the socket.
    let _ = if reads { from.readable().await } else { to.writable().await };
}

impl Direction {
    fn new(way: Way) -> Self {
        Self { way, waiting: Vec::new(), sent: 0, read_bytes: FIRST_READ_BYTES, state: Flow::Open }
    }

    fn wants_read(&self) -> bool {
        self.state == Flow::Open && self.waiting.is_empty()
    }

    fn wants_write(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Moves bytes until one side has enough.
    fn turn(&mut self, from: &Socket, to: &Socket, splice: &Splice) {
        if !self.send_waiting(to, splice) {
            return;
        }
        let mut left = TURN_BYTES;
        while self.state == Flow::Open && self.waiting.is_empty() && left > 0 {
            let mut scratch = splice.buffers.bulk.borrow_mut();
            let wanted = self.read_bytes.min(scratch.len());
            let place = scratch.get_mut(..wanted).unwrap_or_default();
            match from.receive(place) {
                Ok(0) => {
                    to.finish();
                    self.state = Flow::Ended;
                }
                Ok(got) => {
                    self.send(to, place.get(..got).unwrap_or_default(), splice);
                    left = left.saturating_sub(got);
                    if got < wanted {
                        self.read_bytes = FIRST_READ_BYTES;
                        return;
                    }
                    self.read_bytes = self.read_bytes.saturating_mul(2);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => self.state = Flow::Failed(error.kind()),
            }
        }
    }

    fn send(&mut self, to: &Socket, bytes: &[u8], splice: &Splice) {
        match to.send(bytes) {
            Ok(count) => {
                splice.meter.add(self.way, count);
                self.waiting.extend_from_slice(bytes.get(count..).unwrap_or_default());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.waiting.extend_from_slice(bytes),
            Err(error) => self.state = Flow::Failed(error.kind()),
        }
    }

    /// Sends what waits; false while some is left.
    fn send_waiting(&mut self, to: &Socket, splice: &Splice) -> bool {
        while let Some(rest) = self.waiting.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match to.send(rest) {
                Ok(count) => {
                    self.sent += count;
                    splice.meter.add(self.way, count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => {
                    self.state = Flow::Failed(error.kind());
                    return false;
                }
            }
        }
        self.waiting = Vec::new();
        self.sent = 0;
        true
    }
}
