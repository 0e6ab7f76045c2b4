//! What a connection costs while nothing happens: the futures that live as long as it does.

use std::future::Future;

use crate::path::{connect, inbound, outbound, passthrough, socks5};
use crate::shard::relay::StreamRelay;
use crate::shard::splice::Splice;

/// What one idle connection may hold as its tasks, in bytes.
const IDLE_BYTES: usize = 1_024;

fn one<A, F: Future>(_: impl Fn(A) -> F) -> usize {
    size_of::<F>()
}

fn two<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
    size_of::<F>()
}

fn four<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn a_waiting_connection_is_small() {
    let outbound = two(outbound::serve);
    let sizes = [
        ("outbound, tunnelled", outbound + one(StreamRelay::run)),
        ("outbound, plain", outbound + one(Splice::run)),
        ("by SOCKS5, tunnelled", two(socks5::serve) + one(StreamRelay::run)),
        ("by CONNECT, tunnelled", two(connect::serve) + one(StreamRelay::run)),
        ("passthrough", two(passthrough::serve)),
        ("inbound tunnel", two(inbound::serve)),
        ("inbound stream", four(inbound::answer)),
    ];
    let too_large: Vec<_> = sizes.iter().filter(|(_, bytes)| *bytes > IDLE_BYTES).collect();
    assert!(too_large.is_empty(), "more than {IDLE_BYTES} bytes: {too_large:?} of {sizes:?}");
    println!("{sizes:?}");
}
