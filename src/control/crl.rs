//! The file of revocation lists (`CRL_PATH`): read at start, followed as it changes, and told about. Lists that were
//! read stay in force until others were read; what can't be used is said, counted and, before anything was read, keeps
//! the process unready (deploy/docs/decisions/revocation-lists.md).

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tracing::{info, warn};

use crate::base::limits::{REVOCATION_FILE_BYTES, REVOCATION_LOOKS, REVOCATION_SURVEY_MS, SOURCE_POLL_MS};
use crate::base::text::Text;
use crate::bridge::identities::{Identities, Standing};
use crate::control::files::{Stamp, read_regular};
use crate::control::ready::{REVOCATION, Readiness};
use crate::tls::config::Credential;
use crate::tls::revocation::{self, List, Lists, ListsUnreadable, Revocations};

/// See above. Belongs to the control thread.
pub struct RevocationFile {
    path: PathBuf,
    revocations: Arc<Revocations>,
    seen: Option<Stamp>,
    /// Looks since the stamp changed that did not read the file; `None`: it is read.
    waited: Option<u32>,
    /// The bytes in force.
    in_force: Option<u64>,
    next_look: Option<Instant>,
    next_survey: Option<Instant>,
    /// Why the last attempt failed.
    failure: Option<String>,
    told: BTreeSet<Text>,
}

/// A file that can't be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("{path}: {error}")]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{path}: it has more than {REVOCATION_FILE_BYTES} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path}: {error}")]
    Malformed { path: PathBuf, error: ListsUnreadable },
}

impl RevocationFile {
    /// Of a file that need not be there yet; nothing is read here.
    pub fn new(path: PathBuf, revocations: Arc<Revocations>) -> Self {
        Self {
            path,
            revocations,
            seen: None,
            waited: Some(REVOCATION_LOOKS),
            in_force: None,
            next_look: None,
            next_survey: None,
            failure: None,
            told: BTreeSet::new(),
        }
    }

    /// When it looks or surveys next; none: at once.
    pub fn due(&self) -> Option<Instant> {
        self.next_look.zip(self.next_survey).map(|(look, survey)| look.min(survey))
    }

    /// Looks at the file, no more often than it makes sense; whether other lists are in force now. A file is read once
    /// it has come to rest, so that nothing is taken from one that is being written.
    pub fn look(&mut self, now: Instant, readiness: &Readiness) -> bool {
        if self.next_look.is_some_and(|at| now < at) {
            return false;
        }
        self.next_look = Some(now + Duration::from_millis(SOURCE_POLL_MS));
        let stamp = Stamp::of(&self.path);
        let rests = self.seen.as_ref() == Some(&stamp);
        self.seen = Some(stamp);
        match self.waited {
            None if rests => return false,
            None => {
                self.waited = Some(1);
                return false;
            }
            Some(waited) if !rests && waited < REVOCATION_LOOKS => {
                self.waited = Some(waited + 1);
                return false;
            }
            Some(_) => self.waited = None,
        }
        let outcome = self.read();
        let failure = outcome.as_ref().err().map(ToString::to_string);
        let is_news = self.failure != failure;
        self.failure = failure;
        match outcome {
            Ok(None) => false,
            Ok(Some(lists)) => {
                info!("{} revocation lists are in force, from {}", lists.len(), self.path.display());
                self.revocations.replace(lists);
                self.next_survey = None;
                readiness.complete(REVOCATION);
                true
            }
            Err(error) => {
                if let Unusable::Unreadable { .. } = error {
                    // Rights may change without a trace in the stamp.
                    self.waited = Some(REVOCATION_LOOKS);
                }
                if is_news {
                    self.refuse(&error, readiness);
                }
                false
            }
        }
    }

