//! How the stand-in misbehaves: switches that hold until changed, and faults that strike once.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

pub use crate::message::Trickle;

/// A gRPC status code.
pub mod code {
    pub const CANCELLED: u16 = 1;
    pub const INVALID_ARGUMENT: u16 = 3;
    pub const DEADLINE_EXCEEDED: u16 = 4;
    pub const PERMISSION_DENIED: u16 = 7;
    pub const RESOURCE_EXHAUSTED: u16 = 8;
    pub const UNIMPLEMENTED: u16 = 12;
    pub const INTERNAL: u16 = 13;
    pub const UNAVAILABLE: u16 = 14;
    pub const UNAUTHENTICATED: u16 = 16;
}

/// How far a new connection gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Door {
    #[default]
    Open,
    /// Closed as soon as it is accepted.
    Shut,
    /// TCP only: no byte is read or written.
    SilentTcp,
    /// TLS and HTTP/2 work; no request is answered.
    SilentRequests,
}

/// Holds until changed.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    pub door: Door,
    /// Every discovery stream ends with this.
    pub refuse_discovery: Option<(u16, String)>,
    /// Before each discovery response.
    pub delay: Duration,
    pub trickle: Option<Trickle>,
    /// Requests of these types are heard, never answered; nor are they told of changes.
    pub withheld: Vec<&'static str>,
    /// Answers a first request with the full state, whatever the client holds, and names nothing as removed.
    pub omits_nothing: bool,
    /// GOAWAY after this; the connection is closed `grace` later. For connections made from here on.
    pub max_age: Option<Duration>,
    pub grace: Duration,
    /// What the header `authorization` must be, without `Bearer `; checked for discovery and certificates.
    pub token: Option<String>,
    /// Strike one after the other, each on one discovery response.
    pub faults: VecDeque<Fault>,
}

/// What becomes of one discovery response.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// It is not sent. Everything else goes on.
    Swallow,
    /// Half of its bytes, then the stream is reset.
    Half,
    /// Half of its bytes, then nothing more, ever.
    Stall,
    /// The stream ends with a status in its place.
    Status(u16, String),
    /// RST_STREAM in its place.
    Reset,
    /// The whole connection is closed in its place.
    Close,
    /// These bytes as the message.
    Message(Bytes),
    /// These resources too: a resource of any name, version, type and value.
    Also(Vec<ringway::wire::pb::discovery::Resource>),
    /// Every resource twice.
    Twice,
    /// These names as removed too.
    Removed(Vec<String>),
    /// Another type URL than asked for.
    TypeUrl(String),
    /// Padded by an unknown field of so many bytes.
    Padded(usize),
    /// A message that promises this many bytes, of which none follows.
    Promised(u32),
}
