//! Any bytes as a DNS query and as the reply to one.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::dns::fuzz_dns(data));
