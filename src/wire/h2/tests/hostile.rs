//! Floods of frames that are each allowed: every bound ends the connection with ENHANCE_YOUR_CALM, and a peer
//! just below it is left alone.

use super::super::{Code, Connection, Event, Settings, StreamId, Violation};
use super::{End, HEAD, block, connect, frame, settings};
use crate::base::limits;

/// Feeds the same again and again, flushing in between; gives the violation and how often it took.
fn flood(end: &mut End, most: u32, mut make: impl FnMut(u32) -> Vec<u8>) -> Option<(Violation, u32)> {
    for turn in 0..most {
        if let Err(violation) = end.feed(&make(turn)) {
            let (header, payload) = end.sent().pop().unwrap();
            assert_eq!((header.kind, &payload[4..]), (7, &[0, 0, 0, 11][..]));
            assert_eq!(violation.code(), Code::ENHANCE_YOUR_CALM);
            return Some((violation, turn));
        }
        end.connection.output().clear();
    }
    None
}

#[test]
fn a_header_block_has_an_end() {
    let limit = limits::HEADER_BLOCK_BYTES;
    // The limit in one frame is the most; one byte more is not even read.
    let mut server = End::server();
    let length = u32::try_from(limit + 262).unwrap();
    let header = super::Header { length, kind: 1, flags: 4, stream: 1 }.bytes();
    assert_eq!(server.feed(&header), Err(Violation::HeaderBlock { limit }));
    // By CONTINUATION.
    let mut server = End::server();
    server.feed(&frame(1, 0, 1, &[0x82; 32_768])).unwrap();
    server.feed(&frame(9, 0, 1, &[0x82; 32_768])).unwrap();
    assert_eq!(server.feed(&frame(9, 4, 1, &[0x82; 1])), Err(Violation::HeaderBlock { limit }));
    // Padding is no way around it.
    let mut server = End::server();
    server.feed(&[0x82; 0]).unwrap();
    let padded = [&[0][..], &[0x82; 65_536 + 10]].concat();
    assert_eq!(server.feed(&frame(1, 12, 1, &padded)), Err(Violation::HeaderBlock { limit }));
}

#[test]
fn continuations_of_nothing_are_counted() {
    let mut server = End::server();
    server.feed(&frame(1, 0, 1, &[])).unwrap();
    let limit = limits::CONTINUATIONS_A_BLOCK;
    let end = flood(&mut server, limit * 2, |_| frame(9, 0, 1, &[]));
    assert_eq!(end, Some((Violation::Continuations { limit }, limit)));
}

#[test]
fn opening_and_resetting_is_counted_and_answered_streams_get_more() {
    let limit = limits::UNANSWERED_RESETS_A_SECOND;
    let both = |turn| [connect(turn * 2 + 1, false), frame(3, 0, turn * 2 + 1, &[0, 0, 0, 8])].concat();
    let end = flood(&mut End::server(), limit * 2, both);
    assert_eq!(end, Some((Violation::UnansweredResets { limit }, limit)));
    // The same number, spread over time.
    let mut server = End::server();
    for turn in 0..limit * 3 {
        server.feed(&both(turn)).unwrap();
        server.later(1_000 / u64::from(limit) + 1);
    }
    let limit = limits::RESETS_A_SECOND;
    let mut server = End::server();
    let mut result = Ok(());
    let mut turn = 0;
    while result.is_ok() && turn < limit * 2 {
        server.request(turn * 2 + 1);
        server.connection.respond(StreamId(turn * 2 + 1), 200, None, false);
        result = server.feed(&frame(3, 0, turn * 2 + 1, &[0, 0, 0, 8]));
        server.take();
        turn += 1;
    }
    assert_eq!((result, turn), (Err(Violation::Resets { limit }), limit + 1));
    assert_eq!(server.connection.active_streams(), 0);
}

