//! Certificate revocation lists (RFC 5280 section 5; reference section 13.4): one immutable set for the process,
//! replaced as a whole. A certificate is revoked where a list of its issuer's name names its serial and carries the
//! signature of its issuer's key; what no list names is not revoked. Files are read by `control::crl`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, Guard};
use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm};
use webpki::{CertRevocationList, EndEntityCert, OwnedCertRevocationList, VerifiedPath};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::base::limits::REVOCATION_LISTS;

/// The lists in force. One writer (control), many readers (every verifier, and shards); a part of each credential, so
/// that new lists need no new credentials.
#[derive(Default)]
pub struct Revocations(ArcSwap<Lists>);

/// One set of lists.
#[derive(Default)]
pub struct Lists {
    generation: u64,
    by_issuer: HashMap<Vec<u8>, Vec<List>, foldhash::fast::RandomState>,
}

/// One list.
pub struct List {
    list: CertRevocationList<'static>,
    /// What is signed, by what algorithm (contents of its identifier), and the signature.
    signed: Vec<u8>,
    algorithm: Vec<u8>,
    signature: Vec<u8>,
    /// The issuer's name for people.
    pub issuer: String,
    /// When a newer one should be there; enforced after it all the same.
    pub next_update: Option<SystemTime>,
}

/// A file that can't be used, and the place in it.
#[derive(Debug, thiserror::Error)]
pub enum ListsUnreadable {
    #[error("it isn't PEM: {0}")]
    Pem(pem::Error),
    #[error("block {number} isn't an X509 CRL")]
    Foreign { number: usize },
    #[error("list {number}: {error}")]
    List { number: usize, error: ListUnreadable },
    #[error("it holds more than {REVOCATION_LISTS} lists")]
    TooMany,
}

/// Why one list can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ListUnreadable {
    /// Also what isn't supported: delta and indirect lists, versions and critical extensions nobody knows.
    #[error("{0}")]
    Refused(webpki::Error),
    #[error("it isn't DER of a certificate list")]
    Der,
}

impl Revocations {
    pub fn current(&self) -> Guard<Arc<Lists>> {
        self.0.load()
    }

    /// 0: revocation isn't checked. Grows with each replacement.
    pub fn generation(&self) -> u64 {
        self.0.load().generation
    }

    /// Puts a new set in force; its generation.
    pub fn replace(&self, lists: Vec<List>) -> u64 {
        let generation = self.generation() + 1;
        let mut by_issuer = HashMap::<_, Vec<List>, _>::default();
        for list in lists {
            by_issuer.entry(list.list.issuer().to_vec()).or_default().push(list);
        }
        self.0.store(Arc::new(Lists { generation, by_issuer }));
        generation
    }
}

impl std::fmt::Debug for Revocations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Revocations(generation {})", self.generation())
    }
}

