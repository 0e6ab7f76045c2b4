//! Windows against a slow model of the other side, and the independence of events from chunking.

use std::collections::BTreeMap;

use super::super::{Code, Event, Settings, StreamId, Violation};
use super::{End, connect, frame, seeded, settings};
use crate::base::limits;

/// What a peer that counts honestly may send: by stream, 0 for the connection.
#[derive(Default)]
struct Allowed(BTreeMap<u32, i64>);

impl Allowed {
    fn read(&mut self, end: &mut End) {
        for (header, payload) in end.sent() {
            if header.kind == 8 {
                let more = u32::from_be_bytes(payload.try_into().unwrap());
                assert!(more > 0);
                *self.0.get_mut(&header.stream).unwrap() += i64::from(more);
            }
        }
    }
}

#[test]
fn receive_windows_are_exact_to_the_byte() {
    for seed in 0..30 {
        let mut random = seeded(seed);
        let start = [1_000, 16_384, 65_535, 262_144][random.usize(..4)];
        let settings = Settings {
            start_window_bytes: start,
            stream_window_bytes: start * 4,
            connection_window_bytes: 1 << 20,
            ..settings()
        };
        let mut server = End::server_with(&settings);
        let mut allowed = Allowed(BTreeMap::from([(0, 1 << 20)]));
        let mut unread = BTreeMap::new();
        for stream in [1, 3, 5] {
            server.request(stream);
            allowed.0.insert(stream, i64::from(start));
            unread.insert(stream, 0_usize);
        }
        for _ in 0..2_000 {
            let stream = [1, 3, 5][random.usize(..3)];
            let most = allowed.0[&stream].min(allowed.0[&0]);
            let length = random.i64(0..=most.min(40_000));
            let mut payload = vec![7; usize::try_from(length).unwrap()];
            let padded = length > 0 && random.u8(..4) == 0;
            if padded {
                payload[0] = random.u8(..).min(u8::try_from((length - 1).min(255)).unwrap());
            }
            server.feed(&frame(0, if padded { 8 } else { 0 }, stream, &payload)).unwrap();
            *allowed.0.get_mut(&stream).unwrap() -= length;
            *allowed.0.get_mut(&0).unwrap() -= length;
            for event in server.take() {
                let Event::Data { payload, .. } = event else { panic!("seed {seed}: {event:?}") };
                *unread.get_mut(&stream).unwrap() += payload.len();
            }
            let reader = [1, 3, 5][random.usize(..3)];
            let taken = random.usize(..=unread[&reader]);
            server.connection.consumed(StreamId(reader), taken);
            *unread.get_mut(&reader).unwrap() -= taken;
            server.later(random.u64(..20));
            allowed.read(&mut server);
            check(&server, &allowed, &unread, &settings, seed);
        }
        for (stream, left) in &unread {
            server.connection.consumed(StreamId(*stream), *left);
            allowed.read(&mut server);
            let size = server.connection.streams[stream].receive.size();
            assert!(allowed.0[stream] > i64::from(size / 2), "seed {seed}: an idle reader's window is open");
        }
        // One byte too many.
        let mut left = usize::try_from(allowed.0[&3]).unwrap();
        while left > 0 {
            let length = left.min(16_384);
            server.feed(&frame(0, 0, 3, &vec![0; length])).unwrap();
            left -= length;
        }
        assert!(server.take().iter().all(|event| matches!(event, Event::Data { .. })), "seed {seed}");
        server.feed(&frame(0, 0, 3, &[0])).unwrap();
        let gone = Event::Reset { stream: StreamId(3), code: Code::FLOW_CONTROL_ERROR };
        assert_eq!(server.take(), [gone], "seed {seed}");
    }
}

fn check(server: &End, allowed: &Allowed, unread: &BTreeMap<u32, usize>, settings: &Settings, seed: u64) {
    let connection = &server.connection;
    assert_eq!(allowed.0[&0], i64::from(connection.receive.announced()), "seed {seed}");
    assert!(allowed.0[&0] > i64::from(settings.connection_window_bytes / 2), "seed {seed}");
    for (stream, unread) in unread {
        let window = &connection.streams[stream].receive;
        assert_eq!(allowed.0[stream], i64::from(window.announced()), "seed {seed}");
        assert_eq!(usize::try_from(window.unread()).unwrap(), *unread, "seed {seed}");
        assert!(window.size() <= settings.stream_window_bytes, "seed {seed}");
    }
}

