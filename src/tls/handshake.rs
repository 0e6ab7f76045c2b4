//! One handshake by rustls, sans-IO, up to the point where the records are ours. rustls is shown one record at a
//! time, so it never reads past the handshake: the first record after the peer's Finished is already opened by us.

use std::sync::{Arc, OnceLock};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, CipherSuite, CommonState, ConnectionTrafficSecrets};
use zeroize::Zeroizing;

use crate::base::fault::Whose;
use crate::base::limits::{HANDSHAKE_BYTES, RECORD_PLAINTEXT_BYTES};
use crate::mesh::identity::Identity;
use crate::tls::aead::Library;
use crate::tls::config::{ALPN_H2, Credential};
use crate::tls::keyschedule::{Direction, Suite};
use crate::tls::record::{HEADER_BYTES, Opener, Reading, Sealer};
use crate::tls::tenure::{Checked, PeerCertificates, Tenure};
use crate::tls::upkeep::Pending;
use crate::tls::verify::{self, IdentityError, Part};

/// A handshake under way, either role.
pub struct Handshake {
    /// `None` once it is done or has failed.
    side: Option<Side>,
    secrets: Arc<Secrets>,
    records: Library,
    checked: Checked,
    tenure: Tenure,
    /// Bytes at the front of `incoming` that rustls has seen and still needs.
    shown: usize,
    seen_in_all: usize,
}

/// Where the handshake stands.
pub enum Progress {
    /// Send what is in `outgoing`; go on with more bytes.
    Continue,
    /// Send what is in `outgoing`; go on with records.
    Done(Box<Established>),
}

/// Both directions and who the peer is.
pub struct Established {
    pub seal: Sealer,
    pub open: Opener,
    pub peer: PeerCertificates,
    /// Of our own side.
    pub tenure: Tenure,
}

/// Why there is no connection.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("invalid peer certificate: {0}")]
    Certificate(CertificateError),
    #[error("peer sent no certificate")]
    NoCertificate,
    #[error("received fatal alert: {0:?}")]
    Alert(AlertDescription),
    #[error("the peer doesn't speak h2 (ALPN {})", .0.as_deref().unwrap_or("absent"))]
    NotH2(Option<String>),
    #[error("{0}")]
    Protocol(rustls::Error),
    #[error("the peer closed during the handshake")]
    Closed,
    #[error("a handshake of more than {HANDSHAKE_BYTES} bytes")]
    TooLong,
    #[error("tls error: {0}")]
    Setup(rustls::Error),
    #[error("tls error: keys after the handshake can't be had: {0}")]
    Keys(&'static str),
}

impl HandshakeError {
    /// Who has to change something.
    pub fn whose(&self) -> Whose {
        match self {
            Self::Setup(_) | Self::Keys(_) => Whose::Us,
            Self::Identity(_)
            | Self::Certificate(_)
            | Self::NoCertificate
            | Self::Alert(_)
            | Self::NotH2(_)
            | Self::Protocol(_)
            | Self::Closed
            | Self::TooLong => Whose::Peer,
        }
    }
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that may grow")]
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
                match other.0.downcast_ref::<IdentityError>() {
                    Some(identity) => Self::Identity(identity.clone()),
                    None => Self::Certificate(CertificateError::Other(other)),
                }
            }
            rustls::Error::InvalidCertificate(error) => Self::Certificate(error),
            rustls::Error::NoCertificatesPresented => Self::NoCertificate,
            rustls::Error::AlertReceived(AlertDescription::CloseNotify) => Self::Closed,
            rustls::Error::AlertReceived(alert) => Self::Alert(alert),
            other => Self::Protocol(other),
        }
    }
}

impl Handshake {
    /// The dialling side: presents our certificate and accepts any one of `expected` (none: nobody). No SNI.
    pub fn client(credential: &Credential, expected: Arc<[Identity]>) -> Result<Self, HandshakeError> {
        let secrets = Arc::new(Secrets::default());
        let mut config = credential.client(expected);
        config.key_log = secrets.clone();
        let nameless = ServerName::from(std::net::IpAddr::from([0, 0, 0, 0]));
        let connection =
            UnbufferedClientConnection::new(Arc::new(config), nameless).map_err(HandshakeError::Setup)?;
        Ok(Self::new(Side::Client(connection), secrets, credential))
    }

