//! What an authority answers, made into a credential or refused with the reason: the leaf first, intermediates, and at
//! last the bundle of roots (reference section 13.2). Whether it is valid now is the keeper's question.

use tracing::warn;

use crate::base::limits::{BUNDLE_ROOTS, CHAIN_CERTIFICATES, CHAIN_PEM_BYTES};
use crate::mesh::identity::Identity;
use crate::tls::config::{Credential, CredentialError, Profile};

/// An answer that is no certificate for what was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChainError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("did not find expected SAN: {expected} (the certificate is for {got})")]
    Name { expected: Identity, got: String },
    #[error("the chain for {identity} has {what}, more than {most}")]
    TooLarge { identity: Identity, what: String, most: usize },
}

/// `checks_name`: the certificate must carry the identity that was asked for. Where the caller asks in its own name,
/// the authority alone knows it (as in the reference).
pub(super) fn credential(
    identity: &Identity,
    answer: &[String],
    key_pem: &str,
    profile: Profile,
    checks_name: bool,
) -> Result<Credential, ChainError> {
    let (chain, roots) = match answer {
        [] => return Err(CredentialError::EmptyChain(identity.clone()).into()),
        [leaf] => {
            warn!(target: "ztunnel::identity::caclient", "no chain certs for: {identity}");
            (leaf.clone(), "")
        }
        // An element may lack its last line end.
        [chain @ .., roots] => (chain.join("\n"), roots.as_str()),
    };
    let bounds = [
        (chain.len(), "bytes of certificates", CHAIN_PEM_BYTES),
        (certificates(&chain), "certificates", CHAIN_CERTIFICATES),
        (certificates(roots), "roots", BUNDLE_ROOTS),
    ];
    for (count, of, most) in bounds {
        if count > most {
            let what = format!("{count} {of}");
            return Err(ChainError::TooLarge { identity: identity.clone(), what, most });
        }
    }
    let (chain, key, roots) = (chain.as_bytes(), key_pem.as_bytes(), roots.as_bytes());
    let credential = Credential::new(identity.clone(), chain, key, roots, profile)?;
    let names = credential.chain().first().map(|leaf| leaf.uris.as_slice()).unwrap_or_default();
    if checks_name && !names.iter().any(|name| *name == identity.to_string()) {
        let got = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
        return Err(ChainError::Name { expected: identity.clone(), got });
    }
    Ok(credential)
}

fn certificates(pem: &str) -> usize {
    pem.matches("-----BEGIN CERTIFICATE-----").count()
}
