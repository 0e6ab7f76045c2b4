//! Layer 7: the ways a connection can go. Each file reads top-down like the way itself; decisions are in `mesh`,
//! waiting and bytes in `shard`, and `record` is the one place where an outcome becomes counters and a log line.

pub mod connect;
mod dialogue;
pub mod dns;
mod explicit;
pub mod inbound;
mod nested;
mod opening;
pub mod outbound;
pub mod passthrough;
mod reach;
pub mod record;
pub mod socks5;
#[cfg(test)]
mod tests;
mod underway;
mod unrelayed;

use std::rc::Rc;

use crate::shard::pod::{Accepted, PodWorld, Port};

/// Spawns the task that serves an accepted connection, inside its pod's gate.
pub fn serve(world: Rc<PodWorld>, port: Port, accepted: Accepted) {
    let pod = world.clone();
    match port {
        Port::Outbound => pod.spawn(outbound::serve(world, accepted)),
        Port::InboundPlaintext => pod.spawn(passthrough::serve(world, accepted)),
        Port::InboundHbone => pod.spawn(inbound::serve(world, accepted)),
        Port::Socks5 => pod.spawn(socks5::serve(world, accepted)),
        Port::Connect => pod.spawn(connect::serve(world, accepted)),
        Port::Dns => pod.spawn(dns::serve(world, accepted)),
    }
}
