//! Entry points for the fuzz targets under loadtest/fuzz; the same run on a fixed seed as a short test.

use std::time::{Duration, Instant};

use super::hpack::Decoder;
use super::{Code, ConnectHead, Connection, Event, Settings, StreamId};

const SETTINGS: Settings = Settings {
    stream_window_bytes: 1 << 20,
    connection_window_bytes: 1 << 21,
    frame_bytes: 1 << 20,
    max_streams: 8,
    header_list_bytes: 16_384,
    start_window_bytes: 32_768,
};

/// Feeds both roles: the first byte chooses the role and whether the opening exchange is given, the second
/// seeds the chunking. Events are acted upon as an owner would.
pub fn fuzz_frames(data: &[u8]) {
    let [mode, seed, bytes @ ..] = data else { return };
    let start = Instant::now();
    let server = mode & 1 == 0;
    let mut connection =
        if server { Connection::server(&SETTINGS, start) } else { Connection::client(&SETTINGS, start) };
    let mut events = Vec::new();
    if mode & 2 == 0 {
        if server {
            assert!(connection.receive(super::frame::PREFACE, start, &mut events).is_ok());
        }
        assert!(connection.receive(&[0, 0, 0, 4, 0, 0, 0, 0, 0], start, &mut events).is_ok());
    }
    if !server {
        let head = ConnectHead { authority: "10.0.0.1:80", ..ConnectHead::default() };
        for _ in 0..4 {
            assert!(connection.open(&head).is_ok());
        }
    }
    let mut state = u32::from(*seed);
    let mut rest = bytes;
    let mut now = start;
    while !rest.is_empty() {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        let length = usize::try_from((state >> 16) % 64 + 1).unwrap_or(1).min(rest.len());
        let (chunk, tail) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        events.clear();
        now += Duration::from_millis(u64::from(state >> 28));
        let over = connection.receive(chunk, now, &mut events).is_err();
        for event in events.drain(..) {
            act(&mut connection, event, chunk.len(), state);
        }
        assert!(connection.active_streams() <= 8);
        if over {
            assert!(connection.receive(chunk, now, &mut events).is_err());
            return;
        }
        if state & 0x10_0000 == 0 {
            connection.output().clear();
        }
        rest = tail;
    }
}

fn act(connection: &mut Connection, event: Event, chunk: usize, state: u32) {
    match event {
        Event::Request { stream, .. } => connection.respond(stream, 200, None, state & 0x700_0000 == 0),
        Event::Data { stream, payload } => {
            assert!(payload.start < payload.end && payload.end <= chunk);
            connection.consumed(stream, payload.len());
            send(connection, stream);
        }
        Event::Writable { stream } => {
            assert!(connection.capacity(stream) > 0);
            send(connection, stream);
        }
        Event::End { stream } if state & 0x80_0000 == 0 => connection.finish(stream),
        Event::End { stream } => connection.reset(stream, Code::CANCEL),
        Event::Reset { stream, .. } => assert!(!connection.is_open(stream)),
        Event::Settings | Event::Response { .. } | Event::GoAway { .. } | Event::Pong => {}
    }
}

fn send(connection: &mut Connection, stream: StreamId) {
    let length = connection.capacity(stream).min(connection.peer_frame_bytes());
    if length > 0 {
        connection.data(stream, length, false);
    }
}

/// Decodes blocks in a row, each led by its length in two bytes.
pub fn fuzz_hpack(data: &[u8]) {
    let mut decoder = Decoder::default();
    let mut rest = data;
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length) & 0x3fff).min(tail.len());
        let (block, tail) = tail.split_at_checked(length).unwrap_or((tail, &[]));
        let mut listed = 0;
        let sink = |name: &[u8], value: &[u8]| listed += name.len() + value.len() + 32;
        let result = decoder.decode(block, 16_384, sink);
        assert!(listed <= 16_384);
        if result.is_err() {
            return;
        }
        rest = tail;
    }
}
