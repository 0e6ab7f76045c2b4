//! The stand-in's roots: its own certificate and those of workloads come from here, with as many roots and
//! intermediates as a test wants.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};

const TTL: Duration = Duration::from_secs(3_650 * 24 * 3_600);
/// Certificates begin this much before now.
pub(crate) const BACKDATE: Duration = Duration::from_secs(120);

/// Roots by number, from 0; which one signs, through which intermediates, and which are handed out.
pub struct Authority {
    roots: Vec<Signer>,
    signing: usize,
    intermediates: Vec<Signer>,
    bundle: Vec<usize>,
}

struct Signer {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let first = Signer::make("Stand-in root", None);
        Self { roots: vec![first], signing: 0, intermediates: vec![], bundle: vec![0] }
    }

    /// One more root; two with one name differ in their keys only. It neither signs nor is handed out yet.
    pub fn add_root(&mut self, name: &str) -> usize {
        self.roots.push(Signer::make(name, None));
        self.roots.len() - 1
    }

    /// From here on leaves are signed by this root, through so many intermediates.
    pub fn sign_with(&mut self, root: usize, intermediates: usize) {
        self.signing = root;
        self.intermediates = vec![];
        for depth in 1..=intermediates {
            let above = self.intermediates.last().unwrap_or(&self.roots[root]);
            let made = Signer::make(&format!("Stand-in intermediate {depth}"), Some(&above.issuer));
            self.intermediates.push(made);
        }
    }

    /// The roots that answers hold, in this order.
    pub fn hand_out(&mut self, roots: &[usize]) {
        self.bundle = roots.to_vec();
    }

    /// All roots that are handed out, PEM.
    pub fn bundle_pem(&self) -> String {
        self.bundle.iter().map(|root| self.roots[*root].pem.as_str()).collect()
    }

    pub fn root_pem(&self, root: usize) -> &str {
        &self.roots[root].pem
    }

    /// A leaf, then the intermediates from the leaf up, each PEM.
    pub(crate) fn chain(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        (not_before, not_after): (SystemTime, SystemTime),
    ) -> Vec<String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names;
        (params.not_before, params.not_after) = (not_before.into(), not_after.into());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let by = self.intermediates.last().unwrap_or(&self.roots[self.signing]);
        let mut chain = vec![params.signed_by(key, &by.issuer).expect("signing a leaf").pem()];
        chain.extend(self.intermediates.iter().rev().map(|signer| signer.pem.clone()));
        chain
    }
}

impl Signer {
    fn make(name: &str, above: Option<&Issuer<'static, KeyPair>>) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "cluster.local");
        params.distinguished_name.push(DnType::CommonName, name);
        let now = SystemTime::now();
        (params.not_before, params.not_after) = ((now - BACKDATE).into(), (now + TTL).into());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = match above {
            None => params.self_signed(&key),
            Some(above) => params.signed_by(&key, above),
        };
        let pem = pem.expect("signing an authority").pem();
        let issuer = Issuer::from_ca_cert_pem(&pem, key).expect("an authority of our own");
        Self { pem, issuer }
    }
}

pub(crate) fn new_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key")
}
