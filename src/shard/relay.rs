//! Bytes between an application's socket and a tunnel's stream. What comes down the tunnel is written by the
//! tunnel's own task; this one reads the application, hands over what waited, and carries both ends' endings:
//! FIN as END_STREAM, RST as RST_STREAM, and the same the other way round.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::base::limits::RECORDS_A_TURN;
use crate::shard::buffers::{HEADROOM_BYTES, SLOT_PAYLOAD_BYTES, payload_places};
use crate::shard::closer::{CloseReason, Closer};
use crate::shard::ending::Ending;
use crate::shard::half_close::HalfClose;
use crate::shard::meter::{Meter, Way};
use crate::shard::ready::{Woke, give_way, poll_first};
use crate::shard::socket::Socket;
use crate::shard::stream::{Cut, Stream};
use crate::shard::tunnel::Tunnel;
use crate::wire::h2::Code;

/// Payloads up to this size are gathered with others of the same turn into one record.
const SMALL_BYTES: usize = 4 * 1024;
/// Payload taken from one application in a row before others get their turn.
const TURN_BYTES: usize = 512 * 1024;

/// Slots read in a row at most.
#[expect(clippy::cast_possible_truncation, reason = "a constant that fits")]
const MOST_SLOTS: u8 = RECORDS_A_TURN as u8;
const _: () = assert!(RECORDS_A_TURN <= u8::MAX as usize);

/// Both ends of a relayed stream.
pub struct StreamRelay {
    pub app: Rc<Socket>,
    pub stream: Rc<Stream>,
    pub tunnel: Rc<Tunnel>,
    pub meter: Rc<Meter>,
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
    Failed(ErrorKind),
}

impl StreamRelay {
    /// Relays until both sides have ended or something ended both. Dropped before that, it resets both.
    pub fn run(self) -> impl Future<Output = Ending> {
        let until_readable = |app: Rc<Socket>| async move { app.readable().await };
        Relaying { readable: None, rare: None, relay: Some(self), pumped: None, slots: 1, until_readable }
    }

    /// The way of what the application sends.
    fn way(&self) -> Way {
        self.stream.way.back()
    }

    /// The first turn.
    fn begin(&self, slots: &mut u8) -> Result<Pumped, CloseReason> {
        // What may not pass any more must not hand over a byte first.
        if let Some(reason) = self.closer.reason() {
            return Err(reason);
        }
        self.stream.attach(self.app.clone(), self.meter.clone());
        // A caller has mostly spoken while the far side was reached; a server that was just dialled has not.
        Ok(match self.way() {
            Way::ToServer => self.pump(slots),
            Way::ToClient => Pumped::WaitApp,
        })
    }

    /// A further turn.
    fn go_on(&self, woke: Woke, pumped: Pumped, slots: &mut u8) -> Pumped {
        match woke {
            Woke::Signal if pumped == Pumped::WaitStream => self.pump(slots),
            Woke::Signal => pumped,
            Woke::Readable => self.pump(slots),
            Woke::Writable => {
                self.stream.hand_over_waiting();
                pumped
            }
        }
    }

    /// Whether the connection is over after what is known now.
    fn over(&self, pumped: Pumped, rare: &mut Option<Box<Rare>>) -> Option<Ending> {
        // A revoked certificate is told before a policy (reference section 7.8).
        if self.stream.cut() == Some(Cut::Revoked) {
            return Some(Ending::Closed(CloseReason::Revoked));
        }
        if let Some(reason) = self.closer.reason() {
            return Some(Ending::Closed(reason));
        }
        if let Pumped::Failed(kind) = pumped {
            return Some(Ending::after_io(self.way(), kind));
        }
        let from_peer = self.stream.way;
        if let Some(kind) = self.stream.sink_failed() {
            return Some(Ending::after_io(from_peer, kind));
        }
        match self.stream.cut() {
            // A peer that has said all and resets without an error wants no more (RFC 9113 section 8.1).
            Some(Cut::Reset(Code::NO_ERROR)) if self.stream.drained() => return Some(Ending::Finished),
            Some(Cut::Reset(Code::NO_ERROR)) if self.stream.peer_finished() => {}
            Some(Cut::Reset(code)) => return Some(Ending::after_reset(from_peer, code)),
            Some(Cut::Lost) => return Some(Ending::Reset),
            Some(Cut::Broken(fault)) => return Some(Ending::Failed(from_peer, fault)),
            Some(Cut::Revoked) | None => {}
        }
        let finished = match (pumped == Pumped::Finished, self.stream.drained()) {
            (true, true) => return Some(Ending::Finished),
            (app, peer) => app || peer,
        };
        self.closer.watch(finished || pumped == Pumped::WaitStream);
        if !self.closer.take_look() {
            return None;
        }
        rare.get_or_insert_default().half_close.look(&[&self.app], &self.meter, finished)
    }

