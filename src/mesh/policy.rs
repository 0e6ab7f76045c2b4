//! L4 authorization policies as data. `mesh::admit` decides with them.

use ipnet::IpNet;

use crate::base::text::Text;
use crate::mesh::admit::Call;
use crate::mesh::identity::Identity;

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

/// Where in a policy a call matched: the rule, and the clause and match that held first.
pub type Place = (usize, Option<(usize, usize)>);

impl Policy {
    /// Where this policy matches a call, if it does (reference section 12.3).
    pub fn matches(&self, call: &Call<'_>) -> Option<Place> {
        self.rules.iter().enumerate().find_map(|(number, rule)| {
            let mut place = None;
            for (clause, matches) in rule.iter().enumerate() {
                if matches.is_empty() {
                    continue;
                }
                let held = matches.iter().position(|entry| entry.holds(self.action, call))?;
                place = place.or(Some((clause, held)));
            }
            Some((number, place))
        })
    }
}

impl Match {
    fn holds(&self, action: Action, call: &Call<'_>) -> bool {
        if self.unreadable {
            return action == Action::Deny;
        }
        !self.is_empty() && self.addresses_hold(call) && self.identity_holds(call.identity)
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

    fn identity_holds(&self, identity: Option<&Identity>) -> bool {
        let principal = identity.map(Principal::of);
        let namespace = identity.map_or("", |identity| &*identity.namespace);
        field(&self.service_accounts, &self.not_service_accounts, |account| {
            identity.is_some_and(|identity| {
                account.namespace == identity.namespace && account.service_account == identity.service_account
            })
        }) && field(&self.principals, &self.not_principals, |value| {
            principal.as_ref().is_some_and(|principal| value.holds(&principal.0))
        }) && field(&self.namespaces, &self.not_namespaces, |value| value.holds(&[namespace]))
    }
}

/// One field with its negation: a value must hold where there are any, and none of the negated may.
fn field<T>(values: &[T], negated: &[T], holds: impl Fn(&T) -> bool) -> bool {
    (values.is_empty() || values.iter().any(&holds)) && !negated.iter().any(&holds)
}

/// `{trust domain}/ns/{namespace}/sa/{service account}` in pieces, so that comparing needs no allocation.
struct Principal<'a>([&'a str; 5]);

impl<'a> Principal<'a> {
    fn of(identity: &'a Identity) -> Self {
        Self([&identity.trust_domain, "/ns/", &identity.namespace, "/sa/", &identity.service_account])
    }
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
