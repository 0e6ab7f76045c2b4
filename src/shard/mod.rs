//! Layer 6: one core's world. Everything here stays on its thread; nothing is shared, locked or atomic on the path
//! of a byte.

mod batch;
pub mod buffers;
pub mod closer;
pub mod decision;
pub mod dns;
pub mod ending;
pub mod failure;
pub mod flows;
pub mod gate;
pub mod half_close;
mod handover;
mod lateness;
pub mod link;
pub mod meter;
pub mod nested;
mod orders;
mod patience;
mod peers;
pub mod places;
pub mod pod;
pub mod pool;
pub mod ready;
mod recheck;
pub mod relay;
pub mod rt;
#[expect(clippy::module_inception, reason = "the shard itself; its parts stand beside it")]
mod shard;
mod shrink;
pub mod signal;
pub mod socket;
pub mod spares;
pub mod splice;
pub mod stats;
pub mod stream;
mod survey;
pub mod table;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod told;
pub mod tunnel;
mod tunnel_state;

pub use shard::{Seed, Shard, Ways, run, within};
