//! What RFC 9113 asks, frame by frame.

use super::super::{CannotOpen, Code, Connection, Event, StreamId, Violation};
use super::{End, HEAD, block, connect, frame, frames, settings};

#[test]
fn the_opening_is_as_announced() {
    let now = std::time::Instant::now();
    let mut server = Connection::server(&settings(), now);
    let sent = frames(server.output());
    let pairs: Vec<(u16, u32)> = sent[0]
        .1
        .chunks(6)
        .map(|pair| {
            (u16::from_be_bytes([pair[0], pair[1]]), u32::from_be_bytes(pair[2..].try_into().unwrap()))
        })
        .collect();
    assert_eq!(pairs, [(1, 0), (3, 200), (4, 256 << 10), (5, 1 << 20), (6, 65_536)]);
    assert_eq!(sent[1].1, ((16_u32 << 20) - 65_535).to_be_bytes());
    let mut client = Connection::client(&settings(), now);
    let output = std::mem::take(client.output());
    assert_eq!(&output[..24], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let sent = frames(&output[24..]);
    assert_eq!(sent[0].1[6..12], [0, 2, 0, 0, 0, 0]);
    assert!(!client.settings_received() && client.can_open());
}

#[test]
fn a_request_with_everything_is_handed_on() {
    let mut server = End::server();
    let fields = [
        (":method", "CONNECT"),
        (":authority", "web:80"),
        ("baggage", "a=1"),
        ("forwarded", "for=x"),
        ("baggage", "b=2"),
        ("traceparent", "00-1"),
        ("x-forwarded-network", "n2"),
        ("forwarded", "for=y"),
        ("te", "trailers"),
    ];
    server.feed(&frame(1, 5, 1, &block(&fields))).unwrap();
    let events = server.take();
    let [Event::Request { stream: StreamId(1), head, end: true }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((head.method.as_str(), head.authority.as_deref()), ("CONNECT", Some("web:80")));
    assert_eq!(head.baggage, [b"a=1", b"b=2"]);
    assert_eq!(head.forwarded.as_deref(), Some(&b"for=x"[..]));
    assert_eq!(head.traceparent.as_deref(), Some(&b"00-1"[..]));
    assert_eq!(head.x_forwarded_network.as_deref(), Some(&b"n2"[..]));
    assert!(!head.scheme && !head.path);
    server.connection.respond(StreamId(1), 200, Some("c=3"), false);
    assert_eq!(server.sent()[0].1, [&[0x20, 0x88, 0, 7][..], b"baggage", &[3], b"c=3"].concat());
    server.connection.finish(StreamId(1));
    assert_eq!(server.connection.active_streams(), 0);
    server.feed(&frame(1, 4, 3, &block(&[(":method", "GET"), (":scheme", "http"), (":path", "/")]))).unwrap();
    assert!(matches!(&server.take()[..], [Event::Request { head, .. }] if head.method == "GET" && head.path));
}

#[test]
fn malformed_requests_cost_only_their_stream() {
    let start = [(":method", "CONNECT"), (":authority", "web:80")];
    let with = |more: &[(&'static str, &'static str)]| [&start[..], more].concat();
    let cases = [
        vec![(":authority", "web:80")],
        vec![(":method", "")],
        with(&[(":method", "CONNECT")]),
        with(&[(":authority", "web:80")]),
        with(&[(":path", "/")]),
        with(&[(":scheme", "https")]),
        with(&[(":status", "200")]),
        with(&[(":protocol", "websocket")]),
        with(&[("baggage", "a=1"), (":path", "/")]),
        vec![("baggage", "a=1"), (":method", "CONNECT"), (":authority", "web:80")],
        with(&[("Baggage", "a=1")]),
        with(&[("", "a")]),
        with(&[("a b", "c")]),
        with(&[("a:b", "c")]),
        with(&[("a\u{7f}", "c")]),
        with(&[("baggage", "a\r\nb")]),
        with(&[("baggage", "a\0b")]),
        with(&[("baggage", " a")]),
        with(&[("baggage", "a\t")]),
        with(&[("connection", "close")]),
        with(&[("keep-alive", "1")]),
        with(&[("proxy-connection", "x")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("upgrade", "h2c")]),
        with(&[("te", "gzip")]),
        vec![(":method", "CONNECT"), (":authority", "web 80")],
    ];
    let mut server = End::server();
    let mut stream = 1;
    for fields in &cases {
        server.feed(&frame(1, 4, stream, &block(fields))).unwrap();
        assert_eq!(server.take(), [], "{fields:?}");
        assert_eq!(server.sent_resets(), [(stream, 1)], "{fields:?}");
        stream += 2;
    }
    // Late frames of such a stream are read over, and the next stream works.
    server.feed(&frame(0, 1, 1, b"late")).unwrap();
    server.request(stream);
    assert_eq!(server.connection.active_streams(), 1);
}

#[test]
fn answers_and_interim_answers() {
    let mut client = End::client();
    let stream = client.connection.open(&HEAD).unwrap();
    assert_eq!(client.sent_kinds(), [1]);
    client.feed(&frame(1, 4, 1, &block(&[(":status", "103")]))).unwrap();
    assert_eq!(client.take(), []);
    client.feed(&frame(1, 5, 1, &block(&[(":status", "503"), ("baggage", "a"), ("baggage", "b")]))).unwrap();
    let baggage = Some(b"a,b".to_vec());
    assert_eq!(client.take(), [Event::Response { stream, status: 503, baggage, end: true }]);
    client.connection.finish(stream);
    assert_eq!(client.connection.active_streams(), 0);
    for (flags, fields) in [
        (4, vec![(":status", "20")]),
        (4, vec![(":status", "2000")]),
        (4, vec![(":status", "101")]),
        (5, vec![(":status", "100")]),
        (4, vec![("baggage", "a")]),
        (4, vec![(":status", "200"), (":status", "200")]),
        (4, vec![(":status", "200"), (":path", "/")]),
    ] {
        let stream = client.connection.open(&HEAD).unwrap();
        client.feed(&frame(1, flags, stream.0, &block(&fields))).unwrap();
        assert_eq!(client.take(), [Event::Reset { stream, code: Code::PROTOCOL_ERROR }], "{fields:?}");
        assert_eq!(client.sent_resets(), [(stream.0, 1)]);
    }
    // DATA before the answer.
    let stream = client.connection.open(&HEAD).unwrap();
    client.feed(&frame(0, 0, stream.0, b"early")).unwrap();
    assert_eq!(client.take(), [Event::Reset { stream, code: Code::PROTOCOL_ERROR }]);
}

#[test]
fn data_with_and_without_padding_and_half_close() {
    let mut server = End::server();
    server.request(1);
    server.connection.respond(StreamId(1), 200, None, false);
    server.feed(&frame(0, 0, 1, b"hello")).unwrap();
    assert_eq!(server.take(), [Event::Data { stream: StreamId(1), payload: 9..14 }]);
    server.feed(&frame(0, 8, 1, &[3, b'a', b'b', 0, 0, 0])).unwrap();
    assert_eq!(server.take(), [Event::Data { stream: StreamId(1), payload: 10..12 }]);
    server.feed(&frame(0, 8, 1, &[4, 0, 0, 0, 0])).unwrap();
    server.feed(&frame(0, 8, 1, &[0])).unwrap();
    server.feed(&frame(0, 0, 1, &[])).unwrap();
    assert_eq!(server.take(), []);
    server.feed(&frame(0, 9, 1, &[1, b'z', 0])).unwrap();
    let last = [Event::Data { stream: StreamId(1), payload: 10..11 }, Event::End { stream: StreamId(1) }];
    assert_eq!(server.take(), last);
    // Our half still works; the peer's is over.
    assert!(server.connection.capacity(StreamId(1)) > 0);
    assert_eq!(server.connection.data(StreamId(1), 3, false), [0, 0, 3, 0, 0, 0, 0, 0, 1]);
    server.sent();
    server.feed(&frame(0, 0, 1, b"more")).unwrap();
    assert_eq!(server.take(), [Event::Reset { stream: StreamId(1), code: Code::STREAM_CLOSED }]);
    assert_eq!(server.sent_resets(), [(1, 5)]);
    assert_eq!(server.connection.capacity(StreamId(1)), 0);
    server.connection.finish(StreamId(1));
    server.connection.consumed(StreamId(1), 100);
    server.connection.respond(StreamId(1), 200, None, true);
    assert!(server.sent().is_empty());
}

#[test]
fn trailers_end_a_stream() {
    let mut server = End::server();
    server.request(1);
    server.feed(&frame(1, 5, 1, &block(&[("grpc-status", "0")]))).unwrap();
    assert_eq!(server.take(), [Event::End { stream: StreamId(1) }]);
    let cases = [(3, 4, ("a", "b")), (5, 5, (":status", "200")), (7, 5, ("A", "b"))];
    for (number, flags, field) in cases {
        let stream = StreamId(number);
        server.request(number);
        server.feed(&frame(1, flags, number, &block(&[field]))).unwrap();
        assert_eq!(server.take(), [Event::Reset { stream, code: Code::PROTOCOL_ERROR }], "{field:?}");
    }
}

#[test]
fn headers_come_in_pieces_with_padding_and_priority() {
    let whole = block(&[(":method", "CONNECT"), (":authority", "web:80")]);
    let (first, rest) = whole.split_at(5);
    let (second, third) = rest.split_at(1);
    let mut server = End::server();
    let padded = [&[2, 0x80, 0, 0, 1, 7][..], first, &[0, 0]].concat();
    let bytes =
        [frame(1, 0x28, 1, &padded), frame(9, 0, 1, second), frame(9, 0, 1, &[]), frame(9, 4, 1, third)]
            .concat();
    for byte in &bytes {
        server.feed(std::slice::from_ref(byte)).unwrap();
    }
    assert!(matches!(&server.take()[..], [Event::Request { end: false, .. }]));
    let mut server = End::server();
    server.feed(&frame(1, 0, 1, first)).unwrap();
    assert_eq!(server.feed(&frame(6, 0, 0, &[0; 8])), Err(Violation::Interleaved { kind: 6 }));
    let mut server = End::server();
    server.feed(&frame(1, 0, 1, first)).unwrap();
    assert_eq!(server.feed(&frame(9, 4, 3, rest)), Err(Violation::Interleaved { kind: 9 }));
    assert_eq!(End::server().feed(&frame(9, 4, 1, rest)), Err(Violation::Interleaved { kind: 9 }));
}

#[test]
fn a_resets_b_and_late_frames_are_read_over() {
    let mut server = End::server();
    server.request(1);
    server.request(3);
    server.connection.reset(StreamId(1), Code::CANCEL);
    server.connection.reset(StreamId(1), Code::CANCEL);
    assert_eq!(server.sent_resets(), [(1, 8)]);
    server.feed(&frame(0, 0, 1, b"late")).unwrap();
    server.feed(&frame(1, 5, 1, &block(&[("late", "trailer")]))).unwrap();
    server.feed(&frame(8, 0, 1, &[0, 0, 0, 1])).unwrap();
    server.feed(&frame(3, 0, 1, &[0, 0, 0, 8])).unwrap();
    assert_eq!(server.take(), []);
    server.feed(&frame(3, 0, 3, &[0, 0, 0, 8])).unwrap();
    assert_eq!(server.take(), [Event::Reset { stream: StreamId(3), code: Code::CANCEL }]);
    assert_eq!(server.connection.active_streams(), 0);
    // The peer itself ended stream 3, so more of it is its mistake.
    assert_eq!(server.feed(&frame(0, 0, 3, b"x")), Err(Violation::Closed { kind: 0, stream: 3 }));
    let sent = server.sent();
    assert_eq!(sent.last().unwrap().1, [0, 0, 0, 3, 0, 0, 0, 5]);
}

#[test]
fn a_reset_in_the_middle_of_a_frame_stops_its_payload() {
    let mut server = End::server();
    server.request(1);
    let bytes = frame(0, 1, 1, b"0123456789");
    server.feed(&bytes[..12]).unwrap();
    assert_eq!(server.take(), [Event::Data { stream: StreamId(1), payload: 9..12 }]);
    server.connection.reset(StreamId(1), Code::CANCEL);
    server.feed(&bytes[12..]).unwrap();
    assert_eq!(server.take(), []);
    server.request(3);
}

#[test]
fn pings_are_answered_and_ours_come_back() {
    let mut client = End::client();
    client.feed(&frame(6, 0, 0, b"abcdefgh")).unwrap();
    assert_eq!(
        client.sent()[0],
        (super::Header { length: 8, kind: 6, flags: 1, stream: 0 }, b"abcdefgh".to_vec())
    );
    client.feed(&frame(6, 1, 0, b"ringping")).unwrap();
    assert_eq!(client.take(), [], "nothing was asked");
    client.connection.ping();
    let (_, opaque) = client.sent().remove(0);
    client.feed(&frame(6, 1, 0, &opaque)).unwrap();
    assert_eq!(client.take(), [Event::Pong]);
}

#[test]
fn a_server_leaves_in_two_steps() {
    let mut server = End::server();
    server.request(1);
    server.connection.goaway();
    server.connection.goaway();
    assert!(server.connection.is_draining());
    let sent = server.sent();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].1, [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    server.request(3);
    server.feed(&frame(6, 1, 0, &sent[1].1)).unwrap();
    assert_eq!(server.sent()[0].1, [0, 0, 0, 3, 0, 0, 0, 0]);
    server.feed(&connect(5, false)).unwrap();
    server.feed(&frame(0, 1, 5, b"ignored")).unwrap();
    server.feed(&frame(8, 0, 5, &[0, 0, 0, 9])).unwrap();
    server.feed(&frame(3, 0, 5, &[0, 0, 0, 8])).unwrap();
    assert_eq!(server.take(), []);
    server.feed(&frame(0, 0, 3, b"still here")).unwrap();
    assert_eq!(server.take().len(), 1);
    assert_eq!(server.connection.active_streams(), 2);
}

#[test]
fn a_client_learns_which_streams_were_refused() {
    let mut client = End::client();
    let (one, three, five) = (client.tunnel(), client.tunnel(), client.tunnel());
    client.feed(&frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0, b'b', b'y', b'e'])).unwrap();
    let refused = |stream| Event::Reset { stream, code: Code::REFUSED_STREAM };
    let goaway = Event::GoAway { last: one, code: Code::NO_ERROR };
    assert_eq!(client.take(), [refused(three), refused(five), goaway]);
    assert!(client.connection.is_open(one) && !client.connection.can_open());
    assert_eq!(client.connection.open(&HEAD), Err(CannotOpen::Draining));
    client.feed(&frame(0, 0, five.0, b"late")).unwrap();
    client.feed(&frame(0, 0, one.0, b"fine")).unwrap();
    assert_eq!(client.take().len(), 1);
}

