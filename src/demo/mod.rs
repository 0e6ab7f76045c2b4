//! `ringway demo`: a small mesh in network namespaces, with real traffic and a look at the wire. The end-to-
//! end tests build their clusters from the same parts. Not part of the proxy: nothing here runs in a node.

pub mod agent;
pub mod agent_messages;
pub mod cluster;
pub mod http;
pub mod measure;
pub mod mesh_file;
pub mod node;
pub mod report;
pub mod rules;
pub mod space;
pub mod story;
pub mod topology;
pub mod wire_tap;

pub use story::{Options, run};
