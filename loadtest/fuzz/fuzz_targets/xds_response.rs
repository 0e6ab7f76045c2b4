//! Any bytes as a delta discovery response.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::xds::fuzz_response(data));
