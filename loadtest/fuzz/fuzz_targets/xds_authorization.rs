//! Any bytes as an authorization policy.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::xds::fuzz_authorization(data));
