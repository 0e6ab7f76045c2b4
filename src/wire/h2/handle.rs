//! What each frame means, once it is known to be whole and of a proper length. A broken rule of one stream
//! resets that stream; a broken rule of the connection is a `Violation`.

use super::connection::{Connection, DRAIN_PING, Leaving, PING, Role};
use super::frame::{self, Header, LARGEST, flag, kind, setting};
use super::receive::{Data, Reading};
use super::{Code, Event, StreamId, Violation};

impl Connection {
    /// Any frame but DATA. Lengths and the kind of stream number were checked with the header.
    pub(super) fn handle(
        &mut self,
        header: Header,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        match header.kind {
            kind::HEADERS => self.on_headers(header, payload, events),
            kind::CONTINUATION => self.on_continuation(header, payload, events),
            kind::PRIORITY => self.on_priority(header, events),
            kind::RST_STREAM => self.on_reset(header, word(payload), events),
            kind::SETTINGS => self.on_settings(header, payload, events),
            kind::PING => self.on_ping(header, payload, events),
            kind::GOAWAY => self.on_goaway(payload, events),
            kind::WINDOW_UPDATE => self.on_window_update(header, word(payload) & LARGEST, events),
            _ => Ok(()),
        }
    }

    /// The header of a DATA frame: both windows are charged with all of it at once.
    pub(super) fn begin_data(&mut self, header: Header, events: &mut Vec<Event>) -> Result<(), Violation> {
        let Header { length, kind, stream, .. } = header;
        let padded = header.has(flag::PADDED);
        let end = header.has(flag::END_STREAM);
        if stream == 0 {
            return Err(Violation::StreamNumber { kind, stream });
        }
        if padded && length == 0 {
            return Err(Violation::FrameLength { kind, length });
        }
        if !end {
            self.watch.data(length)?;
        }
        self.receive.arrived(length).map_err(|_| Violation::ConnectionWindow { length })?;
        let largest = self.settings.connection_window_bytes;
        if let Some(credit) = self.receive.consumed(length, largest, self.now_ms) {
            self.reply(Header::BYTES + 4)?;
            frame::window_update(&mut self.output, 0, credit);
        }
        let wanted = self.admit_data(header, events)?;
        let left = length - u32::from(padded);
        let data = Data { stream, left, padding: 0, padded, end, wanted };
        if length == 0 {
            self.reading = Reading::FRAME;
            self.end_data(data, events);
        } else {
            self.reading = Reading::Data(data);
        }
        Ok(())
    }

    /// Whether the stream takes this DATA frame.
    fn admit_data(&mut self, header: Header, events: &mut Vec<Event>) -> Result<bool, Violation> {
        let Header { length, kind, stream, .. } = header;
        let role = self.role;
        let Some(state) = self.streams.get_mut(&stream) else {
            self.expect_late(kind, stream, false)?;
            // Payload that was on its way when we reset its stream may be a lot, and costs the peer its bytes.
            if length == 0 {
                self.watch.overhead()?;
            }
            return Ok(false);
        };
        let broken = if state.remote_closed {
            Some(Code::STREAM_CLOSED)
        } else if role == Role::Client && !state.answered {
            Some(Code::PROTOCOL_ERROR)
        } else if state.receive.arrived(length).is_err() {
            Some(Code::FLOW_CONTROL_ERROR)
        } else {
            None
        };
        if let Some(code) = broken {
            self.break_stream(stream, code, events)?;
        }
        Ok(broken.is_none())
    }

    pub(super) fn end_data(&mut self, data: Data, events: &mut Vec<Event>) {
        if data.end && data.wanted {
            self.close_remote(data.stream);
            events.push(Event::End { stream: StreamId(data.stream) });
        }
    }

