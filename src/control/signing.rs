//! Who signs certificates, and the desk where that is done: what the keeper (`ca`) says is due is signed by tasks
//! beside the control thread's other work, a bounded number at once.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::{Id, JoinError, JoinSet};

use crate::base::limits::SIGNING_REASON_BYTES;
use crate::base::text::{Text, beginning};
use crate::control::ca::{Ca, Ticket};
use crate::mesh::identity::Identity;
use crate::tls::cert::Authority;
use crate::tls::config::{Credential, Profile};

/// Whatever signs certificates: the mesh's authority, or the embedded one.
pub trait Signer: Send + Sync {
    /// A certificate for `identity` that is valid for `ttl`, with its key and roots. Ends within a bound.
    fn issue(&self, identity: Identity, ttl: Duration) -> Signing;
}

pub type Signing = Pin<Box<dyn Future<Output = Result<Credential, Unsigned>> + Send>>;

/// Why an identity has no certificate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Unsigned {
    /// One line, bounded.
    pub why: Text,
    /// The authority knows us and said no: it should be asked rarely.
    pub denied: bool,
}

impl Unsigned {
    pub fn failed(why: impl Display) -> Self {
        Self { why: one_line(&why.to_string()), denied: false }
    }

    pub fn denied(why: impl Display) -> Self {
        Self { why: one_line(&why.to_string()), denied: true }
    }
}

/// A message from elsewhere, fit for a log line.
fn one_line(text: &str) -> Text {
    let text = beginning(text, SIGNING_REASON_BYTES);
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect::<String>().into()
}

/// Stands where no certificate authority is configured: every identity is refused with the reason.
pub struct NoAuthority;

impl Signer for NoAuthority {
    fn issue(&self, _: Identity, _: Duration) -> Signing {
        let why = "no certificate authority is configured: set FAKE_CA=true or CA_ADDRESS";
        Box::pin(ready(Err(Unsigned::failed(why))))
    }
}

/// The embedded authority: a root of our own, shared by the nodes that share its directory.
pub struct Embedded {
    authority: Arc<Authority>,
    profile: Profile,
}

impl Embedded {
    pub fn new(authority: Authority, profile: Profile) -> Self {
        Self { authority: Arc::new(authority), profile }
    }
}

impl Signer for Embedded {
    fn issue(&self, identity: Identity, ttl: Duration) -> Signing {
        let (authority, profile) = (self.authority.clone(), self.profile.clone());
        let sign = move || authority.credential(&identity, ttl, profile).map_err(Unsigned::failed);
        Box::pin(
            async move { tokio::task::spawn_blocking(sign).await.unwrap_or_else(|gone| Err(fell(&gone))) },
        )
    }
}

/// The keeper, and the tasks that sign for it.
pub struct Desk {
    pub keeper: Ca,
    signer: Arc<dyn Signer>,
    ttl: Duration,
    tasks: JoinSet<Result<Credential, Unsigned>>,
    tickets: HashMap<Id, Ticket>,
}

impl Desk {
    /// `ttl`: the life of the certificates asked for.
    pub fn new(keeper: Ca, signer: Arc<dyn Signer>, ttl: Duration) -> Self {
        Self { keeper, signer, ttl, tasks: JoinSet::new(), tickets: HashMap::new() }
    }

    /// Starts what is due. Needs a runtime around it.
    pub fn start(&mut self, now: SystemTime) {
        while let Some(ticket) = self.keeper.next(now) {
            let signing = self.signer.issue(ticket.identity().clone(), self.ttl);
            let task = self.tasks.spawn(signing).id();
            self.tickets.insert(task, ticket);
        }
    }

    /// Waits until a signing has ended, for ever where none is under way. Returns whether a shard should look
    /// again. May be dropped while it waits.
    pub async fn finished(&mut self) -> bool {
        let Some(ended) = self.tasks.join_next_with_id().await else { return pending().await };
        let mut changed = self.settle(ended);
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            changed |= self.settle(ended);
        }
        changed
    }

    fn settle(&mut self, ended: Result<(Id, Result<Credential, Unsigned>), JoinError>) -> bool {
        let (task, outcome) = match ended {
            Ok((task, outcome)) => (task, outcome),
            Err(gone) => (gone.id(), Err(fell(&gone))),
        };
        let label = match &outcome {
            Ok(_) => "signed",
            Err(unsigned) if unsigned.denied => "denied",
            Err(_) => "failed",
        };
        metrics::counter!("ringway_certificate_requests", "outcome" => label).increment(1);
        let Some(ticket) = self.tickets.remove(&task) else { return false };
        self.keeper.finished(ticket, outcome, SystemTime::now())
    }
}

fn fell(gone: &JoinError) -> Unsigned {
    Unsigned::failed(format_args!("the signing task fell: {gone}"))
}

#[cfg(test)]
#[path = "signing_tests.rs"]
mod tests;
