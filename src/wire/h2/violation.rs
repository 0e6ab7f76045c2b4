//! What a peer can do that ends the whole connection. Streams are ended one by one where the RFC allows that.

use super::Code;
use super::hpack::Corrupt;

/// Why the connection has to go; the GOAWAY carries `code`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    #[error("the connection preface is not HTTP/2's")]
    Preface,
    #[error("the first frame is of type {kind}, not SETTINGS")]
    FirstFrame { kind: u8 },
    #[error("a frame of type {kind} has {length} bytes")]
    FrameLength { kind: u8, length: u32 },
    #[error("a frame of type {kind} came for stream {stream}")]
    StreamNumber { kind: u8, stream: u32 },
    #[error("a frame of type {kind} came for stream {stream}, which is idle")]
    Idle { kind: u8, stream: u32 },
    #[error("a frame of type {kind} came for stream {stream}, which is closed")]
    Closed { kind: u8, stream: u32 },
    #[error("a frame of type {kind} came inside a header block, or CONTINUATION outside of one")]
    Interleaved { kind: u8 },
    #[error("a frame of type {kind} has more padding than payload")]
    Padding { kind: u8 },
    #[error("setting {setting} has value {value}")]
    Setting { setting: u16, value: u32 },
    #[error("setting 4 has value {value}")]
    InitialWindow { value: u32 },
    #[error("PUSH_PROMISE, though push is off")]
    Push,
    #[error("header block: {0}")]
    Compression(Corrupt),
    #[error("DATA of {length} bytes is more than the connection's window")]
    ConnectionWindow { length: u32 },
    #[error("WINDOW_UPDATE of 0 for the connection")]
    ZeroUpdate,
    #[error("a window beyond 2^31-1")]
    WindowOverflow,
    #[error("more than {limit} bytes in a header block")]
    HeaderBlock { limit: usize },
    #[error("more than {limit} CONTINUATION frames in a header block")]
    Continuations { limit: u32 },
    #[error("a header block takes longer than {limit_ms} ms")]
    SlowHeaders { limit_ms: u64 },
    #[error("more than {limit} streams reset in a second")]
    Resets { limit: u32 },
    #[error("more than {limit} streams opened and reset before their answer in a second")]
    UnansweredResets { limit: u32 },
    #[error("more than {limit} streams refused or malformed in a second")]
    StreamErrors { limit: u32 },
    #[error("more than {limit} header lists beyond the limit in a second")]
    LargeLists { limit: u32 },
    #[error("more than {limit} frames without a purpose in a second")]
    Overhead { limit: u32 },
    #[error("more than {limit} empty DATA frames in a row")]
    EmptyData { limit: u32 },
    #[error("more WINDOW_UPDATE frames than the data sent can explain")]
    WindowUpdates,
    #[error("more than {limit} bytes of answers wait for a peer that doesn't read")]
    Replies { limit: usize },
}

impl Violation {
    /// The code for the GOAWAY.
    pub fn code(&self) -> Code {
        match self {
            Self::Preface
            | Self::FirstFrame { .. }
            | Self::StreamNumber { .. }
            | Self::Idle { .. }
            | Self::Interleaved { .. }
            | Self::Padding { .. }
            | Self::Setting { .. }
            | Self::Push
            | Self::ZeroUpdate => Code::PROTOCOL_ERROR,
            Self::FrameLength { .. } => Code::FRAME_SIZE_ERROR,
            Self::Closed { .. } => Code::STREAM_CLOSED,
            Self::Compression(_) => Code::COMPRESSION_ERROR,
            Self::InitialWindow { .. } | Self::ConnectionWindow { .. } | Self::WindowOverflow => {
                Code::FLOW_CONTROL_ERROR
            }
            Self::HeaderBlock { .. }
            | Self::Continuations { .. }
            | Self::SlowHeaders { .. }
            | Self::Resets { .. }
            | Self::UnansweredResets { .. }
            | Self::StreamErrors { .. }
            | Self::LargeLists { .. }
            | Self::Overhead { .. }
            | Self::EmptyData { .. }
            | Self::WindowUpdates
            | Self::Replies { .. } => Code::ENHANCE_YOUR_CALM,
        }
    }
}
