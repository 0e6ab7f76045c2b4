//! The yardstick's TLS: certificates of the product's own embedded authority, TLS 1.3 with one cipher and one
//! group, so that every arm does the same work.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway::mesh::identity::Identity;
use ringway::tls::cert::Authority;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, CommonState, DigitallySignedStruct, NamedGroup, RootCertStore,
    ServerConfig, SignatureScheme, SupportedCipherSuite,
};

/// As the product's leaves.
pub const LEAF_TTL: Duration = Duration::from_secs(24 * 3_600);
pub const TRUST_DOMAIN: &str = "cluster.local";

/// What protects records. The product's nodes choose the first between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Cipher {
    Aes256Gcm,
    /// What Envoys choose between them, on a CPU with AES.
    Aes128Gcm,
}

impl Cipher {
    fn suite(self) -> SupportedCipherSuite {
        match self {
            Self::Aes256Gcm => aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
            Self::Aes128Gcm => aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        }
    }
}

/// One identity's certificate and the roots it trusts.
pub struct Credential {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    cipher: Cipher,
}

impl Credential {
    /// Issues a leaf for `identity` (a SPIFFE URI) by the authority in `directory`, made if it isn't there.
    pub fn issue(directory: &Path, identity: &str, cipher: Cipher) -> Result<Self> {
        let identity: Identity = identity.parse().with_context(|| identity.to_owned())?;
        let issued = Authority::open(directory, TRUST_DOMAIN)?.issue(&identity, LEAF_TTL)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(issued.roots_pem.as_bytes())?)?;
        let chain = CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes());
        Ok(Self {
            chain: chain.collect::<Result<_, _>>()?,
            key: PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())?,
            roots: Arc::new(roots),
            provider: Arc::new(provider(cipher)),
            cipher,
        })
    }

    /// A client that accepts only a peer with the identity `expected`; ALPN h2 for tunnels.
    pub fn client(&self, expected: &str, protocols: &[&str]) -> Result<ClientConfig> {
        let verifier = PeerVerifier {
            roots: Arc::clone(&self.roots),
            provider: Arc::clone(&self.provider),
            expected: expected.to_owned(),
        };
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = wire_names(protocols);
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = false;
        Ok(config)
    }

    /// A server that demands a certificate of the same roots.
    pub fn server(&self, protocols: &[&str]) -> Result<ServerConfig> {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), Arc::clone(&self.provider))
                .build()?;
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = wire_names(protocols);
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Fails unless the handshake chose what it was to choose, and returns the peer's identity.
    pub fn check_handshake(&self, state: &CommonState) -> Result<String> {
        let suite = state.negotiated_cipher_suite().map(|suite| suite.suite());
        ensure!(suite == Some(self.cipher.suite().suite()), "cipher {suite:?}");
        let group = state.negotiated_key_exchange_group().map(|group| group.name());
        ensure!(group == Some(NamedGroup::X25519), "group {group:?}");
        let leaf = state.peer_certificates().and_then(<[_]>::first).context("no peer certificate")?;
        uri_of(leaf).context("a peer certificate without URI")
    }
}

/// The name that tunnel connections are opened with: there is no SNI between node proxies.
pub fn no_name() -> ServerName<'static> {
    ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into())
}

fn provider(cipher: Cipher) -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![cipher.suite()],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    }
}

fn wire_names(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.as_bytes().to_vec()).collect()
}

fn uri_of(leaf: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(leaf).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| {
        if let x509_parser::extensions::GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None }
    })
}

/// Chain to the roots and one expected SPIFFE identity; names play no part.
#[derive(Debug)]
struct PeerVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    expected: String,
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(leaf)?,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        if uri_of(leaf).as_deref() != Some(self.expected.as_str()) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, leaf, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, leaf, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
