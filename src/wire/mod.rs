//! Layer: wire.
pub mod h2;
pub mod hbone;
