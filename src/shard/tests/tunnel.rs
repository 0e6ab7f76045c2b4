//! A tunnel's own ends, and streams at odd moments of its life.

use crate::shard::buffers::{HEADROOM_BYTES, SLOT_BYTES};
use crate::shard::ending::{Ending, Fault};
use crate::shard::meter::Way;
use crate::shard::pool::Carries;
use crate::shard::stream::Cut;
use crate::shard::tests::fixture::{Pair, head, on_both_loops, random_bytes, settings, turn, until};
use crate::shard::tunnel::TunnelEnd;
use crate::sys::io;
use crate::wire::h2::{CannotOpen, Code, Settings};
use std::os::fd::AsFd;

const SMALL_BUFFER: Option<usize> = Some(32 * 1024);

#[test]
fn an_abort_resets_the_streams_on_both_sides() {
    on_both_loops(async || {
        for by_client in [true, false] {
            let pair = Pair::new().await;
            let ends = [pair.through().await, pair.through().await];
            if by_client {
                pair.client.abort()
            } else {
                pair.server.abort()
            }
            for (near, far) in ends {
                assert!(near.app.is_reset().await && far.app.is_reset().await);
                assert_eq!((near.ending.await, far.ending.await), (Some(Ending::Reset), Some(Ending::Reset)));
            }
            let (aborted, other) = if by_client {
                (pair.client_end, pair.server_end)
            } else {
                (pair.server_end, pair.client_end)
            };
            assert_eq!((aborted.await, other.await), (TunnelEnd::Finished, TunnelEnd::PeerClosed));
        }
    });
}

#[test]
fn a_dead_wire_resets_the_streams() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through().await;
        io::reset(pair.wire.as_fd()).unwrap();
        assert!(near.app.is_reset().await && far.app.is_reset().await);
        assert_eq!((near.ending.await, far.ending.await), (Some(Ending::Reset), Some(Ending::Reset)));
        assert!(matches!(pair.client_end.await, TunnelEnd::Io { .. }));
        assert!(pair.client.is_finished() && !pair.client.has_room());
    });
}

/// What the peer's codes mean for a connection (reference section 11.3).
#[test]
fn a_reset_is_a_fault_by_its_code_and_an_early_one_is_never_an_end() {
    on_both_loops(async || {
        for code in [Code::NO_ERROR, Code::CANCEL, Code::STREAM_CLOSED] {
            let pair = Pair::new().await;
            let (near, far) = pair.through().await;
            pair.server.reset(&far.stream, code);
            assert!(near.app.is_reset().await, "{code}");
            assert_eq!(near.ending.await, Some(Ending::Reset), "{code}");
        }
        for code in [Code::INTERNAL_ERROR, Code::CONNECT_ERROR, Code::REFUSED_STREAM] {
            let pair = Pair::new().await;
            let (near, far) = pair.through().await;
            pair.server.reset(&far.stream, code);
            assert!(near.app.is_reset().await, "{code}");
            assert_eq!(near.ending.await, Some(Ending::Failed(Way::ToClient, Fault::Stream(code))));
        }
    });
}

/// A send may tell before the read does that the peer is gone. What the peer said before that arrives.
#[test]
fn what_came_before_a_dead_wire_is_handed_over() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through().await;
        // As the product's sockets: nothing of it waits for an acknowledgement.
        socket2::SockRef::from(&pair.wire).set_tcp_nodelay(true).unwrap();
        let mut scratch = vec![7; SLOT_BYTES];
        let answer = scratch[HEADROOM_BYTES..HEADROOM_BYTES + 5_000].to_vec();
        pair.server.send_slots(&far.stream, &mut scratch, answer.len());
        io::reset(pair.wire.as_fd()).unwrap();
        pair.client.send_slots(&near.stream, &mut scratch, 5_000);
        assert!(near.app.read_exactly(answer.len()).await.unwrap() == answer);
        assert!(near.app.is_reset().await);
        assert!(matches!(pair.client_end.await, TunnelEnd::Io { .. }));
    });
}