#[test]
fn opening_keeps_to_the_peers_limit() {
    let mut client = End::client();
    assert_eq!(client.connection.peer_max_streams(), u32::MAX);
    client.feed(&frame(4, 0, 0, &[0, 3, 0, 0, 0, 2])).unwrap();
    let one = client.connection.open(&HEAD).unwrap();
    let _three = client.connection.open(&HEAD).unwrap();
    assert_eq!(client.connection.open(&HEAD), Err(CannotOpen::Full { limit: 2 }));
    client.feed(&frame(4, 0, 0, &[0, 3, 0, 0, 0, 1])).unwrap();
    client.connection.reset(one, Code::CANCEL);
    assert!(!client.connection.can_open());
    client.feed(&frame(4, 0, 0, &[0, 3, 0, 0, 0, 9])).unwrap();
    let head = super::super::ConnectHead { forwarded: Some("a\r\nb"), ..HEAD };
    assert_eq!(client.connection.open(&head), Err(CannotOpen::Field { field: "forwarded" }));
    assert_eq!(client.connection.open(&HEAD), Ok(StreamId(5)));
    assert_eq!(End::server().connection.open(&HEAD), Err(CannotOpen::Server));
}

#[test]
fn more_streams_than_offered_are_refused_one_by_one() {
    let mut server = End::server_with(&super::super::Settings { max_streams: 2, ..settings() });
    server.request(1);
    server.request(3);
    server.feed(&connect(5, true)).unwrap();
    assert_eq!(server.take(), []);
    assert_eq!(server.sent_resets(), [(5, 7)]);
    server.connection.respond(StreamId(1), 503, None, true);
    server.feed(&frame(0, 1, 1, &[])).unwrap();
    server.take();
    server.request(7);
}

