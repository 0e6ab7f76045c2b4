//! Cutting the incoming bytes into frames, however they are chunked. DATA payload streams through as ranges;
//! other frames are used where they lie, or gathered (up to their bound) when they come in pieces.

use std::time::Instant;

use super::connection::{Connection, Role};
use super::frame::{Header, PREFACE, flag, kind};
use super::{Event, StreamId, Violation};
use crate::base::limits;

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    /// The client's preface, of which `seen` bytes were right.
    Preface {
        seen: usize,
    },
    /// A frame header, of which `have` bytes are there.
    Frame {
        bytes: [u8; Header::BYTES],
        have: usize,
    },
    /// The payload of a small frame.
    Payload(Header),
    Data(Data),
    /// Payload of a frame that is ignored.
    Skip {
        left: u32,
    },
}

impl Reading {
    pub const FRAME: Self = Self::Frame { bytes: [0; Header::BYTES], have: 0 };
}

/// The rest of a DATA frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub stream: u32,
    /// Payload bytes to come, padding not counted.
    pub left: u32,
    /// Padding bytes behind them.
    pub padding: u32,
    /// The pad length itself is still to come; `left` then counts the padding too.
    pub padded: bool,
    pub end: bool,
    /// False when the stream is gone and the payload is read over.
    pub wanted: bool,
}

/// A header block under way.
#[derive(Debug)]
pub(super) struct Block {
    pub stream: u32,
    pub end: bool,
    pub bytes: Vec<u8>,
    pub continuations: u32,
}

impl Connection {
    /// Feeds plaintext in any chunking; appends what it means. Payload ranges index into `bytes`. `now` never
    /// goes back.
    ///
    /// # Errors
    /// The connection is over: a GOAWAY with the code waits in `output`, to be flushed before closing.
    pub fn receive(&mut self, bytes: &[u8], now: Instant, events: &mut Vec<Event>) -> Result<(), Violation> {
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        self.stamp(now);
        let outcome = self.read(bytes, events);
        self.judge(outcome)
    }

