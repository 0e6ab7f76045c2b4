//! What a connection tells its owner.

use std::ops::Range;

use super::{Code, RequestHead, StreamId};

/// In the order the frames came. A stream's last event is `Reset`, or `End` (or a head with `end`) if the
/// local side has finished too; after that its number means nothing any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The peer's first SETTINGS arrived.
    Settings,
    /// Server: a request, CONNECT or not. `end`: its body is empty, no `End` follows.
    Request { stream: StreamId, head: Box<RequestHead>, end: bool },
    /// Client: the final answer (1xx are skipped). `end`: no body, no `End` follows. Several baggage values
    /// come joined by commas.
    Response { stream: StreamId, status: u16, baggage: Option<Vec<u8>>, end: bool },
    /// Payload at this range of the bytes just received; part of a frame or all of it, never empty.
    Data { stream: StreamId, payload: Range<usize> },
    /// The peer has finished its half, by END_STREAM on DATA or by trailers.
    End { stream: StreamId },
    /// The stream is gone: the peer reset it, or broke a rule of streams and was answered with this code.
    Reset { stream: StreamId, code: Code },
    /// `capacity` was asked, answered 0, and would now answer more. Once each time.
    Writable { stream: StreamId },
    /// The peer opens or accepts no more streams. Streams of ours above `last` were reset before this event.
    GoAway { last: StreamId, code: Code },
    /// The answer to `ping`.
    Pong,
}
