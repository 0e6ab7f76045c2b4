//! Layer: wire.