/// Whoever got a place just before the end must be told at once: nobody drives the tunnel any more.
#[test]
fn nothing_opens_on_a_tunnel_that_has_ended() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        io::reset(pair.wire.as_fd()).unwrap();
        pair.client_end.await;
        assert_eq!(pair.client.open(&head()).err(), Some(CannotOpen::Draining));
        assert_eq!(pair.client.streams(), 0);
    });
}

#[test]
fn a_draining_tunnel_serves_what_is_open_and_ends() {
    on_both_loops(async || {
        for by_client in [true, false] {
            let pair = Pair::new().await;
            let (near, far) = pair.through().await;
            if by_client {
                pair.client.drain()
            } else {
                pair.server.drain()
            }
            until(|| pair.client.is_finished() && pair.server.is_finished()).await;
            assert_eq!(pair.client.open(&head()).err(), Some(CannotOpen::Draining));
            near.app.send(b"still here").await.unwrap();
            assert_eq!(far.app.read_exactly(10).await.unwrap(), b"still here");
            far.app.0.finish();
            near.app.0.finish();
            assert!(near.app.read_to_end().await.unwrap().is_empty());
            assert!(far.app.read_to_end().await.unwrap().is_empty());
            assert_eq!(
                (near.ending.await, far.ending.await),
                (Some(Ending::Finished), Some(Ending::Finished))
            );
            for end in [pair.client_end.await, pair.server_end.await] {
                assert!(matches!(end, TunnelEnd::Finished | TunnelEnd::PeerClosed), "{end}");
            }
        }
    });
}

/// A CONNECT that crosses the server's GOAWAY on the wire is served, also where nothing else is open.
#[test]
fn a_stream_that_crosses_the_goaway_is_served() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        turn().await;
        pair.server.drain();
        let stream = pair.open();
        let far = pair.relay_far(pair.arrival().await, None);
        let near = pair.relay_near(stream, None);
        near.app.send(b"late").await.unwrap();
        assert_eq!(far.app.read_exactly(4).await.unwrap(), b"late");
        near.app.0.finish();
        far.app.0.finish();
        assert_eq!((near.ending.await, far.ending.await), (Some(Ending::Finished), Some(Ending::Finished)));
        pair.server_end.await;
    });
}

/// The server is done and closes; the client still holds what its application hasn't taken.
#[test]
fn the_end_of_a_tunnel_costs_no_byte_of_a_finished_stream() {
    on_both_loops(async || {
        // Windows that let everything into the client at once.
        let wide = Settings { start_window_bytes: settings().stream_window_bytes, ..settings() };
        let pair = Box::pin(Pair::with(&wide, &wide)).await;
        let (near, far) = pair.through_sized(SMALL_BUFFER, None).await;
        let bytes = random_bytes(&mut fastrand::Rng::with_seed(3), 2 << 20);
        near.app.0.finish();
        assert!(far.app.read_to_end().await.unwrap().is_empty());
        far.app.send(&bytes).await.unwrap();
        far.app.0.finish();
        assert_eq!(far.ending.await, Some(Ending::Finished));
        pair.server.drain();
        pair.server_end.await;
        pair.client_end.await;
        assert!(near.stream.waiting_bytes() > 0, "this test needs a slow application");
        assert!(near.app.read_to_end().await.unwrap() == bytes);
        assert_eq!(near.ending.await, Some(Ending::Finished));
    });
}

#[test]
fn a_stream_given_up_before_its_answer_is_reset() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let given_up = pair.open();
        pair.client.release(&given_up);
        let early = pair.open();
        let (first, second) = (pair.arrival().await, pair.arrival().await);
        until(|| first.cut() == Some(Cut::Reset(Code::CANCEL))).await;
        let gone = pair.relay_far(first, None);
        assert!(gone.app.is_reset().await);
        assert_eq!(gone.ending.await, Some(Ending::Reset));
        pair.client.release(&early);
        until(|| second.cut() == Some(Cut::Reset(Code::CANCEL))).await;
        pair.server.release(&second);
        assert_eq!((pair.client.streams(), pair.server.streams()), (0, 0));
        let (near, far) = pair.through().await;
        near.app.send(b"on").await.unwrap();
        assert_eq!(far.app.read_exactly(2).await.unwrap(), b"on");
    });
}

