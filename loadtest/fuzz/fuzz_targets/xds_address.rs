//! Any bytes as a workload or a service.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringway::wire::xds::fuzz_address(data));
