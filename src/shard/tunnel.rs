//! One HBONE tunnel, either role: a socket, two record directions and an HTTP/2 connection, all plain data, driven
//! by one task. Other tasks put bytes in and raise `work`; small frames of one turn leave in one record and one call.
//! It knows nothing of routes and policies: requests are handed to whoever drives it.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::shard::batch::Batch;
use crate::shard::buffers::{Buffers, FRAME_HEADER_BYTES, SLOT_BYTES, SLOT_PAYLOAD_BYTES};
use crate::shard::meter::Way;
use crate::shard::pool::Carries;
use crate::shard::ready::{Woke, give_way, wait};
use crate::shard::shard::within;
use crate::shard::signal::Signal;
use crate::shard::socket::Socket;
use crate::shard::stats::{Stats, bump};
use crate::shard::stream::{Answer, Cut, Stream};
pub use crate::shard::tunnel_state::TunnelEnd;
use crate::shard::tunnel_state::{Read, State};
use crate::tls::handshake::Established;
use crate::tls::record::{ContentType, HEADER_BYTES, TRAILER_BYTES};
use crate::tls::tenure::{PeerCertificates, Tenure};
use crate::wire::h2::{self, CannotOpen, Code, ConnectHead, Event, RequestHead, StreamId};

/// Bytes read in a row before other tasks of the shard get their turn.
const TURN_BYTES: usize = 1 << 20;

/// A tunnel that is up.
pub struct Tunnel {
    pub peer: PeerCertificates,
    /// Of our own side.
    pub tenure: Tenure,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    socket: Socket,
    /// The shard's.
    pub(super) buffers: Rc<Buffers>,
    stats: Rc<Stats>,
    state: RefCell<State>,
    work: Signal,
    progress: Cell<u64>,
}

/// What a tunnel is made of, once its handshake is done.
pub struct Parts {
    pub socket: Socket,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub established: Established,
    /// Ciphertext that arrived with the end of the handshake.
    pub tail: Vec<u8>,
    pub http2: h2::Connection,
}

impl Tunnel {
    pub fn new(parts: Parts, buffers: Rc<Buffers>, stats: Rc<Stats>) -> Rc<Self> {
        let Established { seal, open, peer, tenure } = parts.established;
        let state = State::new(seal, open, parts.http2, parts.tail);
        Rc::new(Self {
            peer,
            tenure,
            local: parts.local,
            remote: parts.remote,
            socket: parts.socket,
            buffers,
            stats,
            state: RefCell::new(state),
            work: Signal::default(),
            progress: Cell::new(0),
        })
    }

    /// Moves bytes until the tunnel ends. Requests of the peer go to `on_request`.
    pub async fn drive(self: &Rc<Self>, on_request: &dyn Fn(Rc<Stream>, Box<RequestHead>)) -> TunnelEnd {
        let mut readable = pin!(None);
        let mut writable = pin!(None);
        self.receive(on_request, true);
        loop {
            self.flush();
            let (end, stuck) = {
                let state = self.state.borrow();
                (state.ended(), !state.backlog.is_empty())
            };
            if let Some(end) = end {
                self.receive_rest(&end);
                // Needs room only once, so it doesn't count for an idle tunnel.
                Box::pin(self.close(&end)).await;
                return end;
            }
            if readable.is_none() {
                readable.set(Some(self.socket.readable()));
            }
            if !stuck {
                writable.set(None);
            } else if writable.is_none() {
                writable.set(Some(self.socket.writable()));
            }
            match wait(&self.work, readable.as_mut(), writable.as_mut()).await {
                Woke::Readable => self.receive(on_request, false),
                Woke::Signal | Woke::Writable => {}
            }
        }
    }

    pub fn streams(&self) -> usize {
        self.state.borrow().streams.len()
    }

    /// Bytes that wait here: sealed ones for the peer, and payload for applications.
    pub(super) fn buffered_bytes(&self) -> usize {
        let state = self.state.borrow();
        let unread: usize = state.streams.values().map(|stream| stream.waiting_bytes()).sum();
        state.backlog.len().saturating_sub(state.sent) + unread
    }

