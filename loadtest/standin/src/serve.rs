//! Listener and connections: TLS, HTTP/2, which request goes where; frozen, aged and closed when told.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::Request;
use rcgen::SanType;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use crate::authority::{Authority, BACKDATE, new_key};
use crate::behaviour::{Behaviour, Door, code};
use crate::certificates::{self, Signing};
use crate::discovery;
use crate::heard::{Opened, Record};
use crate::mesh::Mesh;
use crate::message::Answer;

const DISCOVERY: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const CERTIFICATES: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
const SERVER_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);
/// A GOAWAY must get out before the connection goes.
const LEAST_GRACE: Duration = Duration::from_millis(50);
const STREAM_WINDOW_BYTES: u32 = 4 * 1_024 * 1_024;

/// What all connections see; kept while stopped.
pub(crate) struct Shared {
    pub mesh: Mesh,
    pub record: Record,
    behaviour: Mutex<Behaviour>,
    signing: Mutex<Signing>,
    authority: Mutex<Authority>,
    /// Discovery streams end with this status.
    pub endings: broadcast::Sender<(u16, String)>,
    pub closings: broadcast::Sender<Closing>,
    pub frozen: watch::Sender<bool>,
    nonces: AtomicU64,
    numbers: AtomicU64,
}

/// How all connections end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// FIN.
    Close,
    /// RST.
    Reset,
    /// GOAWAY; closed once all streams are over.
    GoAway,
}

/// A connection as its streams know it.
#[derive(Clone)]
pub(crate) struct Link {
    pub number: u64,
    close: mpsc::UnboundedSender<()>,
}

impl Link {
    pub fn close(&self) {
        // Fails where it is closed already.
        let _ = self.close.send(());
    }
}

impl Shared {
    pub fn new() -> Self {
        Self {
            mesh: Mesh::default(),
            record: Record::default(),
            behaviour: Mutex::default(),
            signing: Mutex::default(),
            authority: Mutex::new(Authority::new()),
            endings: broadcast::channel(8).0,
            closings: broadcast::channel(8).0,
            frozen: watch::Sender::new(false),
            nonces: AtomicU64::new(1),
            numbers: AtomicU64::new(1),
        }
    }

