//! Whom we believe: chain to the roots by webpki with the right key usage, then revocation, then the SPIFFE names. DNS
//! names play no part. One verifier for each role; both check chains in `Trust::check`. A leaf names one identity, so
//! that the one that is checked here is the one that policies see.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, PeerMisbehaved, RootCertStore,
    SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath};

use crate::base::text::Text;
use crate::mesh::identity::{Identity, TrustDomains};
use crate::tls::revocation::Revocations;

/// A chain that is sound, of somebody we don't want to talk to. The texts are the reference's (section 13.1).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "identity verification error: peer did not present the expected SAN ({}), got {}",
        joined(.expected), joined(.got)
    )]
    San { expected: Arc<[Identity]>, got: Vec<String> },
    #[error(
        "identity verification error: peer did not present the expected trustdomain ({}), got {}",
        .expected.join(","), joined(.got)
    )]
    /// Ours, and whatever means the same.
    TrustDomain { expected: Vec<Text>, got: Vec<String> },
    #[error(
        "identity verification error: peer presented more than one identity ({}), so none of them is believed",
        joined(.got)
    )]
    Several { got: Vec<String> },
}

/// What peers are checked with: roots, algorithms, revocation lists, and the names of our trust domain.
pub(in crate::tls) struct Trust {
    pub(in crate::tls) roots: RootCertStore,
    pub(in crate::tls) algorithms: WebPkiSupportedAlgorithms,
    pub(in crate::tls) revocations: Arc<Revocations>,
    subjects: Vec<DistinguishedName>,
    domains: TrustDomains,
}

/// Which part a peer had in its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    Client,
    Server,
}

/// The client's side: the far end must be one of `expected`; an empty list matches nobody.
#[derive(Debug)]
pub(in crate::tls) struct ExpectedPeer {
    pub(in crate::tls) trust: Arc<Trust>,
    pub(in crate::tls) expected: Arc<[Identity]>,
}

/// The server's side: the far end must come from our own trust domain, by whichever of its names.
#[derive(Debug)]
pub(in crate::tls) struct OwnTrustDomain {
    pub(in crate::tls) trust: Arc<Trust>,
    pub(in crate::tls) trust_domain: Text,
}

impl Part {
    fn usage(self) -> KeyUsage {
        match self {
            Self::Client => KeyUsage::client_auth(),
            Self::Server => KeyUsage::server_auth(),
        }
    }
}

impl Trust {
    pub(in crate::tls) fn new(
        roots: RootCertStore,
        algorithms: WebPkiSupportedAlgorithms,
        revocations: Arc<Revocations>,
        domains: TrustDomains,
    ) -> Self {
        Self { subjects: roots.subjects(), roots, algorithms, revocations, domains }
    }

    /// Whether a chain, leaf first, holds for this part by the lists in force.
    pub(in crate::tls) fn check_chain(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        part: Part,
    ) -> Result<(), rustls::Error> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        self.check(leaf, intermediates, now, part).map(drop)
    }

    /// The leaf's URI SANs, once its chain holds.
    fn check<'a>(
        &self,
        leaf: &'a CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        part: Part,
    ) -> Result<Vec<&'a str>, rustls::Error> {
        let leaf = EndEntityCert::try_from(leaf).map_err(chain_error)?;
        let lists = self.revocations.current();
        let unrevoked = |path: &VerifiedPath<'_>| lists.check(path, self.algorithms.all);
        leaf.verify_for_usage(
            self.algorithms.all,
            &self.roots.roots,
            intermediates,
            now,
            part.usage(),
            // Our own check stands in for webpki's: that one asks only the first list under the issuer's name, and
            // fails where that list is of another key, as while a root is renewed under its name.
            None,
            if lists.is_empty() { None } else { Some(&unrevoked) },
        )
        .map_err(chain_error)?;
        Ok(leaf.valid_uri_names().collect())
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} roots)", self.roots.len())
    }
}

/// The identity that a leaf names.
pub(in crate::tls) fn identity(leaf: &CertificateDer<'_>) -> Option<Identity> {
    let leaf = EndEntityCert::try_from(leaf).ok()?;
    leaf.valid_uri_names().find_map(|uri| uri.parse().ok())
}

/// The one identity among a leaf's names. Names that aren't Istio identities don't count; two identities that differ in
/// more than the name of our trust domain are one too many: a check of one and a policy about the other would part.
fn only_identity(names: &[&str], domains: &TrustDomains) -> Result<Option<Identity>, IdentityError> {
    let mut identities = names.iter().filter_map(|uri| uri.parse::<Identity>().ok());
    let Some(first) = identities.next() else { return Ok(None) };
    if identities.all(|other| domains.same_identity(&first, &other)) {
        Ok(Some(first))
    } else {
        Err(IdentityError::Several { got: owned(names) })
    }
}

/// How either role checks a signature of the handshake: the two traits ask for it in the same three methods.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(never_tls12())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls13_signature(message, cert, signed, &self.trust.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.trust.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for ExpectedPeer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let names = self.trust.check(leaf, intermediates, now, Part::Server)?;
        let domains = &self.trust.domains;
        let identity = only_identity(&names, domains).map_err(refused)?;
        let is_expected = |identity| self.expected.iter().any(|one| domains.same_identity(one, identity));
        if identity.as_ref().is_some_and(is_expected) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(refused(IdentityError::San { expected: self.expected.clone(), got: owned(&names) }))
    }

    tls13_signatures!();
}

impl ClientCertVerifier for OwnTrustDomain {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.trust.subjects
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let names = self.trust.check(leaf, intermediates, now, Part::Client)?;
        let domains = &self.trust.domains;
        let identity = only_identity(&names, domains).map_err(refused)?;
        if identity.is_some_and(|identity| domains.same(&identity.trust_domain, &self.trust_domain)) {
            return Ok(ClientCertVerified::assertion());
        }
        let expected = domains.equivalent(&self.trust_domain).cloned().collect();
        Err(refused(IdentityError::TrustDomain { expected, got: owned(&names) }))
    }

    tls13_signatures!();
}

/// TLS 1.2 is never offered, so no peer can get here.
fn never_tls12() -> rustls::Error {
    PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()
}

fn refused(error: IdentityError) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

/// Says a failed chain in rustls's words, which choose the alert; what has none goes out as certificate_unknown.
fn chain_error(error: webpki::Error) -> rustls::Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that may grow")]
    let error = match error {
        webpki::Error::BadDer | webpki::Error::BadDerTime | webpki::Error::TrailingData(_) => {
            CertificateError::BadEncoding
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        webpki::Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        webpki::Error::InvalidCertValidity => CertificateError::Expired,
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        webpki::Error::CertRevoked => CertificateError::Revoked,
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        webpki::Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    error.into()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
