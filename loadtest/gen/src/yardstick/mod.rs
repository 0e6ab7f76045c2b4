//! The yardsticks: proxies of the usual design that the figures are ratios to. One process for each node, living
//! in the node's namespace and making its sockets in the pod's, captured by the same rules as a real one.

pub mod copy;
pub mod hop;
pub mod inbound;
pub mod log;
pub mod outbound;
pub mod pool;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use h2::{Ping, PingPong};

use crate::authority::{Cipher, Credential};
use crate::netns::Namespace;
use log::AccessLog;

/// The ports that the in-pod rules turn traffic to.
pub const OUTBOUND_PORT: u16 = 15_001;
pub const HBONE_PORT: u16 = 15_008;

pub const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
pub const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
pub const FRAME_BYTES: u32 = 1024 * 1024;
const PING_PERIOD: Duration = Duration::from_secs(10);
const PONG_DEADLINE: Duration = Duration::from_secs(20);
/// The reference's default: a quarter of the cores, at least two.
const WORKER_THREADS: usize = 2;

#[derive(Debug, clap::Args)]
pub struct Proxy {
    /// The pod's namespace.
    #[arg(long)]
    pub netns: PathBuf,
    /// Directory of the shared authority.
    #[arg(long)]
    pub authority: PathBuf,
    /// The pod's SPIFFE identity.
    #[arg(long)]
    pub identity: String,
    /// The identity that this pod's destinations must show.
    #[arg(long)]
    pub peer_identity: String,
    #[arg(long, value_enum, default_value = "aes256-gcm")]
    pub cipher: Cipher,
}

/// What both directions of a pod's proxy share.
pub struct Pod {
    pub namespace: Namespace,
    pub credential: Credential,
    pub identity: String,
    pub peer_identity: String,
    pub log: AccessLog,
}

/// The HBONE pair: tokio, tokio-rustls, h2.
pub fn h2tokio(proxy: Proxy) -> Result<()> {
    run(
        proxy,
        |pod| async move { tokio::try_join!(outbound::run(Arc::clone(&pod)), inbound::run(pod)).map(drop) },
    )
}

/// Two plain relays.
pub fn hop2(proxy: Proxy) -> Result<()> {
    run(
        proxy,
        |pod| async move { tokio::try_join!(hop::outbound(Arc::clone(&pod)), hop::inbound(pod)).map(drop) },
    )
}

fn run<F: Future<Output = Result<()>>>(proxy: Proxy, serve: impl FnOnce(Arc<Pod>) -> F) -> Result<()> {
    let pod = Arc::new(Pod {
        namespace: Namespace::open(&proxy.netns).with_context(|| format!("{}", proxy.netns.display()))?,
        credential: Credential::issue(&proxy.authority, &proxy.identity, proxy.cipher)?,
        identity: proxy.identity,
        peer_identity: proxy.peer_identity,
        log: AccessLog::start()?,
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build()?;
    runtime.block_on(Box::pin(serve(pod)))
}

/// Pings a tunnel every ten seconds; returns when an answer stays out or the tunnel is over.
pub async fn keep_alive(mut pings: PingPong) {
    loop {
        tokio::time::sleep(PING_PERIOD).await;
        match tokio::time::timeout(PONG_DEADLINE, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
