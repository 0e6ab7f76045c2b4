//! Whose fault a failure is, and whether trying again may help; each module's error enum answers with these. And the
//! form in which values that can't be read are told, wherever they came from.

use std::fmt;

/// The party that has to change something for the failure to go away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The application that opened the connection.
    Client,
    /// The proxy or application at the far end.
    Peer,
    /// The configuration: policy, a missing workload, a service without endpoints.
    Mesh,
    /// The operating system: limits, permissions, addresses.
    Kernel,
    /// Ringway itself.
    Us,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Peer => "peer",
            Self::Mesh => "mesh",
            Self::Kernel => "kernel",
            Self::Us => "ringway",
        })
    }
}

/// A value that can't be what it should be, and where it stands.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{at}: {value} is not {wanted}")]
pub struct Problem {
    pub at: String,
    pub value: String,
    pub wanted: &'static str,
}
