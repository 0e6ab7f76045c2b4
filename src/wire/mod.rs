//! Layer 2: bytes to types and back, sans-IO.

pub mod access_log;
pub mod h2;
//! Layer: wire.
pub mod dump;
pub mod hbone;
pub mod log_text;
pub mod zds;
