//! Certificates as nobody should hold them: of the mesh's own authority or of another, with any names, any span of
//! life and any use; also signed by what is no authority, and with a key that isn't theirs.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};

use crate::hbone::Papers;

const HOUR: Duration = Duration::from_secs(3_600);

/// Signs whatever it is asked to.
pub struct Forge {
    root_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// What a leaf says. `Draft::of` is a good one.
#[derive(Clone)]
pub struct Draft {
    uris: Vec<String>,
    dns: Vec<String>,
    not_before: SystemTime,
    not_after: SystemTime,
    usages: Vec<ExtendedKeyUsagePurpose>,
    authority: bool,
}

impl Draft {
    pub fn of(identity: &str) -> Self {
        let now = SystemTime::now();
        Self {
            uris: vec![identity.to_owned()],
            dns: Vec::new(),
            not_before: now - HOUR,
            not_after: now + HOUR,
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            authority: false,
        }
    }

    /// These URI names and no other.
    pub fn uris(mut self, uris: &[&str]) -> Self {
        self.uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
        self
    }

    /// DNS names and no URI.
    pub fn only_dns(mut self, names: &[&str]) -> Self {
        self.uris.clear();
        self.dns = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Its life ended a minute ago.
    pub fn expired(mut self) -> Self {
        self.not_after = SystemTime::now() - Duration::from_secs(60);
        self
    }

    /// Its life begins in half an hour: no clock is as wrong as that.
    pub fn not_yet_valid(mut self) -> Self {
        self.not_before = SystemTime::now() + HOUR / 2;
        self
    }

    /// Good for a client, or for a server, and not for the other.
    pub fn only_for(mut self, usage: ExtendedKeyUsagePurpose) -> Self {
        self.usages = vec![usage];
        self
    }

    /// It may sign others.
    pub fn as_authority(mut self) -> Self {
        self.authority = true;
        self
    }
}

impl Forge {
    /// With the key of the mesh's authority in this directory.
    pub fn of_mesh(authority: &Path) -> Self {
        let path = authority.join("authority.pem");
        let text = std::fs::read_to_string(&path).expect("the mesh's authority");
        let at = text.find("-----BEGIN CERTIFICATE-----").expect("its certificate");
        let (key, root) = text.split_at(at);
        Self::with(root, KeyPair::from_pem(key).expect("its key"))
    }

    /// With a root that nobody knows, whose name is the mesh's.
    pub fn foreign() -> Self {
        let key = new_key();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "cluster.local");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let root = params.self_signed(&key).expect("signing a root").pem();
        Self::with(&root, key)
    }

    fn with(root: &str, key: KeyPair) -> Self {
        let issuer = Issuer::from_ca_cert_pem(root, key).expect("an issuer");
        Self { root_pem: root.to_owned(), issuer }
    }

    pub fn papers(&self, draft: &Draft) -> Papers {
        let key = new_key();
        let chain_pem = sign(draft, &key, &self.issuer);
        self.papers_with(chain_pem, &key)
    }

    /// The leaf is signed by the holder of another leaf, which comes along as if it were an intermediate.
    pub fn papers_by_holder(&self, holder: &Draft, draft: &Draft) -> Papers {
        let (holders_key, key) = (new_key(), new_key());
        let above = sign(holder, &holders_key, &self.issuer);
        let holder = Issuer::from_ca_cert_pem(&above, holders_key).expect("an issuer");
        let chain_pem = sign(draft, &key, &holder) + &above;
        self.papers_with(chain_pem, &key)
    }

    fn papers_with(&self, chain_pem: String, key: &KeyPair) -> Papers {
        Papers { chain_pem, key_pem: key.serialize_pem(), root_pem: self.root_pem.clone() }
    }
}

/// Another's key for the same chain.
pub fn stolen(papers: &Papers) -> Papers {
    let (chain_pem, root_pem) = (papers.chain_pem.clone(), papers.root_pem.clone());
    Papers { chain_pem, key_pem: new_key().serialize_pem(), root_pem }
}

fn sign(draft: &Draft, key: &KeyPair, issuer: &Issuer<'_, KeyPair>) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let uris = draft.uris.iter().map(|uri| SanType::URI(uri.as_str().try_into().expect("a URI")));
    let dns = draft.dns.iter().map(|name| SanType::DnsName(name.as_str().try_into().expect("a DNS name")));
    params.subject_alt_names = uris.chain(dns).collect();
    (params.not_before, params.not_after) = (draft.not_before.into(), draft.not_after.into());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    if draft.authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "intermediate");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    }
    params.extended_key_usages.clone_from(&draft.usages);
    params.signed_by(key, issuer).expect("signing").pem()
}

fn new_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key")
}
