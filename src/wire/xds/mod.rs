//! What the control plane sends, from bytes to the mesh's own types: delta discovery responses, workloads, services
//! and authorization policies (reference sections 4.6, A.1, A.2). Sans-IO; which response is answered how, and what
//! becomes of a resource that is refused, is `control::xds`'s.

mod address;
mod authorization;
mod fields;
mod fuzz;
mod response;
#[cfg(test)]
mod tests;
mod workload;

pub use address::{Address, Memory, address};
pub use authorization::authorization;
pub use fields::Malformed;
pub use fuzz::{fuzz_address, fuzz_authorization, fuzz_response};
pub use response::{Resource, Response, ResponseError};

use crate::base::limits::SHOWN_VALUE_BYTES;
use crate::base::text::beginning;

/// The resource types, in the order in which they are asked for.
pub const ADDRESS_TYPE: &str = "type.googleapis.com/istio.workload.Address";
pub const AUTHORIZATION_TYPE: &str = "type.googleapis.com/istio.security.Authorization";

/// Why a resource is refused. The control plane's to mend: it learns the text, which holds the reference's words
/// where the reference refuses as well.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("decode: {0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error("decode: {0}")]
    Malformed(#[from] Malformed),
    #[error("unknown address type")]
    UnknownAddressType,
    #[error("{field}: is empty")]
    Empty { field: &'static str },
    #[error("{field}: failed to parse address, had {bytes} bytes")]
    AddressBytes { field: &'static str, bytes: usize },
    #[error("{field}: a prefix of {length} bits is longer than the address")]
    PrefixLength { field: &'static str, length: u32 },
    #[error("{field}: unknown enum: {value}")]
    UnknownEnum { field: &'static str, value: i32 },
    #[error("{field}: unknown enum: unsupported tunnel protocol: legacy istio mtls")]
    LegacyTunnel { field: &'static str },
    #[error("{field}: unknown enum: invalid target")]
    UnspecifiedScope { field: &'static str },
    #[error("{field}: nonempty gateway address is missing address")]
    GatewayWithoutAddress { field: &'static str },
    #[error("{field}: failed to parse namespaced hostname: {name}")]
    ServiceName { field: &'static str, name: String },
    #[error("{field}: {value} is not a port")]
    Port { field: &'static str, value: u32 },
}

/// A value as it may stand in an error.
fn shown(text: &str) -> String {
    beginning(text, SHOWN_VALUE_BYTES).to_owned()
}
