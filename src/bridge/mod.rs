//! Layer 5: the only types that cross threads.

pub mod absent;
pub mod counts;
pub mod flow;
pub mod hosts;
pub mod identities;
pub mod lines;
pub mod mailbox;
pub mod order;
pub mod published;
pub mod report;
pub mod settings;
