//! Any bytes as the stream of a control plane.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::control::xds::fuzz_stream(data));
