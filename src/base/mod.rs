//! Layer 0: words everything else is written in. No mesh, no wire, no system calls.

pub mod fault;
pub mod level;
pub mod limits;
pub mod net;
pub mod text;
pub mod version;
