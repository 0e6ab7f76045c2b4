//! Layer: wire.

pub mod access_log;
pub mod log_text;