    pub fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn signing(&self) -> MutexGuard<'_, Signing> {
        self.signing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn authority(&self) -> MutexGuard<'_, Authority> {
        self.authority.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn next_nonce(&self) -> String {
        format!("nonce-{}", self.nonces.fetch_add(1, Ordering::Relaxed))
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// TLS with a certificate for these DNS names by the root that signs now.
    pub fn tls(&self, names: &[String]) -> Result<TlsAcceptor, rustls::Error> {
        let (key, now) = (new_key(), std::time::SystemTime::now());
        let dns = |name: &String| Some(SanType::DnsName(name.as_str().try_into().ok()?));
        let names = names.iter().filter_map(dns).collect();
        let chain = self.authority().chain(&key, names, (now - BACKDATE, now + SERVER_TTL));
        let der = |pem: &String| CertificateDer::from_pem_slice(pem.as_bytes()).expect("our own certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|error| rustls::Error::General(error.into()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain.iter().map(der).collect(), key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

pub(crate) async fn listen(shared: Arc<Shared>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    loop {
        // Only ever out of descriptors.
        let Ok((socket, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let number = {
            let mut log = shared.record.lock();
            log.accepted += 1;
            log.accepted
        };
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        tokio::spawn(async move {
            shared.record.lock().connections += 1;
            let up = Up(Arc::clone(&shared));
            Box::pin(connection(shared, number, socket, tls)).await;
            drop(up);
        });
    }
}

/// Counts a connection while it is up.
struct Up(Arc<Shared>);

impl Drop for Up {
    fn drop(&mut self) {
        self.0.record.lock().connections -= 1;
    }
}

async fn connection(shared: Arc<Shared>, number: u64, socket: TcpStream, tls: Option<TlsAcceptor>) {
    let mut closings = shared.closings.subscribe();
    let door = shared.behaviour().door;
    // Outlives what TLS and HTTP/2 own, so that its last close sends what its options say by then.
    let Ok(handle) = SockRef::from(&socket).try_clone() else { return };
    let _ = socket.set_nodelay(true);
    let ending = match door {
        Door::Shut => return,
        Door::SilentTcp => closings.recv().await.unwrap_or(Closing::Close),
        Door::Open | Door::SilentRequests => {
            let talk = async {
                match tls {
                    None => talk(&shared, number, socket, &mut closings).await,
                    Some(tls) => match tls.accept(socket).await {
                        Ok(stream) => Box::pin(talk(&shared, number, stream, &mut closings)).await,
                        Err(_) => Closing::Close,
                    },
                }
            };
            Box::pin(talk).await
        }
    };
    if ending == Closing::Reset {
        let _ = handle.set_linger(Some(Duration::ZERO));
    }
}

/// HTTP/2 until it ends; says how the socket is to end.
async fn talk(
    shared: &Arc<Shared>,
    number: u64,
    io: impl AsyncRead + AsyncWrite + Unpin,
    closings: &mut broadcast::Receiver<Closing>,
) -> Closing {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(2 * STREAM_WINDOW_BYTES);
    let Ok(mut http) = builder.handshake::<_, Bytes>(io).await else { return Closing::Close };
    let (max_age, grace) = {
        let behaviour = shared.behaviour();
        (behaviour.max_age, behaviour.grace.max(LEAST_GRACE))
    };
    let mut deadline = max_age.map(|age| tokio::time::Instant::now() + age);
    let (mut aged, mut frozen) = (false, shared.frozen.subscribe());
    let (close, mut closed) = mpsc::unbounded_channel();
    let link = Link { number, close };
    loop {
        let is_frozen = *frozen.borrow_and_update();
        tokio::select! {
            closing = closings.recv() => match closing.unwrap_or(Closing::Close) {
                Closing::GoAway => http.graceful_shutdown(),
                ending @ (Closing::Close | Closing::Reset) => return ending,
            },
            _ = closed.recv() => {
                flush(&mut http).await;
                return Closing::Close;
            }
            _ = frozen.changed() => {}
            () = at(deadline) => {
                if aged {
                    return Closing::Close;
                }
                aged = true;
                http.graceful_shutdown();
                deadline = Some(tokio::time::Instant::now() + grace);
            }
            request = http.accept(), if !is_frozen => match request {
                Some(Ok((request, respond))) => route(shared, &link, request, respond),
                Some(Err(_)) | None => return Closing::Close,
            },
        }
    }
}

/// What is queued goes out, as far as it does so soon.
async fn flush<T: AsyncRead + AsyncWrite + Unpin>(http: &mut Connection<T, Bytes>) {
    let _ = tokio::time::timeout(LEAST_GRACE, http.accept()).await;
}

async fn at(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn route(shared: &Arc<Shared>, link: &Link, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    let stream = shared.number();
    let path = request.uri().path().to_owned();
    let headers = request.headers().iter();
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<(String, String)> =
        headers.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    let opened = Opened { at: Instant::now(), connection: link.number, stream, path: path.clone(), headers };
    let (door, token) = {
        let behaviour = shared.behaviour();
        (behaviour.door, behaviour.token.clone())
    };
    let authenticated =
        token.is_none_or(|token| opened.header("authorization") == Some(&format!("Bearer {token}")));
    shared.record.lock().streams.push(opened);
    let (shared, link, body) = (Arc::clone(shared), link.clone(), request.into_body());
    tokio::spawn(async move {
        let answer = |code, text: &str, respond| drop(Answer::new(respond).end(code, text));
        match path.as_str() {
            _ if door == Door::SilentRequests => {
                let mut answer = Answer::new(respond);
                answer.abandoned().await;
                drop(body);
            }
            _ if !authenticated => answer(code::UNAUTHENTICATED, "authentication failure", respond),
            DISCOVERY => Box::pin(discovery::serve(shared, link, stream, body, respond)).await,
            CERTIFICATES => Box::pin(certificates::serve(shared, link, body, respond)).await,
            _ => answer(code::UNIMPLEMENTED, "unknown service", respond),
        }
    });
}

pub(crate) fn listener(from: std::net::TcpListener) -> io::Result<TcpListener> {
    from.set_nonblocking(true)?;
    TcpListener::from_std(from)
}
