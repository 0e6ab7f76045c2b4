//! A delta discovery response, read lazily: its head in one pass over the message, its resources one by one when
//! they are asked for, so that a push of a gigabyte costs no memory beside its own bytes.

use bytes::Bytes;

use super::fields::{Fault, Field, Fields, Malformed, Schema};
use super::shown;
use crate::base::limits::REMOVED_NAMES_A_RESPONSE;

static RESPONSE: Schema = Schema {
    message: "DeltaDiscoveryResponse",
    fields: &[
        (1, "system_version_info"),
        (2, "resources"),
        (4, "type_url"),
        (5, "nonce"),
        (6, "removed_resources"),
    ],
};
static RESOURCE: Schema =
    Schema { message: "Resource", fields: &[(1, "version"), (2, "resource"), (3, "name"), (4, "aliases")] };
static PAYLOAD: Schema = Schema { message: "Any", fields: &[(1, "type_url"), (2, "value")] };

/// One response of the control plane.
#[derive(Clone, Debug)]
pub struct Response {
    pub type_url: String,
    pub nonce: String,
    /// Of the whole push, for logs; each resource has its own.
    pub version: String,
    pub removed: Vec<String>,
    message: Bytes,
}

/// One resource that a response sets.
#[derive(Clone, Copy, Debug)]
pub struct Resource<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub type_url: &'a str,
    pub value: &'a [u8],
    message: &'a [u8],
}

/// A response, or one resource of it, that can't be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResponseError {
    /// The frame of the message: nothing after this place can be told apart.
    #[error("decode: {0}")]
    Response(#[from] Malformed),
    /// One resource; the others can be read. The name is empty where it can't be.
    #[error("decode: {fault}")]
    Resource { name: String, fault: Malformed },
    #[error("XDS payload without resource")]
    WithoutPayload { name: String },
}

impl ResponseError {
    /// The name of the resource that is wrong, where the error is one resource's.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Response(_) => None,
            Self::Resource { name, .. } | Self::WithoutPayload { name } => Some(name),
        }
    }
}

impl Response {
    /// Reads the head: all but the resources, which are only counted off by their lengths.
    pub fn parse(message: Bytes) -> Result<Self, ResponseError> {
        let [mut type_url, mut nonce, mut version] = [const { String::new() }; 3];
        let mut removed = Vec::new();
        for field in Fields::of(&RESPONSE, &message) {
            let field = field?;
            match field.number {
                1 => version = field.text()?.to_owned(),
                2 => drop(field.bytes()?),
                4 => type_url = field.text()?.to_owned(),
                5 => nonce = field.text()?.to_owned(),
                6 if removed.len() >= REMOVED_NAMES_A_RESPONSE => {
                    return Err(field.wrong(Fault::TooMany(REMOVED_NAMES_A_RESPONSE)).into());
                }
                6 => removed.push(field.text()?.to_owned()),
                // What newer control planes add concerns no resource.
                _ => {}
            }
        }
        Ok(Self { type_url, nonce, version, removed, message })
    }

    /// The resources in order; an error concerns one of them unless it has no name.
    pub fn resources(&self) -> impl Iterator<Item = Result<Resource<'_>, ResponseError>> {
        Fields::of(&RESPONSE, &self.message).filter_map(|field| match field {
            Ok(field) if field.number == 2 => Some(resource(&field)),
            Ok(_) => None,
            Err(error) => Some(Err(error.into())),
        })
    }
}

impl<'a> Resource<'a> {
    /// Other names by which this resource may have been asked for.
    pub fn aliases(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        // Checked when the resource was read.
        Fields::of(&RESOURCE, self.message)
            .filter_map(|field| field.ok().filter(|field| field.number == 4)?.text().ok())
    }
}

fn resource<'a>(field: &Field<'a>) -> Result<Resource<'a>, ResponseError> {
    let message = field.bytes()?;
    let mut read = Resource { name: "", version: "", type_url: "", value: &[], message };
    match fill(&mut read) {
        Ok(true) => Ok(read),
        Ok(false) => Err(ResponseError::WithoutPayload { name: shown(read.name) }),
        Err(fault) => {
            // The name may stand behind what is wrong.
            let named =
                Fields::of(&RESOURCE, message).filter_map(Result::ok).filter(|field| field.number == 3);
            let name = named.filter_map(|field| field.text().ok()).last().unwrap_or_default();
            Err(ResponseError::Resource { name: shown(name), fault })
        }
    }
}

