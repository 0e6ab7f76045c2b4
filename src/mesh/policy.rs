//! L4 authorization policies as data. `mesh::admit` decides with them.

use ipnet::IpNet;

use crate::base::text::Text;
use crate::mesh::admit::Call;

/// One policy; its store key is `namespace/name`.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    pub name: Text,
    pub namespace: Text,
    pub scope: PolicyScope,
    pub action: Action,
    /// OR over rules; a rule is an AND over clauses; a clause is an OR over matches.
    pub rules: Vec<Vec<Vec<Match>>>,
    pub dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyScope {
    Global,
    Namespace,
    WorkloadSelector,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Allow,
    Deny,
}

/// AND over the fields that hold something; within a field values are OR; `not_` fields: none may match.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Match {
    pub namespaces: Vec<StringMatch>,
    pub not_namespaces: Vec<StringMatch>,
    pub service_accounts: Vec<ServiceAccountMatch>,
    pub not_service_accounts: Vec<ServiceAccountMatch>,
    pub principals: Vec<StringMatch>,
    pub not_principals: Vec<StringMatch>,
    pub source_ips: Vec<IpNet>,
    pub not_source_ips: Vec<IpNet>,
    pub destination_ips: Vec<IpNet>,
    pub not_destination_ips: Vec<IpNet>,
    pub destination_ports: Vec<u16>,
    pub not_destination_ports: Vec<u16>,
    /// Something in this match could not be understood: in a DENY it matches everything, in an ALLOW nothing.
    pub unreadable: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StringMatch {
    Exact(Text),
    Prefix(Text),
    Suffix(Text),
    /// Any non-empty value.
    Presence,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceAccountMatch {
    pub namespace: Text,
    pub service_account: Text,
}

/// Where in a rule a call matched: the first clause with matches, and which of them held first; none where the rule
/// has none.
pub type Held = Option<(usize, usize)>;

impl Policy {
    /// Where a rule of this policy matches a call, if it does (reference section 12.3).
    pub fn rule_matches(&self, rule: usize, call: &Call<'_>) -> Option<Held> {
        let mut place = None;
        for (clause, matches) in self.rules.get(rule)?.iter().enumerate() {
            if matches.is_empty() {
                continue;
            }
            let held = matches.iter().position(|entry| entry.holds(self.action, call))?;
            place = place.or(Some((clause, held)));
        }
        Some(place)
    }

    /// What a person should hear about a policy that can be read: a DENY with a match that asks for nothing denies
    /// nobody by it (reference section 12.3). Control planes send that for rules about HTTP.
    pub fn remark(&self) -> Option<&'static str> {
        let mut entries = self.rules.iter().flatten().flatten();
        (self.action == Action::Deny && entries.any(|entry| !entry.can_hold(self.action))).then_some(
            "a match of this DENY asks for nothing and denies nobody; rules about HTTP need a waypoint",
        )
    }

    /// Whether something in it could not be understood.
    pub fn is_unreadable(&self) -> bool {
        self.rules.iter().flatten().flatten().any(|entry| entry.unreadable)
    }
}

impl Match {
    fn holds(&self, action: Action, call: &Call<'_>) -> bool {
        self.can_hold(action) && (self.unreadable || (self.addresses_hold(call) && self.identity_holds(call)))
    }

    /// Whether there is a call that it holds for: not where it says nothing, and not where it can't be read, unless
    /// it is to keep calls out.
    pub(crate) fn can_hold(&self, action: Action) -> bool {
        if self.unreadable { action == Action::Deny } else { !self.is_empty() }
    }

    /// Nothing said matches nothing.
    fn is_empty(&self) -> bool {
        let Self {
            namespaces,
            not_namespaces,
            service_accounts,
            not_service_accounts,
            principals,
            not_principals,
            source_ips,
            not_source_ips,
            destination_ips,
            not_destination_ips,
            destination_ports,
            not_destination_ports,
            unreadable: _,
        } = self;
        [namespaces, not_namespaces, principals, not_principals].iter().all(|values| values.is_empty())
            && [service_accounts, not_service_accounts].iter().all(|values| values.is_empty())
            && [source_ips, not_source_ips, destination_ips, not_destination_ips]
                .iter()
                .all(|values| values.is_empty())
            && [destination_ports, not_destination_ports].iter().all(|values| values.is_empty())
    }

    fn addresses_hold(&self, call: &Call<'_>) -> bool {
        let destination = call.destination.ip();
        field(&self.destination_ips, &self.not_destination_ips, |range| range.contains(&destination))
            && field(&self.source_ips, &self.not_source_ips, |range| range.contains(&call.source))
            && field(&self.destination_ports, &self.not_destination_ports, |port| {
                *port == call.destination.port()
            })
    }

    fn identity_holds(&self, call: &Call<'_>) -> bool {
        let identity = call.identity;
        let namespace = identity.map_or("", |identity| &*identity.namespace);
        field(&self.service_accounts, &self.not_service_accounts, |account| {
            identity.is_some_and(|identity| {
                account.namespace == identity.namespace && account.service_account == identity.service_account
            })
        }) && field(&self.principals, &self.not_principals, |value| {
            principals(call).any(|principal| value.holds(&principal))
        }) && field(&self.namespaces, &self.not_namespaces, |value| value.holds(&[namespace]))
    }
}

/// One field with its negation: a value must hold where there are any, and none of the negated may.
fn field<T>(values: &[T], negated: &[T], holds: impl Fn(&T) -> bool) -> bool {
    (values.is_empty() || values.iter().any(&holds)) && !negated.iter().any(&holds)
}

/// `{trust domain}/ns/{namespace}/sa/{service account}` of the caller, once for each name of its trust domain; in
/// pieces, so that comparing needs no allocation.
fn principals<'a>(call: &Call<'a>) -> impl Iterator<Item = [&'a str; 5]> {
    let domains = call.domains;
    call.identity.into_iter().flat_map(move |identity| {
        domains.equivalent(&identity.trust_domain).map(move |trust_domain| {
            [&**trust_domain, "/ns/", &*identity.namespace, "/sa/", &*identity.service_account]
        })
    })
}

impl StringMatch {
    /// Whether the text made of these pieces fits.
    fn holds(&self, pieces: &[&str]) -> bool {
        match self {
            Self::Exact(text) => pieces
                .iter()
                .try_fold(&**text, |left, piece| left.strip_prefix(piece))
                .is_some_and(str::is_empty),
            Self::Prefix(text) => begins(pieces.iter().map(|piece| piece.as_bytes()), text.as_bytes()),
            Self::Suffix(text) => ends(pieces.iter().rev().map(|piece| piece.as_bytes()), text.as_bytes()),
            Self::Presence => pieces.iter().any(|piece| !piece.is_empty()),
        }
    }
}

fn begins<'a>(pieces: impl Iterator<Item = &'a [u8]>, mut wanted: &[u8]) -> bool {
    for piece in pieces {
        match wanted.strip_prefix(piece) {
            Some(left) => wanted = left,
            None => return piece.starts_with(wanted),
        }
    }
    wanted.is_empty()
}

fn ends<'a>(pieces: impl Iterator<Item = &'a [u8]>, mut wanted: &[u8]) -> bool {
    for piece in pieces {
        match wanted.strip_suffix(piece) {
            Some(left) => wanted = left,
            None => return piece.ends_with(wanted),
        }
    }
    wanted.is_empty()
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
