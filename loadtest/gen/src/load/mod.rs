//! The load generator: what the far end offers (`serve`), and the clients that use it.

pub mod bulk;
pub mod client;
pub mod mix;
pub mod outcome;
pub mod protocol;
pub mod requests;
pub mod serve;
pub mod tls;
