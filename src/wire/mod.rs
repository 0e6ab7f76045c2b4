//! Layer: wire.

pub mod zds;
