//! Bringing a tunnel up, either role: connect, handshake, HTTP/2, each with its deadline.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::CertificateError;

use crate::base::limits;
use crate::mesh::identity::Identity;
use crate::mesh::labels::Reporter;
use crate::shard::failure::Failure;
use crate::shard::pod::PodWorld;
use crate::shard::pool::Key;
use crate::shard::shard::within;
use crate::shard::socket::Socket;
use crate::shard::stats::bump;
use crate::shard::tunnel::{Parts, Tunnel, TunnelEnd};
use crate::tls::config::Credential;
use crate::tls::handshake::{Established, Handshake, HandshakeError, Progress};
use crate::tls::tenure::PeerCertificates;
use crate::wire::h2::{Connection, Settings};

/// Bytes of a handshake flight read at once.
const FLIGHT_BYTES: usize = 8 * 1024;
/// Streams that a peer may open on one tunnel (the reference's value).
const OFFERED_STREAMS: u32 = 200;
/// Header list that either role takes (the reference's values).
const CLIENT_HEADER_LIST_BYTES: u32 = 16 * 1024;
const SERVER_HEADER_LIST_BYTES: u32 = 64 * 1024;
/// Windows start here and grow while their reader keeps up, so that unread streams hold little.
const START_WINDOW_BYTES: u32 = 256 * 1024;

/// Dials a tunnel for a pool's key and starts driving it.
pub async fn dial_tunnel(world: Rc<PodWorld>, key: Key) -> Result<Rc<Tunnel>, Failure> {
    let credential = world.shard.credential(&key.identity).await?;
    let socket = world.dial(key.destination).await.map_err(|error| {
        if error.kind() == ErrorKind::TimedOut { Failure::TunnelConnectDeadline } else { Failure::io(&error) }
    })?;
    let raising = Raising {
        socket,
        remote: key.destination,
        expected: key.expected,
        idle_release: world.shard.settings.pool_idle,
    };
    raise_tunnel(&world, raising, &credential, || {}).await
}

/// A connected stream that is to become a tunnel of ours.
pub struct Raising {
    pub socket: Socket,
    pub remote: SocketAddr,
    pub expected: Arc<[Identity]>,
    /// How long it may be without a stream.
    pub idle_release: Duration,
}

/// Takes the client's part on a stream, and starts driving the tunnel. `over` is called when it has ended, or dropped
/// where it never came up.
pub async fn raise_tunnel(
    world: &Rc<PodWorld>,
    raising: Raising,
    credential: &Credential,
    over: impl FnOnce() + 'static,
) -> Result<Rc<Tunnel>, Failure> {
    let Raising { socket, remote, expected, idle_release } = raising;
    let handshake = Handshake::client(credential, expected);
    let handshake = handshake.map_err(|error| Failure::TlsSetup(error.to_string()))?;
    let (established, tail) = Box::pin(shake(world, &socket, handshake, Reporter::Source))
        .await
        .map_err(|error| Failure::TlsHandshake(error.to_string()))?;
    let http2 = Connection::client(&settings(world, CLIENT_HEADER_LIST_BYTES), Instant::now());
    let tunnel = assemble(world, socket, remote, established, tail, http2);
    let driven = tunnel.clone();
    world.watch_outbound(driven.clone(), idle_release);
    let world = world.clone();
    monoio::spawn(async move {
        // A server opens no streams towards us: HTTP/2 refuses that before it comes here.
        let end = driven.drive(&|_, _| {}).await;
        world.unwatch(&driven);
        over();
        if end == TunnelEnd::PingTimeout {
            tracing::warn!(target: "ztunnel::proxy::h2::client", "{end}, peer {}", driven.remote);
        } else {
            tracing::debug!(target: "ztunnel::proxy::h2::client", "tunnel to {} ended: {end}", driven.remote);
        }
    });
    Ok(tunnel)
}