impl Lists {
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn is_empty(&self) -> bool {
        self.by_issuer.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &List> {
        self.by_issuer.values().flatten()
    }

    /// Whether a list, whoever signed it, names one of these certificates. Cheap; only then is a chain worth verifying
    /// again. What can't be read as a certificate can't be part of a chain either.
    pub fn may_revoke(&self, chain: &[CertificateDer<'_>]) -> bool {
        !self.is_empty()
            && chain.iter().any(|der| {
                EndEntityCert::try_from(der)
                    .is_ok_and(|cert| self.naming(cert.issuer(), cert.serial()).next().is_some())
            })
    }

    /// Judges a path that holds otherwise: `CertRevoked` where one of its certificates is revoked.
    pub(in crate::tls) fn check(
        &self,
        path: &VerifiedPath<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), webpki::Error> {
        let leaf: &webpki::Cert<'_> = path.end_entity();
        let mut issued = vec![leaf];
        issued.extend(path.intermediate_certificates());
        for (at, cert) in issued.iter().enumerate() {
            for list in self.naming(cert.issuer(), cert.serial()) {
                let signed = match issued.get(at + 1) {
                    Some(issuer) => list.is_signed_with(&issuer.subject_public_key_info(), algorithms),
                    None => list.is_signed_with(&webpki::spki_for_anchor(path.anchor()), algorithms),
                };
                if signed {
                    return Err(webpki::Error::CertRevoked);
                }
            }
        }
        Ok(())
    }

    /// The lists under this name that name this serial. An entry that can't be read counts as naming it.
    fn naming<'a>(&'a self, issuer: &[u8], serial: &'a [u8]) -> impl Iterator<Item = &'a List> {
        let lists = self.by_issuer.get(issuer).map(Vec::as_slice).unwrap_or_default();
        lists.iter().filter(move |list| !matches!(list.list.find_serial(serial), Ok(None)))
    }
}

impl List {
    /// One list as DER.
    pub fn read(der: &[u8]) -> Result<Self, ListUnreadable> {
        let list = OwnedCertRevocationList::from_der(der).map_err(ListUnreadable::Refused)?;
        let (_, told) = CertificateRevocationList::from_der(der).map_err(|_| ListUnreadable::Der)?;
        let next_update = told.next_update().map(|at| at.timestamp());
        let parts = three_parts(der).ok_or(ListUnreadable::Der)?;
        Ok(Self {
            list: list.into(),
            signed: parts.signed.to_vec(),
            algorithm: parts.algorithm.to_vec(),
            signature: parts.signature.to_vec(),
            issuer: told.issuer().to_string(),
            next_update: next_update.map(|seconds| {
                SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
            }),
        })
    }

    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.next_update.is_some_and(|at| at < now)
    }

    /// The issuer's name as certificates carry it: without the outer tag.
    pub(in crate::tls) fn issuer_name(&self) -> &[u8] {
        self.list.issuer()
    }

    /// Whether the key of this SubjectPublicKeyInfo has signed the list.
    pub(in crate::tls) fn is_signed_with(
        &self,
        key: &[u8],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> bool {
        let Some((kind, key)) = public_key(key) else { return false };
        algorithms
            .iter()
            .filter(|known| {
                *known.signature_alg_id() == *self.algorithm && *known.public_key_alg_id() == *kind
            })
            .any(|known| known.verify_signature(key, &self.signed, &self.signature).is_ok())
    }
}

/// All lists of a file: PEM with any number of them, also none, or one as DER. One that can't be used spoils the file:
/// nobody may take the rest for all of it.
pub fn read(file: &[u8]) -> Result<Vec<List>, ListsUnreadable> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    if file.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let blocks = file.windows(BEGIN.len()).filter(|window| *window == BEGIN).count();
    if blocks == 0 {
        let read = List::read(file).map_err(|error| ListsUnreadable::List { number: 1, error })?;
        return Ok(vec![read]);
    }
    if blocks > REVOCATION_LISTS {
        return Err(ListsUnreadable::TooMany);
    }
    let mut lists = Vec::new();
    for (at, section) in <(SectionKind, Vec<u8>)>::pem_slice_iter(file).enumerate() {
        let number = at + 1;
        let (kind, der) = section.map_err(ListsUnreadable::Pem)?;
        if kind != SectionKind::Crl {
            return Err(ListsUnreadable::Foreign { number });
        }
        lists.push(List::read(&der).map_err(|error| ListsUnreadable::List { number, error })?);
    }
    // Blocks under labels that nobody knows are passed over in silence above.
    if lists.len() == blocks { Ok(lists) } else { Err(ListsUnreadable::Foreign { number: lists.len() + 1 }) }
}

/// For the fuzzer and its short test: any bytes as a file; what is read can be asked.
pub fn fuzz_revocation_lists(data: &[u8]) {
    let Ok(lists) = read(data) else { return };
    let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
    for list in &lists {
        list.is_signed_with(data, algorithms.all);
        list.is_expired(SystemTime::UNIX_EPOCH);
    }
    let revocations = Revocations::default();
    revocations.replace(lists);
    let lists = revocations.current();
    lists.may_revoke(&[CertificateDer::from(data)]);
    let _named = lists.iter().map(|list| lists.naming(list.issuer_name(), data).count()).sum::<usize>();
}

/// A list as it is signed.
struct Parts<'a> {
    /// With its tag.
    signed: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

/// CertificateList ::= SEQUENCE { tbsCertList SEQUENCE, signatureAlgorithm SEQUENCE, signatureValue BIT STRING }
fn three_parts(der: &[u8]) -> Option<Parts<'_>> {
    let mut outer = der;
    let mut inside = element(&mut outer, SEQUENCE)?.contents;
    let signed = element(&mut inside, SEQUENCE)?.whole;
    let algorithm = element(&mut inside, SEQUENCE)?.contents;
    let signature = whole_octets(element(&mut inside, BIT_STRING)?.contents)?;
    (outer.is_empty() && inside.is_empty()).then_some(Parts { signed, algorithm, signature })
}

/// SubjectPublicKeyInfo ::= SEQUENCE { algorithm SEQUENCE, subjectPublicKey BIT STRING }: the contents of both.
fn public_key(spki: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut outer = spki;
    let mut inside = element(&mut outer, SEQUENCE)?.contents;
    let algorithm = element(&mut inside, SEQUENCE)?.contents;
    let key = whole_octets(element(&mut inside, BIT_STRING)?.contents)?;
    Some((algorithm, key))
}

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

struct Element<'a> {
    whole: &'a [u8],
    contents: &'a [u8],
}

/// Takes one element with this tag from the front (X.690 section 8.1; definite lengths only, as DER has them).
fn element<'a>(from: &mut &'a [u8], tag: u8) -> Option<Element<'a>> {
    let all = *from;
    let (found, rest) = all.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        long @ 0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (contents, after) = rest.split_at_checked(length)?;
    let whole = all.get(..all.len() - after.len())?;
    *from = after;
    (*found == tag).then_some(Element { whole, contents })
}

/// The bits of a string without unused ones, as keys and signatures are.
fn whole_octets(bits: &[u8]) -> Option<&[u8]> {
    let (unused, octets) = bits.split_first()?;
    (*unused == 0).then_some(octets)
}
