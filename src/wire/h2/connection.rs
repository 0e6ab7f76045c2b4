//! One HTTP/2 connection, either role: its state and what its owner can ask of it. Frames that come in are
//! read in `receive` and acted upon in `handle`. Everything here is plain data that could be written down and
//! read back.
//!
//! Order on the wire is the caller's: what `output` holds goes out before a DATA frame made later. A stream
//! closed on both sides is forgotten at once; commands for a stream that is not (any longer) there do
//! nothing.

use std::time::Instant;

use super::abuse::Watch;
use super::encode::{TABLE_CLOSED, connect_block, response_block};
use super::flow::{ReceiveWindow, SendWindow};
use super::frame::{self, Header, flag, kind, setting};
use super::hpack::Decoder;
use super::receive::{Block, Reading};
use super::stream::{Resets, Stream, Streams};
use super::{Code, ConnectHead, Settings, StreamId, Violation};
use crate::base::limits;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Client,
    Server,
}

/// What the peer's SETTINGS say; before they come, HTTP/2's defaults.
#[derive(Debug)]
pub(super) struct Peer {
    pub initial_window: u32,
    pub frame_bytes: u32,
    pub max_streams: u32,
}

/// How far a GOAWAY of ours has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaving {
    No,
    /// Announced at this time; new streams are still taken until the PING behind it is answered.
    Announced {
        since_ms: u32,
    },
    /// Streams above this one are not looked at.
    Final(u32),
}

/// Why a stream can't be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CannotOpen {
    #[error("the peer takes {limit} streams at once")]
    Full { limit: u32 },
    #[error("the connection is going away")]
    Draining,
    #[error("all stream numbers are used up")]
    NumbersUsedUp,
    #[error("{field} has bytes that HTTP/2 can't carry")]
    Field { field: &'static str },
    #[error("a server opens no streams")]
    Server,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) settings: Settings,
    started: Instant,
    /// Milliseconds since `started`, wrapping.
    pub(super) now_ms: u32,
    pub(super) output: Vec<u8>,
    pub(super) reading: Reading,
    /// The part of a small frame that has arrived.
    pub(super) partial: Vec<u8>,
    pub(super) block: Option<Block>,
    /// When the header block under way began.
    pub(super) head_since_ms: Option<u32>,
    pub(super) decoder: Decoder,
    table_closed: bool,
    pub(super) peer: Peer,
    pub(super) settings_received: bool,
    pub(super) settings_acked: bool,
    pub(super) send: SendWindow,
    pub(super) receive: ReceiveWindow,
    pub(super) streams: Streams,
    /// The highest stream number in use so far.
    pub(super) highest: u32,
    /// Where the last round of Writable events began.
    pub(super) turn: u32,
    pub(super) resets: Resets,
    pub(super) leaving: Leaving,
    pub(super) peer_leaving: bool,
    pub(super) pings: u32,
    pub(super) watch: Watch,
    pub(super) violation: Option<Violation>,
}

/// The opaque bytes of `ping`, and of the PING behind a graceful GOAWAY.
pub(super) const PING: [u8; 8] = *b"ringping";
pub(super) const DRAIN_PING: [u8; 8] = *b"ringdone";

impl Connection {
    /// A client's end: preface and SETTINGS wait in `output`.
    pub fn client(settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::new(Role::Client, settings, now);
        connection.output.extend_from_slice(frame::PREFACE);
        connection.announce(&[(setting::ENABLE_PUSH, 0)]);
        connection
    }

    /// A server's end: SETTINGS wait in `output`, the peer's preface is expected.
    pub fn server(settings: &Settings, now: Instant) -> Self {
        let mut connection = Self::new(Role::Server, settings, now);
        connection.announce(&[(setting::MAX_CONCURRENT_STREAMS, connection.settings.max_streams)]);
        connection
    }

