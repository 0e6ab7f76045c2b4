//! An HBONE server of its own make in a pod that no proxy serves: each CONNECT is answered as the test says.

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use ringway::demo::topology::Pod;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::hbone::{HBONE_PORT, Papers, papers};

/// One CONNECT: its number, counted from 0 over all tunnels; what it sends; how to answer it.
pub struct Call {
    pub number: usize,
    pub authority: String,
    pub headers: http::HeaderMap,
    pub body: RecvStream,
    pub respond: SendResponse<Bytes>,
    wire: Rc<OwnedFd>,
}

impl Call {
    /// Ends the whole tunnel without a word, as a proxy that was killed.
    pub fn cut(&self) {
        let _ = rustix::net::shutdown(&*self.wire, rustix::net::Shutdown::Both);
    }
}

type Answering = Pin<Box<dyn Future<Output = ()>>>;

/// Stops at drop.
pub struct HboneServer {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HboneServer {
    pub fn start(
        pod: &Pod,
        authority: &Path,
        identity: &str,
        answer: impl Fn(Call) -> Answering + Send + 'static,
    ) -> Self {
        Self::with_papers(pod, &papers(authority, identity), &rustls::version::TLS13, b"h2", answer)
    }

    /// As whoever these papers say.
    pub fn with_papers(
        pod: &Pod,
        papers: &Papers,
        version: &'static rustls::SupportedProtocolVersion,
        protocol: &[u8],
        answer: impl Fn(Call) -> Answering + Send + 'static,
    ) -> Self {
        let (chain, key) = papers.parsed();
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_protocol_versions(&[version])
        .expect("a protocol version")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("the server's papers");
        config.alpn_protocols = vec![protocol.to_vec()];
        let at = SocketAddr::new(pod.v4.into(), HBONE_PORT);
        let listener = pod.space.listen(at).expect("port 15008 of the pod");
        listener.set_nonblocking(true).expect("a listener");
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let serving = serve(listener, TlsAcceptor::from(Arc::new(config)), answer);
            tokio::task::LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    _ = stopped => {}
                    () = serving => {}
                }
            });
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for HboneServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    acceptor: TlsAcceptor,
    answer: impl Fn(Call) -> Answering + 'static,
) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    let (answer, calls) = (Rc::new(answer), Rc::new(Cell::new(0)));
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, answer, calls) = (acceptor.clone(), answer.clone(), calls.clone());
        tokio::task::spawn_local(async move {
            let Ok(wire) = stream.as_fd().try_clone_to_owned().map(Rc::new) else { return };
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let Ok(mut connection) = h2::server::handshake(stream).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                let number = calls.replace(calls.get() + 1);
                let (parts, body) = request.into_parts();
                tokio::task::spawn_local(answer(Call {
                    number,
                    authority: parts.uri.to_string(),
                    headers: parts.headers,
                    body,
                    respond,
                    wire: wire.clone(),
                }));
            }
        });
    }
}