    /// The accepting side: a certificate of our own trust domain is demanded.
    pub fn server(credential: &Credential) -> Result<Self, HandshakeError> {
        let secrets = Arc::new(Secrets::default());
        let mut config = credential.server();
        config.key_log = secrets.clone();
        let connection = UnbufferedServerConnection::new(Arc::new(config)).map_err(HandshakeError::Setup)?;
        Ok(Self::new(Side::Server(connection), secrets, credential))
    }

    fn new(side: Side, secrets: Arc<Secrets>, credential: &Credential) -> Self {
        let part = if matches!(side, Side::Client(_)) { Part::Server } else { Part::Client };
        Self {
            side: Some(side),
            secrets,
            records: credential.records(),
            // Before the peer is checked: lists that come in between are then newer than these.
            checked: Checked::now(&credential.trust, part),
            tenure: credential.tenure(),
            shown: 0,
            seen_in_all: 0,
        }
    }

    /// Consumes from the front of `incoming` and appends to `outgoing`. Only append to `incoming` between calls: its
    /// front may hold a message that is still in parts. After `Done` it holds the records not yet opened. On an
    /// error `outgoing` holds the alert to send.
    pub fn advance(
        &mut self,
        incoming: &mut Vec<u8>,
        outgoing: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        let Some(mut side) = self.side.take() else {
            return Err(HandshakeError::Keys("this handshake is over"));
        };
        loop {
            let shown = incoming.get_mut(..self.shown).unwrap_or_default();
            let (discard, step) = side.step(shown, outgoing);
            incoming.drain(..discard.min(self.shown));
            self.shown = self.shown.saturating_sub(discard);
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Closed) => return Err(HandshakeError::Closed),
                Ok(Step::Blocked) if !side.common().is_handshaking() => {
                    return self.finish(side, outgoing).map(|done| Progress::Done(Box::new(done)));
                }
                Ok(Step::Blocked) => {
                    let Some(record) = next_record_bytes(incoming, self.shown) else {
                        self.side = Some(side);
                        return Ok(Progress::Continue);
                    };
                    self.shown += record;
                    self.seen_in_all += record;
                    if self.seen_in_all > HANDSHAKE_BYTES {
                        return Err(HandshakeError::TooLong);
                    }
                }
                Err(error) => {
                    side.flush(outgoing);
                    return Err(error.into());
                }
            }
        }
    }

    /// Takes everything from rustls that is needed, then its keys.
    fn finish(&self, side: Side, outgoing: &mut Vec<u8>) -> Result<Established, HandshakeError> {
        let common = side.common();
        let suite = match common.negotiated_cipher_suite().map(|suite| suite.suite()) {
            Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => Suite::Aes256GcmSha384,
            Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => Suite::Aes128GcmSha256,
            _ => return Err(HandshakeError::Keys("unknown suite")),
        };
        let alpn = common.alpn_protocol().map(<[u8]>::to_vec);
        let chain: Vec<_> = common.peer_certificates().unwrap_or_default().to_vec();
        let peer_is_server = matches!(side, Side::Client(_));
        let (client, server) = (self.secrets.client.get(), self.secrets.server.get());
        let (Some(client), Some(server)) = (client, server) else {
            return Err(HandshakeError::Keys("rustls gave no secrets"));
        };
        let (ours, theirs) = if peer_is_server { (client, server) } else { (server, client) };
        let (transmit, receive) = side.extract().map_err(HandshakeError::Setup)?;
        let transmit = direction(suite, ours, transmit)?;
        let receive = direction(suite, theirs, receive)?;
        let reading =
            Reading { peer_is_server, pending: Pending::Nothing, upkeep_in_a_row: 0, data_bytes: 0 };
        let failed = |_| HandshakeError::Keys("the cryptography library refused a key");
        let mut seal = Sealer::restore(transmit, self.records).map_err(failed)?;
        let open = Opener::restore(receive, reading, self.records).map_err(failed)?;
        if alpn.as_deref() != Some(ALPN_H2) {
            seal.alert(AlertDescription::NoApplicationProtocol.into(), outgoing);
            return Err(HandshakeError::NotH2(alpn.map(|name| name.escape_ascii().to_string())));
        }
        let Some(leaf) = chain.first() else { return Err(HandshakeError::NoCertificate) };
        let peer = PeerCertificates::new(verify::identity(leaf), chain, self.checked.clone());
        Ok(Established { seal, open, peer, tenure: self.tenure.clone() })
    }
}