    fn new(role: Role, settings: &Settings, now: Instant) -> Self {
        let stream_window_bytes = settings.stream_window_bytes.clamp(1, frame::LARGEST);
        let settings = Settings {
            stream_window_bytes,
            start_window_bytes: settings.start_window_bytes.clamp(1, stream_window_bytes),
            connection_window_bytes: settings
                .connection_window_bytes
                .clamp(frame::DEFAULT_WINDOW, frame::LARGEST),
            frame_bytes: settings.frame_bytes.clamp(frame::SMALLEST_FRAME, frame::LARGEST_FRAME),
            ..settings.clone()
        };
        Self {
            role,
            started: now,
            now_ms: 0,
            output: Vec::new(),
            reading: match role {
                Role::Client => Reading::FRAME,
                Role::Server => Reading::Preface { seen: 0 },
            },
            partial: Vec::new(),
            block: None,
            head_since_ms: None,
            decoder: Decoder::default(),
            table_closed: false,
            peer: Peer {
                initial_window: frame::DEFAULT_WINDOW,
                frame_bytes: frame::SMALLEST_FRAME,
                max_streams: limits::STREAMS_BEFORE_SETTINGS,
            },
            settings_received: false,
            settings_acked: false,
            send: SendWindow::new(frame::DEFAULT_WINDOW),
            receive: ReceiveWindow::new(settings.connection_window_bytes, 0),
            streams: Streams::default(),
            highest: 0,
            turn: 0,
            resets: Resets::default(),
            leaving: Leaving::No,
            peer_leaving: false,
            pings: 0,
            watch: Watch::new(0),
            violation: None,
            settings,
        }
    }

    /// Our SETTINGS, `first` behind the table size, and the connection's window.
    fn announce(&mut self, first: &[(u16, u32)]) {
        let ours = &self.settings;
        let mut pairs = vec![(setting::HEADER_TABLE_SIZE, 0)];
        pairs.extend_from_slice(first);
        pairs.push((setting::INITIAL_WINDOW_SIZE, ours.start_window_bytes));
        pairs.push((setting::MAX_FRAME_SIZE, ours.frame_bytes));
        pairs.push((setting::MAX_HEADER_LIST_SIZE, ours.header_list_bytes));
        frame::settings(&mut self.output, &pairs);
        let more = ours.connection_window_bytes - frame::DEFAULT_WINDOW;
        if more > 0 {
            frame::window_update(&mut self.output, 0, more);
        }
    }

