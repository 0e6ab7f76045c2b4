//! Connections to the two services of the control plane: how they are reached, trusted and spoken to. What is said on
//! them is their users' (`xds`, `certificates`).

mod certificates;
mod chain;
mod channel;
mod error;
mod target;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
mod trust;

pub use certificates::CertificateClient;
pub use error::{CallError, ConnectError, Failure, TargetError, TokenError};
pub use target::{Options, Protection, Service, Target, Token};
pub use trust::Roots;
