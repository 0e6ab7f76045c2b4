//! Any sequence of responses, breaks and reconnects against a simple control plane.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::control::xds::fuzz_deltas(data));
