//! Any bytes as the authority of a CONNECT.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::hbone::fuzz_authority(data));
