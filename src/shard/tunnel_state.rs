//! A tunnel's state as plain data, and the bytes through it: ciphertext in, events out; frames in, ciphertext out.
//! No waiting and no tasks here; `shard::tunnel` has those.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::shard::buffers::{Buffers, SCRATCH_BYTES};
use crate::shard::ending::{Fault, is_peer_gone};
use crate::shard::socket::Socket;
use crate::shard::stream::{Cut, Stream};
use crate::tls::record::{Content, ContentType, HEADER_BYTES, Opener, Sealer, TRAILER_BYTES};
use crate::wire::h2::{Connection, Event, StreamId};

/// First read of a quiet tunnel; it grows while reads fill it.
const FIRST_READ_BYTES: usize = 16 * 1024;
/// Room that is always left for a read behind the part of a record that waits.
const LEAST_READ_BYTES: usize = 4 * 1024;

/// Why a tunnel ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TunnelEnd {
    #[error("the peer closed the tunnel")]
    PeerClosed,
    #[error("{text}")]
    Io { kind: ErrorKind, text: String },
    #[error("h2 failed: {0}")]
    Http2(String),
    #[error("tls error: {0}")]
    Record(String),
    #[error("HBONE ping timeout/error")]
    PingTimeout,
    #[error("h2 failed: no SETTINGS within {} ms", limits::SETTINGS_DEADLINE_MS)]
    NoSettings,
    #[error("pool draining")]
    Finished,
    #[error("peer certificate revoked by CRL")]
    Revoked,
}

impl TunnelEnd {
    fn io(error: &io::Error) -> Self {
        Self::Io { kind: error.kind(), text: error.to_string() }
    }

    /// What its streams are told.
    pub(super) fn cut(&self) -> Cut {
        match self {
            Self::PeerClosed | Self::Finished => Cut::Lost,
            Self::Io { kind, .. } if is_peer_gone(*kind) => Cut::Lost,
            Self::Io { kind, .. } => Cut::Broken(Fault::Io(*kind)),
            Self::Http2(_) => Cut::Broken(Fault::Protocol),
            Self::Record(_) => Cut::Broken(Fault::Record),
            Self::PingTimeout => Cut::Broken(Fault::PingTimeout),
            Self::NoSettings => Cut::Broken(Fault::NoSettings),
            Self::Revoked => Cut::Revoked,
        }
    }
}

/// Everything that a tunnel is, but its socket.
pub(super) struct State {
    pub seal: Sealer,
    open: Opener,
    pub http2: Connection,
    pub streams: HashMap<StreamId, Rc<Stream>, foldhash::fast::RandomState>,
    /// Ciphertext of a record that isn't whole yet.
    partial: Vec<u8>,
    /// Sealed bytes that the socket didn't take, from `sent` on.
    pub backlog: Vec<u8>,
    pub sent: usize,
    /// Streams that wait until the backlog is gone.
    pub blocked: Vec<Rc<Stream>>,
    read_bytes: usize,
    pub heard: Instant,
    pub used: Instant,
    pub pinged: Option<Instant>,
    pub up_since: Instant,
    pub settings_seen: bool,
    pub end: Option<TunnelEnd>,
}

/// What a read told.
pub(super) enum Read {
    /// The read was full: there may be more.
    More(usize),
    Drained,
}

impl State {
    pub fn new(seal: Sealer, open: Opener, http2: Connection, partial: Vec<u8>) -> Self {
        let now = Instant::now();
        Self {
            seal,
            open,
            http2,
            streams: HashMap::default(),
            partial,
            backlog: Vec::new(),
            sent: 0,
            blocked: Vec::new(),
            read_bytes: FIRST_READ_BYTES,
            heard: now,
            used: now,
            pinged: None,
            up_since: now,
            settings_seen: false,
            end: None,
        }
    }

    pub fn fail(&mut self, end: TunnelEnd) {
        self.end.get_or_insert(end);
    }

    /// Why the tunnel is over, if it is. A draining one is over when its last stream has ended and all is sent, and
    /// no stream opened before the peer knew of it can still be on its way.
    pub fn ended(&self) -> Option<TunnelEnd> {
        let idle = self.streams.is_empty() && self.http2.active_streams() == 0 && self.backlog.is_empty();
        match &self.end {
            Some(end) => Some(end.clone()),
            None if idle && self.http2.is_draining() && !self.http2.takes_late_streams() => {
                Some(TunnelEnd::Finished)
            }
            None => None,
        }
    }

