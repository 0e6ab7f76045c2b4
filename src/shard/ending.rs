//! How a relayed connection ended, and which endings are somebody's fault.

use std::io::ErrorKind;

use crate::base::limits;
use crate::shard::closer::CloseReason;
use crate::shard::meter::Way;
use crate::wire::h2::Code;

/// How a relayed connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Both sides finished.
    Finished,
    /// One side reset it or went away, and the other was told so: an application's ordinary way to end.
    Reset,
    /// Bytes that went this way met a fault, and both sides were told a reset.
    Failed(Way, Fault),
    Closed(CloseReason),
}

/// What broke under a connection while it was relayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    #[error("io error: {0}")]
    Io(ErrorKind),
    #[error("h2 failed: stream reset: {0}")]
    Stream(Code),
    #[error("h2 failed: the peer of the tunnel broke the protocol")]
    Protocol,
    #[error("tls error: the tunnel got a broken record")]
    Record,
    #[error("HBONE ping timeout/error")]
    PingTimeout,
    #[error("h2 failed: no SETTINGS within {} ms", limits::SETTINGS_DEADLINE_MS)]
    NoSettings,
}

impl Ending {
    /// After an error of a socket. Those of a peer that is gone are an ordinary end (reference section 11.3).
    pub fn after_io(way: Way, kind: ErrorKind) -> Self {
        if is_peer_gone(kind) { Self::Reset } else { Self::Failed(way, Fault::Io(kind)) }
    }

    /// After a RST_STREAM before the stream's end. Those of a peer that just has no more use for it are ordinary.
    pub fn after_reset(way: Way, code: Code) -> Self {
        match code {
            Code::NO_ERROR | Code::CANCEL | Code::STREAM_CLOSED => Self::Reset,
            code => Self::Failed(way, Fault::Stream(code)),
        }
    }
}

/// Whether an error says no more than that the other end went away.
pub fn is_peer_gone(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotConnected
            | ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
    )
}
