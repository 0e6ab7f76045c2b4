//! Layer 4: TLS. The handshake is rustls's, the records are ours.

pub mod config;
