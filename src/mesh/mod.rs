//! Layer 1: the mesh as data, and every decision about it. Pure: snapshot, time and randomness come in.

pub mod identity;
pub mod labels;
pub mod policy;
pub mod service;
pub mod snapshot;
pub mod workload;
