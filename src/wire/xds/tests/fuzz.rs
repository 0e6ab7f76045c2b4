//! The fuzz targets' bodies on any bytes, and on right messages with a few bytes wrong or cut short.

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

/// A message with a few bytes wrong, and now and then its end cut off.
fn spoilt(message: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let spoil = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let cut = prop_oneof![4 => Just(0_usize), 1 => 0..30_usize];
    (Just(message), spoil, cut).prop_map(|(mut message, spoil, cut)| {
        for (at, with) in spoil {
            let at = at.index(message.len());
            message[at] = with;
        }
        message.truncate(message.len().saturating_sub(cut));
        message
    })
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..200)
}

fn a_policy() -> Vec<u8> {
    policy_of(vec![full_match(), full_match()]).encode_to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn fuzz_xds_address_survives_any_bytes(bytes in any_bytes()) {
        fuzz_address(&bytes);
    }

    #[test]
    fn fuzz_xds_address_survives_spoilt_workloads(
        bytes in spoilt(bytes_of(pb::address::Type::Workload(full_workload()))),
    ) {
        fuzz_address(&bytes);
    }

    #[test]
    fn fuzz_xds_address_survives_spoilt_services(
        bytes in spoilt(bytes_of(pb::address::Type::Service(full_service()))),
    ) {
        fuzz_address(&bytes);
    }

    #[test]
    fn fuzz_xds_authorization_survives_any_bytes(bytes in any_bytes()) {
        fuzz_authorization(&bytes);
    }

    #[test]
    fn fuzz_xds_authorization_survives_spoilt_policies(bytes in spoilt(a_policy())) {
        fuzz_authorization(&bytes);
    }

    #[test]
    fn fuzz_xds_response_survives_any_bytes(bytes in any_bytes()) {
        fuzz_response(&bytes);
    }

    #[test]
    fn fuzz_xds_response_survives_spoilt_responses(bytes in spoilt(response())) {
        fuzz_response(&bytes);
    }
}
