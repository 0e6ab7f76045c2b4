//! Layer: wire.
pub mod hbone;
