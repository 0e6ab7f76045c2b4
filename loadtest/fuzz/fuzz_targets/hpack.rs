//! Any bytes as HPACK header blocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::h2::fuzz_hpack(data));
