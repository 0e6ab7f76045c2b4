//! Letting go of a pod's listeners without losing a connection: new ones are steered to the successor's listeners,
//! what waits in our queues is served, then ours close. Without a successor the port is simply closed after that.

use std::rc::Rc;
use std::time::{Duration, Instant};

use monoio::net::TcpListener;

use crate::base::limits;
use crate::shard::pod::{PodWorld, Port, within};
use crate::sys::handover::{allow_migration, group_of, leave_lookups, steer_away, steer_for_close};
use crate::sys::lend::lend;

/// How often the queues are looked at while they run dry.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Hands over and closes all of a pod's listeners on this shard; takes at most `patience`.
pub(super) async fn hand_over(
    world: &Rc<PodWorld>,
    listeners: &[(Port, Rc<TcpListener>)],
    patience: Duration,
) {
    let ours = world.carriers();
    let netns = world.pod.netns.as_ref();
    let mut totals = Vec::new();
    for (port, listener) in listeners {
        let total = within(netns, || {
            // Where it may be written, the kernel moves what is left over at the close.
            let _ = allow_migration();
            group_of(lend(&**listener)).unwrap_or(ours)
        });
        let total = total.unwrap_or(ours);
        if total > ours
            && let Err(error) = steer_away(lend(&**listener), ours, total)
        {
            tracing::warn!(target: "ztunnel::proxy", "{}: {error}", port.component());
        }
        totals.push(total);
    }
    let succeeded = totals.iter().any(|total| *total > ours);
    let linger = Duration::from_millis(if succeeded { limits::HANDOVER_LINGER_MS } else { 0 });
    let until = Instant::now() + linger.min(patience);
    loop {
        for (port, listener) in listeners {
            let _ = world.accept_waiting(*port, listener, usize::from(u16::MAX));
        }
        world.receive_waiting();
        if Instant::now() >= until {
            break;
        }
        monoio::time::sleep(LOOK_EVERY).await;
    }
    for ((port, listener), total) in listeners.iter().zip(totals) {
        if total > ours {
            let _ = steer_for_close(lend(&**listener), ours, total);
        }
        if let Err(error) = leave_lookups(lend(&**listener)) {
            tracing::debug!(target: "ztunnel::proxy", "{}: still looked up: {error}", port.component());
        }
        let _ = world.accept_waiting(*port, listener, usize::from(u16::MAX));
    }
}
