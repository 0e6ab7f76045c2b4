//! What a header block means: a request, its answer, or the end of a stream (RFC 9113 sections 6.2, 6.10 and 8).

use super::connection::{Connection, Leaving, Role};
use super::frame::{Header, flag, kind};
use super::head::{RequestFields, ResponseFields, TrailerFields};
use super::hpack::List;
use super::receive::Block;
use super::{Code, Event, StreamId, Violation};
use crate::base::limits;

impl Connection {
    pub(super) fn on_headers(
        &mut self,
        header: Header,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let block = unwrapped(header, payload)?;
        let end = header.has(flag::END_STREAM);
        if header.has(flag::END_HEADERS) {
            return self.on_block(header.stream, end, block, events);
        }
        self.block = Some(Block { stream: header.stream, end, bytes: block.to_vec(), continuations: 0 });
        Ok(())
    }

    pub(super) fn on_continuation(
        &mut self,
        header: Header,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let Some(mut block) = self.block.take() else {
            return Err(Violation::Interleaved { kind: header.kind });
        };
        block.bytes.extend_from_slice(payload);
        block.continuations += 1;
        if header.has(flag::END_HEADERS) {
            return self.on_block(block.stream, block.end, &block.bytes, events);
        }
        self.block = Some(block);
        Ok(())
    }

    /// A whole header block. It is decoded whatever becomes of it, because the table depends on it.
    fn on_block(
        &mut self,
        stream: u32,
        end: bool,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        self.head_since_ms = None;
        let limit = limits::HEADER_BLOCK_BYTES;
        if block.len() > limit {
            return Err(Violation::HeaderBlock { limit });
        }
        match self.streams.get(&stream) {
            Some(state) if state.remote_closed => {
                self.decode(block, |_, _| ())?;
                self.break_stream(stream, Code::STREAM_CLOSED, events)
            }
            Some(state) if state.answered || self.role == Role::Server => {
                self.on_trailers(stream, end, block, events)
            }
            Some(_) => self.on_response(stream, end, block, events),
            None if self.role == Role::Server && stream > self.highest => {
                self.on_request(stream, end, block, events)
            }
            None => {
                self.decode(block, |_, _| ())?;
                self.late(kind::HEADERS, stream, false)
            }
        }
    }

    fn decode(&mut self, block: &[u8], sink: impl FnMut(&[u8], &[u8])) -> Result<List, Violation> {
        let limit = usize::try_from(self.settings.header_list_bytes).unwrap_or(usize::MAX);
        let list = self.decoder.decode(block, limit, sink).map_err(Violation::Compression)?;
        if list == List::TooLarge {
            self.watch.large_list()?;
        }
        Ok(list)
    }

    fn on_request(
        &mut self,
        stream: u32,
        end: bool,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let mut fields = RequestFields::default();
        let list = self.decode(block, |name, value| fields.add(name, value))?;
        if matches!(self.leaving, Leaving::Final(_)) {
            return self.watch.overhead();
        }
        if u32::try_from(self.streams.len()).unwrap_or(u32::MAX) >= self.settings.max_streams {
            self.highest = stream;
            return self.break_stream(stream, Code::REFUSED_STREAM, events);
        }
        let head = match (list, fields.finish()) {
            (List::Whole, Ok(head)) => head,
            (list, _) => {
                self.highest = stream;
                return self.break_stream(stream, malformed(list), events);
            }
        };
        self.add_stream(stream);
        if end {
            self.close_remote(stream);
        }
        events.push(Event::Request { stream: StreamId(stream), head: Box::new(head), end });
        Ok(())
    }

    fn on_response(
        &mut self,
        stream: u32,
        end: bool,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let mut fields = ResponseFields::default();
        let list = self.decode(block, |name, value| fields.add(name, value))?;
        let head = match (list, fields.finish()) {
            (List::Whole, Ok(head)) => head,
            (list, _) => return self.break_stream(stream, malformed(list), events),
        };
        if head.status < 200 {
            // An interim answer can't be the end (RFC 9113 section 8.1).
            return if end {
                self.break_stream(stream, Code::PROTOCOL_ERROR, events)
            } else {
                self.watch.overhead()
            };
        }
        if let Some(state) = self.streams.get_mut(&stream) {
            state.answered = true;
        }
        if end {
            self.close_remote(stream);
        }
        let (status, baggage) = (head.status, head.baggage);
        events.push(Event::Response { stream: StreamId(stream), status, baggage, end });
        Ok(())
    }

    fn on_trailers(
        &mut self,
        stream: u32,
        end: bool,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let mut fields = TrailerFields::default();
        let list = self.decode(block, |name, value| fields.add(name, value))?;
        if list == List::TooLarge || fields.finish().is_err() || !end {
            return self.break_stream(stream, malformed(list), events);
        }
        self.close_remote(stream);
        events.push(Event::End { stream: StreamId(stream) });
        Ok(())
    }
}

/// The header block inside a HEADERS frame, without padding and priority.
fn unwrapped(header: Header, payload: &[u8]) -> Result<&[u8], Violation> {
    let kind = header.kind;
    let short = Violation::FrameLength { kind, length: header.length };
    let mut block = payload;
    if header.has(flag::PADDED) {
        let (padding, rest) = block.split_first().ok_or(short)?;
        let length = rest.len().checked_sub(usize::from(*padding)).ok_or(Violation::Padding { kind })?;
        block = rest.get(..length).ok_or(short)?;
    }
    if header.has(flag::PRIORITY) {
        block = block.get(5..).ok_or(short)?;
    }
    Ok(block)
}

/// A list too long is no fault of form.
fn malformed(list: List) -> Code {
    match list {
        List::Whole => Code::PROTOCOL_ERROR,
        List::TooLarge => Code::ENHANCE_YOUR_CALM,
    }
}
