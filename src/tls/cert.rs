//! Certificates as values for the dump, and `Authority`: a small certificate authority for tests and for
//! `FAKE_CA=true`. Several nodes share one authority through a file; it is no substitute for a real CA.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::mesh::identity::Identity;
use crate::tls::config::{Credential, CredentialError, Profile};
use crate::tls::csr::{self, RequestError};

/// The file that nodes share: key and certificate in one, so that creating it is one step.
const FILE: &str = "authority.pem";
const ROOT_TTL: Duration = Duration::from_secs(3_650 * 24 * 3_600);
/// Certificates begin this much before now, for nodes whose clocks differ.
const BACKDATE: Duration = Duration::from_secs(120);

/// What the dump and the refresh want to know of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateInfo {
    /// The certificate as PEM with LF line ends.
    pub pem: String,
    /// Decimal.
    pub serial: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    /// URI SANs in the order of the certificate.
    pub uris: Vec<String>,
}

/// Bytes that are no certificate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not an X.509 certificate: {0}")]
pub struct CertificateUnreadable(String);

impl CertificateInfo {
    pub fn read(der: &[u8]) -> Result<Self, CertificateUnreadable> {
        let (_, parsed) =
            X509Certificate::from_der(der).map_err(|error| CertificateUnreadable(error.to_string()))?;
        let uris = parsed.subject_alternative_name().ok().flatten().map(|san| uris(&san.value.general_names));
        Ok(Self {
            pem: encode(der),
            serial: parsed.serial.to_string(),
            not_before: moment(parsed.validity.not_before.timestamp()),
            not_after: moment(parsed.validity.not_after.timestamp()),
            uris: uris.unwrap_or_default(),
        })
    }
}

fn uris(names: &[GeneralName<'_>]) -> Vec<String> {
    let uri = |name: &GeneralName<'_>| {
        if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None }
    };
    names.iter().filter_map(uri).collect()
}

