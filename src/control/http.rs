//! A small HTTP/1.1 server for readiness, metrics and admin. It knows addresses, deadlines and bounds; what is
//! answered is a `Handler`'s. Never used on the way of traffic.

mod body;
mod listen;
mod patient;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tracing::info;

use crate::base::limits::{
    ACCEPT_PAUSE_MS, HTTP_BODY_BYTES, HTTP_BUFFER_BYTES, HTTP_CONNECTIONS, HTTP_HEADER_DEADLINE_MS,
    HTTP_WRITE_DEADLINE_MS, LINGER_MS,
};
pub use body::Body;
use listen::{Bound, Listener, SocketFile, Wire};
use patient::Patient;

/// Method, path, query and headers of a request; no server here reads a body.
pub type Question = Parts;
pub type Reply = Response<Body>;
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
    pub address: String,
    #[source]
    pub error: io::Error,
}

/// A bound server. Connections queue in the kernel until it is served.
pub struct Server {
    component: &'static str,
    listeners: Vec<Bound>,
    connections: Arc<Semaphore>,
    header_deadline: Duration,
    write_deadline: Duration,
}

impl Server {
    /// Binds every address; no runtime is needed for it.
    pub fn bind(component: &'static str, addresses: &[SocketAddr]) -> Result<Self, BindError> {
        let refused =
            |address: SocketAddr| move |error| BindError { component, address: address.to_string(), error };
        let listeners: Result<Vec<Bound>, BindError> =
            addresses.iter().map(|address| Bound::tcp(*address).map_err(refused(*address))).collect();
        Ok(Self {
            component,
            listeners: listeners?,
            connections: Arc::new(Semaphore::new(HTTP_CONNECTIONS)),
            header_deadline: Duration::from_millis(HTTP_HEADER_DEADLINE_MS),
            write_deadline: Duration::from_millis(HTTP_WRITE_DEADLINE_MS),
        })
    }

    /// Answers at a socket in the file system as well, which its owner alone may use. A socket that is there already is
    /// replaced, anything else is an error. It is removed with the server.
    pub fn also_at(&mut self, path: &Path) -> Result<(), BindError> {
        let component = self.component;
        let refused = |error| BindError { component, address: path.display().to_string(), error };
        self.listeners.push(Bound::unix(path).map_err(refused)?);
        Ok(())
    }

    /// The TCP addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(Bound::address).collect()
    }

    /// Serves until `closing` says so or goes away. Must be called on the control thread's runtime.
    pub fn serve(
        self,
        handler: Arc<dyn Handler>,
        closing: &watch::Receiver<bool>,
    ) -> Result<Serving, BindError> {
        let Self { component, listeners, connections, header_deadline, write_deadline } = self;
        let mut files = Vec::new();
        for bound in listeners {
            let address = bound.to_string();
            let (listener, file) = bound.listen().map_err(|error| {
                let address = address.clone();
                BindError { component, address, error }
            })?;
            files.extend(file);
            info!(target: "ztunnel::hyper_util", address = %address, component, "listener established");
            let loop_ = AcceptLoop {
                component,
                address,
                handler: handler.clone(),
                connections: connections.clone(),
                closing: closing.clone(),
                header_deadline,
                write_deadline,
            };
            tokio::spawn(loop_.run(listener));
        }
        Ok(Serving { connections, _files: files })
    }
}

/// A server at work.
pub struct Serving {
    connections: Arc<Semaphore>,
    _files: Vec<SocketFile>,
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
    address: String,
    handler: Arc<dyn Handler>,
    connections: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
    header_deadline: Duration,
    write_deadline: Duration,
}

impl AcceptLoop {
    async fn run(self, listener: Listener) {
        let mut closing = self.closing.clone();
        let mut open = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(stream) => {
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
    fn converse(
        &self,
        stream: Box<dyn Wire>,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + use<> {
        let stream = Patient::new(stream, self.write_deadline);
        let handler = self.handler.clone();
        let mut closing = self.closing.clone();
        let deadline = self.header_deadline;
        async move {
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let handler = handler.clone();
                async move {
                    let (question, _) = request.into_parts();
                    Ok::<Reply, std::convert::Infallible>(if announces_too_much(&question.headers) {
                        with_header(empty(StatusCode::PAYLOAD_TOO_LARGE), CONNECTION.as_str(), "close")
                    } else {
                        handler.answer(question).await
                    })
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

/// Nobody here reads a body, and one that is left unread costs the connection; a large one isn't even begun with.
fn announces_too_much(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|length| length > HTTP_BODY_BYTES)
}

/// The path is there, but not for this method; `allow` lists those it is for.
pub fn not_allowed(allow: &'static str) -> Reply {
    with_header(empty(StatusCode::METHOD_NOT_ALLOWED), ALLOW.as_str(), allow)
}

/// A reply without body and content type.
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::from(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

/// A reply without content type.
pub fn plain(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Body::from(body.into()));
    *reply.status_mut() = status;
    reply
}

/// A reply of type application/json; a value that can't be written is our own fault.
pub fn json(value: &impl serde::Serialize) -> Reply {
    match serde_json::to_string_pretty(value) {
        Ok(body) => {
            with_header(plain(StatusCode::OK, body + "\n"), CONTENT_TYPE.as_str(), "application/json")
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
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
    use tokio::net::TcpStream;

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
mod tests;