    fn read(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), Violation> {
        // Between two calls the caller may have reset the stream whose frame is under way.
        if let Reading::Data(data) = &mut self.reading {
            data.wanted &= self.streams.contains_key(&data.stream);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let used = match self.reading {
                Reading::Preface { seen } => self.read_preface(seen, rest)?,
                Reading::Frame { bytes, have } => self.read_header(bytes, have, rest, events)?,
                Reading::Payload(header) => self.read_payload(header, rest, events)?,
                Reading::Data(data) => self.read_data(data, bytes.len() - rest.len(), rest, events)?,
                Reading::Skip { left } => self.skip(left, rest),
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    fn read_preface(&mut self, seen: usize, rest: &[u8]) -> Result<usize, Violation> {
        let expected = PREFACE.get(seen..).unwrap_or_default();
        let used = expected.len().min(rest.len());
        if rest.get(..used) != expected.get(..used) {
            return Err(Violation::Preface);
        }
        let seen = seen + used;
        self.reading = if seen == PREFACE.len() { Reading::FRAME } else { Reading::Preface { seen } };
        Ok(used)
    }

    fn read_header(
        &mut self,
        mut bytes: [u8; Header::BYTES],
        have: usize,
        rest: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<usize, Violation> {
        if have == 0
            && let Some(whole) = rest.first_chunk()
        {
            self.begin(Header::parse(*whole), events)?;
            return Ok(Header::BYTES);
        }
        let missing = bytes.get_mut(have..).unwrap_or_default();
        let used = missing.len().min(rest.len());
        for (place, byte) in missing.iter_mut().zip(rest) {
            *place = *byte;
        }
        let have = have + used;
        self.reading = Reading::Frame { bytes, have };
        if have == Header::BYTES {
            self.begin(Header::parse(bytes), events)?;
        }
        Ok(used)
    }

    /// A frame header is complete: is the frame allowed here, and how is its payload read?
    fn begin(&mut self, header: Header, events: &mut Vec<Event>) -> Result<(), Violation> {
        let Header { length, kind, stream, .. } = header;
        if !self.settings_received && (kind != kind::SETTINGS || header.has(flag::ACK)) {
            return Err(Violation::FirstFrame { kind });
        }
        if length > self.settings.frame_bytes {
            return Err(Violation::FrameLength { kind, length });
        }
        let continues = self.block.as_ref().map(|block| block.stream);
        if (kind == kind::CONTINUATION || continues.is_some())
            && !(kind == kind::CONTINUATION && continues == Some(stream))
        {
            return Err(Violation::Interleaved { kind });
        }
        self.reading = match kind {
            kind::DATA => return self.begin_data(header, events),
            kind::PUSH_PROMISE => return Err(Violation::Push),
            kind::HEADERS | kind::CONTINUATION => {
                self.admit_headers(header)?;
                self.head_since_ms.get_or_insert(self.now_ms);
                Reading::Payload(header)
            }
            kind::PRIORITY
            | kind::RST_STREAM
            | kind::SETTINGS
            | kind::PING
            | kind::GOAWAY
            | kind::WINDOW_UPDATE => {
                self.admit_control(header)?;
                Reading::Payload(header)
            }
            _ => {
                self.watch.overhead()?;
                Reading::Skip { left: length }
            }
        };
        if length == 0 {
            self.reading = Reading::FRAME;
            if kind <= kind::CONTINUATION {
                return self.handle(header, &[], events);
            }
        }
        Ok(())
    }

    fn admit_headers(&self, header: Header) -> Result<(), Violation> {
        let Header { kind, stream, .. } = header;
        if stream == 0 || (self.role == Role::Server && stream.is_multiple_of(2)) {
            return Err(Violation::StreamNumber { kind, stream });
        }
        // Padding and priority come on top of the block.
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let before = self.block.as_ref().map_or(0, |block| block.bytes.len());
        let limit = limits::HEADER_BLOCK_BYTES;
        let extra = if kind == kind::HEADERS { 1 + 5 + 255 } else { 0 };
        if length.saturating_add(before) > limit + extra {
            return Err(Violation::HeaderBlock { limit });
        }
        let continuations = self.block.as_ref().map_or(0, |block| block.continuations);
        let limit = limits::CONTINUATIONS_A_BLOCK;
        if continuations >= limit { Err(Violation::Continuations { limit }) } else { Ok(()) }
    }

    fn admit_control(&self, header: Header) -> Result<(), Violation> {
        let Header { length, kind, stream, .. } = header;
        let (of_stream, fits) = match kind {
            kind::SETTINGS => (false, length % 6 == 0 && length <= limits::SETTINGS_FRAME_BYTES),
            kind::PING => (false, length == 8),
            kind::GOAWAY => (false, (8..=limits::GOAWAY_FRAME_BYTES).contains(&length)),
            // A wrong length costs PRIORITY only its stream; it is small all the same.
            kind::PRIORITY => (true, length <= 16),
            kind::RST_STREAM => (true, length == 4),
            _ => (stream != 0, length == 4),
        };
        if of_stream != (stream != 0) {
            return Err(Violation::StreamNumber { kind, stream });
        }
        if fits { Ok(()) } else { Err(Violation::FrameLength { kind, length }) }
    }

    fn read_payload(
        &mut self,
        header: Header,
        rest: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<usize, Violation> {
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if self.partial.is_empty()
            && let Some(payload) = rest.get(..length)
        {
            self.reading = Reading::FRAME;
            self.handle(header, payload, events)?;
            return Ok(length);
        }
        let used = length.saturating_sub(self.partial.len()).min(rest.len());
        self.partial.extend_from_slice(rest.get(..used).unwrap_or_default());
        if self.partial.len() == length {
            let payload = std::mem::take(&mut self.partial);
            self.reading = Reading::FRAME;
            self.handle(header, &payload, events)?;
        }
        Ok(used)
    }

    fn read_data(
        &mut self,
        mut data: Data,
        at: usize,
        rest: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<usize, Violation> {
        let mut used = 0;
        if data.padded {
            let padding = u32::from(rest.first().copied().unwrap_or(0));
            data.padded = false;
            data.left = data.left.checked_sub(padding).ok_or(Violation::Padding { kind: kind::DATA })?;
            data.padding = padding;
            used = 1;
            if data.wanted {
                self.consumed(StreamId(data.stream), usize::try_from(padding + 1).unwrap_or(0));
            }
        }
        let payload = usize::try_from(data.left).unwrap_or(usize::MAX).min(rest.len() - used);
        if payload > 0 && data.wanted {
            let range = at + used..at + used + payload;
            events.push(Event::Data { stream: StreamId(data.stream), payload: range });
        }
        used += payload;
        data.left -= u32::try_from(payload).unwrap_or(data.left);
        if data.left == 0 {
            let padding = usize::try_from(data.padding).unwrap_or(usize::MAX).min(rest.len() - used);
            used += padding;
            data.padding -= u32::try_from(padding).unwrap_or(data.padding);
        }
        self.reading = Reading::Data(data);
        if data.left == 0 && data.padding == 0 {
            self.reading = Reading::FRAME;
            self.end_data(data, events);
        }
        Ok(used)
    }

    fn skip(&mut self, left: u32, rest: &[u8]) -> usize {
        let used = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let left = left - u32::try_from(used).unwrap_or(left);
        self.reading = if left == 0 { Reading::FRAME } else { Reading::Skip { left } };
        used
    }
}