    /// The driving task has something to do: frames to seal, a backlog to wait for, or the end.
    pub fn wants_task(&self) -> bool {
        self.end.is_some() || !self.backlog.is_empty()
    }

    /// Memory that a busy time left goes back when it is over.
    pub fn give_memory_back(&mut self, silence: Duration) {
        if silence >= Duration::from_secs(1) {
            if self.partial.is_empty() {
                self.partial = Vec::new();
            }
            if self.backlog.is_empty() {
                self.backlog = Vec::new();
            }
            if self.http2.output().is_empty() {
                *self.http2.output() = Vec::new();
            }
            self.streams.shrink_to(8);
            self.read_bytes = FIRST_READ_BYTES;
        }
    }

    /// Takes bytes in and decodes them. Payload ranges of `events` index into `scratch`.
    pub fn read(
        &mut self,
        socket: &Socket,
        scratch: &mut [u8],
        leftovers_only: bool,
        events: &mut Vec<Event>,
    ) -> Result<Read, TunnelEnd> {
        let now = Instant::now();
        if self.backlog.len() - self.sent > limits::TUNNEL_BACKLOG_BYTES {
            return Err(TunnelEnd::Http2("the peer doesn't read its answers".to_owned()));
        }
        let kept = self.partial.len();
        if let Some(front) = scratch.get_mut(..kept) {
            front.copy_from_slice(&self.partial);
        }
        self.partial.clear();
        let wanted = self.read_bytes.max(kept + LEAST_READ_BYTES).min(SCRATCH_BYTES);
        let mut got = 0;
        if !leftovers_only {
            let room = scratch.get_mut(kept..wanted).unwrap_or_default();
            let room_bytes = room.len();
            got = match socket.receive(room) {
                Ok(0) => return Err(TunnelEnd::PeerClosed),
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => return Err(TunnelEnd::io(&error)),
            };
            self.read_bytes = if got == room_bytes {
                (self.read_bytes * 2).min(SCRATCH_BYTES)
            } else {
                self.read_bytes.max(FIRST_READ_BYTES)
            };
            if got > 0 {
                self.heard = now;
            }
        }
        let filled = kept + got;
        let opened = self.decode(scratch.get_mut(..filled).unwrap_or_default(), now, events)?;
        self.partial.extend_from_slice(scratch.get(opened..filled).unwrap_or_default());
        Ok(if filled == wanted && !leftovers_only { Read::More(got) } else { Read::Drained })
    }

