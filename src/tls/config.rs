//! What one identity speaks TLS with: its chain, key and roots, made into both rustls configurations once.
//! Whom a client expects, and where its secrets go, is set for each handshake (`handshake`).

use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::mesh::identity::{Identity, TrustDomains};
use crate::tls::aead::Library;
use crate::tls::cert::{CertificateInfo, CertificateUnreadable};
use crate::tls::revocation::Revocations;
use crate::tls::tenure::{RootSet, Tenure};
use crate::tls::verify::{ExpectedPeer, OwnTrustDomain, Trust};

/// The one protocol spoken inside: HBONE is HTTP/2.
pub const ALPN_H2: &[u8] = b"h2";

/// One identity's certificate, key and roots.
pub struct Credential {
    identity: Identity,
    chain: Vec<CertificateInfo>,
    roots: Vec<CertificateInfo>,
    not_before: SystemTime,
    not_after: SystemTime,
    records: Library,
    pub(in crate::tls) ders: Vec<CertificateDer<'static>>,
    root_set: RootSet,
    pub(in crate::tls) trust: Arc<Trust>,
    client: ClientConfig,
    server: ServerConfig,
}

/// What holds for every handshake of the process.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub exchange: Exchange,
    pub records: Library,
    /// The names of our own trust domain.
    pub domains: TrustDomains,
    /// Whom no handshake may accept any more.
    pub revocations: Arc<Revocations>,
}

/// Key exchange groups (reference section 13.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Exchange {
    /// X25519 first, then P-256, P-384 and the hybrid X25519MLKEM768.
    #[default]
    Default,
    /// `RINGWAY_HYBRID_KEY_EXCHANGE`: the hybrid first, the others after it for peers that don't know it.
    Hybrid,
    /// `COMPLIANCE_POLICY=pqc`: X25519MLKEM768 and nothing else.
    PostQuantumOnly,
}

/// Certificates, key or roots that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("chain returned from CA is empty for: {0}")]
    EmptyChain(Identity),
    #[error("invalid root certificate: no root certificate present")]
    NoRoots,
    #[error("{what} isn't PEM: {error}")]
    Pem { what: &'static str, error: rustls::pki_types::pem::Error },
    #[error("certificate {number} of the {what}: {error}")]
    Certificate { what: &'static str, number: usize, error: CertificateUnreadable },
    #[error("invalid root certificate: {0}")]
    Root(rustls::Error),
    #[error("tls error: {0}")]
    Tls(#[from] rustls::Error),
}

impl Credential {
    /// All three as PEM: the chain leaf first, the key as PKCS#8, SEC1 or PKCS#1, one or more roots.
    pub fn new(
        identity: Identity,
        chain_pem: &[u8],
        key_pem: &[u8],
        roots_pem: &[u8],
        profile: Profile,
    ) -> Result<Self, CredentialError> {
        let chain = certificates("chain", chain_pem)?;
        let roots = certificates("roots", roots_pem)?;
        let chain_info = infos("chain", &chain)?;
        let roots_info = infos("roots", &roots)?;
        let (not_before, not_after) = match chain_info.first() {
            Some(leaf) => (leaf.not_before, leaf.not_after),
            None => return Err(CredentialError::EmptyChain(identity)),
        };
        if roots.is_empty() {
            return Err(CredentialError::NoRoots);
        }
        let root_set = RootSet::of(&roots);
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root).map_err(CredentialError::Root)?;
        }
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|error| CredentialError::Pem { what: "private key", error })?;
        let provider = Arc::new(provider(profile.exchange));
        let algorithms = provider.signature_verification_algorithms;
        let trust = Arc::new(Trust::new(store, algorithms, profile.revocations, profile.domains));
        let client = client_config(&provider, &trust, chain.clone(), key.clone_key())?;
        let server = server_config(&provider, &trust, &identity, chain.clone(), key)?;
        Ok(Self {
            identity,
            chain: chain_info,
            roots: roots_info,
            not_before,
            not_after,
            records: profile.records,
            ders: chain,
            root_set,
            trust,
            client,
            server,
        })
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The leaf's; nothing about the intermediates.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// The leaf's; nothing about the intermediates.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Leaf first, then the intermediates.
    pub fn chain(&self) -> &[CertificateInfo] {
        &self.chain
    }

    pub fn roots(&self) -> &[CertificateInfo] {
        &self.roots
    }

    /// How long connections that were made with this credential may take new work.
    pub fn tenure(&self) -> Tenure {
        Tenure { identity: self.identity.clone(), ends: self.not_after, roots: self.root_set }
    }

    pub(in crate::tls) fn records(&self) -> Library {
        self.records
    }

    /// A copy for one handshake; the parts of weight are shared.
    pub(in crate::tls) fn client(&self, expected: Arc<[Identity]>) -> ClientConfig {
        let mut config = self.client.clone();
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(ExpectedPeer { trust: self.trust.clone(), expected }));
        config
    }

    /// A copy for one handshake; the parts of weight are shared.
    pub(in crate::tls) fn server(&self) -> ServerConfig {
        self.server.clone()
    }
}

