//! The certificates of this node's identities, as control keeps them. A shard looks up; what isn't there it asks
//! for with `Report::Want` and is told by `Order::Look` when something changed.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::base::text::Text;
use crate::mesh::identity::Identity;
use crate::tls::config::Credential;

/// What is known of one identity's certificate.
#[derive(Clone)]
pub enum Standing {
    /// Asked for, not here yet.
    Initializing,
    Available(Arc<Credential>),
    /// The last attempt failed and no valid certificate is left; the reason as the signing side gave it.
    Unavailable(Text),
}

/// A standing with what the dump tells beside it.
#[derive(Clone)]
pub struct Known {
    pub standing: Standing,
    /// Why the last attempt failed; `None` where it did not.
    pub last_error: Option<Text>,
    /// When it is signed next; `None` while it is being signed.
    pub next_attempt: Option<SystemTime>,
}

impl From<Standing> for Known {
    fn from(standing: Standing) -> Self {
        Self { standing, last_error: None, next_attempt: None }
    }
}

type Map =
    imbl::GenericHashMap<Identity, Known, foldhash::fast::RandomState, imbl::shared_ptr::DefaultSharedPtr>;

/// One writer (control), many readers (shards).
#[derive(Default)]
pub struct Identities(ArcSwap<Map>);

impl Identities {
    /// The standing of an identity, `None` where nobody asked for it yet. Expired certificates are not available.
    pub fn lookup(&self, identity: &Identity, now: SystemTime) -> Option<Standing> {
        let standing = self.0.load().get(identity)?.standing.clone();
        if let Standing::Available(credential) = &standing
            && credential.not_after() <= now
        {
            return Some(Standing::Initializing);
        }
        Some(standing)
    }

    pub fn set(&self, identity: Identity, known: impl Into<Known>) {
        let mut map = Map::clone(&self.0.load());
        map.insert(identity, known.into());
        self.0.store(Arc::new(map));
    }

    pub fn forget(&self, identity: &Identity) {
        let mut map = Map::clone(&self.0.load());
        map.remove(identity);
        self.0.store(Arc::new(map));
    }

    /// Everything known, sorted by identity, for the dump.
    pub fn all(&self) -> Vec<(Identity, Known)> {
        let map = self.0.load();
        let mut all: Vec<_> = map.iter().map(|(identity, known)| (identity.clone(), known.clone())).collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        all
    }
}
