//! Watching a connection of which one side has finished. Nobody reads that side any more, so its reset would go
//! unseen; and where its FIN is all that is left, the other side may never end. Both have a bound here.

use std::time::{Duration, Instant};

use crate::base::limits::HALF_CLOSE_IDLE_MS;
use crate::shard::closer::CloseReason;
use crate::shard::meter::Meter;
use crate::shard::relay::Ending;
use crate::shard::socket::Socket;

/// Starts when the first side finishes.
#[derive(Default)]
pub struct HalfClose {
    since: Option<(Instant, u64)>,
}

impl HalfClose {
    /// Whether it is over: a socket was reset, or nothing has moved for too long. Called now and then.
    pub fn look(&mut self, sockets: &[&Socket], meter: &Meter) -> Option<Ending> {
        if sockets.iter().any(|socket| socket.was_reset()) {
            return Some(Ending::Reset);
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
