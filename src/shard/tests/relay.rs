//! Bytes and endings through two relays and a tunnel between them.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::shard::closer::CloseReason;
use crate::shard::ending::Ending;
use crate::shard::tests::fixture::{App, End, Pair, on_both_loops, random_bytes, settings, until};

/// Kernel buffers of an application that is to feel back-pressure soon.
const SMALL_BUFFER: Option<usize> = Some(32 * 1024);

/// Sends and reads back both ways at once, in pieces of any size, each side ending on its own.
async fn exchange(near: App, far: App, lengths: (usize, usize), seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let up = Rc::new(random_bytes(&mut random, lengths.0));
    let down = Rc::new(random_bytes(&mut random, lengths.1));
    let mut senders = Vec::new();
    for (app, bytes) in [(near.clone(), up.clone()), (far.clone(), down.clone())] {
        let mut random = random.fork();
        senders.push(monoio::spawn(async move {
            app.send_in_pieces(&bytes, &mut random).await.unwrap();
            app.0.finish();
        }));
    }
    let reading = monoio::spawn(async move { far.read_to_end().await });
    let came_down = near.read_to_end().await.unwrap();
    let came_up = reading.await.unwrap();
    for sender in senders {
        sender.await;
    }
    assert!(came_up == *up, "seed {seed}: up, {} of {} bytes", came_up.len(), up.len());
    assert!(came_down == *down, "seed {seed}: down, {} of {} bytes", came_down.len(), down.len());
}

async fn assert_gone(pair: &Pair) {
    until(|| pair.client.streams() == 0 && pair.server.streams() == 0).await;
}

async fn assert_ends(near: End, far: End, ending: Ending) {
    assert_eq!((near.ending.await, far.ending.await), (Some(ending), Some(ending)));
}

#[test]
fn megabytes_pass_both_ways() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through().await;
        exchange(near.app.clone(), far.app.clone(), (9_000_000, 6_000_000), fastrand::u64(..)).await;
        assert_ends(near, far, Ending::Finished).await;
        assert_gone(&pair).await;
    });
}

#[test]
fn fifty_streams_of_any_size_pass_at_once() {
    on_both_loops(async || {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let pair = Pair::new().await;
        let mut all = Vec::new();
        for _ in 0..50 {
            let (near, far) = pair.through().await;
            let most = if random.bool() { 500 } else { 500_000 };
            let lengths = (random.usize(0..most), random.usize(0..most));
            all.push(monoio::spawn(async move {
                exchange(near.app.clone(), far.app.clone(), lengths, seed).await;
                assert_ends(near, far, Ending::Finished).await;
            }));
        }
        for one in all {
            one.await;
        }
        assert_gone(&pair).await;
    });
}

#[test]
fn either_side_may_finish_first_and_still_read() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        for near_first in [true, false] {
            let (near, far) = pair.through().await;
            let (first, second) = if near_first { (&near.app, &far.app) } else { (&far.app, &near.app) };
            first.send(b"question").await.unwrap();
            first.0.finish();
            assert_eq!(second.read_to_end().await.unwrap(), b"question");
            second.send(b"answer").await.unwrap();
            second.0.finish();
            assert_eq!(first.read_to_end().await.unwrap(), b"answer");
            assert_ends(near, far, Ending::Finished).await;
        }
        assert_gone(&pair).await;
    });
}

#[test]
fn a_reset_arrives_as_a_reset() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        for near_first in [true, false] {
            for after_finish in [false, true] {
                let (near, far) = pair.through().await;
                let (one, other) = if near_first { (&near.app, &far.app) } else { (&far.app, &near.app) };
                one.send(b"hello").await.unwrap();
                assert_eq!(other.read_exactly(5).await.unwrap(), b"hello");
                if after_finish {
                    other.0.finish();
                    assert!(one.read_to_end().await.unwrap().is_empty());
                }
                one.0.abort();
                assert!(other.is_reset().await, "near first: {near_first}, after a FIN: {after_finish}");
                assert_ends(near, far, Ending::Reset).await;
            }
        }
        assert_gone(&pair).await;
    });
}

#[test]
fn a_reset_right_behind_data_arrives_too() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through().await;
        near.app.send(&[7; 100_000]).await.unwrap();
        near.app.0.abort();
        assert!(far.app.is_reset().await);
        assert_ends(near, far, Ending::Reset).await;
        assert_gone(&pair).await;
    });
}

#[test]
fn a_slow_reader_holds_its_window_and_nobody_up() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through().await;
        let (quick_near, quick_far) = pair.through().await;
        let bytes = Rc::new(random_bytes(&mut fastrand::Rng::with_seed(1), 48 << 20));
        let (app, sent) = (near.app.clone(), bytes.clone());
        let sender = monoio::spawn(async move {
            app.send(&sent).await.unwrap();
            app.0.finish();
        });
        until(|| far.stream.waiting_bytes() > 0).await;
        let mut slowest = Duration::ZERO;
        for _ in 0..200 {
            let asked = Instant::now();
            quick_near.app.send(b"ping").await.unwrap();
            assert_eq!(quick_far.app.read_exactly(4).await.unwrap(), b"ping");
            quick_far.app.send(b"pong").await.unwrap();
            assert_eq!(quick_near.app.read_exactly(4).await.unwrap(), b"pong");
            slowest = slowest.max(asked.elapsed());
            let waiting = far.stream.waiting_bytes();
            assert!(waiting <= settings().stream_window_bytes as usize, "{waiting} bytes are kept");
        }
        assert!(slowest < Duration::from_secs(2), "a neighbour took {slowest:?}");
        assert!(far.app.read_to_end().await.unwrap() == *bytes);
        sender.await;
        far.app.0.finish();
        assert_ends(near, far, Ending::Finished).await;
    });
}

