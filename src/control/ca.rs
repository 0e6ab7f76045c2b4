//! Which certificates this node holds, and when each is signed anew. Time comes in as wall-clock time, so that a
//! clock that jumps (suspend and resume) makes a renewal due at once. Signing itself is a `Signer`'s.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use crate::base::limits::{
    IDENTITIES_KEPT, SIGNING_BACKOFF_FIRST_MS, SIGNING_BACKOFF_LAST_MS, SIGNINGS_A_TURN,
};
use crate::base::text::Text;
use crate::bridge::identities::{Identities, Standing};
use crate::mesh::identity::Identity;
use crate::tls::cert::Authority;
use crate::tls::config::{Credential, Profile};

/// Whatever signs certificates: the embedded authority today, the mesh's own later.
pub trait Signer: Send {
    /// A certificate for `identity` that is valid for `ttl`, with its key and roots.
    fn issue(&self, identity: &Identity, ttl: Duration) -> Result<Credential, Box<dyn Error + Send + Sync>>;
}

/// Stands where no certificate authority is configured: every identity is refused with the reason.
pub struct NoAuthority;

impl Signer for NoAuthority {
    fn issue(&self, _: &Identity, _: Duration) -> Result<Credential, Box<dyn Error + Send + Sync>> {
        Err("no certificate authority is configured: set FAKE_CA=true or CA_ADDRESS".into())
    }
}

/// The embedded authority: a root of our own, shared by the nodes that share its directory.
pub struct Embedded {
    pub authority: Authority,
    pub profile: Profile,
}

impl Signer for Embedded {
    fn issue(&self, identity: &Identity, ttl: Duration) -> Result<Credential, Box<dyn Error + Send + Sync>> {
        Ok(self.authority.credential(identity, ttl, self.profile)?)
    }
}

/// The keeper of certificates: decides what is signed next and tells the standing to `Identities`.
pub struct Ca {
    signer: Box<dyn Signer>,
    ttl: Duration,
    identities: Arc<Identities>,
    kept: HashMap<Identity, Kept>,
    /// uid of a local workload -> its identity.
    local: HashMap<Text, Identity>,
    /// How many local workloads have an identity.
    workloads: HashMap<Identity, usize>,
    random: fastrand::Rng,
}

struct Kept {
    due: SystemTime,
    backoff: Duration,
    held: Option<Arc<Credential>>,
}

impl Ca {
    pub fn new(
        signer: Box<dyn Signer>,
        ttl: Duration,
        identities: Arc<Identities>,
        random: fastrand::Rng,
    ) -> Self {
        Self {
            signer,
            ttl,
            identities,
            kept: HashMap::new(),
            local: HashMap::new(),
            workloads: HashMap::new(),
            random,
        }
    }

    /// A connection waits for this identity. One whose last attempt failed waits for its retry: the stored reason
    /// is the answer until then.
    pub fn want(&mut self, identity: Identity, now: SystemTime) {
        if self.kept.contains_key(&identity) {
            return;
        }
        if self.kept.len() >= IDENTITIES_KEPT {
            self.forget_one_without_workload();
        }
        self.identities.set(identity.clone(), Standing::Initializing);
        self.kept.insert(identity, Kept { due: now, backoff: first_backoff(), held: None });
    }

    /// A workload of this node came, changed or (`None`) left. The identity that no local workload has any more
    /// is forgotten; a new one is signed ahead of its first connection where `prefetch` says so.
    pub fn local(&mut self, uid: Text, identity: Option<Identity>, prefetch: bool, now: SystemTime) {
        let before = match identity.clone() {
            Some(identity) => self.local.insert(uid, identity),
            None => self.local.remove(&uid),
        };
        if before == identity {
            return;
        }
        if let Some(identity) = identity {
            *self.workloads.entry(identity.clone()).or_default() += 1;
            if prefetch {
                self.want(identity, now);
            }
        }
        if let Some(before) = before {
            self.left(&before);
        }
    }

    /// One local workload less has this identity.
    fn left(&mut self, identity: &Identity) {
        let Some(count) = self.workloads.get_mut(identity) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.workloads.remove(identity);
            if self.kept.remove(identity).is_some() {
                self.identities.forget(identity);
            }
        }
    }

    /// Signs what is due, a bounded number of identities at a time. Returns how many standings changed; call again
    /// while it is the bound.
    pub fn turn(&mut self, now: SystemTime) -> usize {
        let due = self.kept.iter().filter(|(_, kept)| kept.due <= now);
        // Those that connections wait for go before renewals.
        let mut due: Vec<(bool, SystemTime, Identity)> =
            due.map(|(identity, kept)| (kept.held.is_some(), kept.due, identity.clone())).collect();
        due.sort_unstable();
        due.truncate(SIGNINGS_A_TURN);
        let signed = due.len();
        for (_, _, identity) in due {
            self.sign(&identity, now);
        }
        signed
    }

    fn sign(&mut self, identity: &Identity, now: SystemTime) {
        let Some(kept) = self.kept.get_mut(identity) else { return };
        match self.signer.issue(identity, self.ttl) {
            Ok(credential) => {
                let credential = Arc::new(credential);
                let lifetime = credential.not_after().duration_since(now).unwrap_or_default();
                kept.due = now + renewal_after(lifetime, self.random.f64()).max(first_backoff());
                kept.backoff = first_backoff();
                kept.held = Some(credential.clone());
                self.identities.set(identity.clone(), Standing::Available(credential));
            }
            Err(error) => {
                let retry = kept.backoff.mul_f64(0.8 + 0.4 * self.random.f64());
                kept.backoff = (kept.backoff * 2).min(Duration::from_millis(SIGNING_BACKOFF_LAST_MS));
                kept.due = now + retry;
                let valid = kept.held.as_ref().map(|held| held.not_after()).filter(|until| *until > now);
                if let Some(until) = valid {
                    kept.due = kept.due.min(until);
                    info!(
                        target: "ztunnel::identity::manager", id = %identity,
                        "certificate renewal failed ({error}); retaining existing valid certificate until \
                         {until:?}; next retry at {:?}", kept.due
                    );
                } else {
                    kept.held = None;
                    warn!(
                        target: "ztunnel::identity::manager", id = %identity,
                        "certificate fetch failed ({error}) and no valid existing certificate; will retry in \
                         {retry:?} (backoff capped at 150s)"
                    );
                    self.identities.set(identity.clone(), Standing::Unavailable(error.to_string().into()));
                }
            }
        }
    }

    /// Room for a new one: the one nobody local has that is due for renewal first.
    fn forget_one_without_workload(&mut self) {
        let spare = self.kept.iter().filter(|(identity, _)| !self.workloads.contains_key(*identity));
        let oldest = spare.min_by_key(|(_, kept)| kept.due).map(|(identity, _)| identity.clone());
        if let Some(oldest) = oldest {
            self.kept.remove(&oldest);
            self.identities.forget(&oldest);
        }
    }
}

/// Half the lifetime that is left, up to a tenth of it earlier, so that a node's certificates drift apart.
fn renewal_after(lifetime: Duration, random: f64) -> Duration {
    lifetime.mul_f64(0.5 - 0.1 * random)
}

fn first_backoff() -> Duration {
    Duration::from_millis(SIGNING_BACKOFF_FIRST_MS)
}

#[cfg(test)]
#[path = "ca_tests.rs"]
mod tests;
