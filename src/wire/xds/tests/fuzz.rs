//! The fuzz targets' bodies on right messages with a few bytes wrong, cut short or repeated.

use proptest::prelude::*;
use prost::Message as _;

use super::super::{fuzz_address, fuzz_authorization, fuzz_response};
use super::{bytes_of, full_match, full_service, full_workload, policy_of};
use crate::wire::pb::{discovery, workload as pb};

fn response() -> Vec<u8> {
    let resource = |name: &str| discovery::Resource {
        version: "1".into(),
        resource: Some(discovery::Payload { type_url: "t".into(), value: vec![1, 2, 3].into() }),
        name: name.into(),
        aliases: vec!["other".into()],
    };
    discovery::DeltaDiscoveryResponse {
        system_version_info: "v".into(),
        resources: vec![resource("a"), resource("b")],
        type_url: "t".into(),
        nonce: "n".into(),
        removed_resources: vec!["c".into()],
    }
    .encode_to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_address(&bytes);
        fuzz_authorization(&bytes);
        fuzz_response(&bytes);
    }

    #[test]
    fn spoilt_messages_are_survived(
        kind in 0..4_u8,
        spoil in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop_oneof![4 => Just(0_usize), 1 => 0..30_usize],
    ) {
        let mut bytes = match kind {
            0 => bytes_of(pb::address::Type::Workload(full_workload())),
            1 => bytes_of(pb::address::Type::Service(full_service())),
            2 => policy_of(vec![full_match(), full_match()]).encode_to_vec(),
            _ => response(),
        };
        for (at, with) in spoil {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        match kind {
            0 | 1 => fuzz_address(&bytes),
            2 => fuzz_authorization(&bytes),
            _ => fuzz_response(&bytes),
        }
    }
}