#[test]
fn what_came_before_the_application_was_there_is_handed_over() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let stream = pair.open();
        pair.client.send_small(&stream, b"early");
        pair.client.finish(&stream);
        let arrived = pair.arrival().await;
        until(|| arrived.waiting_bytes() == 5).await;
        turn().await;
        let far = pair.relay_far(arrived, None);
        assert_eq!(far.app.read_to_end().await.unwrap(), b"early");
        far.app.0.finish();
        assert_eq!(far.ending.await, Some(Ending::Finished));
        pair.client.release(&stream);
    });
}

#[test]
fn data_and_a_reset_before_the_application_was_there_end_in_a_reset() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let stream = pair.open();
        pair.client.send_small(&stream, b"early");
        pair.client.reset(&stream, Code::INTERNAL_ERROR);
        let arrived = pair.arrival().await;
        until(|| arrived.cut().is_some()).await;
        let far = pair.relay_far(arrived, None);
        assert!(far.app.is_reset().await);
        let fault = Fault::Stream(Code::INTERNAL_ERROR);
        assert_eq!(far.ending.await, Some(Ending::Failed(Way::ToServer, fault)));
        pair.client.release(&stream);
    });
}

#[test]
fn a_stream_that_lost_its_tunnel_is_told_from_one_that_was_reset() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (reset, lost) = (pair.open(), pair.open());
        pair.server.reset(&*pair.arrival().await, Code::INTERNAL_ERROR);
        until(|| reset.cut().is_some()).await;
        assert_eq!(lost.cut(), None);
        pair.server.abort();
        until(|| lost.cut().is_some()).await;
        assert_eq!(reset.cut(), Some(Cut::Reset(Code::INTERNAL_ERROR)));
        assert!(!Cut::Reset(Code::INTERNAL_ERROR).may_try_again());
        assert!(lost.cut() == Some(Cut::Lost) && Cut::Lost.may_try_again());
        assert!(Cut::Reset(Code::REFUSED_STREAM).may_try_again());
        pair.client.release(&reset);
        pair.client.release(&lost);
    });
}

/// RFC 9113 section 8.1: the answer is whole and the rest of the request isn't wanted.
#[test]
fn a_reset_without_an_error_costs_no_byte_of_the_answer() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let stream = pair.open();
        let arrived = pair.arrival().await;
        pair.server.respond(&arrived, 200, None, false);
        until(|| stream.take_answer().is_some()).await;
        let near = pair.relay_near(stream, SMALL_BUFFER);
        let bytes = random_bytes(&mut fastrand::Rng::with_seed(4), 200_000);
        let mut left = &*bytes;
        while !left.is_empty() {
            let room = pair.server.capacity(&arrived).min(16_000).min(left.len());
            let (piece, rest) = left.split_at(room);
            if room > 0 {
                pair.server.send_small(&arrived, piece);
            }
            left = rest;
            turn().await;
        }
        pair.server.finish(&arrived);
        pair.server.reset(&arrived, Code::NO_ERROR);
        until(|| near.stream.cut() == Some(Cut::Reset(Code::NO_ERROR))).await;
        assert!(near.app.read_to_end().await.unwrap() == bytes);
        assert_eq!(near.ending.await, Some(Ending::Finished));
        pair.server.release(&arrived);
    });
}

/// A peer that answers with fewer streams than asked for: the pool reads the number from the tunnel.
#[test]
fn the_peers_number_of_streams_is_known_once_it_was_told() {
    on_both_loops(async || {
        let few = Settings { max_streams: 3, ..settings() };
        let pair = Box::pin(Pair::with(&settings(), &few)).await;
        until(|| pair.client.most_streams() == 3).await;
        let streams: Vec<_> = (0..3).map(|_| pair.open()).collect();
        assert!(!pair.client.has_room());
        assert_eq!(pair.client.open(&head()).err(), Some(CannotOpen::Full { limit: 3 }));
        pair.client.release(&streams[0]);
        assert!(pair.client.has_room());
    });
}
