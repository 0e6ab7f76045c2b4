//! The pod's side of tunnels: mutual TLS, HTTP/2, and each CONNECT onto a connection to the application that
//! keeps the client's address.

use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request, Response, StatusCode};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::log::Connection;
use super::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, HBONE_PORT, Pod, STREAM_WINDOW_BYTES, copy, keep_alive};
use crate::sockets::{dial_from, listen_in, v4};

const STREAMS_OFFERED: u32 = 200;
const SEND_BUFFER_BYTES: usize = 400 * 1024;
const HEADER_LIST_BYTES: u32 = 64 * 1024;

/// What all streams of a tunnel share.
struct Peer {
    pod: Arc<Pod>,
    identity: String,
    from: SocketAddrV4,
    to: SocketAddrV4,
}

pub async fn run(pod: Arc<Pod>) -> Result<()> {
    let listener = listen_in(&pod.namespace, HBONE_PORT)?;
    let acceptor = TlsAcceptor::from(Arc::new(pod.credential.server(&["h2"])?));
    loop {
        let (socket, from) = listener.accept().await?;
        let (pod, acceptor) = (Arc::clone(&pod), acceptor.clone());
        tokio::spawn(async move {
            // A tunnel that fails ends its streams, whose clients see it.
            let _ = Box::pin(tunnel(socket, v4(from), pod, acceptor)).await;
        });
    }
}

async fn tunnel(
    socket: TcpStream,
    from: io::Result<SocketAddrV4>,
    pod: Arc<Pod>,
    acceptor: TlsAcceptor,
) -> Result<()> {
    socket.set_nodelay(true)?;
    let to = v4(socket.local_addr()?)?;
    let stream = acceptor.accept(socket).await?;
    let identity = pod.credential.check_handshake(stream.get_ref().1)?;
    let peer = Arc::new(Peer { pod, identity, from: from?, to });
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_concurrent_streams(STREAMS_OFFERED)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .handshake(stream)
        .await?;
    let alive = keep_alive(connection.ping_pong().context("pings are taken once")?);
    tokio::pin!(alive);
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = &mut alive => return Ok(()),
        };
        let Some(accepted) = accepted else { return Ok(()) };
        let (request, respond) = accepted?;
        tokio::spawn(Box::pin(stream_of(request, respond, Arc::clone(&peer))));
    }
}

async fn stream_of(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, peer: Arc<Peer>) {
    let authority = request.uri().authority().and_then(|authority| authority.as_str().parse().ok());
    let (&Method::CONNECT, Some(destination)) = (request.method(), authority) else {
        return refuse(&mut respond, StatusCode::BAD_REQUEST);
    };
    let begun = Instant::now();
    peer.pod.log.opened();
    let outcome = relay(destination, request.into_body(), &mut respond, &peer).await;
    if outcome.is_err() {
        refuse(&mut respond, StatusCode::SERVICE_UNAVAILABLE);
    }
    let connection = Connection {
        from: peer.from,
        to: peer.to,
        destination,
        direction: "inbound",
        source_identity: &peer.identity,
        destination_identity: &peer.pod.identity,
        begun,
    };
    peer.pod.log.closed(&connection, &outcome);
}

async fn relay(
    destination: SocketAddrV4,
    receive: RecvStream,
    respond: &mut SendResponse<Bytes>,
    peer: &Peer,
) -> io::Result<(u64, u64)> {
    let application = dial_from(&peer.pod.namespace, destination, Some(*peer.from.ip())).await?;
    let mut response = Response::new(());
    let baggage = http::HeaderValue::from_static("k8s.namespace.name=default,service.name=server");
    response.headers_mut().insert("baggage", baggage);
    let send = respond.send_response(response, false).map_err(io::Error::other)?;
    copy::tunnel(application, send, receive).await
}

/// Best effort: the stream may be answered or gone already.
fn refuse(respond: &mut SendResponse<Bytes>, status: StatusCode) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    let _ = respond.send_response(response, true);
}
