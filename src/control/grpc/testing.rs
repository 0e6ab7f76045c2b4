//! A control plane for tests: a root, server certificates of every kind, and a gRPC server whose one handler may
//! answer as it likes.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;

use super::{Options, Protection, Roots, Service, Target, Token};
use crate::tls::config::{Exchange, provider};

pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

/// A root of our own.
pub struct Root {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Root {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::from_ca_cert_pem(&pem, key).unwrap(), pem }
    }

    /// Certificate and key of a server with these names, valid from and until so many hours from now.
    pub fn server(&self, names: &[&str], hours: (i64, i64)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let at = |hours: i64| time::OffsetDateTime::from(SystemTime::now()) + time::Duration::hours(hours);
        (params.not_before, params.not_after) = (at(hours.0), at(hours.1));
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// What the server speaks.
pub fn server_config(
    (chain, key): &(String, String),
    versions: &[&'static rustls::SupportedProtocolVersion],
    exchange: Exchange,
) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut provider = provider(exchange);
    provider.cipher_suites = rustls::crypto::aws_lc_rs::default_provider().cipher_suites;
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Ends with the value.
pub struct Server {
    pub address: SocketAddr,
    task: JoinHandle<()>,
    accepted: Arc<AtomicUsize>,
    hang_up: Arc<Notify>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(tls: Arc<ServerConfig>, handler: Handler) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, hang_up) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
        let task = tokio::spawn(serve(listener, tls, handler, accepted.clone(), hang_up.clone()));
        Self { address, task, accepted, hang_up }
    }

    /// How many there were until now.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Ends the connections that are there.
    pub fn hang_up(&self) {
        self.hang_up.notify_waiters();
    }
}

async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    handler: Handler,
    accepted: Arc<AtomicUsize>,
    hang_up: Arc<Notify>,
) {
    // Its connections end with it.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        accepted.fetch_add(1, Ordering::Relaxed);
        let (acceptor, handler, hang_up) = (TlsAcceptor::from(tls.clone()), handler.clone(), hang_up.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(move |request| {
                let answer = handler(request);
                async move { Ok::<_, std::convert::Infallible>(answer.await) }
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = serving => {}
                () = hang_up.notified() => {}
            }
        });
    }
}

/// How a test reaches `address`.
pub fn options(address: impl std::fmt::Display, root: &Root) -> Options {
    Options {
        service: Service::Certificates,
        address: format!("https://{address}"),
        alternative_host: None,
        roots: Roots::Inline(root.pem.clone()),
        token: Token::None,
        cluster_id: "Kubernetes".to_owned(),
        headers: Vec::new(),
        protection: Protection::default(),
    }
}

/// A target with deadlines that a test can wait for.
pub fn target(options: Options) -> Target {
    let mut target = Target::new(options).unwrap();
    target.deadlines.connect = Duration::from_millis(300);
    target.deadlines.handshake = Duration::from_millis(300);
    target
}
