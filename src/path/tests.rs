//! What a connection costs while nothing happens: the futures that live as long as it does.

use std::future::Future;

use crate::path::{connect, inbound, outbound, passthrough, socks5};
use crate::shard::relay::StreamRelay;
use crate::shard::splice::Splice;

/// What monoio's task and the gate put around each: with them it fits a size class of the allocator.
const AROUND_BYTES: usize = 64;

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
    let relay = one(StreamRelay::run);
    let sizes = [
        ("outbound, tunnelled", two(outbound::serve), 384),
        ("by SOCKS5, tunnelled", two(socks5::serve), 384),
        ("by CONNECT, tunnelled", two(connect::serve), 384),
        ("plain, beside the above", one(Splice::run), 640),
        ("passthrough", two(passthrough::serve), 896),
        ("inbound tunnel", two(inbound::serve), 768),
        ("inbound stream", four(inbound::answer), 320),
    ];
    let too_large: Vec<_> = sizes.iter().filter(|(_, bytes, most)| bytes + AROUND_BYTES > *most).collect();
    assert!(too_large.is_empty(), "more than it may be: {too_large:?} of {sizes:?}; a relay has {relay}");
    println!("{sizes:?}; a relay has {relay}");
}
