//! Any bytes as baggage, forwarded and traceparent.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::hbone::fuzz_headers(data));