#[test]
fn a_server_may_reset_all_its_clients_streams() {
    let mut client = End::client();
    for _ in 0..limits::RESETS_A_SECOND + 10 {
        let stream = client.connection.open(&HEAD).unwrap();
        client.feed(&frame(3, 0, stream.0, &[0, 0, 0, 7])).unwrap();
    }
}

#[test]
fn refused_and_malformed_streams_are_counted() {
    let limit = limits::STREAM_ERRORS_A_SECOND;
    let bad = block(&[("a", "b")]);
    let end = flood(&mut End::server(), limit * 2, |turn| frame(1, 5, turn * 2 + 1, &bad));
    assert_eq!(end, Some((Violation::StreamErrors { limit }, limit)));
    let mut server = End::server_with(&Settings { max_streams: 0, ..settings() });
    let end = flood(&mut server, limit * 2, |turn| connect(turn * 2 + 1, false));
    assert_eq!(end, Some((Violation::StreamErrors { limit }, limit)));
}

#[test]
fn requests_that_are_wrong_by_themselves_are_counted_and_others_are_not() {
    let limit = limits::STREAM_ERRORS_A_SECOND;
    for (status, allowed) in [(400, limit), (401, limit * 3), (503, limit * 3)] {
        let mut server = End::server();
        let mut refused = 0;
        while refused < limit * 3 {
            let stream = refused * 2 + 1;
            server.request(stream);
            let outcome = server.connection.refuse(StreamId(stream), status);
            // The answer, and that nothing more is wanted.
            assert_eq!(server.sent_kinds().get(..2), Some(&[1, 3][..]));
            if outcome.is_err() {
                assert_eq!(outcome, Err(Violation::StreamErrors { limit }));
                break;
            }
            refused += 1;
        }
        assert_eq!(refused, allowed, "{status}");
        assert_eq!(server.feed(&[]).is_err(), status == 400);
    }
}

#[test]
fn a_header_block_has_its_time() {
    let limit_ms = limits::HEADER_BLOCK_DEADLINE_MS;
    let begun = [frame(1, 0, 1, &[])[..].to_vec(), connect(1, false)[..20].to_vec()];
    for (turn, begun) in begun.into_iter().enumerate() {
        let mut server = End::server();
        server.feed(&begun).unwrap();
        server.later(limit_ms / 2);
        // Something comes all the time.
        server
            .feed(&if turn == 0 { frame(9, 0, 1, &[]) } else { connect(1, false)[20..22].to_vec() })
            .unwrap();
        server.later(limit_ms / 2);
        server.connection.tick(server.now).unwrap();
        server.later(1);
        assert_eq!(server.connection.tick(server.now), Err(Violation::SlowHeaders { limit_ms }));
        assert_eq!(server.sent().pop().unwrap().1[4..], [0, 0, 0, 11]);
        assert!(server.feed(&[0]).is_err());
    }
    // One that is whole in time has all of it again for the next.
    let mut server = End::server();
    for stream in [1, 3, 5] {
        server.feed(&connect(stream, false)[..12]).unwrap();
        server.later(limit_ms * 2 / 3);
        server.connection.tick(server.now).unwrap();
        server.feed(&connect(stream, false)[12..]).unwrap();
    }
}

#[test]
fn a_peer_that_does_not_answer_the_goodbye_opens_nothing_more_after_a_while() {
    let mut server = End::server();
    server.connection.goaway();
    server.later(limits::PING_ANSWER_DEADLINE_MS);
    server.connection.tick(server.now).unwrap();
    assert!(server.connection.takes_late_streams());
    server.request(1);
    server.later(1);
    server.connection.tick(server.now).unwrap();
    assert!(!server.connection.takes_late_streams());
    server.feed(&connect(3, false)).unwrap();
    assert_eq!((server.take(), server.connection.active_streams()), (vec![], 1));
}

