//! The policies of one scope, filed by what a call must have before a rule of theirs can match: its principal, its
//! service account, its namespace, a port, an address. A decision looks only at the rules filed under what the call
//! has, and at those that ask for nothing exact. Persistent: a clone costs a few reference counts, a change O(log n).
//! Whether a rule matches is `mesh::policy`'s to say; filing must never hide one that does.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::base::limits::POLICY_ANCHORS;
use crate::base::text::Text;
use crate::mesh::admit::Call;
use crate::mesh::policy::{Action, Match, Policy, StringMatch};

type Ordered<K, V> = imbl::GenericOrdMap<K, V, imbl::shared_ptr::DefaultSharedPtr>;

/// See above.
#[derive(Clone, Default)]
pub(crate) struct PolicySet {
    /// By store key, each with its number.
    policies: Ordered<Text, (u64, Arc<Policy>)>,
    filed: Ordered<Place, Arc<Policy>>,
    /// Rules filed under each kind of anchor: a kind that nobody uses isn't looked up.
    by_kind: [usize; KINDS],
    /// ALLOW policies that are enforced, and those that only rehearse.
    allows: usize,
    rehearsed_allows: usize,
    next_number: u64,
    hasher: foldhash::fast::RandomState,
}

/// Where a rule is filed: the hash of its anchor, the number of its policy, which rule it is.
type Place = (u64, u64, usize);

/// What a call must have. Two anchors whose hashes meet are found together, which costs a look at a rule too many.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Anchor<'a> {
    /// Nothing in particular.
    Anything,
    Principal {
        trust_domain: &'a str,
        namespace: &'a str,
        service_account: &'a str,
    },
    ServiceAccount {
        namespace: &'a str,
        service_account: &'a str,
    },
    /// Of the caller; empty without an identity.
    Namespace(&'a str),
    Source(IpAddr),
    Port(u16),
    Destination(IpAddr),
}

const KINDS: usize = 7;

impl Anchor<'_> {
    /// The lower, the fewer calls have it.
    fn kind(&self) -> usize {
        match self {
            Self::Principal { .. } => 0,
            Self::ServiceAccount { .. } => 1,
            Self::Source(_) => 2,
            Self::Namespace(_) => 3,
            Self::Port(_) => 4,
            Self::Destination(_) => 5,
            Self::Anything => 6,
        }
    }
}

impl PolicySet {
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values().map(|(_, policy)| policy)
    }

    /// Whether an enforced ALLOW policy is among them: then a call needs one that matches.
    pub fn allows(&self) -> bool {
        self.allows > 0
    }

    /// The same of ALLOW policies that only rehearse.
    pub fn rehearses_allows(&self) -> bool {
        self.rehearsed_allows > 0
    }

    /// Puts a policy under its store key, in the place of one that is there.
    pub fn insert(&mut self, key: &Text, policy: &Arc<Policy>) {
        self.remove(key);
        let number = self.next_number;
        self.next_number += 1;
        self.refile(policy, number, true);
        self.policies.insert(key.clone(), (number, policy.clone()));
    }

    pub fn remove(&mut self, key: &Text) {
        if let Some((number, policy)) = self.policies.remove(key) {
            self.refile(&policy, number, false);
        }
    }

    /// Puts every rule of a policy under its anchors, or takes it out again.
    fn refile(&mut self, policy: &Arc<Policy>, number: u64, present: bool) {
        if policy.action == Action::Allow {
            let count = if policy.dry_run { &mut self.rehearsed_allows } else { &mut self.allows };
            *count = if present { *count + 1 } else { count.saturating_sub(1) };
        }
        for (rule, clauses) in policy.rules.iter().enumerate() {
            for anchor in anchors(policy.action, clauses) {
                let place = (self.hasher.hash_one(anchor), number, rule);
                let was_there = if present {
                    self.filed.insert(place, policy.clone()).is_some()
                } else {
                    self.filed.remove(&place).is_some()
                };
                if let Some(count) = self.by_kind.get_mut(anchor.kind())
                    && was_there != present
                {
                    *count = if present { *count + 1 } else { count.saturating_sub(1) };
                }
            }
        }
    }

    /// Shows every rule that could match this call: with the ones that do, others, and now and then one twice.
    pub fn consider<'s>(&'s self, call: &Call<'_>, mut look: impl FnMut(&'s Arc<Policy>, usize)) {
        let mut under = |anchor: Anchor<'_>| {
            if self.by_kind.get(anchor.kind()).is_some_and(|count| *count > 0) {
                let hash = self.hasher.hash_one(anchor);
                for ((_, _, rule), policy) in self.filed.range((hash, 0, 0)..=(hash, u64::MAX, usize::MAX)) {
                    look(policy, *rule);
                }
            }
        };
        if let Some(identity) = call.identity {
            let (namespace, service_account) = (&*identity.namespace, &*identity.service_account);
            for trust_domain in call.domains.equivalent(&identity.trust_domain) {
                under(Anchor::Principal { trust_domain, namespace, service_account });
            }
            under(Anchor::ServiceAccount { namespace, service_account });
        }
        under(Anchor::Namespace(call.identity.map_or("", |identity| &identity.namespace)));
        under(Anchor::Source(call.source));
        under(Anchor::Port(call.destination.port()));
        under(Anchor::Destination(call.destination.ip()));
        under(Anchor::Anything);
    }
}

