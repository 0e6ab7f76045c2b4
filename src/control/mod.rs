//! Layer: control.

pub mod admin;
pub mod ca;
pub mod cni;
#[allow(clippy::module_inception, reason = "the module of the thread itself")]
pub mod control;
pub mod dump;
mod file_match;
mod file_schema;
pub mod files;
mod heartbeat;
pub mod http;
pub mod logs;
pub mod metrics;
pub mod publish;
pub mod ready;
pub mod recorder;
pub mod session;
pub mod shards;
pub mod source;
#[cfg(test)]
mod test_support;
mod wake;