    /// Opens whole records in place; returns how far it came.
    fn decode(
        &mut self,
        bytes: &mut [u8],
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<usize, TunnelEnd> {
        let mut place = 0;
        while let Some(rest) = bytes.get_mut(place..) {
            let opened = match self.open.open(rest) {
                Ok(Some(opened)) => opened,
                Ok(None) => break,
                Err(error) => {
                    if let Some(description) = error.alert() {
                        self.seal_output_into_backlog();
                        self.seal.alert(description, &mut self.backlog);
                    }
                    return Err(TunnelEnd::Record(error.to_string()));
                }
            };
            match opened.content {
                Content::Data(range) => {
                    let before = events.len();
                    let plain = rest.get(range.clone()).unwrap_or_default();
                    let outcome = self.http2.receive(plain, now, events);
                    shift_payloads(events, before, place + range.start);
                    outcome.map_err(|violation| TunnelEnd::Http2(violation.to_string()))?;
                }
                Content::UpdateRequested => {
                    self.seal_output_into_backlog();
                    let _ = self.seal.key_update(false, &mut self.backlog);
                }
                Content::Nothing => {}
                Content::Closed => return Err(TunnelEnd::PeerClosed),
            }
            place += opened.consumed;
        }
        Ok(place)
    }

    /// Seals waiting frames and sends them, or keeps what the socket doesn't take.
    pub fn seal_output_and_send(&mut self, buffers: &Buffers, socket: &Socket) {
        if self.http2.output().is_empty() {
            return;
        }
        if !self.backlog.is_empty() {
            self.seal_output_into_backlog();
            return;
        }
        let mut sealed = buffers.small.borrow_mut();
        sealed.clear();
        self.seal_output(&mut sealed);
        self.transmit(socket, &sealed);
    }

    /// Keeps waiting frames in their place before what is sealed next.
    pub fn seal_output_into_backlog(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        self.seal_output(&mut backlog);
        self.backlog = backlog;
    }

    fn seal_output(&mut self, sealed: &mut Vec<u8>) {
        let output = std::mem::take(self.http2.output());
        for plain in output.chunks(limits::RECORD_PLAINTEXT_BYTES) {
            let start = sealed.len();
            sealed.extend_from_slice(&[0; HEADER_BYTES]);
            sealed.extend_from_slice(plain);
            sealed.extend_from_slice(&[0; TRAILER_BYTES]);
            let record = sealed.get_mut(start..).unwrap_or_default();
            if let Err(error) = self.seal.seal(ContentType::ApplicationData, record) {
                self.fail(TunnelEnd::Record(error.to_string()));
                return;
            }
        }
        if self.seal.wants_update() {
            let _ = self.seal.key_update(false, sealed);
        }
        // The allocation serves the next turn too, unless it is large.
        if output.capacity() <= 2 * limits::RECORD_PLAINTEXT_BYTES {
            let mut again = output;
            again.clear();
            *self.http2.output() = again;
        }
    }

    /// Turns to a new key where the old one has sealed enough: bulk may go for long without a frame of ours between.
    pub fn renew_key(&mut self) {
        if self.seal.wants_update() {
            let _ = self.seal.key_update(false, &mut self.backlog);
        }
    }

    /// Says goodbye in the backlog: GOAWAY and the like, then close_notify.
    pub fn seal_close(&mut self) {
        self.seal_output_into_backlog();
        let _ = self.seal.close_notify(&mut self.backlog);
    }

    /// Sends the backlog, then `sealed`; what the socket doesn't take is the new backlog.
    pub fn transmit(&mut self, socket: &Socket, sealed: &[u8]) {
        while let Some(waiting) = self.backlog.get(self.sent..).filter(|waiting| !waiting.is_empty()) {
            match socket.send(waiting) {
                Ok(count) => self.sent += count,
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        self.fail(TunnelEnd::io(&error));
                    }
                    hold_back(&mut self.backlog, &mut self.sent, sealed);
                    return;
                }
            }
        }
        self.backlog.clear();
        self.sent = 0;
        let mut sealed = sealed;
        while !sealed.is_empty() {
            match socket.send(sealed) {
                Ok(count) => sealed = sealed.get(count..).unwrap_or_default(),
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        self.fail(TunnelEnd::io(&error));
                    }
                    hold_back(&mut self.backlog, &mut self.sent, sealed);
                    return;
                }
            }
        }
    }
}

/// Adds to a backlog. What has been sent of it leaves it, also where a peer reads just as fast as there is more to say,
/// so that it never empties.
fn hold_back(backlog: &mut Vec<u8>, sent: &mut usize, more: &[u8]) {
    if *sent > backlog.len() / 2 {
        backlog.drain(..std::mem::take(sent));
    }
    backlog.extend_from_slice(more);
}

/// Payload ranges come relative to a record's plaintext; they are wanted relative to the whole buffer.
fn shift_payloads(events: &mut [Event], from: usize, by: usize) {
    for event in events.iter_mut().skip(from) {
        if let Event::Data { payload, .. } = event {
            payload.start += by;
            payload.end += by;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that reads as fast as it makes us answer keeps a backlog from emptying, not from staying small.
    #[test]
    fn a_backlog_that_never_empties_stays_small_and_in_order() {
        let (mut backlog, mut sent) = (vec![0; 1_000], 0);
        for turn in 0..100_000_u32 {
            hold_back(&mut backlog, &mut sent, &turn.to_be_bytes());
            sent += 4;
            assert!(backlog.len() < 4_000, "{} bytes for 1,000", backlog.len());
        }
        let last: Vec<u8> = (100_000 - 250..100_000_u32).flat_map(u32::to_be_bytes).collect();
        assert_eq!(backlog.get(sent..), Some(&last[..]));
    }
}
