//! Tests of whole connections: against the `h2` crate, against hand-made frames, against slow models.

mod flow;
mod fuzz;
mod hostile;
mod hpack;
mod interop;
mod rules;

use std::time::{Duration, Instant};

use super::frame::{Header, PREFACE};
use super::{ConnectHead, Connection, Event, Settings, StreamId, Violation};

pub fn settings() -> Settings {
    Settings {
        stream_window_bytes: 4 << 20,
        connection_window_bytes: 16 << 20,
        frame_bytes: 1 << 20,
        max_streams: 200,
        header_list_bytes: 65_536,
        start_window_bytes: 256 << 10,
    }
}

/// A frame by hand.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut bytes = Header { length, kind, flags, stream }.bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// The frames in a piece of output, headers with their payloads.
pub fn frames(mut bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<9>() {
        let header = Header::parse(*header);
        let (payload, rest) = rest.split_at(header.length as usize);
        found.push((header, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "output ends inside a frame");
    found
}

/// A connection with its own clock, and what it said.
pub struct End {
    pub connection: Connection,
    pub now: Instant,
    pub events: Vec<Event>,
}

impl End {
    /// A server that has seen preface, SETTINGS and the acknowledgement of its own.
    pub fn server() -> Self {
        Self::server_with(&settings())
    }

    pub fn server_with(settings: &Settings) -> Self {
        let now = Instant::now();
        let mut end = Self { connection: Connection::server(settings, now), now, events: Vec::new() };
        end.feed(PREFACE).unwrap();
        end.open();
        end
    }

    pub fn client() -> Self {
        let now = Instant::now();
        let mut end = Self { connection: Connection::client(&settings(), now), now, events: Vec::new() };
        end.open();
        end
    }

    fn open(&mut self) {
        self.feed(&frame(4, 0, 0, &[])).unwrap();
        self.feed(&frame(4, 1, 0, &[])).unwrap();
        assert_eq!(self.take(), [Event::Settings]);
        self.connection.output().clear();
    }

    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.connection.receive(bytes, self.now, &mut self.events)
    }

    pub fn later(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What waits to go out, as frames.
    pub fn sent(&mut self) -> Vec<(Header, Vec<u8>)> {
        frames(&std::mem::take(self.connection.output()))
    }

    /// The kinds of the frames that wait to go out.
    pub fn sent_kinds(&mut self) -> Vec<u8> {
        self.sent().iter().map(|(header, _)| header.kind).collect()
    }

    /// The codes of the RST_STREAM frames that wait to go out.
    pub fn sent_resets(&mut self) -> Vec<(u32, u32)> {
        let resets = self.sent().into_iter().filter(|(header, _)| header.kind == 3);
        resets.map(|(header, code)| (header.stream, u32::from_be_bytes(code.try_into().unwrap()))).collect()
    }

    /// Server: takes in a plain CONNECT.
    pub fn request(&mut self, stream: u32) {
        self.feed(&connect(stream, false)).unwrap();
        assert!(matches!(self.take()[..], [Event::Request { stream: StreamId(seen), .. }] if seen == stream));
    }

    /// Client: opens a stream and takes in its 200.
    pub fn tunnel(&mut self) -> StreamId {
        let stream = self.connection.open(&HEAD).unwrap();
        self.feed(&frame(1, 4, stream.0, &[0x88])).unwrap();
        assert!(matches!(self.take()[..], [Event::Response { status: 200, .. }]));
        self.sent();
        stream
    }
}

pub const HEAD: ConnectHead<'_> = ConnectHead {
    authority: "10.0.0.1:80",
    baggage: None,
    forwarded: None,
    traceparent: None,
    x_forwarded_network: None,
};

/// HEADERS of a CONNECT to 10.0.0.1:80.
pub fn connect(stream: u32, end: bool) -> Vec<u8> {
    frame(
        1,
        if end { 5 } else { 4 },
        stream,
        &block(&[(":method", "CONNECT"), (":authority", "10.0.0.1:80")]),
    )
}

/// Literals without indexing or Huffman, strings below 127 bytes.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A generator with a seed, the same everywhere.
pub fn seeded(seed: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed)
}