    /// Waits for room in the application's socket where something waits to be handed over.
    fn await_room(&self, rare: &mut Option<Box<Rare>>) {
        if self.stream.has_waiting() {
            let app = self.app.clone();
            let wait = || Box::pin(async move { app.writable().await }) as Later<_>;
            rare.get_or_insert_default().writable.get_or_insert_with(wait);
        } else if let Some(rare) = rare {
            rare.writable = None;
        }
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
    fn pump(&self, slots: &mut u8) -> Pumped {
        let mut left = TURN_BYTES;
        loop {
            let room = self.tunnel.capacity(&self.stream);
            if room == 0 {
                return Pumped::WaitStream;
            }
            let wanted = room.min(usize::from(*slots) * SLOT_PAYLOAD_BYTES);
            let mut scratch = self.tunnel.buffers.bulk.borrow_mut();
            let got = match self.read(&mut scratch, wanted) {
                Ok(0) => {
                    self.tunnel.finish(&self.stream);
                    self.stream.app_finished();
                    return Pumped::Finished;
                }
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Pumped::WaitApp,
                Err(error) => return Pumped::Failed(error.kind()),
            };
            self.meter.add(self.way(), got);
            if got <= SMALL_BYTES {
                let payload = scratch.get(HEADROOM_BYTES..HEADROOM_BYTES + got).unwrap_or_default();
                self.tunnel.send_small(&self.stream, payload);
            } else {
                self.tunnel.send_slots(&self.stream, &mut scratch, got);
            }
            if got < wanted {
                *slots = u8::try_from(got / SLOT_PAYLOAD_BYTES + 1).map_or(*slots, |used| used.min(*slots));
                return Pumped::WaitApp;
            }
            *slots = slots.saturating_mul(2).min(MOST_SLOTS);
            left = left.saturating_sub(got);
            if left == 0 {
                // Readable at once where there is more; the ring puts others in between.
                return Pumped::WaitApp;
            }
        }
    }
}

pin_project! {
    /// A relay as a future. By hand, since an idle connection is little more than this, and an async function keeps
    /// much of what it has moved on.
    struct Relaying<F, R> {
        // These go before the socket that they wait for.
        #[pin]
        readable: Option<R>,
        rare: Option<Box<Rare>>,
        // Until its end.
        relay: Option<StreamRelay>,
        // What the last turn came to, once there was one.
        pumped: Option<Pumped>,
        slots: u8,
        until_readable: F,
    }
}

type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// What a connection seldom needs.
#[derive(Default)]
struct Rare {
    writable: Option<Later<io::Result<()>>>,
    /// Others have their turn, and then this.
    giving_way: Option<(Later<()>, Woke)>,
    half_close: HalfClose,
}

impl<F: Fn(Rc<Socket>) -> R, R: Future> Future for Relaying<F, R> {
    type Output = Ending;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ending> {
        let ending = ready!(self.as_mut().poll_turns(context));
        let mut this = self.project();
        this.readable.set(None);
        *this.rare = None;
        if let Some(relay) = this.relay.take() {
            relay.clean.set(ending == Ending::Finished);
        }
        Poll::Ready(ending)
    }
}

impl<F: Fn(Rc<Socket>) -> R, R: Future> Relaying<F, R> {
    fn poll_turns(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ending> {
        let mut this = self.project();
        let Some(relay) = this.relay else { return Poll::Pending };
        let mut pumped = match *this.pumped {
            None => match relay.begin(this.slots) {
                Ok(pumped) => pumped,
                Err(reason) => return Poll::Ready(Ending::Closed(reason)),
            },
            Some(pumped) => {
                let woke = match poll_giving_way(this.rare, context) {
                    Some(gave_way) => ready!(gave_way),
                    None => ready!(poll_woke(relay, this.readable.as_mut(), this.rare, context)),
                };
                relay.go_on(woke, pumped, this.slots)
            }
        };
        loop {
            *this.pumped = Some(pumped);
            if let Some(ending) = relay.over(pumped, this.rare) {
                return Poll::Ready(ending);
            }
            if pumped == Pumped::WaitApp && this.readable.is_none() {
                this.readable.set(Some((this.until_readable)(relay.app.clone())));
            }
            relay.await_room(this.rare);
            let mut woke = ready!(poll_woke(relay, this.readable.as_mut(), this.rare, context));
            // What is ready at once, which only epoll tells, still lets others run first (see `shard::ready`).
            if woke != Woke::Signal {
                this.rare.get_or_insert_default().giving_way = Some((Box::pin(give_way()), woke));
                if let Some(gave_way) = poll_giving_way(this.rare, context) {
                    woke = ready!(gave_way);
                }
            }
            pumped = relay.go_on(woke, pumped, this.slots);
        }
    }
}

fn poll_woke<R: Future>(
    relay: &StreamRelay,
    readable: Pin<&mut Option<R>>,
    rare: &mut Option<Box<Rare>>,
    context: &mut Context<'_>,
) -> Poll<Woke> {
    let (mut never, writable) = (None, rare.as_mut().map(|rare| &mut rare.writable));
    poll_first(&relay.stream.signal, readable, Pin::new(writable.unwrap_or(&mut never)), context)
}

/// Whether others have had their turn, and what is to be done now; none where it wasn't theirs.
fn poll_giving_way(rare: &mut Option<Box<Rare>>, context: &mut Context<'_>) -> Option<Poll<Woke>> {
    let rare = rare.as_mut()?;
    let (giving_way, woke) = rare.giving_way.as_mut()?;
    let woke = *woke;
    let gave_way = giving_way.as_mut().poll(context).map(|()| woke);
    if gave_way.is_ready() {
        rare.giving_way = None;
    }
    Some(gave_way)
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
