//! Layer: wire.
pub mod h2;
pub mod hbone;

pub mod zds;
pub mod hbone;
pub mod access_log;
pub mod log_text;
