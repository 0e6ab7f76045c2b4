//! Any bytes as a file of revocation lists.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::tls::revocation::fuzz_revocation_lists(data));