/// aws-lc-rs with the mesh's two suites, the stronger first, and the groups in our order.
pub fn provider(exchange: Exchange) -> CryptoProvider {
    let groups: Vec<&'static dyn SupportedKxGroup> = match exchange {
        Exchange::Default => vec![
            aws_lc_rs::kx_group::X25519,
            aws_lc_rs::kx_group::SECP256R1,
            aws_lc_rs::kx_group::SECP384R1,
            aws_lc_rs::kx_group::X25519MLKEM768,
        ],
        Exchange::Hybrid => vec![
            aws_lc_rs::kx_group::X25519MLKEM768,
            aws_lc_rs::kx_group::X25519,
            aws_lc_rs::kx_group::SECP256R1,
            aws_lc_rs::kx_group::SECP384R1,
        ],
        Exchange::PostQuantumOnly => vec![aws_lc_rs::kx_group::X25519MLKEM768],
    };
    CryptoProvider {
        cipher_suites: vec![
            aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
            aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ],
        kx_groups: groups,
        ..aws_lc_rs::default_provider()
    }
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    trust: &Arc<Trust>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    // Each handshake replaces the verifier; until then nobody is expected, so nobody is believed.
    let nobody = ExpectedPeer { trust: trust.clone(), expected: Arc::new([]) };
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(nobody))
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.enable_secret_extraction = true;
    Ok(config)
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    trust: &Arc<Trust>,
    identity: &Identity,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let ours = OwnTrustDomain { trust: trust.clone(), trust_domain: identity.trust_domain.clone() };
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(ours))
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // A ticket would take a sequence number after the switch, for a resumption that is refused anyway.
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    Ok(config)
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| CredentialError::Pem { what, error })
}

fn infos(what: &'static str, chain: &[CertificateDer<'_>]) -> Result<Vec<CertificateInfo>, CredentialError> {
    let read = |(at, der): (usize, &CertificateDer<'_>)| {
        CertificateInfo::read(der).map_err(|error| CredentialError::Certificate {
            what,
            number: at + 1,
            error,
        })
    };
    chain.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tls::cert::{Authority, Issued};

    fn web() -> Identity {
        "spiffe://cluster.local/ns/default/sa/web".parse().unwrap()
    }

    fn issued() -> Issued {
        Authority::new("cluster.local").unwrap().issue(&web(), Duration::from_secs(60)).unwrap()
    }

    fn refused(chain: &str, key: &str, roots: &str) -> String {
        let made =
            Credential::new(web(), chain.as_bytes(), key.as_bytes(), roots.as_bytes(), Profile::default());
        made.err().expect("a credential that must be refused").to_string()
    }

    #[test]
    fn what_is_missing_is_said_in_the_words_of_the_reference() {
        let issued = issued();
        let empty = refused("", &issued.key_pem, &issued.roots_pem);
        assert_eq!(empty, format!("chain returned from CA is empty for: {}", web()));
        let rootless = refused(&issued.chain_pem, &issued.key_pem, "");
        assert_eq!(rootless, "invalid root certificate: no root certificate present");
    }

    #[test]
    fn a_key_of_another_certificate_and_broken_pem_are_refused() {
        let (one, two) = (issued(), issued());
        let mixed = refused(&one.chain_pem, &two.key_pem, &one.roots_pem);
        assert!(mixed.starts_with("tls error: "), "{mixed}");
        let keyless = refused(&one.chain_pem, "", &one.roots_pem);
        assert!(keyless.starts_with("private key isn't PEM: "), "{keyless}");
        let cut = &one.chain_pem[..one.chain_pem.len() - 30];
        assert!(refused(cut, &one.key_pem, &one.roots_pem).starts_with("chain isn't PEM: "));
        let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let said = refused(&format!("{}{nonsense}", one.chain_pem), &one.key_pem, &one.roots_pem);
        assert!(said.starts_with("certificate 2 of the chain: not an X.509 certificate"), "{said}");
    }

    #[test]
    fn the_groups_stand_in_our_order_whatever_the_library_prefers() {
        use rustls::NamedGroup::{X25519, X25519MLKEM768, secp256r1, secp384r1};
        let names =
            |exchange| provider(exchange).kx_groups.iter().map(|group| group.name()).collect::<Vec<_>>();
        assert_eq!(names(Exchange::Default), [X25519, secp256r1, secp384r1, X25519MLKEM768]);
        assert_eq!(names(Exchange::Hybrid), [X25519MLKEM768, X25519, secp256r1, secp384r1]);
        assert_eq!(names(Exchange::PostQuantumOnly), [X25519MLKEM768]);
    }
}
