//! Any bytes as HTTP/2 frames, either role.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::h2::fuzz_frames(data));
