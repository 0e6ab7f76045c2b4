//! Any bytes as the head of a request to the HTTP CONNECT listener.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::http1::fuzz_http1(data));
