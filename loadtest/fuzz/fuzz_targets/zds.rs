//! Any bytes as a datagram of the CNI agent.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::zds::fuzz_zds(data));
