//! Dials a `Target`: name, TCP, TLS, HTTP/2, each with its own deadline and its own text when it fails. A channel has
//! one connection and ends with it: whoever uses it dials anew, and so reads roots and names anew.

use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use rustls::{AlertDescription, CertificateError};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::error::{ConnectError, Failure};
use super::target::Target;
use super::trust::{RootsNow, client_config, is_other_name};
use crate::base::limits::{
    GRPC_CONNECT_DEADLINE_MS, GRPC_CONNECTION_WINDOW_BYTES, GRPC_HANDSHAKE_DEADLINE_MS,
    GRPC_KEEPALIVE_INTERVAL_S, GRPC_KEEPALIVE_RETRIES, GRPC_KEEPALIVE_TIME_S, GRPC_PING_DEADLINE_MS,
    GRPC_PING_INTERVAL_MS, GRPC_RESOLVE_DEADLINE_MS, GRPC_STREAM_WINDOW_BYTES, GRPC_UNACKNOWLEDGED_MS,
};

/// How long each step of a connect may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    pub(super) resolve: Duration,
    /// Over all addresses.
    pub(super) connect: Duration,
    pub(super) handshake: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            resolve: Duration::from_millis(GRPC_RESOLVE_DEADLINE_MS),
            connect: Duration::from_millis(GRPC_CONNECT_DEADLINE_MS),
            handshake: Duration::from_millis(GRPC_HANDSHAKE_DEADLINE_MS),
        }
    }
}

impl Target {
    /// A new connection, with roots and addresses as they are now. Takes at most 15 s.
    pub async fn connect(&self) -> Result<Channel, ConnectError> {
        Box::pin(self.connect_with(self.roots_now()?)).await
    }

    /// The roots as they are now, to tell whether a channel is still made of what is believed.
    pub(super) fn roots_now(&self) -> Result<RootsNow, ConnectError> {
        let variable = self.service.roots_variable();
        self.roots.now().map_err(|error| self.failed(Failure::Roots { variable, error }))
    }

    pub(super) async fn connect_with(&self, roots: RootsNow) -> Result<Channel, ConnectError> {
        let tls = self.tls(roots).await.map_err(|failure| self.failed(failure))?;
        let addresses = self.resolve().await.map_err(|failure| self.failed(failure))?;
        let tcp = self.dial(&addresses).await.map_err(|failure| self.failed(failure))?;
        let stream = self.handshake(tls, tcp).await.map_err(|failure| self.failed(failure))?;
        Box::pin(self.endpoint().connect_with_connector(Once(Some(stream))))
            .await
            .map_err(|error| self.failed(Failure::Http2(error.to_string())))
    }

    fn failed(&self, failure: Failure) -> ConnectError {
        ConnectError { at: self.at().clone(), failure: Box::new(failure) }
    }

    /// On a thread of its own: the roots of a system are a hundred files.
    async fn tls(&self, roots: RootsNow) -> Result<TlsConnector, Failure> {
        let variable = self.service.roots_variable();
        let (protection, alternative) = (self.protection, self.alternative.clone());
        let made =
            tokio::task::spawn_blocking(move || client_config(&roots, protection, alternative.as_ref()));
        match made.await {
            Ok(Ok(config)) => Ok(TlsConnector::from(Arc::new(config))),
            Ok(Err(error)) => Err(Failure::Roots { variable, error }),
            Err(panicked) => Err(Failure::Http2(panicked.to_string())),
        }
    }

    async fn resolve(&self) -> Result<Vec<SocketAddr>, Failure> {
        let variable = self.service.address_variable();
        let after = self.deadlines.resolve;
        let failed = |error| Failure::Dns { variable, error };
        match timeout(after, tokio::net::lookup_host((self.host.as_str(), self.port))).await {
            Err(_) => Err(Failure::DnsSilent { after }),
            Ok(Err(error)) => Err(failed(error)),
            Ok(Ok(found)) => {
                let found: Vec<SocketAddr> = found.collect();
                if found.is_empty() {
                    return Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
                }
                Ok(found)
            }
        }
    }

