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
mod unrelayed;

use std::rc::Rc;

use crate::shard::pod::{Accepted, PodWorld, Port};

/// Spawns the task that serves an accepted connection, inside its pod's gate.
pub fn serve(world: Rc<PodWorld>, port: Port, accepted: Accepted) {
    let gate = world.gate.clone();
    match port {
        Port::Outbound => drop(monoio::spawn(async move {
            gate.run(outbound::serve(world, accepted)).await;
        })),
        Port::InboundPlaintext => drop(monoio::spawn(async move {
            gate.run(passthrough::serve(world, accepted)).await;
        })),
        Port::InboundHbone => drop(monoio::spawn(async move {
            gate.run(inbound::serve(world, accepted)).await;
        })),
        Port::Socks5 => drop(monoio::spawn(async move {
            gate.run(socks5::serve(world, accepted)).await;
        })),
        Port::Connect => drop(monoio::spawn(async move {
            gate.run(connect::serve(world, accepted)).await;
        })),
        Port::Dns => drop(monoio::spawn(async move {
            gate.run(dns::serve(world, accepted)).await;
        })),
    }
}
