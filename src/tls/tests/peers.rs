//! The far ends of the tests: rustls with its own buffers and records, and our side beside it.

use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};

use crate::mesh::identity::Identity;
use crate::tls::aead::Library;
use crate::tls::cert::{Authority, Issued};
use crate::tls::config::{Credential, Exchange, Profile, provider};
use crate::tls::handshake::{Established, Handshake, HandshakeError, Progress};
use crate::tls::keyschedule::Suite;
use crate::tls::record::{Content, ContentType, HEADER_BYTES, Opener, RecordError, Sealer, TRAILER_BYTES};

pub const WEB: &str = "spiffe://cluster.local/ns/default/sa/web";
pub const API: &str = "spiffe://cluster.local/ns/default/sa/api";
pub const HOUR: Duration = Duration::from_secs(3_600);

pub fn id(uri: &str) -> Identity {
    uri.parse().unwrap()
}

pub fn expect(uris: &[&str]) -> Arc<[Identity]> {
    uris.iter().map(|uri| id(uri)).collect()
}

pub fn authority() -> Authority {
    Authority::new("cluster.local").unwrap()
}

pub fn credential(issued: &Issued, uri: &str, records: Library) -> Credential {
    credential_with(issued, uri, Profile { records, ..Profile::default() })
}

pub fn credential_with(issued: &Issued, uri: &str, profile: Profile) -> Credential {
    let (chain, key) = (issued.chain_pem.as_bytes(), issued.key_pem.as_bytes());
    Credential::new(id(uri), chain, key, issued.roots_pem.as_bytes(), profile).unwrap()
}

/// Runs `test` with a seed that is printed where it fails.
pub fn seeded(test: impl FnOnce(&mut fastrand::Rng)) {
    let seed = std::env::var("RINGWAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("RINGWAY_SEED={seed}");
    test(&mut fastrand::Rng::with_seed(seed));
}

/// What a rustls peer is to be.
pub struct Peer {
    pub suite: Suite,
    pub alpn: Vec<Vec<u8>>,
    /// `None`: presents no certificate (a client), or can't be (a server).
    pub issued: Option<Issued>,
    /// Of a server: tickets after the handshake.
    pub tickets: usize,
    /// Of a server: what it trusts its clients by.
    pub client_roots: Option<String>,
    /// Of a server: may speak before the client's Finished.
    pub half_rtt: bool,
    /// Largest record it sends.
    pub fragment: Option<usize>,
    pub x25519_only: bool,
    /// The groups that it knows, in its order, where `x25519_only` is off.
    pub exchange: Exchange,
}

impl Peer {
    pub fn new(issued: Issued) -> Self {
        let client_roots = Some(issued.roots_pem.clone());
        let alpn = vec![b"h2".to_vec()];
        Self {
            suite: Suite::Aes256GcmSha384,
            alpn,
            issued: Some(issued),
            tickets: 0,
            client_roots,
            half_rtt: false,
            fragment: None,
            x25519_only: false,
            exchange: Exchange::Default,
        }
    }

    pub fn client(&self) -> Connection {
        self.client_logging(Arc::new(rustls::NoKeyLog))
    }

    /// A client, and a look at the secret of its last handshake flight.
    pub fn client_with_secret(&self) -> (Connection, impl Fn() -> Vec<u8>) {
        let log = Arc::new(HandshakeSecret::default());
        (self.client_logging(log.clone()), move || log.0.get().unwrap().clone())
    }

    fn client_logging(&self, log: Arc<dyn rustls::KeyLog>) -> Connection {
        let provider = Arc::new(self.provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)));
        let mut config = match &self.issued {
            Some(issued) => builder.with_client_auth_cert(chain(issued), key(issued)).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.clone();
        config.max_fragment_size = self.fragment;
        config.key_log = log;
        let name = ServerName::try_from("ringway.test").unwrap();
        Connection::Client(ClientConnection::new(Arc::new(config), name).unwrap())
    }

    pub fn server(&self) -> Connection {
        let provider = Arc::new(self.provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap();
        let builder = match &self.client_roots {
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
            None => builder.with_no_client_auth(),
        };
        let issued = self.issued.as_ref().unwrap();
        let mut config = builder.with_single_cert(chain(issued), key(issued)).unwrap();
        config.alpn_protocols = self.alpn.clone();
        config.send_tls13_tickets = self.tickets;
        config.max_fragment_size = self.fragment;
        config.send_half_rtt_data = self.half_rtt;
        Connection::Server(ServerConnection::new(Arc::new(config)).unwrap())
    }

    fn provider(&self) -> CryptoProvider {
        let suite = match self.suite {
            Suite::Aes128GcmSha256 => rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
            Suite::Aes256GcmSha384 => rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        };
        let mut provider = CryptoProvider { cipher_suites: vec![suite], ..provider(self.exchange) };
        if self.x25519_only {
            provider.kx_groups.truncate(1);
        }
        provider
    }
}

impl Authority {
    /// A leaf signed by an intermediate that this root signed.
    pub fn issue_through_intermediate(&self, identity: &Identity) -> Issued {
        self.issue_below(&self.intermediate(), identity)
    }

    /// An authority whose own certificate this root signed.
    pub fn intermediate(&self) -> Self {
        self.intermediate_until(rcgen::date_time_ymd(4_000, 1, 1))
    }

    pub fn intermediate_until(&self, not_after: time::OffsetDateTime) -> Self {
        use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "intermediate");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.not_after = not_after;
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let middle = params.signed_by(&key, &self.issuer).unwrap().pem();
        let issuer = Issuer::from_ca_cert_pem(&middle, key).unwrap();
        Self { root_pem: middle, issuer }
    }

    /// A leaf of an intermediate of ours, with its chain.
    pub fn issue_below(&self, below: &Self, identity: &Identity) -> Issued {
        let leaf = below.issue(identity, HOUR).unwrap();
        Issued {
            chain_pem: format!("{}{}", leaf.chain_pem, below.root_pem()),
            key_pem: leaf.key_pem,
            roots_pem: self.root_pem().to_owned(),
        }
    }

    /// A leaf with any URI names, in this order.
    pub fn issue_named(&self, uris: &[&str]) -> Issued {
        use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, SanType};
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let name = |uri: &&str| SanType::URI((*uri).to_owned().try_into().unwrap());
        params.subject_alt_names = uris.iter().map(name).collect();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let chain_pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { chain_pem, key_pem: key.serialize_pem(), roots_pem: self.root_pem().to_owned() }
    }
}

