//! Layer 2: bytes to types and back, sans-IO.

pub mod access_log;
pub mod destination;
pub mod dns;
pub mod dump;
pub mod h2;
pub mod hbone;
pub mod http1;
pub mod log_text;
pub mod pb;
pub mod profile;
pub mod proxy_protocol;
pub mod socks5;
pub mod xds;
pub mod zds;
