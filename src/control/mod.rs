//! Layer: control.
