//! Layer: wire.

pub mod zds;
pub mod dump;
pub mod hbone;
pub mod access_log;
pub mod log_text;