    pub(super) fn stamp(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.started).as_millis() & u128::from(u32::MAX);
        self.now_ms = u32::try_from(elapsed).unwrap_or(0);
        self.watch.tick(self.now_ms);
    }

    /// Frames waiting to go out, in plaintext; the caller takes or clears them.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether `open` would work: the peer has room, nobody is going away, there are numbers left.
    pub fn can_open(&self) -> bool {
        self.may_open().is_ok()
    }

    fn may_open(&self) -> Result<u32, CannotOpen> {
        let limit = self.peer.max_streams;
        if self.role == Role::Server {
            return Err(CannotOpen::Server);
        }
        if self.is_draining() || self.violation.is_some() {
            return Err(CannotOpen::Draining);
        }
        if u32::try_from(self.streams.len()).unwrap_or(u32::MAX) >= limit {
            return Err(CannotOpen::Full { limit });
        }
        let number = if self.highest == 0 { 1 } else { self.highest.saturating_add(2) };
        if number > frame::LARGEST { Err(CannotOpen::NumbersUsedUp) } else { Ok(number) }
    }

    /// Client: opens a stream; its HEADERS wait in `output`.
    ///
    /// # Errors
    /// When the connection has no room (open another), or a field can't be carried (that request never can).
    pub fn open(&mut self, head: &ConnectHead<'_>) -> Result<StreamId, CannotOpen> {
        let number = self.may_open()?;
        if let Some(field) = head.unsendable() {
            return Err(CannotOpen::Field { field });
        }
        let mut block = self.new_block();
        connect_block(&mut block, head);
        self.add_stream(number);
        let most = self.peer_frame_bytes();
        frame::headers(&mut self.output, number, false, &block, most);
        Ok(StreamId(number))
    }

    /// Server: answers a request; `end` closes our half, and the stream stays until the peer closes the other
    /// (or `reset` with NO_ERROR ends it). A baggage value that can't be carried is left out.
    pub fn respond(&mut self, stream: StreamId, status: u16, baggage: Option<&str>, end: bool) {
        let Some(state) = self.streams.get_mut(&stream.0) else { return };
        if state.local_closed || state.answered || self.role == Role::Client {
            return;
        }
        state.answered = true;
        let mut block = self.new_block();
        let baggage = baggage.filter(|value| super::head::value_valid(value.as_bytes()));
        response_block(&mut block, status, baggage);
        let most = self.peer_frame_bytes();
        frame::headers(&mut self.output, stream.0, end, &block, most);
        if end {
            self.close_local(stream.0);
        }
    }

    /// Server: answers a request with an error status and takes nothing more of it (RFC 9113 section 8.1). The time is
    /// that of the last `receive`.
    ///
    /// # Errors
    /// Too many requests that were wrong by themselves (400): the connection is over, as with `receive`.
    pub fn refuse(&mut self, stream: StreamId, status: u16) -> Result<(), Violation> {
        self.respond(stream, status, None, true);
        self.reset(stream, Code::NO_ERROR);
        let outcome = if status == 400 { self.watch.stream_error() } else { Ok(()) };
        self.judge(outcome)
    }

    /// Looks after deadlines; called about once a second.
    ///
    /// # Errors
    /// A peer that took too long with a header block: the connection is over, as with `receive`.
    pub fn tick(&mut self, now: Instant) -> Result<(), Violation> {
        self.stamp(now);
        let over = |since_ms: u32, limit_ms: u64| u64::from(self.now_ms.wrapping_sub(since_ms)) > limit_ms;
        let limit_ms = limits::HEADER_BLOCK_DEADLINE_MS;
        if self.head_since_ms.is_some_and(|since_ms| over(since_ms, limit_ms)) {
            return self.judge(Err(Violation::SlowHeaders { limit_ms }));
        }
        // Whoever is asked to leave and doesn't answer gets no further streams for it.
        if let Leaving::Announced { since_ms } = self.leaving
            && over(since_ms, limits::PING_ANSWER_DEADLINE_MS)
        {
            self.leave();
        }
        Ok(())
    }

    /// A violation ends the connection: GOAWAY, and nothing is read any more.
    pub(super) fn judge(&mut self, outcome: Result<(), Violation>) -> Result<(), Violation> {
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        if let Err(violation) = outcome {
            self.violation = Some(violation);
            self.abort(violation.code());
            self.block = None;
            self.partial = Vec::new();
        }
        outcome
    }

    /// Says which stream was the last one.
    pub(super) fn leave(&mut self) {
        self.leaving = Leaving::Final(self.highest);
        frame::goaway(&mut self.output, self.highest, Code::NO_ERROR);
    }

    fn new_block(&mut self) -> Vec<u8> {
        let mut block = Vec::with_capacity(256);
        if !std::mem::replace(&mut self.table_closed, true) {
            block.push(TABLE_CLOSED);
        }
        block
    }

    pub(super) fn add_stream(&mut self, number: u32) {
        // Until our SETTINGS are acknowledged the peer keeps to the default window (RFC 9113 section 6.9.2).
        let window =
            if self.settings_acked { self.settings.start_window_bytes } else { frame::DEFAULT_WINDOW };
        let send = SendWindow::new(self.peer.initial_window);
        self.streams.insert(number, Stream::new(send, ReceiveWindow::new(window, self.now_ms)));
        self.highest = number;
        self.watch.sent(0);
    }

    /// Payload bytes that may be sent on a stream now, by its window and the connection's. 0 for a stream
    /// that is gone or whose local half is closed; for any other, a 0 promises a `Writable` event.
    pub fn capacity(&self, stream: StreamId) -> usize {
        let Some(state) = self.streams.get(&stream.0).filter(|state| !state.local_closed) else { return 0 };
        let capacity = state.send.available().min(self.send.available());
        state.blocked.set(capacity == 0);
        capacity
    }

    /// Takes `len` from both windows and gives the frame header to stand in front of the payload. Ask
    /// `capacity` and `peer_frame_bytes` right before: `len` may exceed neither. `end` closes our half.
    pub fn data(&mut self, stream: StreamId, len: usize, end: bool) -> [u8; Header::BYTES] {
        debug_assert!(len <= self.peer_frame_bytes() && (len == 0 || len <= self.capacity(stream)));
        let length = u32::try_from(len).unwrap_or(frame::LARGEST_FRAME);
        self.send.take(len);
        self.watch.sent(length);
        if let Some(state) = self.streams.get_mut(&stream.0) {
            state.send.take(len);
        }
        if end {
            self.close_local(stream.0);
        }
        let flags = if end { flag::END_STREAM } else { 0 };
        Header { length, kind: kind::DATA, flags, stream: stream.0 }.bytes()
    }

    /// The largest frame the peer takes, in payload bytes.
    pub fn peer_frame_bytes(&self) -> usize {
        usize::try_from(self.peer.frame_bytes).unwrap_or(usize::MAX)
    }

    /// Closes our half with an empty DATA frame in `output`.
    pub fn finish(&mut self, stream: StreamId) {
        if self.streams.get(&stream.0).is_some_and(|state| !state.local_closed) {
            let header = self.data(stream, 0, true);
            self.output.extend_from_slice(&header);
        }
    }

    /// Ends a stream at once, both halves, with RST_STREAM in `output`. What still comes for it is read over.
    pub fn reset(&mut self, stream: StreamId, code: Code) {
        if self.streams.remove(&stream.0).is_some() {
            self.resets.remember(stream.0);
            frame::reset(&mut self.output, stream.0, code);
        }
    }

    /// The reader took `len` bytes of a stream: its window opens again, and grows while the reader keeps up.
    /// The time is that of the last `receive`.
    pub fn consumed(&mut self, stream: StreamId, len: usize) {
        let largest = self.largest_window();
        let Some(state) = self.streams.get_mut(&stream.0).filter(|state| !state.remote_closed) else {
            return;
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if let Some(credit) = state.receive.consumed(len, largest, self.now_ms) {
            frame::window_update(&mut self.output, stream.0, credit);
        }
    }

    /// How far a stream's window may grow. Windows are filled by readers that stop, so all of a connection's together
    /// have a bound: four connection windows shared by the streams that are open (and as much again, where few
    /// streams had grown before many came).
    fn largest_window(&self) -> u32 {
        let all = u64::from(self.settings.connection_window_bytes) * 4;
        let streams = u64::try_from(self.streams.len()).unwrap_or(u64::MAX).max(1);
        let share = u32::try_from(all / streams).unwrap_or(u32::MAX);
        share.min(self.settings.stream_window_bytes)
    }

    /// The caller has no further interest in a stream: nothing if it is closed, else `reset` with CANCEL.
    pub fn forget(&mut self, stream: StreamId) {
        self.reset(stream, Code::CANCEL);
    }

    /// Asks for a sign of life; the answer is `Pong`.
    pub fn ping(&mut self) {
        self.pings = self.pings.saturating_add(1);
        frame::ping(&mut self.output, 0, PING);
    }

    /// Says that no more streams are wanted. A server first announces it, and says which stream was the last
    /// one a round trip later, so that none opened meanwhile is lost (RFC 9113 section 6.8).
    pub fn goaway(&mut self) {
        if self.leaving != Leaving::No {
            return;
        }
        if self.role == Role::Client {
            self.leaving = Leaving::Final(0);
            frame::goaway(&mut self.output, 0, Code::NO_ERROR);
        } else {
            self.leaving = Leaving::Announced { since_ms: self.now_ms };
            frame::goaway(&mut self.output, frame::LARGEST, Code::NO_ERROR);
            frame::ping(&mut self.output, 0, DRAIN_PING);
        }
    }

    /// GOAWAY with a code, final at once: flush and close.
    pub fn abort(&mut self, code: Code) {
        let last = match (self.role, self.leaving) {
            (_, Leaving::Final(last)) => last,
            (Role::Client, _) => 0,
            (Role::Server, _) => self.highest,
        };
        self.leaving = Leaving::Final(last);
        frame::goaway(&mut self.output, last, code);
    }

    /// Streams open or half closed.
    pub fn active_streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether a GOAWAY went either way.
    pub fn is_draining(&self) -> bool {
        self.peer_leaving || self.leaving != Leaving::No
    }

    /// Whether our GOAWAY is announced but not final: streams opened before the peer knew are still taken.
    pub fn takes_late_streams(&self) -> bool {
        matches!(self.leaving, Leaving::Announced { .. }) && !self.peer_leaving
    }

    /// Whether the peer's SETTINGS have arrived.
    pub fn settings_received(&self) -> bool {
        self.settings_received
    }

    /// How many streams the peer takes at once; a guess until its SETTINGS have arrived.
    pub fn peer_max_streams(&self) -> u32 {
        self.peer.max_streams
    }

    /// Whether a stream is known: open, or closed on one side only.
    pub fn is_open(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream.0)
    }

    fn close_local(&mut self, stream: u32) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.local_closed = true;
            state.blocked.set(false);
            if state.closed() {
                self.streams.remove(&stream);
            }
        }
    }
}