/// The direction of one secret, once its key is the one rustls holds: a key log that mixed up two secrets must not
/// go unnoticed.
fn direction(
    suite: Suite,
    secret: &[u8],
    (sequence, extracted): (u64, ConnectionTrafficSecrets),
) -> Result<Direction, HandshakeError> {
    let direction =
        Direction::new(suite, secret, sequence).ok_or(HandshakeError::Keys("secret of a wrong length"))?;
    let material = direction
        .material()
        .map_err(|_| HandshakeError::Keys("the cryptography library refused a secret"))?;
    let same = match (&extracted, suite) {
        (ConnectionTrafficSecrets::Aes256Gcm { key, iv }, Suite::Aes256GcmSha384)
        | (ConnectionTrafficSecrets::Aes128Gcm { key, iv }, Suite::Aes128GcmSha256) => {
            key.as_ref() == material.key() && iv.as_ref() == material.iv
        }
        _ => false,
    };
    if same { Ok(direction) } else { Err(HandshakeError::Keys("secret and key differ")) }
}

/// How many bytes the next record takes, `None` while it isn't whole. Where the header can't be one, rustls is shown
/// just that: it refuses at once, in its own words.
fn next_record_bytes(incoming: &[u8], shown: usize) -> Option<usize> {
    let rest = incoming.get(shown..)?;
    let [kind, major, _, high, low] = *rest.first_chunk::<HEADER_BYTES>()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let can_be = (20..=23).contains(&kind) && major == 3 && length <= RECORD_PLAINTEXT_BYTES + SLACK_BYTES;
    let whole = HEADER_BYTES + if can_be { length } else { 0 };
    (rest.len() >= whole).then_some(whole)
}

/// What rustls grants a record beyond its plaintext.
const SLACK_BYTES: usize = 2_048;

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What rustls wants after one step.
enum Step {
    Again,
    Blocked,
    Closed,
}

type Extracted = (u64, ConnectionTrafficSecrets);

impl Side {
    fn common(&self) -> &CommonState {
        match self {
            Self::Client(connection) => connection,
            Self::Server(connection) => connection,
        }
    }

    fn step(&mut self, shown: &mut [u8], outgoing: &mut Vec<u8>) -> (usize, Result<Step, rustls::Error>) {
        match self {
            Self::Client(connection) => digest(connection.process_tls_records(shown), outgoing),
            Self::Server(connection) => digest(connection.process_tls_records(shown), outgoing),
        }
    }

    /// After an error rustls still gives out the alert it has queued. Past that it must not be asked again: with
    /// messages of the same record unread it would look for them in the empty buffer, and panic.
    fn flush(&mut self, outgoing: &mut Vec<u8>) {
        while self.common().wants_write() {
            let (_, Ok(Step::Again)) = self.step(&mut [], outgoing) else { return };
        }
    }

    fn extract(self) -> Result<(Extracted, Extracted), rustls::Error> {
        let secrets = match self {
            Self::Client(connection) => connection.dangerous_into_kernel_connection()?.0,
            Self::Server(connection) => connection.dangerous_into_kernel_connection()?.0,
        };
        Ok((secrets.tx, secrets.rx))
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that may grow")]
fn digest<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Vec<u8>,
) -> (usize, Result<Step, rustls::Error>) {
    let step = status.state.and_then(|state| match state {
        ConnectionState::EncodeTlsData(mut data) => {
            let start = outgoing.len();
            let mut written = data.encode(&mut []);
            if let Err(EncodeError::InsufficientSize(size)) = &written {
                outgoing.resize(start + size.required_size, 0);
                written = data.encode(outgoing.get_mut(start..).unwrap_or_default());
            }
            outgoing.truncate(start + written.as_ref().copied().unwrap_or(0));
            written.map(|_| Step::Again).map_err(|error| rustls::Error::General(error.to_string()))
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Ok(Step::Blocked),
        ConnectionState::PeerClosed | ConnectionState::Closed => Ok(Step::Closed),
        _ => Err(rustls::Error::General("application data during the handshake".into())),
    });
    (status.discard, step)
}

/// Catches the two secrets that the records will need.
#[derive(Default)]
struct Secrets {
    client: OnceLock<Zeroizing<Vec<u8>>>,
    server: OnceLock<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl rustls::KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let place = match label {
            "CLIENT_TRAFFIC_SECRET_0" => &self.client,
            "SERVER_TRAFFIC_SECRET_0" => &self.server,
            _ => return,
        };
        // A second secret under the same name is not expected; the first one stays and is checked against the key.
        let _first_stays = place.set(Zeroizing::new(secret.to_vec()));
    }
}
