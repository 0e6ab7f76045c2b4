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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::mesh::fixture::pod;

    /// The reference's rules word by word (section 12.3), with every text made whole first.
    fn slow(policy: &Policy, source: IpAddr, identity: Option<&Identity>, destination: SocketAddr) -> bool {
        policy.rules.iter().any(|rule| {
            rule.iter().all(|clause| {
                clause.is_empty()
                    || clause
                        .iter()
                        .any(|entry| slow_match(policy.action, entry, source, identity, destination))
            })
        })
    }

    fn slow_match(
        action: Action,
        entry: &Match,
        source: IpAddr,
        identity: Option<&Identity>,
        destination: SocketAddr,
    ) -> bool {
        if entry.unreadable {
            return action == Action::Deny;
        }
        let whole = identity.map(|identity| identity.to_string().replacen("spiffe://", "", 1));
        let namespace = identity.map(|identity| identity.namespace.to_string()).unwrap_or_default();
        let text = |wanted: &StringMatch, text: &str| match wanted {
            StringMatch::Exact(exact) => text == &**exact,
            StringMatch::Prefix(prefix) => text.starts_with(&**prefix),
            StringMatch::Suffix(suffix) => text.ends_with(&**suffix),
            StringMatch::Presence => !text.is_empty(),
        };
        let of_namespace = |wanted: &StringMatch| text(wanted, &namespace);
        let of_principal = |wanted: &StringMatch| whole.as_ref().is_some_and(|whole| text(wanted, whole));
        let of_account = |wanted: &ServiceAccountMatch| {
            whole.as_ref().is_some_and(|whole| {
                let parts: Vec<_> = whole.split('/').collect();
                *parts[2] == *wanted.namespace && *parts[4] == *wanted.service_account
            })
        };
        let mut said = Vec::new();
        let mut say = |empty: bool, held: bool| {
            if !empty {
                said.push(held);
            }
        };
        say(entry.namespaces.is_empty(), entry.namespaces.iter().any(of_namespace));
        say(entry.not_namespaces.is_empty(), !entry.not_namespaces.iter().any(of_namespace));
        say(entry.principals.is_empty(), entry.principals.iter().any(of_principal));
        say(entry.not_principals.is_empty(), !entry.not_principals.iter().any(of_principal));
        say(entry.service_accounts.is_empty(), entry.service_accounts.iter().any(of_account));
        say(entry.not_service_accounts.is_empty(), !entry.not_service_accounts.iter().any(of_account));
        let in_range = |ranges: &[IpNet], ip: IpAddr| ranges.iter().any(|range| range.contains(&ip));
        say(entry.source_ips.is_empty(), in_range(&entry.source_ips, source));
        say(entry.not_source_ips.is_empty(), !in_range(&entry.not_source_ips, source));
        say(entry.destination_ips.is_empty(), in_range(&entry.destination_ips, destination.ip()));
        say(entry.not_destination_ips.is_empty(), !in_range(&entry.not_destination_ips, destination.ip()));
        say(entry.destination_ports.is_empty(), entry.destination_ports.contains(&destination.port()));
        say(
            entry.not_destination_ports.is_empty(),
            !entry.not_destination_ports.contains(&destination.port()),
        );
        !said.is_empty() && said.into_iter().all(|held| held)
    }

    /// Mostly empty lists, now and then one or two values.
    fn some<T: Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> impl Strategy<Value = Vec<T>> {
        prop_oneof![5 => Just(Vec::new()), 1 => proptest::collection::vec(select(values), 1..3)]
    }

    fn texts() -> Vec<StringMatch> {
        let pieces =
            ["", "a", "td", "td/ns/a", "td/ns/a/sa/b", "/sa/b", "b", "ns/a/sa/", "td/ns/ab", "d/ns/a/sa/b"];
        let kinds = [StringMatch::Exact, StringMatch::Prefix, StringMatch::Suffix];
        let all = kinds.iter().flat_map(|kind| pieces.iter().map(|piece| kind((*piece).into())));
        all.chain([StringMatch::Presence]).collect()
    }

    fn entries() -> impl Strategy<Value = Match> {
        let ranges = || {
            let texts = ["10.0.0.0/8", "10.0.0.1/32", "0.0.0.0/0", "::/0", "fd00::/8", "192.0.2.0/24"];
            some(texts.iter().map(|text| text.parse::<IpNet>().unwrap()).collect())
        };
        let account = |namespace: &str, account: &str| ServiceAccountMatch {
            namespace: namespace.into(),
            service_account: account.into(),
        };
        let accounts = move || some(vec![account("a", "b"), account("a", "c"), account("b", "b")]);
        let ports = || some(vec![80, 81]);
        let identity = (some(texts()), some(texts()), some(texts()), some(texts()), accounts(), accounts());
        let addresses = (ranges(), ranges(), ranges(), ranges(), ports(), ports());
        (identity, addresses, proptest::bool::weighted(0.05)).prop_map(|(identity, addresses, unreadable)| {
            Match {
                namespaces: identity.0,
                not_namespaces: identity.1,
                principals: identity.2,
                not_principals: identity.3,
                service_accounts: identity.4,
                not_service_accounts: identity.5,
                source_ips: addresses.0,
                not_source_ips: addresses.1,
                destination_ips: addresses.2,
                not_destination_ips: addresses.3,
                destination_ports: addresses.4,
                not_destination_ports: addresses.5,
                unreadable,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_policy_matches_as_its_words_say(
            rules in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(entries(), 0..3), 0..3),
                0..3,
            ),
            deny in any::<bool>(),
            source in select(vec!["10.0.0.1", "10.9.9.9", "192.0.2.1", "fd00::1"]),
            identity in select(vec![
                None,
                Some("spiffe://td/ns/a/sa/b"),
                Some("spiffe://td/ns/ab/sa/c"),
                Some("spiffe://t/ns/b/sa/b"),
            ]),
            destination in select(vec!["10.0.0.1:80", "[fd00::1]:81", "192.0.2.1:80"]),
        ) {
            let action = if deny { Action::Deny } else { Action::Allow };
            let policy = Policy {
                name: "p".into(),
                namespace: "default".into(),
                scope: PolicyScope::Global,
                action,
                rules,
                dry_run: false,
            };
            let identity: Option<Identity> = identity.map(|text| text.parse().unwrap());
            let workload = pod("server", &[]);
            let call = Call {
                source: source.parse().unwrap(),
                identity: identity.as_ref(),
                destination: destination.parse().unwrap(),
                workload: &workload,
            };
            let expected = slow(&policy, call.source, call.identity, call.destination);
            prop_assert_eq!(policy.matches(&call).is_some(), expected);
        }

        #[test]
        fn text_in_pieces_compares_as_the_whole(
            pieces in proptest::collection::vec("[ab]{0,3}", 0..5),
            wanted in "[ab]{0,5}",
        ) {
            let whole = pieces.concat();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let wanted: Text = wanted.into();
            prop_assert_eq!(StringMatch::Exact(wanted.clone()).holds(&pieces), *whole == *wanted);
            prop_assert_eq!(StringMatch::Prefix(wanted.clone()).holds(&pieces), whole.starts_with(&*wanted));
            prop_assert_eq!(StringMatch::Suffix(wanted.clone()).holds(&pieces), whole.ends_with(&*wanted));
            prop_assert_eq!(StringMatch::Presence.holds(&pieces), !whole.is_empty());
        }
    }
}
