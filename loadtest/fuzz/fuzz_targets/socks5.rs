//! Any bytes as the messages of a SOCKS5 client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::socks5::fuzz_socks5(data));