#[test]
fn frames_without_a_purpose_are_counted_by_the_second() {
    let limit = limits::OVERHEAD_FRAMES_A_SECOND;
    let floods = [
        frame(6, 0, 0, &[0; 8]),
        frame(6, 1, 0, &[0; 8]),
        frame(4, 0, 0, &[]),
        frame(4, 1, 0, &[]),
        frame(2, 0, 5, &[0; 5]),
        frame(0xbe, 0, 0, &[0; 3]),
        frame(7, 0, 0, &[0; 8]),
    ];
    for bytes in floods {
        let mut server = End::server();
        let (violation, turns) = flood(&mut server, limit * 2, |_| bytes.clone()).unwrap();
        assert_eq!(violation, Violation::Overhead { limit });
        assert!((limit - 2..=limit).contains(&turns), "{turns}");
        server = End::server();
        for _ in 0..limit * 2 {
            server.feed(&bytes).unwrap();
            server.connection.output().clear();
            server.events.clear();
            server.later(1);
        }
    }
}

#[test]
fn answers_to_a_peer_that_does_not_read_stay_bounded() {
    for bytes in [frame(6, 0, 0, &[0; 8]), frame(4, 0, 0, &[])] {
        let mut server = End::server();
        let mut result = Ok(());
        let mut largest = 0;
        for _ in 0..limits::REPLIES_WAITING_BYTES {
            result = server.feed(&bytes);
            largest = server.connection.output().len().max(largest);
            if result.is_err() {
                break;
            }
        }
        assert_eq!(result, Err(Violation::Replies { limit: limits::REPLIES_WAITING_BYTES }));
        assert!(largest <= limits::REPLIES_WAITING_BYTES + 17 + 9);
    }
    // What waits because of us does not count against the peer.
    let mut client = End::client();
    let long = "x".repeat(1_000);
    for _ in 0..100 {
        client.connection.open(&super::super::ConnectHead { baggage: Some(&long), ..HEAD }).unwrap();
    }
    client.feed(&frame(6, 0, 0, &[0; 8])).unwrap();
}

#[test]
fn empty_data_in_a_row_is_counted() {
    let limit = limits::EMPTY_DATA_FRAMES_IN_A_ROW;
    let mut server = End::server();
    server.request(1);
    let end = flood(&mut server, limit * 2, |_| frame(0, 0, 1, &[]));
    assert_eq!(end, Some((Violation::EmptyData { limit }, limit)));
    let mut server = End::server();
    server.request(1);
    for turn in 0..limit * 10 {
        let payload: &[u8] = if turn % limit == 0 { b"x" } else { b"" };
        server.feed(&frame(0, 0, 1, payload)).unwrap();
    }
}

#[test]
fn window_updates_must_be_explained_by_what_was_sent() {
    let mut client = End::client();
    let stream = client.tunnel();
    let update = frame(8, 0, stream.0, &[0, 0, 0, 1]);
    let (violation, turns) =
        flood(&mut client, limits::WINDOW_UPDATES_AT_START * 2, |_| update.clone()).unwrap();
    assert_eq!(violation, Violation::WindowUpdates);
    assert!(turns >= limits::WINDOW_UPDATES_AT_START);
    // A peer that tells every 4 KiB on both levels is fine for as long as it likes.
    let mut client = End::client();
    let stream = client.tunnel();
    for _ in 0..20_000 {
        assert!(client.connection.capacity(stream) >= 16_384);
        client.connection.data(stream, 16_384, false);
        for _ in 0..4 {
            client.feed(&frame(8, 0, stream.0, &4_096_u32.to_be_bytes())).unwrap();
            client.feed(&frame(8, 0, 0, &4_096_u32.to_be_bytes())).unwrap();
        }
    }
}