#[test]
fn streams_nobody_reads_leave_the_connection_open() {
    let mut server = End::server();
    let mut sent = 0_u64;
    for stream in (1..=201).step_by(2) {
        server.request(stream);
        for _ in 0..16 {
            server.feed(&frame(0, 0, stream, &[0; 16_384])).unwrap();
            sent += 16_384;
        }
        server.take();
    }
    assert!(sent > u64::from(settings().connection_window_bytes));
    let updates = server.sent();
    assert!(updates.iter().all(|(header, _)| header.stream == 0), "no stream got credit");
    assert!(updates.len() <= 4, "credit comes in batches");
}

#[test]
fn the_connections_window_is_a_bound_of_its_own() {
    let small = Settings { connection_window_bytes: 65_535, ..settings() };
    let mut server = End::server_with(&small);
    server.request(1);
    let result = server.feed(&frame(0, 0, 1, &[0; 65_536]));
    assert_eq!(result, Err(Violation::ConnectionWindow { length: 65_536 }));
}

#[test]
fn before_the_acknowledgement_the_default_window_holds() {
    for start in [1_000_u32, 1 << 20] {
        let settings = Settings { start_window_bytes: start, ..settings() };
        let now = std::time::Instant::now();
        let connection = super::super::Connection::server(&settings, now);
        let mut server = End { connection, now, events: Vec::new() };
        server.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        server.feed(&frame(4, 0, 0, &[])).unwrap();
        server.feed(&connect(1, false)).unwrap();
        server.feed(&frame(0, 0, 1, &[0; 65_535])).unwrap();
        server.feed(&frame(4, 1, 0, &[])).unwrap();
        assert!(!server.take().iter().any(|event| matches!(event, Event::Reset { .. })));
        let left = i64::from(start) - 65_535;
        assert_eq!(i64::from(server.connection.streams[&1].receive.announced()), left);
        server.connection.consumed(StreamId(1), 65_535);
        let announced = server.connection.streams[&1].receive.announced();
        assert!(announced > 0, "{announced}");
    }
}

#[test]
fn a_window_grows_only_while_its_reader_keeps_up() {
    let growth = |pause: u64, behind: usize| {
        let mut server = End::server();
        server.request(1);
        let mut unread = 0;
        for _ in 0..2_000 {
            if server.connection.streams[&1].receive.announced() < 16_384 {
                break;
            }
            server.feed(&frame(0, 0, 1, &[0; 16_384])).unwrap();
            unread += 16_384;
            server.later(pause);
            server.connection.consumed(StreamId(1), unread - unread.min(behind));
            unread = unread.min(behind);
        }
        server.connection.streams[&1].receive.size()
    };
    assert_eq!(growth(1, 0), 4 << 20);
    assert_eq!(growth(u64::from(limits::WINDOW_GROWTH_MS), 0), 256 << 10);
    assert_eq!(growth(1, 100 << 10), 256 << 10);
}

#[test]
fn sending_keeps_to_both_windows_and_wakes_each_blocked_stream_once() {
    for seed in 0..30 {
        let mut random = seeded(seed);
        let mut client = End::client();
        let streams: Vec<StreamId> = (0..4).map(|_| client.tunnel()).collect();
        let mut initial = 65_535_i64;
        let mut windows = [65_535_i64; 4];
        let mut whole = 65_535_i64;
        let mut blocked = [false; 4];
        for _ in 0..2_000 {
            let at = random.usize(..4);
            match random.u8(..8) {
                0 => {
                    let more = random.u32(1..60_000);
                    whole += i64::from(more);
                    client.feed(&frame(8, 0, 0, &more.to_be_bytes())).unwrap();
                }
                1 | 2 => {
                    let more = random.u32(1..30_000);
                    windows[at] += i64::from(more);
                    client.feed(&frame(8, 0, streams[at].0, &more.to_be_bytes())).unwrap();
                }
                3 => {
                    let next = random.u32(0..100_000);
                    for window in &mut windows {
                        *window += i64::from(next) - initial;
                    }
                    initial = i64::from(next);
                    let payload = [&[0, 4][..], &next.to_be_bytes()].concat();
                    client.feed(&frame(4, 0, 0, &payload)).unwrap();
                }
                _ => {
                    let capacity = client.connection.capacity(streams[at]);
                    let model = windows[at].min(whole).max(0);
                    assert_eq!(i64::try_from(capacity).unwrap(), model, "seed {seed}");
                    blocked[at] = model == 0;
                    let length = random.usize(..=capacity).min(client.connection.peer_frame_bytes());
                    client.connection.data(streams[at], length, false);
                    windows[at] -= i64::try_from(length).unwrap();
                    whole -= i64::try_from(length).unwrap();
                }
            }
            let mut woken: Vec<u32> = Vec::new();
            for event in client.take() {
                let Event::Writable { stream } = event else { panic!("seed {seed}: {event:?}") };
                woken.push(stream.0);
            }
            woken.sort_unstable();
            let mut expected = Vec::new();
            for at in 0..4 {
                if blocked[at] && windows[at].min(whole) > 0 {
                    blocked[at] = false;
                    expected.push(streams[at].0);
                }
            }
            assert_eq!(woken, expected, "seed {seed}");
        }
    }
}

