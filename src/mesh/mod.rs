//! Layer 1: the mesh as data, and every decision about it. Pure: snapshot, time and randomness come in.

pub mod admit;
pub mod authority;
pub mod balance;
mod choices;
pub mod delta;
pub mod demand;
pub mod dns;
#[cfg(test)]
pub(crate) mod fixture;
pub mod guard;
pub mod identity;
pub mod inbound;
mod index;
pub mod labels;
pub mod plan;
pub mod policy;
mod policy_set;
pub mod route;
pub mod seen;
pub mod service;
#[cfg(test)]
pub(crate) mod slow;
pub mod snapshot;
pub mod why;
pub mod workload;