/// What a rule is filed under: any one of these is what every call that it matches has. None at all for a rule that
/// matches nothing. A rule is an AND over its clauses, so one clause is enough: the one with the rarest anchors.
fn anchors(action: Action, clauses: &[Vec<Match>]) -> Vec<Anchor<'_>> {
    let mut best: Option<(usize, Vec<Anchor<'_>>)> = None;
    for clause in clauses.iter().filter(|clause| !clause.is_empty()) {
        let Some(found) = of_clause(action, clause) else { continue };
        let rank = found.iter().map(Anchor::kind).max().unwrap_or(0);
        if best.as_ref().is_none_or(|(known, others)| (rank, found.len()) < (*known, others.len())) {
            best = Some((rank, found));
        }
    }
    best.map_or_else(|| vec![Anchor::Anything], |(_, found)| found)
}

/// The anchors of all matches that can hold, `None` where one of them asks for nothing exact.
fn of_clause(action: Action, clause: &[Match]) -> Option<Vec<Anchor<'_>>> {
    let mut all = Vec::new();
    for entry in clause.iter().filter(|entry| entry.can_hold(action)) {
        all.extend(of_match(entry)?);
        if all.len() > POLICY_ANCHORS {
            return None;
        }
    }
    Some(all)
}

/// The fields of a match are an AND, so one field is enough: the rarest that holds exact values only.
fn of_match(entry: &Match) -> Option<Vec<Anchor<'_>>> {
    if entry.unreadable {
        return None;
    }
    if let Some(texts) = exact(&entry.principals) {
        // A principal that isn't of this form is nobody's, and needs no filing.
        return Some(texts.into_iter().filter_map(principal).collect());
    }
    let accounts = entry.service_accounts.iter().map(|account| Anchor::ServiceAccount {
        namespace: &account.namespace,
        service_account: &account.service_account,
    });
    some(accounts)
        .or_else(|| single(&entry.source_ips).map(|ips| ips.into_iter().map(Anchor::Source).collect()))
        .or_else(|| exact(&entry.namespaces).map(|all| all.into_iter().map(Anchor::Namespace).collect()))
        .or_else(|| some(entry.destination_ports.iter().copied().map(Anchor::Port)))
        .or_else(|| {
            single(&entry.destination_ips).map(|ips| ips.into_iter().map(Anchor::Destination).collect())
        })
}

fn some<'a>(anchors: impl Iterator<Item = Anchor<'a>>) -> Option<Vec<Anchor<'a>>> {
    let anchors: Vec<_> = anchors.collect();
    (!anchors.is_empty()).then_some(anchors)
}

/// All values of a field, where it has any and all are exact.
fn exact(values: &[StringMatch]) -> Option<Vec<&str>> {
    let texts: Option<Vec<&str>> = values
        .iter()
        .map(|value| match value {
            StringMatch::Exact(text) => Some(&**text),
            StringMatch::Prefix(_) | StringMatch::Suffix(_) | StringMatch::Presence => None,
        })
        .collect();
    texts.filter(|texts| !texts.is_empty())
}

/// All addresses of a field, where it has any and none is a range.
fn single(ranges: &[IpNet]) -> Option<Vec<IpAddr>> {
    let is_one = |range: &&IpNet| range.prefix_len() == range.max_prefix_len();
    (!ranges.is_empty() && ranges.iter().all(|range| is_one(&range)))
        .then(|| ranges.iter().map(IpNet::addr).collect())
}

fn principal(text: &str) -> Option<Anchor<'_>> {
    let mut parts = text.split('/');
    match [parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?] {
        [trust_domain, "ns", namespace, "sa", service_account] if parts.next().is_none() => {
            Some(Anchor::Principal { trust_domain, namespace, service_account })
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "policy_set_tests.rs"]
mod tests;
