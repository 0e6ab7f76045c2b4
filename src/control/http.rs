//! A small HTTP/1.1 server for readiness, metrics and admin. It knows addresses, deadlines and bounds; what is
//! answered is a `Handler`'s. Never used on the way of traffic.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tracing::info;

use crate::base::limits::{
    ACCEPT_PAUSE_MS, HTTP_BUFFER_BYTES, HTTP_CONNECTIONS, HTTP_HEADER_DEADLINE_MS, LINGER_MS,
};
use crate::control::chunks::Chunks;

/// Method, path, query and headers of a request; no server here reads a body.
pub type Question = Parts;
/// Whole, or written while it is sent.
pub type Reply = Response<Either<Full<Bytes>, Chunks>>;
pub type Answering<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// What answers the requests of one server.
pub trait Handler: Send + Sync + 'static {
    fn answer(&self, question: Question) -> Answering<'_>;
}

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{component} server starts: failed to bind to address {address}: {error}")]
pub struct BindError {
    pub component: &'static str,
    pub address: SocketAddr,
    #[source]
    pub error: io::Error,
}

/// A bound server. Connections queue in the kernel until it is served.
pub struct Server {
    component: &'static str,
    listeners: Vec<(SocketAddr, std::net::TcpListener)>,
    connections: Arc<Semaphore>,
    header_deadline: Duration,
}

impl Server {
    /// Binds every address; no runtime is needed for it.
    pub fn bind(component: &'static str, addresses: &[SocketAddr]) -> Result<Self, BindError> {
        let mut listeners = Vec::new();
        for &address in addresses {
            let bound = std::net::TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok((listener.local_addr()?, listener))
            });
            match bound {
                Ok(listener) => listeners.push(listener),
                Err(error) => return Err(BindError { component, address, error }),
            }
        }
        let connections = Arc::new(Semaphore::new(HTTP_CONNECTIONS));
        let header_deadline = Duration::from_millis(HTTP_HEADER_DEADLINE_MS);
        Ok(Self { component, listeners, connections, header_deadline })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(address, _)| *address).collect()
    }

    /// Serves until `closing` says so or goes away. Must be called on the control thread's runtime.
    pub fn serve(
        self,
        handler: Arc<dyn Handler>,
        closing: &watch::Receiver<bool>,
    ) -> Result<Serving, BindError> {
        let Self { component, listeners, connections, header_deadline } = self;
        for (address, listener) in listeners {
            let listener =
                TcpListener::from_std(listener).map_err(|error| BindError { component, address, error })?;
            info!(target: "ztunnel::hyper_util", address = %address, component, "listener established");
            let loop_ = AcceptLoop {
                component,
                address,
                handler: handler.clone(),
                connections: connections.clone(),
                closing: closing.clone(),
                header_deadline,
            };
            tokio::spawn(loop_.run(listener));
        }
        Ok(Serving { connections })
    }
}

/// A server at work.
pub struct Serving {
    connections: Arc<Semaphore>,
}

impl Serving {
    /// Waits, for a bounded time, until every connection has ended; call it after closing was told.
    pub async fn finish(self) {
        let all = u32::try_from(HTTP_CONNECTIONS).unwrap_or(u32::MAX);
        let ended = self.connections.acquire_many(all);
        let _ = tokio::time::timeout(Duration::from_millis(LINGER_MS), ended).await;
    }
}

struct AcceptLoop {
    component: &'static str,
    address: SocketAddr,
    handler: Arc<dyn Handler>,
    connections: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
    header_deadline: Duration,
}

