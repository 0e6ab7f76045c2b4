//! Whom we believe: chain to the roots by webpki with the right key usage, then the SPIFFE names. DNS names play no
//! part. One verifier for each role; both check chains in `Trust::check`, where revocation lists have their place.

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
use webpki::{EndEntityCert, KeyUsage};

use crate::base::text::Text;
use crate::mesh::identity::Identity;

/// A chain that is sound, of somebody we don't want to talk to. The texts are the reference's (section 13.1).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "identity verification error: peer did not present the expected SAN ({}), got {}",
        joined(.expected), joined(.got)
    )]
    San { expected: Arc<[Identity]>, got: Vec<String> },
    #[error(
        "identity verification error: peer did not present the expected trustdomain ({trust_domain}), got {}",
        joined(.got)
    )]
    TrustDomain { trust_domain: Text, got: Vec<String> },
}

/// The roots and algorithms that chains are checked with.
pub(in crate::tls) struct Trust {
    pub(in crate::tls) roots: RootCertStore,
    subjects: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The client's side: the far end must be one of `expected`; an empty list matches nobody.
#[derive(Debug)]
pub(in crate::tls) struct ExpectedPeer {
    pub(in crate::tls) trust: Arc<Trust>,
    pub(in crate::tls) expected: Arc<[Identity]>,
}

/// The server's side: the far end must come from our own trust domain.
#[derive(Debug)]
pub(in crate::tls) struct OwnTrustDomain {
    pub(in crate::tls) trust: Arc<Trust>,
    pub(in crate::tls) trust_domain: Text,
}

impl Trust {
    pub(in crate::tls) fn new(roots: RootCertStore, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { subjects: roots.subjects(), roots, algorithms }
    }

    /// The leaf's URI SANs, once its chain holds.
    fn check<'a>(
        &self,
        leaf: &'a CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<Vec<&'a str>, rustls::Error> {
        let leaf = EndEntityCert::try_from(leaf).map_err(chain_error)?;
        let revocation = None;
        leaf.verify_for_usage(
            self.algorithms.all,
            &self.roots.roots,
            intermediates,
            now,
            usage,
            revocation,
            None,
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

/// The first SAN of a leaf that is an Istio identity (reference section 5, inbound).
pub(in crate::tls) fn identity(leaf: &CertificateDer<'_>) -> Option<Identity> {
    let leaf = EndEntityCert::try_from(leaf).ok()?;
    leaf.valid_uri_names().find_map(|uri| uri.parse().ok())
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
        let names = self.trust.check(leaf, intermediates, now, KeyUsage::server_auth())?;
        let mut identities = names.iter().filter_map(|uri| uri.parse::<Identity>().ok());
        if identities.any(|identity| self.expected.contains(&identity)) {
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
        let names = self.trust.check(leaf, intermediates, now, KeyUsage::client_auth())?;
        let mut identities = names.iter().filter_map(|uri| uri.parse::<Identity>().ok());
        if identities.any(|identity| identity.trust_domain == self.trust_domain) {
            return Ok(ClientCertVerified::assertion());
        }
        let trust_domain = self.trust_domain.clone();
        Err(refused(IdentityError::TrustDomain { trust_domain, got: owned(&names) }))
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
