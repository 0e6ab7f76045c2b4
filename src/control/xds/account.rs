//! The books of one type of resources: what is held and in which version, and what a response changes of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::ledger::{Kind, Step};
use super::version::Version;
use crate::base::limits::XDS_SETTLE_MS;
use crate::base::text::Text;
use crate::mesh::delta::Change;

/// One type.
#[derive(Default)]
pub(super) struct Account {
    pub(super) held: HashMap<Text, Version, foldhash::fast::RandomState>,
    /// Resources whose name isn't the key of what they hold; no known control plane sends such.
    pub(super) renamed: HashMap<Text, Text>,
    pub(super) complete: bool,
    pub(super) unseen: Unseen,
}

/// What this stream has not named yet of what was held when it began. The control plane may honour the versions
/// that are declared to it: then it leaves out what is as declared, and lists what is gone. Or it may send its whole
/// state and list nothing: then what it leaves out is gone. So
/// - a name that was declared without a version, or not at all, is sent again by both kinds, or it is gone. It is
///   given up when nothing of the kind was named for a moment: a state may come in several responses, and giving up
///   too late is harmless, while a policy or a workload that is missing for a moment opens what should be closed.
/// - a name that was declared with its version stands, unless the first response tells that the control plane
///   doesn't honour versions: it sends again what is as declared, or at least as many of the held names as it leaves
///   out, and lists nothing as gone. Then the versions of those left out are forgotten and the stream is opened
///   anew, once, which makes them names without a version. A wrong guess costs that one reconnect, and no state.
///
/// What can't be told: a control plane of the second kind that has changed the version of everything and lost the
/// greater part of it.
#[derive(Default)]
pub(super) struct Unseen {
    pub(super) names: HashSet<Text, foldhash::fast::RandomState>,
    /// No response of the type has come on this stream yet.
    pub(super) fresh: bool,
    /// This stream was opened to ask once more.
    pub(super) asked_again: bool,
    pub(super) give_up_at: Option<Instant>,
}

impl Account {
    /// What is held, as far as it can be told. The versions of the rest are forgotten: it is sent again.
    pub(super) fn declare(&mut self, mut bytes: usize) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        for blank in [false, true] {
            for (name, version) in &mut self.held {
                if (*version == Version::Blank) != blank || versions.contains_key(&**name) {
                    continue;
                }
                let text = version.text();
                // Two lengths of two bytes, one of three, three tags.
                let Some(left) = bytes.checked_sub(name.len() + text.len() + 10) else {
                    *version = Version::Blank;
                    continue;
                };
                bytes = left;
                versions.insert(name.to_string(), text);
            }
        }
        versions
    }

    pub(super) fn take(
        &mut self,
        kind: Kind,
        accepted: Vec<(Text, Version)>,
        removed: &[String],
        now: Instant,
        step: &mut Step,
    ) {
        self.complete = true;
        let mut again = Again::default();
        let mut replaced = Vec::new();
        for ((name, version), change) in accepted.into_iter().zip(&step.changes) {
            if self.unseen.names.remove(&name) {
                let held = self.held.get(&name).filter(|held| **held != Version::Blank);
                again.names += 1;
                again.versioned += usize::from(held.is_some());
                again.as_declared += usize::from(held == Some(&version));
            }
            replaced.extend(self.follow_key(kind, &name, change));
            self.held.insert(name, version);
        }
        if !replaced.is_empty() {
            // What another name stands for now comes after it.
            replaced.append(&mut step.changes);
            step.changes = replaced;
        }
        for refused in &step.refused {
            self.unseen.names.remove(&*refused.name);
            // Declared without a version it is sent again, and told if it goes.
            if let Some(version) = self.held.get_mut(&*refused.name) {
                *version = Version::Blank;
            }
        }
        for name in removed {
            self.unseen.names.remove(&**name);
            step.changes.extend(self.remove(kind, name));
        }
        step.restart = self.judge(removed.is_empty(), &again, now);
    }

    /// See `Unseen`. True: the stream is to be opened anew.
    fn judge(&mut self, nothing_gone: bool, again: &Again, now: Instant) -> bool {
        let settled = Some(now + Duration::from_millis(XDS_SETTLE_MS));
        let Unseen { names, fresh, asked_again, give_up_at } = &mut self.unseen;
        if !std::mem::take(fresh) {
            if give_up_at.is_some() && again.names > 0 {
                *give_up_at = settled;
            }
            return false;
        }
        let versioned = |name: &Text| self.held.get(name).is_some_and(|version| *version != Version::Blank);
        let left_out = names.iter().filter(|name| versioned(name)).count();
        let suspicious =
            left_out > 0 && nothing_gone && (again.as_declared > 0 || again.versioned >= left_out);
        *asked_again = suspicious && !*asked_again;
        if *asked_again {
            for name in names.drain() {
                self.held.insert(name, Version::Blank);
            }
            return true;
        }
        names.retain(|name| !versioned(name));
        names.shrink_to_fit();
        *give_up_at = settled.filter(|_| !names.is_empty());
        false
    }

    /// Where the name now stands for another thing than before, that other thing goes.
    fn follow_key(&mut self, kind: Kind, name: &Text, change: &Change) -> Option<Change> {
        let own = |key: &str| (key != &**name).then(|| Text::from(key));
        let other = match change {
            Change::Workload(workload) => own(&workload.uid),
            Change::Service { service, .. } => own(&service.key.to_string()),
            Change::Policy { .. }
            | Change::RemoveWorkload(_)
            | Change::RemoveService(_)
            | Change::RemoveAddress(_)
            | Change::RemovePolicy(_) => None,
        };
        if other.is_none() && self.renamed.is_empty() {
            return None;
        }
        let before = match &other {
            Some(key) => self.renamed.insert(name.clone(), key.clone()),
            None => self.renamed.remove(name),
        };
        let before = before.or_else(|| self.held.contains_key(name).then(|| name.clone()))?;
        (before != *other.as_ref().unwrap_or(name)).then(|| gone(kind, before))
    }

    /// The change that takes a held resource out of the snapshot.
    pub(super) fn remove(&mut self, kind: Kind, name: &str) -> Option<Change> {
        let (name, _) = self.held.remove_entry(name)?;
        let key = self.renamed.remove(&name).unwrap_or(name);
        Some(gone(kind, key))
    }
}

/// Names of a response that were held when the stream began and had not been named on it.
#[derive(Default)]
struct Again {
    names: usize,
    /// Declared with a version,
    versioned: usize,
    /// and sent with the same.
    as_declared: usize,
}

fn gone(kind: Kind, key: Text) -> Change {
    match kind {
        Kind::Address => Change::RemoveAddress(key),
        Kind::Authorization => Change::RemovePolicy(key),
    }
}
