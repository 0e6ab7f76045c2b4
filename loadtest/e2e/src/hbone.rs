//! An HBONE peer of its own make: rustls and the h2 crate, a certificate of the mesh, and no manners.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use ringway::demo::topology::Pod;
use ringway::tls::cert::Authority;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::world::STEP;

pub const HBONE_PORT: u16 = 15008;
/// How an HTTP/2 client begins, with settings that say nothing (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// How the peer shows itself in the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Card {
    /// A certificate of the mesh.
    Mesh,
    /// None at all.
    None,
    /// One that another authority signed.
    Foreign,
}

/// A certificate, a key and the roots, as files and as bytes.
pub struct Papers {
    pub chain_pem: String,
    pub key_pem: String,
    pub root_pem: String,
}

impl Papers {
    /// Chain and key as rustls takes them.
    pub fn parsed(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.chain_pem.as_bytes());
        let chain = chain.collect::<Result<_, _>>().expect("a chain");
        (chain, PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).expect("a key"))
    }
}

/// Papers of an identity from the mesh's own authority in `directory`.
pub fn papers(directory: &Path, identity: &str) -> Papers {
    let authority = Authority::open(directory, "cluster.local").expect("the mesh's authority");
    papers_of(&authority, identity)
}

fn papers_of(authority: &Authority, identity: &str) -> Papers {
    let identity = identity.parse().expect("an identity");
    let issued = authority.issue(&identity, Duration::from_secs(3_600)).expect("a certificate");
    Papers { chain_pem: issued.chain_pem, key_pem: issued.key_pem, root_pem: issued.roots_pem }
}

/// A client that speaks HBONE from inside a pod.
#[derive(Clone)]
pub struct HbonePeer {
    pod: Pod,
    config: Arc<rustls::ClientConfig>,
}

/// What a CONNECT (or something else) was answered with.
pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub ended: bool,
    pub send: SendStream<Bytes>,
    pub receive: RecvStream,
}

impl HbonePeer {
    pub fn new(pod: &Pod, authority: &Path, identity: &str) -> Self {
        Self::with_card(pod, authority, identity, Card::Mesh, &rustls::version::TLS13, b"h2")
    }

    pub fn with_card(
        pod: &Pod,
        authority: &Path,
        identity: &str,
        card: Card,
        version: &'static rustls::SupportedProtocolVersion,
        protocol: &[u8],
    ) -> Self {
        let papers = match card {
            Card::Mesh => Some(papers(authority, identity)),
            Card::Foreign => {
                Some(papers_of(&Authority::new("cluster.local").expect("an authority"), identity))
            }
            Card::None => None,
        };
        Self::with_papers(pod, papers.as_ref(), version, protocol)
    }

