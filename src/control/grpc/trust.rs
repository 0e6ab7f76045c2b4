//! Which roots the control plane's certificate must lead to, and which names it may carry. Roots are read anew at
//! each connect, so that a file that was swapped is believed without a restart.

use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedCipherSuite,
};
use tracing::warn;

use super::error::RootsError;
use super::target::Protection;
use crate::base::limits::ROOTS_BYTES;
use crate::tls::config::{ALPN_H2, Exchange, provider};

/// Where the roots come from (`XDS_ROOT_CA`, `CA_ROOT_CA`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Roots {
    File(PathBuf),
    /// PEM text.
    Inline(String),
    /// Those of the operating system.
    System,
}

/// Roots as they are now. Two are equal where a connection made with one may go on with the other.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum RootsNow {
    Pem { from: String, pem: Vec<u8> },
    System,
}

impl Roots {
    /// Reads the file where there is one.
    pub(super) fn now(&self) -> Result<RootsNow, RootsError> {
        Ok(match self {
            Self::File(path) => {
                let from = path.display().to_string();
                let failed = |error| RootsError::File { path: path.clone(), error };
                let Some(pem) = read_bounded(path, ROOTS_BYTES).map_err(failed)? else {
                    return Err(RootsError::TooLarge { from });
                };
                RootsNow::Pem { from, pem }
            }
            Self::Inline(pem) => RootsNow::Pem { from: "the PEM text".to_owned(), pem: pem.clone().into() },
            Self::System => RootsNow::System,
        })
    }
}

impl RootsNow {
    /// Those that can be used; others among them are told. Those of the system are read from disk.
    fn store(&self) -> Result<RootCertStore, RootsError> {
        let (from, certificates) = match self {
            Self::Pem { from, pem } => {
                let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(pem)
                    .collect::<Result<_, _>>()
                    .map_err(|error| RootsError::Pem { from: from.clone(), error })?;
                (from.clone(), certificates)
            }
            Self::System => {
                let loaded = rustls_native_certs::load_native_certs();
                if loaded.certs.is_empty() {
                    let reasons: Vec<_> = loaded.errors.iter().map(ToString::to_string).collect();
                    let reasons =
                        if reasons.is_empty() { "none found".to_owned() } else { reasons.join("; ") };
                    return Err(RootsError::System(reasons));
                }
                ("the operating system".to_owned(), loaded.certs)
            }
        };
        let count = certificates.len();
        let mut store = RootCertStore::empty();
        let mut refused = None;
        for (index, certificate) in certificates.into_iter().enumerate() {
            if let Err(error) = store.add(certificate) {
                warn!("certificate {} of {from} can't be a root: {error}", index + 1);
                refused = Some(error);
            }
        }
        match refused {
            Some(error) if store.is_empty() => Err(RootsError::Unusable { from, count, error }),
            None if store.is_empty() => Err(RootsError::Empty { from }),
            Some(_) | None => Ok(store),
        }
    }
}

/// What a client of the control plane says in TLS.
pub(super) fn client_config(
    roots: &RootsNow,
    protection: Protection,
    alternative: Option<&ServerName<'static>>,
) -> Result<ClientConfig, RootsError> {
    let provider = Arc::new(control_plane_provider(protection));
    let store = Arc::new(roots.store()?);
    let chains = WebPkiServerVerifier::builder_with_provider(store, provider.clone())
        .build()
        .map_err(|error| RootsError::Tls(rustls::Error::General(error.to_string())))?;
    let verifier: Arc<dyn ServerCertVerifier> = match alternative {
        Some(alternative) => Arc::new(EitherName { chains, alternative: alternative.clone() }),
        None => chains,
    };
    let both = [&rustls::version::TLS13, &rustls::version::TLS12];
    let newest = [&rustls::version::TLS13];
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(if allows_tls12(protection) { &both } else { &newest })?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(config)
}

/// The hybrid key exchange exists in TLS 1.3 only, so who insists on it can't have TLS 1.2.
fn allows_tls12(protection: Protection) -> bool {
    protection.tls12 && protection.exchange != Exchange::PostQuantumOnly
}

fn control_plane_provider(protection: Protection) -> CryptoProvider {
    let mut provider = provider(protection.exchange);
    if allows_tls12(protection) {
        let older: [SupportedCipherSuite; 4] = [
            aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            aws_lc_rs::cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            aws_lc_rs::cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ];
        provider.cipher_suites.extend(older);
    }
    provider
}

/// The host's name or, where the certificate doesn't carry it, the alternative (reference section 4.1). The chain
/// must hold in either case.
#[derive(Debug)]
struct EitherName {
    chains: Arc<WebPkiServerVerifier>,
    alternative: ServerName<'static>,
}

impl ServerCertVerifier for EitherName {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |name: &ServerName<'_>| {
            self.chains.verify_server_cert(leaf, intermediates, name, ocsp_response, now)
        };
        match verify(server_name) {
            Err(error) if is_other_name(&error) => verify(&self.alternative).map_err(|_| error),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// The chain holds, but the certificate is another host's.
pub(super) fn is_other_name(error: &rustls::Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(error, rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
}

/// A regular file of at most `limit` bytes; `None` where it has more. Opening never waits, as a pipe would let it.
pub(super) fn read_bounded(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= limit).then_some(bytes))
}