#[test]
fn turns_go_round_when_the_connections_window_is_short() {
    let mut client = End::client();
    let streams: Vec<StreamId> = (0..3).map(|_| client.tunnel()).collect();
    for stream in &streams {
        client.feed(&frame(8, 0, stream.0, &1_000_000_u32.to_be_bytes())).unwrap();
    }
    let mut rest = client.connection.capacity(streams[0]);
    while rest > 0 {
        client.connection.data(streams[0], rest.min(16_384), false);
        rest = client.connection.capacity(streams[0]);
    }
    let mut first = Vec::new();
    for _ in 0..6 {
        assert!(streams.iter().all(|stream| client.connection.capacity(*stream) == 0));
        client.feed(&frame(8, 0, 0, &1_000_u32.to_be_bytes())).unwrap();
        let events = client.take();
        assert_eq!(events.len(), 3);
        let Event::Writable { stream } = events[0] else { panic!() };
        client.connection.data(stream, 1_000, false);
        first.push(stream.0);
    }
    assert_eq!(first, [1, 3, 5, 1, 3, 5]);
}

/// Events without regard to how DATA was cut: payload bytes joined.
fn meaning(
    server: &mut End,
    bytes: &[u8],
    mut cut: impl FnMut() -> usize,
) -> (Vec<(String, Vec<u8>)>, String) {
    let mut said: Vec<(String, Vec<u8>)> = Vec::new();
    let mut rest = bytes;
    let mut result = Ok(());
    while !rest.is_empty() && result.is_ok() {
        let (chunk, tail) = rest.split_at(cut().clamp(1, rest.len()));
        result = server.feed(chunk);
        for event in server.take() {
            if let Event::Data { stream, payload } = event {
                let name = format!("data {stream}");
                match said.last_mut() {
                    Some((last, bytes)) if *last == name => bytes.extend_from_slice(&chunk[payload]),
                    _ => said.push((name, chunk[payload].to_vec())),
                }
            } else {
                said.push((format!("{event:?}"), Vec::new()));
            }
        }
        rest = tail;
    }
    (said, format!("{result:?} {:?}", server.sent()))
}

#[test]
fn any_chunking_gives_the_same_events() {
    for seed in 0..300 {
        let mut random = seeded(seed);
        let mut bytes = Vec::new();
        let mut next = 1;
        for _ in 0..40 {
            let stream = random.u32(0..next.max(2)) | 1;
            let flags = [0, 0, 0, 1, 8, 9][random.usize(..6)];
            bytes.extend(match random.u8(..12) {
                0..=2 => {
                    next += 2;
                    connect(next - 2, random.u8(..8) == 0)
                }
                3..=7 => {
                    let mut payload = vec![random.u8(..); random.usize(1..300)];
                    payload[0] = random.u8(..).min(u8::try_from((payload.len() - 1).min(255)).unwrap());
                    frame(0, flags, stream, &payload)
                }
                8 => frame(6, 0, 0, &[random.u8(..); 8]),
                9 => frame(3, 0, stream, &[0, 0, 0, 8]),
                10 => frame(random.u8(10..), random.u8(..), stream, &vec![0; random.usize(..50)]),
                _ => frame(8, 0, random.u32(0..2) * stream, &random.u32(0..9).to_be_bytes()),
            });
            if random.u8(..100) == 0 {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
            }
        }
        let whole = meaning(&mut End::server(), &bytes, || usize::MAX);
        let ones = meaning(&mut End::server(), &bytes, || 1);
        let cut = meaning(&mut End::server(), &bytes, || random.usize(1..40));
        assert_eq!(whole, ones, "seed {seed}");
        assert_eq!(whole, cut, "seed {seed}");
    }
}
