//! Layer 6': the control thread, on tokio. Everything that is not traffic: the mesh's source, certificates, the CNI
//! agent, operators. Never imports `shard` or `path`.

pub mod admin;
mod alone;
pub mod ask;
pub mod ca;
pub mod chunks;
pub mod cni;
#[expect(clippy::module_inception, reason = "the thread itself; its parts stand beside it")]
pub mod control;
pub mod crl;
mod cross_site;
pub mod dump;
mod file_match;
mod file_schema;
pub mod files;
mod filter;
mod flows;
pub mod grpc;
mod heartbeat;
pub mod hosts;
pub mod http;
mod live;
pub mod locals;
mod logging;
pub mod logs;
pub mod mesh_thread;
pub mod metrics;
pub mod offline;
mod own;
mod page;
pub mod pprof;
pub mod publish;
pub mod ready;
pub mod recorder;
pub mod session;
pub mod shards;
pub mod signing;
pub mod source;
#[cfg(test)]
mod test_support;
mod wake;
mod why;
pub mod wiring;
pub mod xds;
