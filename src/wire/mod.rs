//! Layer: wire.
pub mod h2;