    /// One address after the other, each with its share of the time that is left.
    pub(super) async fn dial(&self, addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
        let after = self.deadlines.connect;
        let end = Instant::now() + after;
        let mut refused = None;
        let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for address in addresses {
            let share = end.saturating_duration_since(Instant::now()) / left.max(1);
            left = left.saturating_sub(1);
            match timeout_at(Instant::now() + share, TcpStream::connect(*address)).await {
                Ok(Ok(stream)) => {
                    tune(&stream);
                    return Ok(stream);
                }
                Ok(Err(error)) => refused = Some(error),
                Err(_) => {}
            }
        }
        let tried = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let variable = self.service.address_variable();
        Err(match refused {
            Some(error) if error.kind() != io::ErrorKind::TimedOut => Failure::Tcp { variable, tried, error },
            Some(_) | None => Failure::TcpSilent { tried, after },
        })
    }

    async fn handshake(&self, tls: TlsConnector, tcp: TcpStream) -> Result<TlsStream<TcpStream>, Failure> {
        let after = self.deadlines.handshake;
        match timeout(after, tls.connect(self.name.clone(), tcp)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.tls_failure(error)),
            Err(_) => Err(Failure::TlsSilent { after }),
        }
    }

    fn tls_failure(&self, error: io::Error) -> Failure {
        let below = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        match below {
            Some(error @ rustls::Error::InvalidCertificate(reason)) => {
                Failure::Trust { error: error.clone(), hint: self.trust_hint(error, reason) }
            }
            Some(
                rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
                | rustls::Error::PeerIncompatible(_),
            ) => Failure::Tls { error, hint: "does it speak TLS 1.3? TLS12_ENABLED=true allows 1.2 as well" },
            Some(rustls::Error::AlertReceived(_)) => {
                Failure::Tls { error, hint: "check the control plane logs for more information" }
            }
            Some(_) | None => Failure::Tls { error, hint: "does the port speak TLS?" },
        }
    }

    fn trust_hint(&self, error: &rustls::Error, reason: &CertificateError) -> String {
        use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
        if is_other_name(error) {
            let variable = self.service.alternative_variable();
            return format!("{variable} allows one more name than that of the address");
        }
        if matches!(reason, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }) {
            return "is the clock of this node right? else the control plane must renew it".to_owned();
        }
        let variable = self.service.roots_variable();
        let roots = match &self.roots {
            super::Roots::File(path) => path.display().to_string(),
            super::Roots::Inline(_) => "PEM text".to_owned(),
            super::Roots::System => "those of the operating system".to_owned(),
        };
        format!("does {variable} ({roots}) hold the root of the control plane's certificate?")
    }

    fn endpoint(&self) -> Endpoint {
        let endpoint = Endpoint::from(self.uri.clone())
            .http2_keep_alive_interval(Duration::from_millis(GRPC_PING_INTERVAL_MS))
            .keep_alive_timeout(Duration::from_millis(GRPC_PING_DEADLINE_MS))
            // A gRPC server in Go takes pings without a stream for abuse.
            .keep_alive_while_idle(false)
            .initial_stream_window_size(GRPC_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(GRPC_CONNECTION_WINDOW_BYTES);
        let agent = concat!("ringway/", env!("CARGO_PKG_VERSION"));
        endpoint.clone().user_agent(agent).unwrap_or(endpoint)
    }
}

/// What the kernel refuses is left as it is.
fn tune(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(GRPC_KEEPALIVE_TIME_S))
        .with_interval(Duration::from_secs(GRPC_KEEPALIVE_INTERVAL_S))
        .with_retries(GRPC_KEEPALIVE_RETRIES);
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(Duration::from_millis(GRPC_UNACKNOWLEDGED_MS.into())));
}

/// Gives its stream to the channel, and no other: what the channel would dial by itself has no text of its own.
struct Once(Option<TlsStream<TcpStream>>);

impl tower_service::Service<Uri> for Once {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the connection is over");
        ready(self.0.take().map(TokioIo::new).ok_or_else(over))
    }
}