#[test]
fn frames_that_may_not_come_end_the_connection() {
    type Case = (&'static str, Vec<u8>, Violation);
    let push = frame(5, 4, 1, &[0, 0, 0, 2, 0x82]);
    let cases: Vec<Case> = vec![
        ("DATA on 0", frame(0, 0, 0, b"x"), Violation::StreamNumber { kind: 0, stream: 0 }),
        ("DATA on idle", frame(0, 0, 7, b"x"), Violation::Idle { kind: 0, stream: 7 }),
        ("DATA on even", frame(0, 0, 2, b"x"), Violation::Idle { kind: 0, stream: 2 }),
        ("DATA without pad length", frame(0, 8, 1, &[]), Violation::FrameLength { kind: 0, length: 0 }),
        ("DATA all padding", frame(0, 8, 1, &[5, 0]), Violation::Padding { kind: 0 }),
        ("HEADERS on 0", frame(1, 4, 0, &[0x88]), Violation::StreamNumber { kind: 1, stream: 0 }),
        ("HEADERS padding", frame(1, 12, 3, &[9, 0x82]), Violation::Padding { kind: 1 }),
        ("HEADERS priority", frame(1, 0x24, 3, &[0, 0]), Violation::FrameLength { kind: 1, length: 2 }),
        ("PRIORITY on 0", frame(2, 0, 0, &[0; 5]), Violation::StreamNumber { kind: 2, stream: 0 }),
        ("RST on 0", frame(3, 0, 0, &[0; 4]), Violation::StreamNumber { kind: 3, stream: 0 }),
        ("RST on idle", frame(3, 0, 9, &[0; 4]), Violation::Idle { kind: 3, stream: 9 }),
        ("RST length", frame(3, 0, 1, &[0; 3]), Violation::FrameLength { kind: 3, length: 3 }),
        ("SETTINGS on 1", frame(4, 0, 1, &[]), Violation::StreamNumber { kind: 4, stream: 1 }),
        ("SETTINGS length", frame(4, 0, 0, &[0; 5]), Violation::FrameLength { kind: 4, length: 5 }),
        ("SETTINGS ack", frame(4, 1, 0, &[0; 6]), Violation::FrameLength { kind: 4, length: 6 }),
        ("push 2", frame(4, 0, 0, &[0, 2, 0, 0, 0, 2]), Violation::Setting { setting: 2, value: 2 }),
        ("window", frame(4, 0, 0, &[0, 4, 0x80, 0, 0, 0]), Violation::InitialWindow { value: 1 << 31 }),
        (
            "frame",
            frame(4, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff]),
            Violation::Setting { setting: 5, value: 16_383 },
        ),
        ("frame", frame(4, 0, 0, &[0, 5, 1, 0, 0, 0]), Violation::Setting { setting: 5, value: 1 << 24 }),
        ("push", push, Violation::Push),
        ("PING on 1", frame(6, 0, 1, &[0; 8]), Violation::StreamNumber { kind: 6, stream: 1 }),
        ("PING length", frame(6, 0, 0, &[0; 7]), Violation::FrameLength { kind: 6, length: 7 }),
        ("GOAWAY on 1", frame(7, 0, 1, &[0; 8]), Violation::StreamNumber { kind: 7, stream: 1 }),
        ("GOAWAY length", frame(7, 0, 0, &[0; 7]), Violation::FrameLength { kind: 7, length: 7 }),
        ("update of 0", frame(8, 0, 0, &[0x80, 0, 0, 0]), Violation::ZeroUpdate),
        ("update length", frame(8, 0, 0, &[0; 5]), Violation::FrameLength { kind: 8, length: 5 }),
        ("update on idle", frame(8, 0, 9, &[0, 0, 0, 1]), Violation::Idle { kind: 8, stream: 9 }),
        ("update overflow", frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), Violation::WindowOverflow),
    ];
    for (what, bytes, expected) in cases {
        for whole in [true, false] {
            let mut server = End::server();
            server.request(1);
            let chunk = if whole { bytes.len() } else { 1 };
            let result = bytes.chunks(chunk).try_for_each(|chunk| server.feed(chunk));
            assert_eq!(result, Err(expected), "{what}");
            let sent = server.sent();
            assert_eq!(sent.len(), 1, "{what}");
            assert_eq!(sent[0].1, [[0, 0, 0, 1], expected.code().0.to_be_bytes()].concat(), "{what}");
            assert_eq!(server.feed(b"more"), Err(expected));
            assert!(server.sent().is_empty());
            assert!(!expected.to_string().is_empty());
        }
    }
    let long = super::Header { length: (1 << 20) + 1, kind: 0, flags: 0, stream: 1 }.bytes();
    assert_eq!(End::server().feed(&long), Err(Violation::FrameLength { kind: 0, length: (1 << 20) + 1 }));
    let even = connect(2, false);
    assert_eq!(End::server().feed(&even), Err(Violation::StreamNumber { kind: 1, stream: 2 }));
    let mut client = End::client();
    let pushed = frame(4, 0, 0, &[0, 2, 0, 0, 0, 1]);
    assert_eq!(client.feed(&pushed), Err(Violation::Setting { setting: 2, value: 1 }));
    let mut client = End::client();
    assert_eq!(client.feed(&frame(1, 4, 1, &[0x88])), Err(Violation::Idle { kind: 1, stream: 1 }));
}

