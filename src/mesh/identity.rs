//! SPIFFE identities as Istio writes them: `spiffe://{trust domain}/ns/{namespace}/sa/{service account}`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::base::text::Text;

/// Longest trust domain (SPIFFE ID, section 2.1).
const TRUST_DOMAIN_BYTES: usize = 255;

/// Who a workload is. Parsed once; every field is non-empty and free of `/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    pub trust_domain: Text,
    pub namespace: Text,
    pub service_account: Text,
}

/// Text that isn't an Istio SPIFFE identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not of the form spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT")]
pub struct NotAnIdentity(pub String);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

impl FromStr for Identity {
    type Err = NotAnIdentity;

    fn from_str(uri: &str) -> Result<Self, NotAnIdentity> {
        let refuse = || NotAnIdentity(uri.to_owned());
        let path = uri.strip_prefix("spiffe://").ok_or_else(refuse)?;
        let mut parts = path.split('/');
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or_else(refuse);
        let (trust_domain, ns, namespace, sa, service_account) =
            (next()?, next()?, next()?, next()?, next()?);
        if ns != "ns" || sa != "sa" || parts.next().is_some() {
            return Err(refuse());
        }
        Ok(Self {
            trust_domain: trust_domain.into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        })
    }
}

/// Names that all mean our own trust domain: the one that we were told is ours, and its aliases.
/// An empty set knows of no aliases: then a name is the same as itself only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrustDomains(Arc<[Text]>);

/// Text that isn't a trust domain.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not a trust domain: lower-case letters, digits, '.', '-' and '_', at most {TRUST_DOMAIN_BYTES}"
)]
pub struct NotATrustDomain(pub String);

impl TrustDomains {
    /// `own`, and the aliases of a list that is separated by commas; blanks and empty parts count for nothing.
    /// `own` is taken as it stands: it names certificates that exist already.
    pub fn parse(own: &str, aliases: &str) -> Result<Self, NotATrustDomain> {
        let mut all: Vec<Text> = vec![own.into()];
        for alias in aliases.split(',').map(str::trim).filter(|alias| !alias.is_empty()) {
            if !is_trust_domain(alias) {
                return Err(NotATrustDomain(alias.to_owned()));
            }
            if all.iter().all(|known| **known != *alias) {
                all.push(alias.into());
            }
        }
        Ok(Self(all.into()))
    }

    /// All names, our own first; none where we know of none.
    pub fn names(&self) -> &[Text] {
        &self.0
    }

    /// Every name that means the same as `domain`: itself first, then, where it is one of ours, our others.
    pub fn equivalent<'a>(&'a self, domain: &'a Text) -> impl Iterator<Item = &'a Text> {
        let ours = if self.holds(domain) { &*self.0 } else { &[] };
        std::iter::once(domain).chain(ours.iter().filter(move |name| *name != domain))
    }

    /// Whether both names mean one trust domain.
    pub fn same(&self, left: &str, right: &str) -> bool {
        left == right || (self.holds(left) && self.holds(right))
    }

    /// Whether both mean one workload: the same account of the same namespace in one trust domain.
    pub fn same_identity(&self, left: &Identity, right: &Identity) -> bool {
        left.namespace == right.namespace
            && left.service_account == right.service_account
            && self.same(&left.trust_domain, &right.trust_domain)
    }

    fn holds(&self, domain: &str) -> bool {
        self.0.iter().any(|name| **name == *domain)
    }
}

fn is_trust_domain(text: &str) -> bool {
    let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= TRUST_DOMAIN_BYTES && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_mean_our_own_domain_and_nothing_else_does() {
        let domains =
            TrustDomains::parse("cluster.local", " old.example ,, cluster.local,td_2,old.example").unwrap();
        assert!(domains.same("cluster.local", "old.example") && domains.same("td_2", "old.example"));
        assert!(domains.same("stranger", "stranger"), "a name is itself");
        assert!(!domains.same("stranger", "cluster.local") && !domains.same("old.example", "stranger"));
        let all = |domain: &str| {
            domains.equivalent(&domain.into()).map(|name| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(all("old.example"), ["old.example", "cluster.local", "td_2"]);
        assert_eq!(all("cluster.local"), ["cluster.local", "old.example", "td_2"]);
        assert_eq!(all("stranger"), ["stranger"]);
        let none = TrustDomains::default();
        assert!(none.same("a", "a") && !none.same("a", "b"));
        assert_eq!(none.equivalent(&"a".into()).count(), 1);
        let of = |uri: &str| uri.parse::<Identity>().unwrap();
        let web = of("spiffe://cluster.local/ns/default/sa/web");
        assert!(domains.same_identity(&web, &of("spiffe://td_2/ns/default/sa/web")));
        for other in ["td_2/ns/default/sa/api", "td_2/ns/other/sa/web", "stranger/ns/default/sa/web"] {
            assert!(!domains.same_identity(&web, &of(&format!("spiffe://{other}"))), "{other}");
        }
    }

    #[test]
    fn what_is_no_trust_domain_is_refused_and_named() {
        let long = "a".repeat(TRUST_DOMAIN_BYTES + 1);
        for wrong in ["Cluster.Local", "a b", "spiffe://x", "x/ns", "*", "x:1", "\u{e9}", &long] {
            let error = TrustDomains::parse("cluster.local", &format!("fine,{wrong}")).unwrap_err();
            assert_eq!(error, NotATrustDomain(wrong.to_owned()));
        }
    }

    #[test]
    fn identities_print_as_they_were_parsed() {
        let uri = "spiffe://cluster.local/ns/default/sa/web";
        assert_eq!(uri.parse::<Identity>().unwrap().to_string(), uri);
    }

    #[test]
    fn anything_else_is_refused_and_named() {
        for wrong in [
            "",
            "spiffe://",
            "cluster.local/ns/default/sa/web",
            "spiffe://cluster.local/ns/default/sa/",
            "spiffe://cluster.local/ns/default/sa/web/",
            "spiffe://cluster.local/sa/default/ns/web",
            "spiffe:///ns/default/sa/web",
            "SPIFFE://cluster.local/ns/default/sa/web",
        ] {
            let error = wrong.parse::<Identity>().unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }
}