    /// Looks whose lists they are and whether they are out of date; tells what is new. `now` and `wall` are the same
    /// moment.
    pub fn survey(&mut self, now: Instant, wall: SystemTime, identities: &Identities) {
        if self.next_survey.is_some_and(|at| now < at) {
            return;
        }
        self.next_survey = Some(now + Duration::from_millis(REVOCATION_SURVEY_MS));
        let lists = Arc::clone(&self.revocations.current());
        let credentials: Vec<_> = identities
            .all()
            .into_iter()
            .filter_map(|(_, known)| match known.standing {
                Standing::Available(credential) => Some(credential),
                Standing::Initializing | Standing::Unavailable(_) => None,
            })
            .collect();
        let expired: Vec<_> = lists.iter().filter(|list| list.is_expired(wall)).collect();
        let unsigned: Vec<_> = lists.iter().filter(|list| is_unsigned(list, &credentials)).collect();
        set("ringway_crl_lists", lists.iter().count());
        set("ringway_crl_lists_expired", expired.len());
        set("ringway_crl_lists_unsigned", unsigned.len());
        self.tell(&texts(&lists, &expired, &unsigned, &credentials));
    }

    /// The certificates have changed: who signs may have changed with them.
    pub fn signers_changed(&mut self) {
        self.next_survey = None;
    }

    fn tell(&mut self, texts: &BTreeSet<Text>) {
        for text in texts.difference(&self.told) {
            warn!("revocation lists of {}: {text}", self.path.display());
        }
        self.told.clone_from(texts);
    }

    /// The lists, where they are others than those in force.
    fn read(&mut self) -> Result<Option<Vec<List>>, Unusable> {
        let path = || self.path.clone();
        let bytes = read_regular(&self.path, REVOCATION_FILE_BYTES)
            .map_err(|error| Unusable::Unreadable { path: path(), error })?
            .ok_or_else(|| Unusable::TooLarge { path: path() })?;
        let hash = foldhash_of(&bytes);
        if self.in_force == Some(hash) {
            return Ok(None);
        }
        let lists = revocation::read(&bytes).map_err(|error| Unusable::Malformed { path: path(), error })?;
        self.in_force = Some(hash);
        Ok(Some(lists))
    }

    fn refuse(&mut self, error: &Unusable, readiness: &Readiness) {
        let missing =
            matches!(error, Unusable::Unreadable { error, .. } if error.kind() == ErrorKind::NotFound);
        metrics::counter!("ringway_crl_load_errors").increment(1);
        if self.in_force.is_some() {
            warn!("revocation lists can't be read anew, those read before stay in force: {error}");
            return;
        }
        if self.revocations.generation() == 0 {
            // From here on the counters are there, though nobody is revoked yet.
            self.revocations.replace(Vec::new());
        }
        if missing {
            readiness.complete(REVOCATION);
            warn!("no certificate is revoked until there are revocation lists: {error}");
            return;
        }
        readiness.expect(REVOCATION, Some(format!("no certificate is revoked yet: {error}").into()));
        warn!("failed to initialize crl manager: {error}; no certificate is revoked until it can be read");
    }
}

/// No root or intermediate known here has signed it. While no certificate is known there is nothing to say.
fn is_unsigned(list: &List, credentials: &[Arc<Credential>]) -> bool {
    !credentials.is_empty() && !credentials.iter().any(|credential| credential.knows_signer(list))
}

fn texts(
    lists: &Lists,
    expired: &[&List],
    unsigned: &[&List],
    credentials: &[Arc<Credential>],
) -> BTreeSet<Text> {
    let expired = expired.iter().map(|list| {
        let at = list.next_update.map(time::OffsetDateTime::from);
        let at = at.map(|at| at.to_string()).unwrap_or_default();
        format!(
            "the list of {:?} should have been replaced by {at}; it is enforced all the same",
            list.issuer
        )
    });
    let unsigned = unsigned.iter().map(|list| {
        format!(
            "the list of {:?} is signed by none of the roots and intermediates of this node's certificates: it revokes \
             nobody but what its signer issued",
            list.issuer
        )
    });
    let own = credentials.iter().filter(|credential| credential.is_revoked(lists)).map(|credential| {
        format!("the certificate of {} is revoked: its peers will refuse it", credential.identity())
    });
    expired.chain(unsigned).chain(own).map(Text::from).collect()
}

fn foldhash_of(bytes: &[u8]) -> u64 {
    std::hash::BuildHasher::hash_one(&foldhash::quality::FixedState::default(), bytes)
}

#[expect(clippy::cast_precision_loss, reason = "numbers of lists are small")]
fn set(name: &'static str, value: usize) {
    metrics::gauge!(name).set(value as f64);
}

#[cfg(test)]
#[path = "crl_tests.rs"]
mod tests;
