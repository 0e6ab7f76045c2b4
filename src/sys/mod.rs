//! Layer 3: the kernel. Namespaces, sockets, original destinations, descriptor passing, the ring probe,
//! pinning. All unsafe code of the crate lives here. Knows addresses, not meshes: imports `base` only.

pub mod conntrack;
pub mod cpu;
pub mod fdpass;
pub mod handover;
pub mod heap;
pub mod io;
pub mod lend;
pub mod listener;
pub mod memory;
pub mod netns;
pub mod option;
pub mod origdst;
pub mod proc;
pub mod ring;
pub mod signal;
pub mod socket;
pub mod terminal;
#[cfg(test)]
mod testing;
pub mod udp;
