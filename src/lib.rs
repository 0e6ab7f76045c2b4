//! Ringway: the node proxy of an Istio ambient mesh. Thread per core, io_uring, one control thread, one snapshot.
//!
//! Reading order: `mesh::route`, `mesh::admit`, `path::outbound`, `shard::shard`, `app`.

pub mod app;
pub mod base;
pub mod bridge;
pub mod cli;
pub mod config;
pub mod control;
pub mod demo;
#[cfg(test)]
mod layering;
pub mod mesh;
pub mod path;
pub mod shard;
#[allow(unsafe_code, reason = "system calls; everywhere else unsafe is denied")]
pub mod sys;
pub mod tls;
pub mod wire;
