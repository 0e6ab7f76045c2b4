//! Bytes and endings between two plain sockets.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use monoio::task::JoinHandle;

use crate::shard::buffers::Buffers;
use crate::shard::closer::{CloseReason, Closer};
use crate::shard::ending::Ending;
use crate::shard::meter::Meter;
use crate::shard::splice::Splice;
use crate::shard::tests::fixture::{App, connected, meter, on_both_loops, random_bytes, until};

struct Ends {
    client: App,
    server: App,
    closer: Closer,
    meter: Rc<Meter>,
    ending: JoinHandle<Ending>,
}

fn spliced(client_buffer_bytes: Option<usize>, server_buffer_bytes: Option<usize>) -> Ends {
    let (client, inner) = connected(client_buffer_bytes);
    let (outer, server) = connected(server_buffer_bytes);
    let (closer, meter) = (Closer::default(), meter());
    let splice = Splice {
        client: inner,
        server: outer,
        meter: meter.clone(),
        buffers: Rc::<Buffers>::default(),
        closer: closer.clone(),
        clean: Cell::new(false),
    };
    let ending = monoio::spawn(splice.run());
    Ends { client: App(Rc::new(client)), server: App(Rc::new(server)), closer, meter, ending }
}

#[test]
fn megabytes_pass_both_ways() {
    on_both_loops(async || {
        let ends = spliced(None, None);
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let up = Rc::new(random_bytes(&mut random, 12_000_000));
        let down = Rc::new(random_bytes(&mut random, 5_000_000));
        for (app, bytes) in [(ends.client.clone(), up.clone()), (ends.server.clone(), down.clone())] {
            let mut random = random.fork();
            monoio::spawn(async move {
                app.send_in_pieces(&bytes, &mut random).await.unwrap();
                app.0.finish();
            });
        }
        let server = ends.server.clone();
        let reading = monoio::spawn(async move { server.read_to_end().await });
        assert!(ends.client.read_to_end().await.unwrap() == *down, "seed {seed}");
        assert!(reading.await.unwrap() == *up, "seed {seed}");
        assert_eq!(ends.ending.await, Ending::Finished);
        assert_eq!((ends.meter.to_server(), ends.meter.to_client()), (12_000_000, 5_000_000));
    });
}

#[test]
fn either_side_may_finish_first_and_still_read() {
    on_both_loops(async || {
        for client_first in [true, false] {
            let ends = spliced(None, None);
            let (first, second) =
                if client_first { (&ends.client, &ends.server) } else { (&ends.server, &ends.client) };
            first.send(b"question").await.unwrap();
            first.0.finish();
            assert_eq!(second.read_to_end().await.unwrap(), b"question");
            second.send(b"answer").await.unwrap();
            second.0.finish();
            assert_eq!(first.read_to_end().await.unwrap(), b"answer");
            assert_eq!(ends.ending.await, Ending::Finished);
        }
    });
}

#[test]
fn a_reset_arrives_as_a_reset() {
    on_both_loops(async || {
        for client_first in [true, false] {
            let ends = spliced(None, None);
            let (one, other) =
                if client_first { (&ends.client, &ends.server) } else { (&ends.server, &ends.client) };
            one.send(b"hello").await.unwrap();
            assert_eq!(other.read_exactly(5).await.unwrap(), b"hello");
            one.0.abort();
            assert!(other.is_reset().await);
            assert_eq!(ends.ending.await, Ending::Reset);
        }
    });
}

#[test]
fn what_the_reader_does_not_take_stays_with_the_sender() {
    on_both_loops(async || {
        let ends = spliced(Some(64 * 1024), Some(64 * 1024));
        let bytes = Rc::new(random_bytes(&mut fastrand::Rng::with_seed(5), 8 << 20));
        let (client, sent) = (ends.client.clone(), bytes.clone());
        let sender = monoio::spawn(async move {
            client.send(&sent).await.unwrap();
            client.0.finish();
        });
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, ends.meter.to_server()) != ends.meter.to_server() {
            monoio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(ends.meter.to_server() < 2 << 20, "{} bytes were taken", ends.meter.to_server());
        ends.server.send(b"the other way flows").await.unwrap();
        assert_eq!(ends.client.read_exactly(19).await.unwrap(), b"the other way flows");
        assert!(ends.server.read_to_end().await.unwrap() == *bytes);
        sender.await;
        ends.server.0.finish();
        assert_eq!(ends.ending.await, Ending::Finished);
    });
}

/// The client goes away while the server doesn't read: the server must hear of it.
#[test]
fn a_reset_is_seen_also_while_the_reader_is_full() {
    on_both_loops(async || {
        let ends = spliced(Some(32 * 1024), Some(32 * 1024));
        let (client, chunk) = (ends.client.clone(), vec![1; 1 << 20]);
        monoio::spawn(async move { while client.send(&chunk).await.is_ok() {} });
        until(|| ends.meter.to_server() > 32 * 1024).await;
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, ends.meter.to_server()) != ends.meter.to_server() {
            monoio::time::sleep(Duration::from_millis(20)).await;
        }
        ends.client.0.abort();
        let ticking = ends.closer.clone();
        monoio::spawn(async move {
            loop {
                monoio::time::sleep(Duration::from_millis(10)).await;
                ticking.look_again();
            }
        });
        assert!(ends.server.is_reset().await);
        assert_eq!(ends.ending.await, Ending::Reset);
    });
}

#[test]
fn a_close_from_outside_resets_both_and_a_drop_does_too() {
    on_both_loops(async || {
        let ends = spliced(None, None);
        ends.client.send(b"x").await.unwrap();
        assert_eq!(ends.server.read_exactly(1).await.unwrap(), b"x");
        ends.closer.close(CloseReason::PolicyChange);
        assert_eq!(ends.ending.await, Ending::Closed(CloseReason::PolicyChange));
        assert!(ends.client.is_reset().await && ends.server.is_reset().await);
    });
}

/// Client and server have both ended, so the kernel is done with the client's connection; but the server hasn't
/// read everything yet.
#[test]
fn bytes_behind_a_finished_connection_still_arrive() {
    on_both_loops(async || {
        let ends = spliced(None, Some(16 * 1024));
        let bytes = random_bytes(&mut fastrand::Rng::with_seed(6), 150_000);
        ends.client.send(&bytes).await.unwrap();
        ends.client.0.finish();
        ends.server.send(b"answer").await.unwrap();
        ends.server.0.finish();
        assert_eq!(ends.client.read_to_end().await.unwrap(), b"answer");
        for _ in 0..5 {
            monoio::time::sleep(Duration::from_millis(10)).await;
            ends.closer.look_again();
        }
        assert!(ends.server.read_to_end().await.unwrap() == bytes);
        assert_eq!(ends.ending.await, Ending::Finished);
    });
}