#[test]
fn streams_bear_their_own_mistakes() {
    let mut server = End::server();
    server.request(1);
    server.feed(&frame(8, 0, 1, &[0; 4])).unwrap();
    assert_eq!(server.take(), [Event::Reset { stream: StreamId(1), code: Code::PROTOCOL_ERROR }]);
    server.request(3);
    server.feed(&frame(8, 0, 3, &[0x7f, 0xff, 0xff, 0xff])).unwrap();
    assert_eq!(server.take(), [Event::Reset { stream: StreamId(3), code: Code::FLOW_CONTROL_ERROR }]);
    server.request(5);
    server.feed(&frame(2, 0, 5, &[0; 4])).unwrap();
    assert_eq!(server.take(), [Event::Reset { stream: StreamId(5), code: Code::FRAME_SIZE_ERROR }]);
    server.feed(&frame(2, 0, 9, &[0, 0, 0, 9, 1])).unwrap();
    server.feed(&frame(0xfe, 0xff, 0, &[7; 300])).unwrap();
    server.feed(&frame(0xfe, 0xff, 77, &[])).unwrap();
    assert_eq!(server.take(), []);
    server.request(7);
}

#[test]
fn the_start_must_be_right() {
    let now = std::time::Instant::now();
    let mut events = Vec::new();
    let mut server = Connection::server(&settings(), now);
    assert_eq!(server.receive(b"GET / HTTP/1.1\r\n\r\n", now, &mut events), Err(Violation::Preface));
    let mut server = Connection::server(&settings(), now);
    server.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n", now, &mut events).unwrap();
    assert_eq!(server.receive(b"\r\r", now, &mut events), Err(Violation::Preface));
    let mut client = Connection::client(&settings(), now);
    assert_eq!(
        client.receive(b"HTTP/1.1 400 Bad Request\r\n", now, &mut events),
        Err(Violation::FirstFrame { kind: 80 })
    );
    let mut client = Connection::client(&settings(), now);
    let ack = frame(4, 1, 0, &[]);
    assert_eq!(client.receive(&ack, now, &mut events), Err(Violation::FirstFrame { kind: 4 }));
    assert!(events.is_empty());
}

#[test]
fn a_finished_half_is_not_called_writable() {
    let mut client = End::client();
    let stream = client.tunnel();
    for length in [16_384, 16_384, 16_384, 16_383] {
        client.connection.data(stream, length, false);
    }
    assert_eq!(client.connection.capacity(stream), 0);
    client.connection.finish(stream);
    client.feed(&frame(8, 0, 0, &[0, 0, 0, 9])).unwrap();
    client.feed(&frame(8, 0, stream.0, &[0, 0, 0, 9])).unwrap();
    assert_eq!(client.take(), []);
}
