//! Layer: control.

pub mod ca;
pub mod http;
pub mod publish;
pub mod ready;
