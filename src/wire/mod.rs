//! Layer: wire.

pub mod zds;
pub mod hbone;