    /// Any papers at all, also a chain with another's key.
    pub fn with_papers(
        pod: &Pod,
        papers: Option<&Papers>,
        version: &'static rustls::SupportedProtocolVersion,
        protocol: &[u8],
    ) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .expect("a protocol version")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(algorithms)));
        let mut config = match papers {
            Some(papers) => {
                let (chain, key) = papers.parsed();
                let key = provider.key_provider.load_private_key(key).expect("a key to sign with");
                builder.with_client_cert_resolver(Arc::new(Shown(Arc::new(CertifiedKey::new(chain, key)))))
            }
            None => builder.with_no_client_auth(),
        };
        if !protocol.is_empty() {
            config.alpn_protocols = vec![protocol.to_vec()];
        }
        Self { pod: pod.clone(), config: Arc::new(config) }
    }

    /// TLS only; what is said inside is up to the caller.
    pub async fn handshake(&self, to: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        self.shake(self.pod.space.connect(to, STEP)?).await
    }

    /// As `handshake`, on a connection that is up already.
    pub async fn shake(&self, stream: std::net::TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let stream = TcpStream::from_std(stream)?;
        let handshake = TlsConnector::from(self.config.clone()).connect(name, stream);
        tokio::time::timeout(STEP, handshake).await.map_err(std::io::Error::other)?
    }

    /// An HTTP/2 connection whose driver runs in the background.
    pub async fn open(&self, to: SocketAddr) -> SendRequest<Bytes> {
        let tls = self.handshake(to).await.expect("a TLS handshake");
        let (send, connection) = h2::client::handshake(tls).await.expect("an HTTP/2 connection");
        tokio::spawn(async move {
            // Its end is seen at the streams.
            let _ = connection.await;
        });
        send
    }

    /// One CONNECT on a connection of its own.
    pub async fn connect(&self, to: SocketAddr, authority: &str) -> Answer {
        connect(&mut self.open(to).await, authority, &[]).await
    }

    /// Opens stream 1 with this header block (RFC 7541) and gives the first byte of the answer's: an indexed status
    /// such as 0x88 for 200. None where the stream or the connection is ended instead.
    pub async fn first_answer(&self, to: SocketAddr, block: &[u8]) -> Option<u8> {
        let mut tls = self.handshake(to).await.expect("a TLS handshake");
        let length = u8::try_from(block.len()).expect("a short block");
        let head = [0, 0, length, 1, 4, 0, 0, 0, 1];
        tls.write_all(&[PREFACE, &head[..], block].concat()).await.expect("a request");
        loop {
            let mut head = [0; 9];
            let read =
                tokio::time::timeout(STEP, tls.read_exact(&mut head)).await.expect("an answer in time");
            read.ok()?;
            let mut payload = vec![0; usize::from(head[2]) + (usize::from(head[1]) << 8)];
            tls.read_exact(&mut payload).await.ok()?;
            match (head[3], head[8]) {
                // Behind any update of the table's size (RFC 7541 section 6.3).
                (1, 1) => return payload.into_iter().find(|byte| byte & 0xe0 != 0x20),
                (3, 1) | (7, _) => return None,
                _ => {}
            }
        }
    }

    /// The first SETTINGS frame that the other side sends: (identifier, value) in its order.
    pub async fn settings(&self, to: SocketAddr) -> Vec<(u16, u32)> {
        let mut tls = self.handshake(to).await.expect("a TLS handshake");
        tls.write_all(PREFACE).await.expect("a preface");
        let mut head = [0; 9];
        tls.read_exact(&mut head).await.expect("a frame");
        assert_eq!(head[3], 4, "the first frame is no SETTINGS: {head:?}");
        let mut payload = vec![0; usize::from(head[2]) + (usize::from(head[1]) << 8)];
        tls.read_exact(&mut payload).await.expect("its payload");
        let setting = |bytes: &[u8]| {
            let value = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
            (u16::from_be_bytes([bytes[0], bytes[1]]), value)
        };
        payload.chunks_exact(6).map(setting).collect()
    }
}

/// One CONNECT on this connection; `authority` may be anything that the http crate lets through.
pub async fn connect(send: &mut SendRequest<Bytes>, authority: &str, headers: &[(&str, &str)]) -> Answer {
    ask(send, http::Method::CONNECT, authority, headers).await
}

pub async fn ask(
    send: &mut SendRequest<Bytes>,
    method: http::Method,
    target: &str,
    headers: &[(&str, &str)],
) -> Answer {
    std::future::poll_fn(|context| send.poll_ready(context)).await.expect("room for a stream");
    let mut request = http::Request::builder().method(method).uri(target).version(http::Version::HTTP_2);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (response, stream) =
        send.send_request(request.body(()).expect("a request"), false).expect("a stream");
    let response = tokio::time::timeout(STEP, response).await.expect("an answer in time").expect("an answer");
    let (parts, receive) = response.into_parts();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        ended: receive.is_end_stream(),
        send: stream,
        receive,
    }
}

impl Answer {
    /// Sends bytes and reads as many back.
    pub async fn echo(&mut self, bytes: &'static [u8]) -> Vec<u8> {
        self.send.send_data(Bytes::from_static(bytes), false).expect("sending");
        let mut heard = Vec::new();
        while heard.len() < bytes.len() {
            let data = tokio::time::timeout(STEP, self.receive.data()).await.expect("data in time");
            let Some(data) = data else { break };
            let data = data.expect("data");
            let _ = self.receive.flow_control().release_capacity(data.len());
            heard.extend_from_slice(&data);
        }
        heard
    }
}

/// Shows the same papers to every server, fitting or not.
#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Takes any server: these tests look at what the server thinks of its client.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyServer {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_schemes()
    }
}
