//! SPIFFE identities as Istio writes them: `spiffe://{trust domain}/ns/{namespace}/sa/{service account}`.

use std::fmt;
use std::str::FromStr;

use crate::base::text::Text;

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

#[cfg(test)]
mod tests {
    use super::*;

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