/// The end has come long before the application takes the last byte.
#[test]
fn an_end_behind_waiting_bytes_comes_after_them() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through_sized(None, SMALL_BUFFER).await;
        let bytes = random_bytes(&mut fastrand::Rng::with_seed(2), 1 << 20);
        near.app.send(&bytes).await.unwrap();
        near.app.0.finish();
        until(|| far.stream.waiting_bytes() > 0).await;
        assert!(far.app.read_to_end().await.unwrap() == bytes);
        far.app.0.finish();
        assert_ends(near, far, Ending::Finished).await;
    });
}

#[test]
fn many_busy_streams_share_a_tunnel() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let mut ends = Vec::new();
        for _ in 0..8 {
            let (near, far) = pair.through().await;
            let app = near.app.clone();
            monoio::spawn(async move {
                let chunk = vec![1; 256 * 1024];
                while app.send(&chunk).await.is_ok() {}
            });
            let app = far.app.clone();
            let taken = Rc::new(std::cell::Cell::new(0));
            let counted = taken.clone();
            monoio::spawn(async move {
                let mut buffer = vec![0; 256 * 1024];
                while let Ok(got @ 1..) = app.read(&mut buffer).await {
                    counted.set(counted.get() + got);
                }
            });
            ends.push((near, far, taken));
        }
        let total = || ends.iter().map(|(.., taken)| taken.get()).sum::<usize>();
        until(|| total() > 96 << 20).await;
        // Windows have grown by now.
        ends.iter().for_each(|(.., taken)| taken.set(0));
        until(|| total() > 96 << 20).await;
        let shares: Vec<_> = ends.iter().map(|(.., taken)| taken.get()).collect();
        let least = shares.iter().min().unwrap();
        assert!(least * 8 * 4 > total(), "unfair shares: {shares:?}");
        pair.gate.close();
        pair.gate.emptied().await;
        assert_gone(&pair).await;
    });
}

#[test]
fn a_connection_that_is_closed_from_outside_is_reset_on_both_sides() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through().await;
        far.closer.close(CloseReason::PolicyChange);
        assert!(near.app.is_reset().await && far.app.is_reset().await);
        assert_eq!(far.ending.await, Some(Ending::Closed(CloseReason::PolicyChange)));
        assert_eq!(near.ending.await, Some(Ending::Reset));
        assert_gone(&pair).await;
    });
}

/// Relays dropped in the middle of their work, full of waiting bytes, while the tunnel goes on.
#[test]
fn dropped_relays_reset_their_ends_and_leave_the_tunnel_whole() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let mut ends = Vec::new();
        for _ in 0..10 {
            let (near, far) = pair.through_sized(None, SMALL_BUFFER).await;
            near.app.send(&[1; 300_000]).await.unwrap();
            ends.push((near, far));
        }
        until(|| ends.iter().all(|(_, far)| far.stream.waiting_bytes() > 0)).await;
        pair.gate.close();
        pair.gate.emptied().await;
        for (near, far) in ends {
            assert!(near.app.is_reset().await && far.app.is_reset().await);
            assert_eq!((near.ending.await, far.ending.await), (None, None));
        }
        assert_gone(&pair).await;
        let (stream, late) = (pair.open(), pair.arrival().await);
        pair.server.respond(&late, 503, None, true);
        until(|| stream.take_answer().is_some_and(|answer| answer.status == 503)).await;
    });
}

/// The application goes away while the far one doesn't read: the far one must hear of it.
#[test]
fn a_reset_is_seen_also_while_the_stream_is_full() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through_sized(SMALL_BUFFER, SMALL_BUFFER).await;
        let (app, chunk) = (near.app.clone(), vec![1; 1 << 20]);
        monoio::spawn(async move { while app.send(&chunk).await.is_ok() {} });
        until(|| far.stream.waiting_bytes() > 0).await;
        // Let it fill up until nothing moves.
        let mut before = usize::MAX;
        while std::mem::replace(&mut before, far.stream.waiting_bytes()) != far.stream.waiting_bytes() {
            monoio::time::sleep(Duration::from_millis(50)).await;
        }
        near.app.0.abort();
        let ticking = near.closer.clone();
        monoio::spawn(async move {
            loop {
                monoio::time::sleep(Duration::from_millis(10)).await;
                ticking.look_again();
            }
        });
        assert!(far.app.is_reset().await);
        assert_ends(near, far, Ending::Reset).await;
    });
}

/// Near and far have both ended, so the kernel is done with the near connection; but the far one hasn't read
/// everything yet.
#[test]
fn bytes_behind_a_finished_connection_still_arrive() {
    on_both_loops(async || {
        let pair = Pair::new().await;
        let (near, far) = pair.through_sized(None, SMALL_BUFFER).await;
        let bytes = random_bytes(&mut fastrand::Rng::with_seed(7), 450_000);
        near.app.send(&bytes).await.unwrap();
        near.app.0.finish();
        far.app.send(b"answer").await.unwrap();
        far.app.0.finish();
        assert_eq!(near.app.read_to_end().await.unwrap(), b"answer");
        for _ in 0..5 {
            monoio::time::sleep(Duration::from_millis(10)).await;
            near.closer.look_again();
            far.closer.look_again();
        }
        assert!(far.app.read_to_end().await.unwrap() == bytes);
        assert_ends(near, far, Ending::Finished).await;
    });
}