    /// Sends a CONNECT; the answer arrives at the stream.
    pub fn open(self: &Rc<Self>, head: &ConnectHead<'_>) -> Result<Rc<Stream>, CannotOpen> {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            // Nobody drives it any more, so nobody would ever answer.
            return Err(CannotOpen::Draining);
        }
        let id = state.http2.open(head)?;
        let stream = Stream::new(id, Rc::downgrade(self), Way::ToClient);
        state.streams.insert(id, stream.clone());
        self.work.raise();
        Ok(stream)
    }

    /// Answers a request of the peer with an error; nothing more of it is wanted.
    pub fn refuse(&self, stream: &Stream, status: u16) {
        let mut state = self.state.borrow_mut();
        if let Err(violation) = state.http2.refuse(stream.id, status) {
            self.cut_off(&mut state, TunnelEnd::Http2(violation.to_string()));
        }
        self.work.raise();
    }

    /// Answers a request of the peer.
    pub fn respond(&self, stream: &Stream, status: u16, baggage: Option<&str>, end: bool) {
        self.state.borrow_mut().http2.respond(stream.id, status, baggage, end);
        self.work.raise();
    }

    /// Ends the tunnel because of what its peer does, and counts that. One that has ended already is left as it is.
    fn cut_off(&self, state: &mut State, end: TunnelEnd) {
        if state.end.is_none() {
            bump(&self.stats.engine.tunnels_cut_off);
            state.fail(end);
        }
    }

    /// Payload bytes that the stream may send now. At 0 its signal is raised when that changes.
    pub fn capacity(&self, stream: &Rc<Stream>) -> usize {
        let mut state = self.state.borrow_mut();
        if state.backlog.is_empty() {
            return state.http2.capacity(stream.id);
        }
        if !state.blocked.iter().any(|other| Rc::ptr_eq(other, stream)) {
            state.blocked.push(stream.clone());
        }
        0
    }

    /// Sends a small payload: it leaves at the end of the turn, in one record with others.
    pub fn send_small(&self, stream: &Stream, payload: &[u8]) {
        let mut state = self.state.borrow_mut();
        let header = state.http2.data(stream.id, payload.len(), false);
        let output = state.http2.output();
        output.extend_from_slice(&header);
        output.extend_from_slice(payload);
        self.made_progress(stream);
        self.work.raise();
    }

    /// Seals `bytes` of payload that stand in the slots of `scratch`, and sends them.
    pub fn send_slots(&self, stream: &Stream, scratch: &mut [u8], bytes: usize) {
        let mut state = self.state.borrow_mut();
        state.seal_output_and_send(&self.buffers, &self.socket);
        let mut left = bytes;
        let mut total = 0;
        for slot in scratch.chunks_exact_mut(SLOT_BYTES) {
            let length = left.min(SLOT_PAYLOAD_BYTES);
            if length == 0 {
                break;
            }
            let header = state.http2.data(stream.id, length, false);
            let whole = HEADER_BYTES + FRAME_HEADER_BYTES + length + TRAILER_BYTES;
            let Some(record) = slot.get_mut(..whole) else { break };
            if let Some(place) = record.get_mut(HEADER_BYTES..HEADER_BYTES + FRAME_HEADER_BYTES) {
                place.copy_from_slice(&header);
            }
            if let Err(error) = state.seal.seal(ContentType::ApplicationData, record) {
                state.fail(TunnelEnd::Record(error.to_string()));
                break;
            }
            left -= length;
            total += whole;
        }
        let sealed = scratch.get(..total).unwrap_or_default();
        state.transmit(&self.socket, sealed);
        state.renew_key();
        self.made_progress(stream);
        if state.wants_task() {
            self.work.raise();
        }
    }

    /// Sends the end of the stream.
    pub fn finish(&self, stream: &Stream) {
        self.state.borrow_mut().http2.finish(stream.id);
        self.work.raise();
    }

    pub fn reset(&self, stream: &Stream, code: Code) {
        self.state.borrow_mut().http2.reset(stream.id, code);
        self.work.raise();
    }

    /// The stream's task is done with it. A stream that isn't closed both ways is reset.
    pub fn release(&self, stream: &Stream) {
        let mut state = self.state.borrow_mut();
        state.http2.forget(stream.id);
        state.streams.remove(&stream.id);
        state.blocked.retain(|other| other.id != stream.id);
        state.used = Instant::now();
        self.work.raise();
    }

    /// The application took payload: the peer may send more.
    pub fn consumed(&self, stream: StreamId, bytes: usize) {
        let mut state = self.state.borrow_mut();
        state.http2.consumed(stream, bytes);
        if !state.http2.output().is_empty() {
            self.work.raise();
        }
    }

    /// Ends the tunnel and all its streams because its peer's certificate is revoked. False where it had ended before.
    pub fn end_revoked(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return false;
        }
        state.http2.abort(Code::NO_ERROR);
        state.fail(TunnelEnd::Revoked);
        self.work.raise();
        true
    }

    /// Looks after deadlines; called about once a second.
    pub fn tick(&self, now: Instant, idle_release: Option<Duration>) {
        let mut state = self.state.borrow_mut();
        let silence = now.saturating_duration_since(state.heard);
        let millis = Duration::from_millis;
        if let Some(pinged) = state.pinged {
            if now.saturating_duration_since(pinged) > millis(limits::PING_ANSWER_DEADLINE_MS) {
                state.fail(TunnelEnd::PingTimeout);
            }
        } else if silence > millis(limits::PING_AFTER_SILENCE_MS) {
            state.http2.ping();
            state.pinged = Some(now);
        }
        let age = now.saturating_duration_since(state.up_since);
        if !state.settings_seen && age > millis(limits::SETTINGS_DEADLINE_MS) {
            self.cut_off(&mut state, TunnelEnd::NoSettings);
        }
        if let Err(violation) = state.http2.tick(now) {
            self.cut_off(&mut state, TunnelEnd::Http2(violation.to_string()));
        }
        let unused = now.saturating_duration_since(state.used);
        if state.streams.is_empty() && idle_release.is_some_and(|release| unused > release) {
            state.http2.goaway();
        }
        state.give_memory_back(silence);
        if state.wants_task() || !state.http2.output().is_empty() {
            self.work.raise();
        }
    }

    fn made_progress(&self, stream: &Stream) {
        self.progress.set(self.progress.get() + 1);
        stream.progress.set(self.progress.get());
    }

    /// Seals what waits, sends what it can, and wakes the streams that waited for room.
    fn flush(&self) {
        let mut state = self.state.borrow_mut();
        state.transmit(&self.socket, &[]);
        state.seal_output_and_send(&self.buffers, &self.socket);
        if state.backlog.is_empty() && !state.blocked.is_empty() {
            let mut freed = std::mem::take(&mut state.blocked);
            drop(state);
            // Whoever sent longest ago goes first, so that a busy stream can't starve the others.
            freed.sort_by_key(|stream| stream.progress.get());
            for stream in freed {
                stream.signal.raise();
            }
        }
    }

    /// Reads and dispatches until the socket has no more, or the turn's budget is used up.
    fn receive(self: &Rc<Self>, on_request: &dyn Fn(Rc<Stream>, Box<RequestHead>), leftovers_only: bool) {
        let mut events = self.buffers.events.take();
        let mut left = TURN_BYTES;
        while left > 0 {
            let mut scratch = self.buffers.bulk.borrow_mut();
            let outcome = {
                let mut state = self.state.borrow_mut();
                if state.end.is_some() {
                    break;
                }
                state.read(&self.socket, &mut scratch, leftovers_only, &mut events)
            };
            let settings = events.iter().any(|event| matches!(event, Event::Settings));
            self.dispatch(&mut events, &scratch, on_request);
            if settings {
                self.state.borrow_mut().settings_seen = true;
            }
            match outcome {
                Ok(Read::More(bytes)) => left = left.saturating_sub(bytes),
                Ok(Read::Drained) => break,
                Err(end) => {
                    let mut state = self.state.borrow_mut();
                    if matches!(end, TunnelEnd::Http2(_) | TunnelEnd::Record(_)) {
                        self.cut_off(&mut state, end);
                    } else {
                        state.fail(end);
                    }
                    break;
                }
            }
        }
        self.buffers.events.replace(events);
    }

    /// Where a send told first that the peer is gone, what it said before is still here: whole answers, perhaps.
    fn receive_rest(self: &Rc<Self>, end: &TunnelEnd) {
        if !matches!(end, TunnelEnd::Io { .. }) {
            return;
        }
        self.state.borrow_mut().end = None;
        // Nobody could answer a request any more.
        self.receive(&|_, _| {}, false);
        self.state.borrow_mut().end = Some(end.clone());
    }

    fn dispatch(
        self: &Rc<Self>,
        events: &mut Vec<Event>,
        scratch: &[u8],
        on_request: &dyn Fn(Rc<Stream>, Box<RequestHead>),
    ) {
        let mut batch = Batch::empty();
        for event in events.drain(..) {
            if let Event::Data { stream, payload } = event {
                let part = scratch.get(payload).unwrap_or_default();
                if batch.is_full_for(stream) {
                    self.deliver(&mut batch);
                }
                batch.add(stream, part);
                continue;
            }
            self.deliver(&mut batch);
            self.dispatch_one(event, on_request);
        }
        self.deliver(&mut batch);
    }

    fn dispatch_one(self: &Rc<Self>, event: Event, on_request: &dyn Fn(Rc<Stream>, Box<RequestHead>)) {
        match event {
            Event::Request { stream, head, end } => {
                let made = self.adopt(stream);
                if end {
                    made.on_finish();
                }
                on_request(made, head);
            }
            Event::Response { stream, status, baggage, end } => {
                if let Some(found) = self.stream(stream) {
                    found.on_answer(Answer { status, baggage });
                    if end {
                        found.on_finish();
                    }
                }
            }
            Event::End { stream } => {
                if let Some(found) = self.stream(stream) {
                    found.on_finish();
                }
            }
            Event::Reset { stream, code } => {
                if let Some(found) = self.stream(stream) {
                    found.on_cut(Cut::Reset(code));
                }
            }
            Event::Writable { stream } => {
                if let Some(found) = self.stream(stream) {
                    found.signal.raise();
                }
            }
            Event::Pong => self.state.borrow_mut().pinged = None,
            Event::Settings | Event::GoAway { .. } | Event::Data { .. } => {}
        }
    }

    fn stream(&self, id: StreamId) -> Option<Rc<Stream>> {
        self.state.borrow().streams.get(&id).cloned()
    }

    /// Makes the stream of a request that the peer opened.
    fn adopt(self: &Rc<Self>, id: StreamId) -> Rc<Stream> {
        let stream = Stream::new(id, Rc::downgrade(self), Way::ToServer);
        self.state.borrow_mut().streams.insert(id, stream.clone());
        stream
    }

    /// Hands a batch to its stream. What the application takes is credited; so is what nobody wants any more.
    fn deliver(&self, batch: &mut Batch<'_>) {
        let Some(id) = batch.stream.take() else { return };
        let parts = batch.parts.get(..batch.used).unwrap_or_default();
        let taken = self.stream(id).map_or(batch.bytes, |stream| stream.on_payload(parts, batch.bytes));
        (batch.used, batch.bytes) = (0, 0);
        if taken > 0 {
            self.state.borrow_mut().http2.consumed(id, taken);
        }
    }

    /// Tells every stream, and the peer's TCP, that the tunnel is over. A stream that has ended both ways isn't
    /// touched: all its bytes are here, and its application takes them in its own time.
    async fn close(&self, end: &TunnelEnd) {
        let streams = {
            let mut state = self.state.borrow_mut();
            state.seal_close();
            let closing = std::mem::take(&mut state.backlog);
            let _ = self.socket.send(closing.get(state.sent..).unwrap_or_default());
            state.blocked = Vec::new();
            let mut streams = std::mem::take(&mut state.streams);
            streams.retain(|id, _| state.http2.is_open(*id));
            streams
        };
        let cut = end.cut();
        for stream in streams.into_values() {
            stream.on_cut(cut);
        }
        if matches!(end, TunnelEnd::PeerClosed | TunnelEnd::Finished | TunnelEnd::Revoked) {
            self.socket.finish();
            within(limits::LINGER_MS, self.until_peer_finished()).await;
        } else {
            self.socket.abort();
        }
    }

    /// Reads over what still comes. A socket closed before the peer's end would answer it with a reset, and that
    /// destroys what the peer hasn't read yet: the last bytes of its streams.
    async fn until_peer_finished(&self) {
        while self.socket.readable().await.is_ok() {
            let received = self.socket.receive(&mut self.buffers.bulk.borrow_mut());
            match received {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            give_way().await;
        }
    }
}

impl Carries for Tunnel {
    fn most_streams(&self) -> usize {
        usize::try_from(self.state.borrow().http2.peer_max_streams()).unwrap_or(usize::MAX)
    }

    fn has_room(&self) -> bool {
        let state = self.state.borrow();
        state.end.is_none() && state.http2.can_open()
    }

    fn is_finished(&self) -> bool {
        let state = self.state.borrow();
        state.end.is_some() || state.http2.is_draining()
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.state.borrow();
        let idle = state.streams.is_empty() && state.end.is_none() && !state.http2.is_draining();
        idle.then_some(state.used)
    }

    fn drain(&self) {
        self.state.borrow_mut().http2.goaway();
        self.work.raise();
    }

    /// Ends the tunnel and all its streams now.
    fn abort(&self) {
        let mut state = self.state.borrow_mut();
        state.http2.abort(Code::NO_ERROR);
        state.fail(TunnelEnd::Finished);
        self.work.raise();
    }
}
