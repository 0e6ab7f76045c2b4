//! What the end-to-end tests stand on: a mesh of two nodes in network namespaces (`ringway::demo` builds it),
//! real and odd programs inside its pods, and looks at what is left afterwards. Everything here may panic: a
//! test that can't be set up has failed, and says why. Root is needed; without it every test fails with a
//! message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test support: a panic is the report"
)]
#![allow(clippy::indexing_slicing, clippy::print_stderr, reason = "test support")]

pub mod baseline;
pub mod browser;
pub mod dials;
pub mod envoy;
pub mod forge;
pub mod frames;
pub mod hbone;
pub mod hbone_server;
pub mod hello;
pub mod http;
pub mod istio_world;
pub mod istioctl;
pub mod istiod;
pub mod lines;
pub mod metrics_page;
pub mod names;
pub mod neighbour;
pub mod sandwich;
pub mod seccomp;
pub mod serve;
pub mod sockets;
pub mod standin_world;
pub mod verdicts;
pub mod visits;
pub mod world;

use std::time::{Duration, Instant};

/// Waits until `done`, looking often; panics with `what` where it doesn't come true in time.
#[track_caller]
pub fn eventually(what: &str, within: Duration, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !done() {
        assert!(Instant::now() < until, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a future to its end on a runtime of its own.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Bytes that tell where they belong: position-dependent, different for each seed.
pub fn pattern(seed: u64, from: u64, into: &mut [u8]) {
    for (at, byte) in (from..).zip(into.iter_mut()) {
        let mixed = (at ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *byte = mixed.to_be_bytes()[0];
    }
}
