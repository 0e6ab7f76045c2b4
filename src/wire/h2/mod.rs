//! HTTP/2 as a CONNECT tunnel needs it (RFC 9113), and HPACK (RFC 7541). Sans-IO: plaintext in, events out;
//! commands in, frames out; time is given. No sockets, no TLS, no DATA payload is ever copied or kept here.

mod abuse;
mod connection;
mod encode;
mod event;
mod flow;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod head;
mod header_block;
pub mod hpack;
mod huffman;
mod receive;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod violation;

use std::fmt;

pub use connection::{CannotOpen, Connection};
pub use encode::{connect_block, response_block};
pub use event::Event;
pub use fuzz::{fuzz_frames, fuzz_hpack};
pub use head::{ConnectHead, RequestHead, ResponseHead};
pub use violation::Violation;

/// What one end announces and keeps to. The client role doesn't send `max_streams`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The size a stream's receive window may grow to.
    pub stream_window_bytes: u32,
    /// The connection's receive window; 65,535 is the smallest HTTP/2 knows.
    pub connection_window_bytes: u32,
    /// Largest frame accepted, 16,384 to 16,777,215.
    pub frame_bytes: u32,
    /// Streams a peer may hold open at once.
    pub max_streams: u32,
    /// Largest header list accepted, counted as RFC 9113 section 6.5.2 says (32 bytes extra a field).
    pub header_list_bytes: u32,
    /// The size a stream's receive window starts with.
    pub start_window_bytes: u32,
}

/// A stream's number. Odd ones are the client's; 0 is the connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An error code of RST_STREAM and GOAWAY (RFC 9113 section 7); unknown ones are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Code(pub u32);

impl Code {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const SETTINGS_TIMEOUT: Self = Self(4);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const CONNECT_ERROR: Self = Self(10);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
    pub const INADEQUATE_SECURITY: Self = Self(12);
    pub const HTTP_1_1_REQUIRED: Self = Self(13);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "NO_ERROR",
            1 => "PROTOCOL_ERROR",
            2 => "INTERNAL_ERROR",
            3 => "FLOW_CONTROL_ERROR",
            4 => "SETTINGS_TIMEOUT",
            5 => "STREAM_CLOSED",
            6 => "FRAME_SIZE_ERROR",
            7 => "REFUSED_STREAM",
            8 => "CANCEL",
            9 => "COMPRESSION_ERROR",
            10 => "CONNECT_ERROR",
            11 => "ENHANCE_YOUR_CALM",
            12 => "INADEQUATE_SECURITY",
            13 => "HTTP_1_1_REQUIRED",
            other => return write!(f, "code {other}"),
        };
        f.write_str(name)
    }
}
