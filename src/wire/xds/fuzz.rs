//! Entry points for the fuzz targets under loadtest/fuzz; the same run on spoilt messages as a short test.

use bytes::Bytes;
use prost::Message as _;

use super::{Memory, Refusal, Response, address, authorization};
use crate::base::text::Interner;
use crate::wire::pb;

/// Any bytes as a resource of type Address: read from memory, it is the same, and what prost can read is decided on.
#[doc(hidden)]
pub fn fuzz_address(data: &[u8]) {
    let mut memory = Memory::default();
    let once = address(data, &mut memory);
    assert!(once == address(data, &mut memory), "what is remembered reads differently");
    let unreadable = matches!(once, Err(Refusal::Protobuf(_) | Refusal::Malformed(_)));
    assert!(!unreadable || pb::workload::Address::decode(data).is_err(), "a good message is refused");
}

/// Any bytes as a policy: what prost can't read is refused, and what can't be understood is told.
#[doc(hidden)]
pub fn fuzz_authorization(data: &[u8]) {
    let once = authorization(data, &mut Interner::default());
    assert!(once == authorization(data, &mut Interner::default()), "two readings differ");
    if let Ok((policy, problems)) = once {
        assert!(pb::security::Authorization::decode(data).is_ok(), "prost refuses what was read");
        let mut matches = policy.rules.iter().flatten().flatten();
        assert!(matches.any(|entry| entry.unreadable) != problems.is_empty(), "a problem without effect");
    }
}

/// Any bytes as a response: prost and the lazy reader agree on what it holds.
#[doc(hidden)]
pub fn fuzz_response(data: &[u8]) {
    let theirs = pb::discovery::DeltaDiscoveryResponse::decode(data);
    let Ok(response) = Response::parse(Bytes::copy_from_slice(data)) else {
        assert!(theirs.is_err(), "a good response is refused");
        return;
    };
    let read: Vec<_> = response.resources().collect();
    for resource in read.iter().flatten() {
        resource.aliases().for_each(drop);
    }
    if let Ok(theirs) = theirs {
        assert_eq!(read.len(), theirs.resources.len());
        for (ours, theirs) in read.iter().zip(&theirs.resources) {
            let name = ours.as_ref().map_or_else(|error| error.name().unwrap_or_default(), |ours| ours.name);
            assert!(theirs.name.starts_with(name), "{name} is not {}", theirs.name);
        }
    }
}