/// Seconds since 1970; a certificate from before counts as from then.
fn moment(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn encode(der: &[u8]) -> String {
    pem::encode_config(&Pem::new("CERTIFICATE", der), EncodeConfig::new().set_line_ending(LineEnding::LF))
}

/// A root that signs.
pub struct Authority {
    pub(in crate::tls) root_pem: String,
    pub(in crate::tls) issuer: Issuer<'static, KeyPair>,
}

/// A leaf with all that belongs to it, PEM.
#[derive(Clone)]
pub struct Issued {
    pub chain_pem: String,
    /// PKCS#8. Secret.
    pub key_pem: String,
    pub roots_pem: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{0} holds no certificate and key of an authority")]
    NoAuthority(PathBuf),
    #[error("certificate authority: {0}")]
    Sign(#[from] rcgen::Error),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
}

impl Authority {
    /// A new root, in memory only.
    pub fn new(trust_domain: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, trust_domain);
        (params.not_before, params.not_after) = span(ROOT_TTL);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let root_pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::from_ca_cert_pem(&root_pem, key)?;
        Ok(Self { root_pem, issuer })
    }

    /// The authority kept in `directory`. Whoever comes first makes it; all others, at the same time or later,
    /// read the same.
    pub fn open(directory: &Path, trust_domain: &str) -> Result<Self, AuthorityError> {
        let path = directory.join(FILE);
        let failed = |error| AuthorityError::File { path: path.clone(), error };
        match fs::read_to_string(&path) {
            Ok(text) => return Self::read(&path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        fs::create_dir_all(directory).map_err(failed)?;
        let made = Self::new(trust_domain)?;
        let text = format!("{}{}", made.issuer.key().serialize_pem(), made.root_pem);
        place(directory, &path, &text).map_err(failed)?;
        let text = fs::read_to_string(&path).map_err(failed)?;
        Self::read(&path, &text)
    }

    fn read(path: &Path, text: &str) -> Result<Self, AuthorityError> {
        let missing = || AuthorityError::NoAuthority(path.to_owned());
        let blocks = pem::parse_many(text).map_err(|_| missing())?;
        let root = blocks.iter().find(|block| block.tag() == "CERTIFICATE").ok_or_else(missing)?;
        let key = blocks.iter().find(|block| block.tag() == "PRIVATE KEY").ok_or_else(missing)?;
        let key = KeyPair::try_from(key.contents())?;
        let issuer = Issuer::from_ca_cert_der(&CertificateDer::from(root.contents()), key)?;
        Ok(Self { root_pem: encode(root.contents()), issuer })
    }

    /// The root certificate, PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// A new key and a leaf for `identity` that ends `ttl` from now.
    pub fn issue(&self, identity: &Identity, ttl: Duration) -> Result<Issued, AuthorityError> {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(identity, span(ttl), &both)
    }

    /// A leaf for `identity`, as everything a shard needs.
    pub fn credential(
        &self,
        identity: &Identity,
        ttl: Duration,
        profile: Profile,
    ) -> Result<Credential, AuthorityError> {
        let Issued { chain_pem, key_pem, roots_pem } = self.issue(identity, ttl)?;
        let (chain, key, roots) = (chain_pem.as_bytes(), key_pem.as_bytes(), roots_pem.as_bytes());
        Ok(Credential::new(identity.clone(), chain, key, roots, profile)?)
    }

    /// A leaf with any validity and usages.
    pub(in crate::tls) fn sign(
        &self,
        identity: &Identity,
        (not_before, not_after): (time::OffsetDateTime, time::OffsetDateTime),
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Result<Issued, AuthorityError> {
        let key = KeyPair::from_pem(&csr::request(identity)?.key_pem)?;
        let mut params = CertificateParams::default();
        // Without a subject the name must be critical (RFC 5280 section 4.2.1.6); rcgen sees to it.
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into()?)];
        (params.not_before, params.not_after) = (not_before, not_after);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = usages.to_vec();
        let leaf = params.signed_by(&key, &self.issuer)?;
        Ok(Issued { chain_pem: leaf.pem(), key_pem: key.serialize_pem(), roots_pem: self.root_pem.clone() })
    }
}

/// What a test revokes with.
#[cfg(test)]
impl Authority {
    /// A list that names these leaves (the first certificate of each PEM), PEM; its next one is due then.
    pub fn revocation_list(&self, leaves: &[&str], next_update: time::OffsetDateTime) -> String {
        let entry = |pem: &&str| {
            let der = pem::parse(pem).unwrap();
            let (_, leaf) = X509Certificate::from_der(der.contents()).unwrap();
            rcgen::RevokedCertParams {
                serial_number: rcgen::SerialNumber::from_slice(leaf.raw_serial()),
                revocation_time: next_update - time::Duration::WEEK,
                reason_code: None,
                invalidity_date: None,
            }
        };
        let params = rcgen::CertificateRevocationListParams {
            this_update: next_update - time::Duration::WEEK,
            next_update,
            crl_number: rcgen::SerialNumber::from(7),
            issuing_distribution_point: None,
            revoked_certs: leaves.iter().map(entry).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// The same with the next one due tomorrow.
    pub fn revoke(&self, leaves: &[&str]) -> String {
        self.revocation_list(leaves, time::OffsetDateTime::now_utc() + time::Duration::DAY)
    }
}

fn span(ttl: Duration) -> (time::OffsetDateTime, time::OffsetDateTime) {
    let now = SystemTime::now();
    ((now - BACKDATE).into(), (now + ttl).into())
}

/// Writes `text` beside `path` and links it there: the link fails where somebody was faster, and nobody ever sees
/// half a file.
fn place(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    let draft = directory.join(format!(".{FILE}.{}.{:016x}", std::process::id(), fastrand::u64(..)));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let linked = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::SerialNumber;

    use super::*;

    const WEB: &str = "spiffe://cluster.local/ns/default/sa/web";
    const HOUR: Duration = Duration::from_secs(3_600);

    fn web() -> Identity {
        WEB.parse().unwrap()
    }

    /// Long division by hand, digit after digit.
    fn decimal(mut bytes: Vec<u8>) -> String {
        let mut digits = Vec::new();
        while bytes.iter().any(|byte| *byte != 0) {
            let mut rest = 0_u32;
            for byte in &mut bytes {
                let value = rest * 256 + u32::from(*byte);
                (*byte, rest) = (u8::try_from(value / 10).unwrap(), value % 10);
            }
            digits.push(char::from_digit(rest, 10).unwrap());
        }
        digits.iter().rev().collect()
    }

    #[test]
    fn a_leaf_is_as_istio_makes_them_and_reads_back() {
        let authority = Authority::new("cluster.local").unwrap();
        let issued = authority.issue(&web(), HOUR).unwrap();
        let der = pem::parse(&issued.chain_pem).unwrap();
        let (_, leaf) = X509Certificate::from_der(der.contents()).unwrap();
        assert_eq!(leaf.subject().iter().count(), 0);
        assert!(
            leaf.subject_alternative_name().unwrap().unwrap().critical,
            "no subject, so the name is critical"
        );
        let usage = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && usage.client_auth);
        assert!(leaf.key_usage().unwrap().unwrap().value.digital_signature());
        assert!(!leaf.is_ca());

        let info = CertificateInfo::read(der.contents()).unwrap();
        assert_eq!(info.uris, [WEB]);
        assert_eq!(pem::parse(&info.pem).unwrap(), der);
        assert!(!info.pem.contains('\r') && info.pem.lines().all(|line| line.len() <= 64));
        let left = info.not_after.duration_since(SystemTime::now()).unwrap();
        assert!(left <= HOUR && left > HOUR - Duration::from_secs(60), "{left:?}");
        assert!(info.not_before + BACKDATE <= SystemTime::now());
        assert_eq!(info.serial, decimal(leaf.raw_serial().to_vec()));
    }

    #[test]
    fn serials_of_twenty_bytes_print_as_decimal_numbers() {
        let key = KeyPair::generate().unwrap();
        for bytes in [vec![1], vec![1, 0], vec![0x7f; 20], (1..=20).collect()] {
            let mut params = CertificateParams::default();
            params.serial_number = Some(SerialNumber::from_slice(&bytes));
            let info = CertificateInfo::read(params.self_signed(&key).unwrap().der()).unwrap();
            assert_eq!(info.serial, decimal(bytes));
        }
        assert!(CertificateInfo::read(b"nonsense").is_err());
    }

    #[test]
    fn many_nodes_that_start_at_once_share_one_root() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("made/on/demand");
        let roots: Vec<String> = std::thread::scope(|scope| {
            let open = || Authority::open(&below, "cluster.local").unwrap().root_pem().to_owned();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(roots.iter().all(|root| *root == roots[0]), "more than one root");
        let names: Vec<_> = fs::read_dir(&below).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE], "drafts are left behind");
        assert_eq!(fs::metadata(below.join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        // What one issues, another's root accepts: the credential checks that key and leaf belong together.
        let again = Authority::open(&below, "ignored: it exists").unwrap();
        let credential = again.credential(&web(), HOUR, Profile::default()).unwrap();
        assert_eq!(credential.roots()[0].pem, roots[0]);
        assert_eq!(credential.identity(), &web());
    }

    #[test]
    fn a_damaged_file_is_named_and_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        fs::write(&path, "-----BEGIN NOTHING-----\n").unwrap();
        let error = Authority::open(directory.path(), "cluster.local").err().unwrap();
        assert!(error.to_string().contains(FILE), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "-----BEGIN NOTHING-----\n");
    }
}
