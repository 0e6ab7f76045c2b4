//! Layer: path.
