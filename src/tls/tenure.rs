//! For how long what a handshake found holds: the peer's chain while no list revokes it, our own side while its
//! certificate is valid and its roots are those of the identity's newest credential.

use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::mesh::identity::Identity;
use crate::tls::config::Credential;
use crate::tls::revocation::{List, Lists};
use crate::tls::verify::{Part, Trust};

/// The peer's verified chain.
#[derive(Clone, Debug)]
pub struct PeerCertificates {
    /// The identity that its leaf names.
    pub identity: Option<Identity>,
    /// As presented, leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    checked: Checked,
}

/// How a chain was checked.
#[derive(Clone, Debug)]
pub(in crate::tls) struct Checked {
    trust: Arc<Trust>,
    part: Part,
    /// The time of the handshake: a certificate that ends later doesn't end its connection.
    at: UnixTime,
    /// Of the revocation lists.
    generation: u64,
}

/// For how long a connection of ours may take new work.
#[derive(Clone, Debug)]
pub struct Tenure {
    pub identity: Identity,
    /// When our own certificate ends.
    pub ends: SystemTime,
    pub(in crate::tls) roots: RootSet,
}

/// Which roots there are, in any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tls) struct RootSet([u8; SHA256_OUTPUT_LEN]);

/// Chains with the same key have the same verdict.
#[derive(PartialEq, Eq, Hash)]
pub struct ChainKey<'a> {
    trust: *const Trust,
    part: Part,
    chain: &'a [CertificateDer<'static>],
}

impl PeerCertificates {
    pub(in crate::tls) fn new(
        identity: Option<Identity>,
        chain: Vec<CertificateDer<'static>>,
        checked: Checked,
    ) -> Self {
        Self { identity, chain, checked }
    }

    pub fn key(&self) -> ChainKey<'_> {
        ChainKey { trust: Arc::as_ptr(&self.checked.trust), part: self.checked.part, chain: &self.chain }
    }

    /// Whether lists came into force after this peer's handshake began, and now revoke it.
    pub fn is_revoked_since(&self) -> bool {
        let lists = self.checked.trust.revocations.current();
        lists.generation() != self.checked.generation && self.is_revoked(&lists)
    }

    /// Whether the lists in force, which are these, revoke the peer. In doubt they do.
    pub fn is_revoked(&self, lists: &Lists) -> bool {
        let Checked { trust, part, at, .. } = &self.checked;
        lists.may_revoke(&self.chain) && trust.check_chain(&self.chain, *at, *part).is_err()
    }
}

impl Checked {
    pub(in crate::tls) fn now(trust: &Arc<Trust>, part: Part) -> Self {
        let generation = trust.revocations.generation();
        Self { trust: trust.clone(), part, at: UnixTime::now(), generation }
    }
}

impl Tenure {
    /// Whether new work may still be given to a connection, `current` being the credential of its identity now: none
    /// where the identity is gone, one with the same roots where the certificate was merely renewed.
    pub fn lasts(&self, current: Option<&Credential>, now: SystemTime) -> bool {
        now < self.ends && current.is_some_and(|current| current.tenure().roots == self.roots)
    }
}

impl RootSet {
    pub(in crate::tls) fn of(roots: &[CertificateDer<'_>]) -> Self {
        let mut digests: Vec<_> = roots.iter().map(|root| digest(&SHA256, root).as_ref().to_vec()).collect();
        digests.sort();
        digests.dedup();
        let mut set = [0; SHA256_OUTPUT_LEN];
        set.copy_from_slice(digest(&SHA256, &digests.concat()).as_ref());
        Self(set)
    }
}

impl Credential {
    /// Whether a list is signed by one of the roots, or by an intermediate of our own chain.
    pub fn knows_signer(&self, list: &List) -> bool {
        let algorithms = self.trust.algorithms.all;
        let by_root = self.trust.roots.roots.iter().any(|root| {
            *root.subject == *list.issuer_name()
                && list.is_signed_with(&webpki::spki_for_anchor(root), algorithms)
        });
        let by_intermediate = |der| {
            webpki::EndEntityCert::try_from(der).is_ok_and(|cert| {
                cert.subject() == list.issuer_name()
                    && list.is_signed_with(&cert.subject_public_key_info(), algorithms)
            })
        };
        by_root || self.ders.iter().skip(1).any(by_intermediate)
    }

    /// Whether the lists in force, which are these, revoke this very credential: every peer with the same lists will
    /// refuse it.
    pub fn is_revoked(&self, lists: &Lists) -> bool {
        let revoked = rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked);
        lists.may_revoke(&self.ders)
            && self.trust.check_chain(&self.ders, UnixTime::now(), Part::Server) == Err(revoked)
    }
}
