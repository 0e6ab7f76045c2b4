//! Watching a connection with a side that nobody reads now: it has finished, or the other side takes no more. Its
//! reset would go unseen; and where its FIN is all that is left, the other side may never end. Both end here.

use std::time::{Duration, Instant};

use crate::base::limits::HALF_CLOSE_IDLE_MS;
use crate::shard::closer::CloseReason;
use crate::shard::ending::Ending;
use crate::shard::meter::Meter;
use crate::shard::socket::Socket;

/// Starts at the first look after one side has finished.
#[derive(Default)]
pub struct HalfClose {
    since: Option<(Instant, u64)>,
}

impl HalfClose {
    /// Whether it is over: a socket is gone, or one side has `finished` and nothing has moved for too long. Called
    /// now and then.
    pub fn look(&mut self, sockets: &[&Socket], meter: &Meter, finished: bool) -> Option<Ending> {
        if sockets.iter().any(|socket| socket.is_gone()) {
            return Some(Ending::Reset);
        }
        if !finished {
            return None;
        }
        let (now, moved) = (Instant::now(), meter.to_server() + meter.to_client());
        match self.since {
            Some((since, seen)) if seen == moved => {
                let bound = Duration::from_millis(HALF_CLOSE_IDLE_MS);
                (now.duration_since(since) > bound).then_some(Ending::Closed(CloseReason::HalfCloseIdle))
            }
            Some(_) | None => {
                self.since = Some((now, moved));
                None
            }
        }
    }
}