#[test]
fn late_frames_of_a_reset_stream_are_forgiven_for_long() {
    let mut server = End::server();
    let most = u32::try_from(limits::RESETS_REMEMBERED).unwrap() * 3;
    for turn in 0..most {
        server.request(turn * 2 + 1);
        server.connection.reset(StreamId(turn * 2 + 1), Code::CANCEL);
        server.connection.output().clear();
        server.later(5);
    }
    for turn in 0..most {
        server.feed(&frame(0, 0, turn * 2 + 1, &[0; 100])).unwrap();
        server.later(1);
    }
    assert_eq!(server.take(), []);
}

/// As many as were on their way, all within a moment; empty ones are a flood all the same.
#[test]
fn late_payload_of_a_reset_stream_is_no_flood() {
    let limit = limits::OVERHEAD_FRAMES_A_SECOND;
    for (payload, most) in [(&[0; 100][..], 4 * limit), (&[], 2 * limit)] {
        let mut server = End::server();
        server.request(1);
        server.connection.reset(StreamId(1), Code::CANCEL);
        let end = flood(&mut server, most, |_| frame(0, 0, 1, payload));
        assert_eq!(end.is_some(), payload.is_empty(), "{end:?}");
    }
}

#[test]
fn a_list_too_large_costs_its_stream_and_little_time() {
    let small = Settings { header_list_bytes: 1_000, ..settings() };
    let mut server = End::server_with(&small);
    // The server's table is 0 after the acknowledgement, so the static table has to serve.
    let fields = [&block(&[(":method", "CONNECT")])[..], &[0x80 | 16; 2_000]].concat();
    server.feed(&frame(1, 4, 1, &fields)).unwrap();
    assert_eq!(server.take(), []);
    assert_eq!(server.sent_resets(), [(1, 11)]);
    server.request(3);
    // Before it, a block may refer to one large field thousands of times.
    let now = std::time::Instant::now();
    let mut server = End { connection: Connection::server(&settings(), now), now, events: Vec::new() };
    server.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    server.feed(&frame(4, 0, 0, &[])).unwrap();
    let mut fields = vec![0x40, 1, b'a', 0x7f, 0x81, 0x1e];
    fields.extend_from_slice(&[b'v'; 3_968]);
    fields.extend_from_slice(&[0x80 | 62; 12_000]);
    server.feed(&frame(1, 4, 1, &fields)).unwrap();
    assert_eq!(server.sent_resets(), [(1, 11)]);
}

#[test]
fn lists_too_large_are_counted() {
    let limit = limits::LARGE_LISTS_A_SECOND;
    let named = [0x80 | 16; 16_000];
    let end = flood(&mut End::server(), limit * 2, |turn| frame(1, 4, turn * 2 + 1, &named));
    assert_eq!(end, Some((Violation::LargeLists { limit }, limit)));
}

#[test]
fn corrupt_blocks_end_the_connection() {
    for bad in [&[0x80_u8][..], &[0x80 | 62], &[0x00, 0x81, 0xff, 0], &[0x82, 0x20], &[0x21], &[0x40]] {
        let mut server = End::server();
        let result = server.feed(&frame(1, 5, 1, bad));
        assert!(matches!(result, Err(Violation::Compression(_))), "{bad:02x?}: {result:?}");
        assert_eq!(server.sent().pop().unwrap().1[4..], [0, 0, 0, 9]);
    }
}

#[test]
fn a_closed_connection_leaves_nothing_behind() {
    let mut server = End::server();
    server.feed(&frame(1, 0, 1, &[0x82; 8_000])).unwrap();
    server.feed(&frame(9, 0, 1, &[0x82; 8_000])[..4_000]).unwrap();
    assert!(server.connection.partial.len() > 3_000);
    server.feed(&[0x82; 4_009]).unwrap();
    assert!(server.feed(&frame(6, 0, 0, &[0; 8])).is_err());
    assert!(server.connection.block.is_none());
    assert_eq!(server.connection.partial.capacity(), 0);
    assert!(!server.take().iter().any(|event| matches!(event, Event::Request { .. })));
}