    pub(super) fn close_remote(&mut self, stream: u32) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.remote_closed = true;
            if state.closed() {
                self.streams.remove(&stream);
            }
        }
    }

    /// A frame for a stream that is not there: idle, refused by our GOAWAY, or closed. `forgiven`: the frame
    /// may come late even for a stream that closed in order.
    pub(super) fn late(&mut self, kind: u8, stream: u32, forgiven: bool) -> Result<(), Violation> {
        self.expect_late(kind, stream, forgiven)?;
        self.watch.overhead()
    }

    fn expect_late(&self, kind: u8, stream: u32, forgiven: bool) -> Result<(), Violation> {
        let above =
            matches!(self.leaving, Leaving::Final(last) if self.role == Role::Server && stream > last);
        // No server stream has an even number: nothing is pushed.
        if !above && (stream > self.highest || stream.is_multiple_of(2)) {
            return Err(Violation::Idle { kind, stream });
        }
        if !above && !forgiven && !self.resets.may_have(stream) {
            return Err(Violation::Closed { kind, stream });
        }
        Ok(())
    }

    /// Resets a stream whose peer broke a rule, and tells the owner if it knows the stream.
    pub(super) fn break_stream(
        &mut self,
        stream: u32,
        code: Code,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        self.watch.stream_error()?;
        self.reply(Header::BYTES + 4)?;
        if self.streams.remove(&stream).is_some() {
            events.push(Event::Reset { stream: StreamId(stream), code });
        }
        self.resets.remember(stream);
        frame::reset(&mut self.output, stream, code);
        Ok(())
    }

    fn reply(&mut self, bytes: usize) -> Result<(), Violation> {
        self.watch.reply(self.output.len(), bytes)
    }

    /// Priorities are read over (RFC 9113 section 5.3.2).
    fn on_priority(&mut self, header: Header, events: &mut Vec<Event>) -> Result<(), Violation> {
        self.watch.overhead()?;
        let Header { length, kind, stream, .. } = header;
        if length == 5 {
            Ok(())
        } else if self.streams.contains_key(&stream) {
            self.break_stream(stream, Code::FRAME_SIZE_ERROR, events)
        } else {
            Err(Violation::FrameLength { kind, length })
        }
    }

    fn on_reset(&mut self, header: Header, code: u32, events: &mut Vec<Event>) -> Result<(), Violation> {
        let stream = header.stream;
        let Some(state) = self.streams.remove(&stream) else {
            return self.late(header.kind, stream, true);
        };
        events.push(Event::Reset { stream: StreamId(stream), code: Code(code) });
        // A client's streams are its own doing: only a server is made to work by opening and resetting.
        if self.role == Role::Client { Ok(()) } else { self.watch.reset(state.answered) }
    }

    fn on_settings(
        &mut self,
        header: Header,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        self.watch.overhead()?;
        if header.has(flag::ACK) {
            return self.on_settings_ack(header);
        }
        let first = !std::mem::replace(&mut self.settings_received, true);
        if first {
            // Silence about it means no limit (RFC 9113 section 6.5.2).
            self.peer.max_streams = u32::MAX;
        }
        let mut window = self.peer.initial_window;
        let (pairs, _) = payload.as_chunks::<6>();
        for [high, low, value @ ..] in pairs {
            self.on_setting(u16::from_be_bytes([*high, *low]), u32::from_be_bytes(*value), &mut window)?;
        }
        self.on_initial_window(window, events)?;
        self.reply(Header::BYTES)?;
        frame::settings_ack(&mut self.output);
        if first {
            events.push(Event::Settings);
        }
        Ok(())
    }

    /// From here on the peer keeps to what we announced.
    fn on_settings_ack(&mut self, header: Header) -> Result<(), Violation> {
        if header.length != 0 {
            return Err(Violation::FrameLength { kind: header.kind, length: header.length });
        }
        if !std::mem::replace(&mut self.settings_acked, true) {
            self.decoder.limit_table(0);
            let difference = i64::from(self.settings.start_window_bytes) - i64::from(frame::DEFAULT_WINDOW);
            for state in self.streams.values_mut() {
                state.receive.adjust(difference);
            }
        }
        Ok(())
    }

    /// `window` is only noted: of several values in a frame the last counts, and each would touch every
    /// stream.
    fn on_setting(&mut self, number: u16, value: u32, window: &mut u32) -> Result<(), Violation> {
        let wrong = Violation::Setting { setting: number, value };
        match number {
            setting::ENABLE_PUSH if value > 1 || (value == 1 && self.role == Role::Client) => {
                return Err(wrong);
            }
            setting::MAX_CONCURRENT_STREAMS => self.peer.max_streams = value,
            setting::INITIAL_WINDOW_SIZE if value > LARGEST => {
                return Err(Violation::InitialWindow { value });
            }
            setting::INITIAL_WINDOW_SIZE => *window = value,
            setting::MAX_FRAME_SIZE if !(frame::SMALLEST_FRAME..=frame::LARGEST_FRAME).contains(&value) => {
                return Err(wrong);
            }
            setting::MAX_FRAME_SIZE => self.peer.frame_bytes = value,
            // Our encoder keeps no table, our lists are small, and what we don't know we ignore.
            _ => {}
        }
        Ok(())
    }

    fn on_initial_window(&mut self, window: u32, events: &mut Vec<Event>) -> Result<(), Violation> {
        let difference = i64::from(window) - i64::from(self.peer.initial_window);
        if difference == 0 {
            return Ok(());
        }
        self.peer.initial_window = window;
        for state in self.streams.values_mut() {
            state.send.adjust(difference).map_err(|_| Violation::WindowOverflow)?;
        }
        self.wake(events);
        Ok(())
    }

    fn on_ping(&mut self, header: Header, payload: &[u8], events: &mut Vec<Event>) -> Result<(), Violation> {
        self.watch.overhead()?;
        let Some(opaque) = payload.first_chunk::<8>() else { return Ok(()) };
        if !header.has(flag::ACK) {
            self.reply(Header::BYTES + 8)?;
            frame::ping(&mut self.output, flag::ACK, *opaque);
        } else if *opaque == DRAIN_PING && matches!(self.leaving, Leaving::Announced { .. }) {
            self.leave();
        } else if *opaque == PING && self.pings > 0 {
            self.pings -= 1;
            events.push(Event::Pong);
        }
        Ok(())
    }

    fn on_goaway(&mut self, payload: &[u8], events: &mut Vec<Event>) -> Result<(), Violation> {
        self.watch.overhead()?;
        let last = word(payload) & LARGEST;
        let code = Code(word(payload.get(4..).unwrap_or_default()));
        self.peer_leaving = true;
        if self.role == Role::Client {
            let mut refused: Vec<u32> =
                self.streams.keys().copied().filter(|number| *number > last).collect();
            refused.sort_unstable();
            for number in refused {
                self.streams.remove(&number);
                self.resets.remember(number);
                events.push(Event::Reset { stream: StreamId(number), code: Code::REFUSED_STREAM });
            }
        }
        events.push(Event::GoAway { last: StreamId(last), code });
        Ok(())
    }

    fn on_window_update(
        &mut self,
        header: Header,
        more: u32,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        self.watch.window_update()?;
        let stream = header.stream;
        if stream == 0 {
            if more == 0 {
                return Err(Violation::ZeroUpdate);
            }
            let empty = self.send.available() == 0;
            self.send.adjust(i64::from(more)).map_err(|_| Violation::WindowOverflow)?;
            if empty {
                self.wake(events);
            }
            return Ok(());
        }
        let Some(state) = self.streams.get_mut(&stream) else {
            return self.late(header.kind, stream, true);
        };
        if more == 0 {
            return self.break_stream(stream, Code::PROTOCOL_ERROR, events);
        }
        if state.send.adjust(i64::from(more)).is_err() {
            return self.break_stream(stream, Code::FLOW_CONTROL_ERROR, events);
        }
        if self.send.available() > 0 && state.send.available() > 0 && state.blocked.replace(false) {
            events.push(Event::Writable { stream: StreamId(stream) });
        }
        Ok(())
    }

    /// Tells every blocked stream that may send again, each round beginning behind where the last one began,
    /// so that no stream takes the connection's window every time.
    fn wake(&mut self, events: &mut Vec<Event>) {
        if self.send.available() == 0 {
            return;
        }
        let freed = |(number, state): (&u32, &super::stream::Stream)| {
            (state.send.available() > 0 && state.blocked.replace(false)).then_some(*number)
        };
        let mut woken: Vec<u32> = self.streams.iter().filter_map(freed).collect();
        woken.sort_unstable();
        let turn = woken.partition_point(|number| *number <= self.turn);
        woken.rotate_left(turn);
        if let Some(first) = woken.first() {
            self.turn = *first;
        }
        events.extend(woken.into_iter().map(|number| Event::Writable { stream: StreamId(number) }));
    }
}

/// A big-endian word at the start; 0 for less, which lengths checked before rule out.
fn word(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