impl AcceptLoop {
    async fn run(self, listener: TcpListener) {
        let mut closing = self.closing.clone();
        let mut open = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    open.retain(|other: &AbortHandle| !other.is_finished());
                    let Ok(permit) = self.room(&mut open).await else { break };
                    open.push_back(tokio::spawn(self.converse(stream, permit)).abort_handle());
                }
                // A shortage of descriptors, or a peer that left the queue: neither ends the server.
                Err(_) => tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await,
            }
        }
        let Self { component, address, .. } = self;
        info!(target: "ztunnel::hyper_util", address = %address, component, "listener drained");
    }

    /// One connection, from its first request to its end.
    fn converse(&self, stream: TcpStream, permit: OwnedSemaphorePermit) -> impl Future<Output = ()> + use<> {
        let handler = self.handler.clone();
        let mut closing = self.closing.clone();
        let deadline = self.header_deadline;
        async move {
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let handler = handler.clone();
                async move {
                    let (question, _) = request.into_parts();
                    Ok::<Reply, std::convert::Infallible>(handler.answer(question).await)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(deadline)
                .max_buf_size(HTTP_BUFFER_BYTES)
                .half_close(true)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = pin!(connection);
            let closed = async {
                let _ = closing.wait_for(|closing| *closing).await;
            };
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = closed => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
            drop(permit);
        }
    }

    /// Room for one more connection. Where all places are taken, the oldest connection makes room: somebody who holds
    /// many open must not keep a probe or a scrape waiting.
    async fn room(&self, open: &mut VecDeque<AbortHandle>) -> Result<OwnedSemaphorePermit, AcquireError> {
        if self.connections.available_permits() == 0
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        self.connections.clone().acquire_owned().await
    }
}

/// A reply without body and content type.
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Either::Left(Full::default()));
    *reply.status_mut() = status;
    reply
}

/// A reply without content type.
pub fn plain(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(body.into())));
    *reply.status_mut() = status;
    reply
}

/// A reply of type text/plain.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    with_header(plain(status, body), CONTENT_TYPE.as_str(), "text/plain")
}

/// Adds a header; characters that a header can't carry become blanks or question marks.
pub fn with_header(mut reply: Reply, name: &'static str, value: &str) -> Reply {
    let value: String = value
        .chars()
        .map(|letter| match letter {
            ' '..='~' => letter,
            _ if letter.is_control() => ' ',
            _ => '?',
        })
        .collect();
    if let Ok(value) = HeaderValue::from_str(&value) {
        reply.headers_mut().insert(name, value);
    }
    reply
}

#[cfg(test)]
pub mod test {
    use super::*;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A question as a client would put it.
    pub fn ask(method: &str, path: &str) -> Question {
        Request::builder().method(method).uri(path).body(()).unwrap().into_parts().0
    }

    /// One exchange with a running server; the whole answer, head and body.
    pub async fn get(address: SocketAddr, method: &str, path: &str) -> String {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        exchange(address, request.as_bytes()).await
    }

    /// Raw bytes there, a half close, and everything that comes back.
    pub async fn exchange(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// The whole body as text.
    pub fn body(reply: Reply) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(reply.into_body().collect()).unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::test::exchange;
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Echo;

    impl Handler for Echo {
        fn answer(&self, question: Question) -> Answering<'_> {
            Box::pin(async move { text(StatusCode::OK, format!("{} {}", question.method, question.uri)) })
        }
    }

    fn here() -> [SocketAddr; 1] {
        ["127.0.0.1:0".parse().unwrap()]
    }

    #[tokio::test]
    async fn a_request_is_answered_even_after_a_half_close_and_closing_ends_everything() {
        let server = Server::bind("admin", &here()).unwrap();
        let address = server.addresses()[0];
        let (close, closing) = watch::channel(false);
        let serving = server.serve(Arc::new(Echo), &closing).unwrap();
        let answer = exchange(address, b"GET /x?y HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("GET /x?y"), "{answer}");
        let idle = TcpStream::connect(address).await.unwrap();
        close.send(true).unwrap();
        serving.finish().await;
        assert!(TcpStream::connect(address).await.is_err(), "it listens still");
        drop(idle);
    }

    #[tokio::test]
    async fn oversized_and_broken_requests_are_refused() {
        let server = Server::bind("admin", &here()).unwrap();
        let address = server.addresses()[0];
        let (_close, closing) = watch::channel(false);
        let _serving = server.serve(Arc::new(Echo), &closing).unwrap();
        let large = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", "a".repeat(20_000));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(large.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
        assert!(exchange(address, b"\x16\x03\x01\x00\xff\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        assert!(exchange(address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_client_that_sends_no_headers_is_let_go() {
        let mut server = Server::bind("admin", &here()).unwrap();
        server.header_deadline = Duration::from_millis(50);
        let address = server.addresses()[0];
        let (_close, closing) = watch::channel(false);
        let _serving = server.serve(Arc::new(Echo), &closing).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is still open");
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = Server::bind("stats", &[address]).err().unwrap().to_string();
        let starts = format!("stats server starts: failed to bind to address {address}: ");
        assert!(error.starts_with(&starts), "{error}");
    }
}