fn chain(issued: &Issued) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes()).map(Result::unwrap).collect()
}

fn key(issued: &Issued) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).unwrap()
}

#[derive(Debug, Default)]
struct HandshakeSecret(OnceLock<Vec<u8>>);

impl rustls::KeyLog for HandshakeSecret {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == "CLIENT_HANDSHAKE_TRAFFIC_SECRET" {
            self.0.set(secret.to_vec()).unwrap();
        }
    }
}

/// A client that believes everybody, so that only our side's judgement counts.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        unreachable!("only TLS 1.3")
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Our side once the handshake is done.
pub struct Done {
    pub ours: Established,
    /// Ciphertext from the peer that we haven't opened.
    pub tail: Vec<u8>,
}

/// Runs a handshake with the wire cut at random. Both sides' errors are returned: ours, and rustls's.
pub fn shake(
    mut ours: Handshake,
    theirs: &mut Connection,
    rng: &mut fastrand::Rng,
) -> (Result<Done, HandshakeError>, Option<rustls::Error>) {
    let (mut incoming, mut to_us) = (Vec::new(), Vec::new());
    let mut their_error = None;
    for _ in 0..100_000 {
        let mut outgoing = Vec::new();
        let progress = ours.advance(&mut incoming, &mut outgoing);
        their_error = feed(theirs, &outgoing, rng).err().or(their_error);
        match progress {
            Ok(Progress::Continue) => {}
            Ok(Progress::Done(done)) => {
                drain(theirs, &mut to_us);
                incoming.extend(to_us);
                return (Ok(Done { ours: *done, tail: incoming }), their_error);
            }
            Err(error) => return (Err(error), their_error),
        }
        drain(theirs, &mut to_us);
        let cut = rng.usize(..=to_us.len().min(2_000));
        incoming.extend(to_us.drain(..cut));
    }
    panic!("the handshake stands still");
}

/// Gives bytes to a rustls side in random pieces; what it got in the clear.
pub fn feed(
    theirs: &mut Connection,
    mut bytes: &[u8],
    rng: &mut fastrand::Rng,
) -> Result<Vec<u8>, rustls::Error> {
    let mut plain = Vec::new();
    while !bytes.is_empty() {
        let cut = rng.usize(1..=bytes.len());
        let mut piece = &bytes[..cut];
        while !piece.is_empty() {
            theirs.read_tls(&mut piece).unwrap();
            theirs.process_new_packets()?;
            let mut part = [0; 4_096];
            while let Ok(taken @ 1..) = theirs.reader().read(&mut part) {
                plain.extend(&part[..taken]);
            }
        }
        bytes = &bytes[cut..];
    }
    Ok(plain)
}

/// Everything a rustls side wants to send.
pub fn drain(theirs: &mut Connection, out: &mut Vec<u8>) {
    while theirs.wants_write() {
        theirs.write_tls(out).unwrap();
    }
}

pub fn send(theirs: &mut Connection, mut bytes: &[u8], out: &mut Vec<u8>) {
    while !bytes.is_empty() {
        let taken = theirs.writer().write(bytes).unwrap();
        bytes = &bytes[taken..];
        drain(theirs, out);
    }
}

/// Opens all whole records at the front of `wire`: the plaintext, and whether a key update was asked for.
pub fn open_all(open: &mut Opener, wire: &mut Vec<u8>) -> Result<(Vec<u8>, bool), RecordError> {
    let (mut plain, mut asked) = (Vec::new(), false);
    while let Some(opened) = open.open(wire)? {
        match opened.content {
            Content::Data(range) => plain.extend(&wire[range]),
            Content::UpdateRequested => asked = true,
            Content::Nothing | Content::Closed => {}
        }
        wire.drain(..opened.consumed);
    }
    Ok((plain, asked))
}

/// `plain` as one sealed record.
pub fn sealed(seal: &mut Sealer, kind: ContentType, plain: &[u8]) -> Vec<u8> {
    let mut record = vec![0; HEADER_BYTES];
    record.extend(plain);
    record.extend([0; TRAILER_BYTES]);
    seal.seal(kind, &mut record).unwrap();
    record
}
