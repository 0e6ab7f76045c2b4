//! The configuration that a control plane sends by delta discovery (reference section 4). The client keeps a stream on
//! the control thread and hands on bytes; the mesh thread reads them, keeps the books and answers.

mod account;
pub mod client;
mod dial;
mod frames;
mod fuzz;
mod intake;
mod ledger;
mod node;
mod pace;
#[cfg(test)]
pub mod testing;
mod version;

use tokio::sync::{mpsc, oneshot};

pub use client::{Client, Dial, Dialing};
pub use frames::Part;
pub use fuzz::{fuzz_deltas, fuzz_stream};
pub use intake::Intake;
pub use ledger::{Kind, Ledger, Lookup, Step};
pub use node::{NodeFacts, node};

use crate::wire::pb::discovery::DeltaDiscoveryRequest;

/// What the client tells the mesh thread, in order.
pub enum Word {
    /// A stream is being opened; what it says first is to be put into `requests`.
    Opened(Stream),
    Part(Part),
    /// The stream is over, or could not be opened.
    Closed {
        why: String,
    },
}

/// The mesh thread's side of a stream.
pub struct Stream {
    /// Of the log's span.
    pub id: u64,
    pub requests: Requests,
    /// Ends the stream.
    pub end: oneshot::Sender<Fault>,
}

/// Requests on their way; bounded, and nobody waits for room.
pub type Requests = mpsc::Sender<DeltaDiscoveryRequest>;

/// Why the mesh thread ends a stream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    #[error("a response can't be read: {0}")]
    Unreadable(String),
    #[error("the control plane doesn't read what it is told: {0} requests wait for it")]
    NotReading(usize),
    /// See `ledger`: what was held is to be asked for once more.
    #[error("the control plane may have lost resources without a word: asking again")]
    AskAgain,
}
