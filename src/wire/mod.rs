//! Layer: wire.
pub mod dump;
pub mod hbone;