/// Whether there is a payload.
fn fill(read: &mut Resource<'_>) -> Result<bool, Malformed> {
    let mut payload = false;
    for field in Fields::of(&RESOURCE, read.message) {
        let field = field?;
        match field.number {
            1 => read.version = field.text()?,
            2 => {
                payload = true;
                for field in Fields::of(&PAYLOAD, field.bytes()?) {
                    let field = field?;
                    match field.number {
                        1 => read.type_url = field.text()?,
                        2 => read.value = field.bytes()?,
                        _ => {}
                    }
                }
            }
            3 => read.name = field.text()?,
            4 => drop(field.text()?),
            _ => {}
        }
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::wire::pb::discovery as pb;

    fn texts() -> impl Strategy<Value = String> {
        "[a-zA-Zäö0-9/.]{0,12}"
    }

    fn any_resource() -> impl Strategy<Value = pb::Resource> {
        let payload = (texts(), proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(type_url, value)| pb::Payload { type_url, value: value.into() });
        let aliases = proptest::collection::vec(texts(), 0..3);
        (texts(), proptest::option::weighted(0.9, payload), texts(), aliases)
            .prop_map(|(version, resource, name, aliases)| pb::Resource { version, resource, name, aliases })
    }

    fn any_response() -> impl Strategy<Value = pb::DeltaDiscoveryResponse> {
        let resources = proptest::collection::vec(any_resource(), 0..6);
        let removed = proptest::collection::vec(texts(), 0..6);
        (texts(), resources, texts(), texts(), removed).prop_map(
            |(system_version_info, resources, type_url, nonce, removed_resources)| {
                pb::DeltaDiscoveryResponse {
                    system_version_info,
                    resources,
                    type_url,
                    nonce,
                    removed_resources,
                }
            },
        )
    }

    /// The same by prost, with the refusals that are ours.
    fn check(message: Bytes, response: &pb::DeltaDiscoveryResponse) {
        let read = Response::parse(message).unwrap();
        assert_eq!(read.type_url, response.type_url);
        assert_eq!(read.nonce, response.nonce);
        assert_eq!(read.version, response.system_version_info);
        assert_eq!(read.removed, response.removed_resources);
        let mut count = 0;
        for (ours, theirs) in read.resources().zip(&response.resources) {
            count += 1;
            match (ours, &theirs.resource) {
                (Ok(ours), Some(payload)) => {
                    assert_eq!((ours.name, ours.version), (&*theirs.name, &*theirs.version));
                    assert_eq!((ours.type_url, ours.value), (&*payload.type_url, &*payload.value));
                    assert!(ours.aliases().eq(theirs.aliases.iter().map(String::as_str)));
                }
                (Err(error), None) => {
                    assert_eq!(error.name(), Some(&*theirs.name));
                    assert_eq!(error.to_string(), "XDS payload without resource");
                }
                (ours, theirs) => panic!("{ours:?} is not {theirs:?}"),
            }
        }
        assert_eq!((count, read.resources().count()), (response.resources.len(), count));
    }

    proptest! {
        #[test]
        fn a_response_reads_as_prost_reads_it(response in any_response()) {
            check(response.encode_to_vec().into(), &response);
        }

        #[test]
        fn whatever_prost_reads_of_a_spoilt_response_is_read_the_same(
            response in any_response(), at in any::<prop::sample::Index>(), with: u8, cut in 0_usize..10,
        ) {
            let mut bytes = response.encode_to_vec();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let bytes = Bytes::from(bytes);
            if let Ok(theirs) = pb::DeltaDiscoveryResponse::decode(bytes.clone()) {
                check(bytes, &theirs);
            } else if let Ok(read) = Response::parse(bytes) {
                prop_assert!(read.resources().any(|resource| resource.is_err()), "an error is lost");
            }
        }
    }

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |bytes: Vec<u8>| Response::parse(bytes.into()).unwrap_err().to_string();
        assert_eq!(says(field(5, b"\xff")), "decode: DeltaDiscoveryResponse.nonce: is not UTF-8 text");
        let cut = says(vec![0x22, 9, b'x']);
        assert_eq!(cut, "decode: DeltaDiscoveryResponse.type_url: 9 bytes are announced, 1 are left");
        assert_eq!(says(vec![0x10, 1]), "decode: DeltaDiscoveryResponse.resources: has another wire type");
        assert!(says(vec![0xff]).contains("DeltaDiscoveryResponse.?: "));
    }

    #[test]
    fn a_broken_resource_is_named_and_leaves_its_neighbours() {
        let payload = field(2, &field(2, b"value"));
        let good = |name: &[u8]| field(2, &[field(3, name), payload.clone()].concat());
        let bad = field(2, &[field(1, b"\xff"), field(3, b"bad"), payload.clone()].concat());
        let message = [good(b"one"), bad, good(b"two")].concat();
        let response = Response::parse(message.into()).unwrap();
        let seen: Vec<_> = response.resources().collect();
        assert_eq!(seen.len(), 3);
        assert_eq!((seen[0].as_ref().unwrap().name, seen[2].as_ref().unwrap().name), ("one", "two"));
        let error = seen[1].as_ref().unwrap_err();
        assert_eq!(error.name(), Some("bad"));
        assert_eq!(error.to_string(), "decode: Resource.version: is not UTF-8 text");
    }
}
