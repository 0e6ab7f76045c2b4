//! The tunnels of one pod: up to 100 streams on each, dialled one at a time for a key.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::client::SendRequest;
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;

use super::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, HBONE_PORT, Pod, STREAM_WINDOW_BYTES, keep_alive};
use crate::authority::no_name;
use crate::sockets::dial_from;

const STREAMS_PER_TUNNEL: usize = 100;
const HEADER_LIST_BYTES: u32 = 16 * 1024;

/// Source and destination: the identities of a pod's connections follow from them.
type Key = (Ipv4Addr, SocketAddrV4);

pub struct Pool {
    pod: Arc<Pod>,
    connector: TlsConnector,
    tunnels: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<Vec<Tunnel>>>>>,
}

#[derive(Clone)]
struct Tunnel {
    requests: SendRequest<Bytes>,
    streams: Arc<AtomicUsize>,
}

/// A place for one stream on a tunnel, given back on drop.
pub struct Place {
    pub requests: SendRequest<Bytes>,
    streams: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    pub fn new(pod: Arc<Pod>) -> Result<Self> {
        let config: ClientConfig = pod.credential.client(&pod.peer_identity, &["h2"])?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Self { pod, connector, tunnels: Mutex::default() })
    }

    /// A place on a tunnel to the proxy of `to`; dials if all are full.
    pub async fn place(&self, source: Ipv4Addr, to: Ipv4Addr) -> Result<Place> {
        let key = (source, SocketAddrV4::new(to, HBONE_PORT));
        let known =
            Arc::clone(self.tunnels.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        let mut tunnels = known.lock().await;
        let mut at = 0;
        while let Some(tunnel) = tunnels.get(at) {
            if tunnel.streams.load(Ordering::Relaxed) >= STREAMS_PER_TUNNEL {
                at += 1;
                continue;
            }
            match tunnel.requests.clone().ready().await {
                Ok(requests) => return Ok(take(requests, &tunnel.streams)),
                Err(_) => drop(tunnels.remove(at)),
            }
        }
        let tunnel = self.dial(key.1).await?;
        tunnels.push(tunnel.clone());
        Ok(take(tunnel.requests, &tunnel.streams))
    }

    async fn dial(&self, to: SocketAddrV4) -> Result<Tunnel> {
        let socket = dial_from(&self.pod.namespace, to, None).await.context("io error")?;
        let stream = self.connector.connect(no_name(), socket).await.context("tls error")?;
        self.pod.credential.check_handshake(stream.get_ref().1)?;
        let (requests, mut connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .initial_max_send_streams(STREAMS_PER_TUNNEL)
            .max_header_list_size(HEADER_LIST_BYTES)
            .max_send_buffer_size(STREAM_WINDOW_BYTES as usize)
            .enable_push(false)
            .handshake(stream)
            .await
            .context("http2 handshake failed")?;
        let pings = connection.ping_pong().context("pings are taken once")?;
        tokio::spawn(async move {
            tokio::select! {
                // Streams carry the error to whoever waits on them.
                _ = connection => {}
                () = keep_alive(pings) => {}
            }
        });
        Ok(Tunnel { requests, streams: Arc::default() })
    }
}

fn take(requests: SendRequest<Bytes>, streams: &Arc<AtomicUsize>) -> Place {
    streams.fetch_add(1, Ordering::Relaxed);
    Place { requests, streams: Arc::clone(streams) }
}