/// Takes the server's part on an accepted socket. The caller drives the tunnel.
pub async fn accept_tunnel(
    world: &Rc<PodWorld>,
    socket: Socket,
    remote: SocketAddr,
    credential: &Credential,
) -> Result<Rc<Tunnel>, Failure> {
    let handshake =
        Handshake::server(credential).map_err(|error| Failure::InboundHandshake(error.to_string()))?;
    let (established, tail) = Box::pin(shake(world, &socket, handshake, Reporter::Destination))
        .await
        .map_err(|error| Failure::InboundHandshake(error.to_string()))?;
    let http2 = Connection::server(&settings(world, SERVER_HEADER_LIST_BYTES), Instant::now());
    Ok(assemble(world, socket, remote, established, tail, http2))
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Shaking {
    #[error(transparent)]
    Tls(#[from] HandshakeError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("no handshake within {} ms", limits::HANDSHAKE_DEADLINE_MS)]
    Deadline,
}

impl Shaking {
    fn is_revocation(&self) -> bool {
        matches!(self, Self::Tls(HandshakeError::Certificate(CertificateError::Revoked)))
    }
}

/// The caller has the tunnel watched before it waits for anything else: lists that come into force during the handshake
/// are looked at here, later ones find the tunnel among those that are watched.
async fn shake(
    world: &PodWorld,
    socket: &Socket,
    handshake: Handshake,
    reporter: Reporter,
) -> Result<(Established, Vec<u8>), Shaking> {
    let stats = &world.shard.stats;
    let engine = &stats.engine;
    let started = Instant::now();
    let outcome = match within(limits::HANDSHAKE_DEADLINE_MS, Box::pin(exchange(socket, handshake))).await {
        Some(outcome) => outcome.and_then(still_believed),
        None => Err(Shaking::Deadline),
    };
    if outcome.as_ref().is_err_and(Shaking::is_revocation) {
        bump(stats.crl_rejections(reporter));
    }
    if outcome.is_ok() {
        bump(&engine.tls_handshakes);
        let histogram = match reporter {
            Reporter::Source => &stats.timings.handshake_client,
            Reporter::Destination => &stats.timings.handshake_server,
        };
        histogram.record(started.elapsed());
    } else {
        bump(&engine.tls_handshake_failures);
    }
    outcome
}

fn still_believed(shaken: (Established, Vec<u8>)) -> Result<(Established, Vec<u8>), Shaking> {
    let peer: &PeerCertificates = &shaken.0.peer;
    if peer.is_revoked_since() {
        return Err(HandshakeError::Certificate(CertificateError::Revoked).into());
    }
    Ok(shaken)
}

pub(super) async fn exchange(
    socket: &Socket,
    mut handshake: Handshake,
) -> Result<(Established, Vec<u8>), Shaking> {
    let mut incoming = Vec::new();
    loop {
        let mut outgoing = Vec::new();
        let progress = handshake.advance(&mut incoming, &mut outgoing);
        socket.send_all(&outgoing).await?;
        if let Progress::Done(established) = progress? {
            return Ok((*established, incoming));
        }
        receive_some(socket, &mut incoming).await?;
    }
}

async fn receive_some(socket: &Socket, into: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        socket.readable().await?;
        let kept = into.len();
        into.resize(kept + FLIGHT_BYTES, 0);
        let got = socket.receive(into.get_mut(kept..).unwrap_or_default());
        into.truncate(kept + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn assemble(
    world: &PodWorld,
    socket: Socket,
    remote: SocketAddr,
    established: Established,
    tail: Vec<u8>,
    http2: Connection,
) -> Rc<Tunnel> {
    let local = socket.local().unwrap_or(remote);
    let parts = Parts { socket, local, remote, established, tail, http2 };
    Tunnel::new(parts, world.shard.buffers.clone(), world.shard.stats.clone())
}

fn settings(world: &PodWorld, header_list_bytes: u32) -> Settings {
    let settings = &world.shard.settings;
    Settings {
        stream_window_bytes: settings.stream_window_bytes,
        connection_window_bytes: settings.connection_window_bytes,
        frame_bytes: settings.frame_bytes,
        max_streams: OFFERED_STREAMS,
        header_list_bytes,
        start_window_bytes: START_WINDOW_BYTES.min(settings.stream_window_bytes),
    }
}
