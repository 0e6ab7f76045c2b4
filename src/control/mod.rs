//! Layer: control.

pub mod logs;
