//! Applications that say who they are and whom they see, calls to them, and what the near proxy logged of a call.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use ringway::demo::topology::Pod;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::istio_world::IstioWorld;
use crate::lines::{self, text};
use crate::serve::{Server, echo};
use crate::world::try_dial;

/// Speaks first, then echoes: nothing on the way may wait for the client.
pub fn start(pod: &Pod, name: &str, port: u16) -> Server {
    let name = format!("{name}:{port}");
    Server::start(pod, port, move |mut stream: TcpStream| {
        let name = name.clone();
        async move {
            let Ok(peer) = stream.peer_addr() else { return };
            let hello = format!("{name} {}\n", peer.ip().to_canonical());
            if stream.write_all(hello.as_bytes()).await.is_ok() {
                echo(stream).await;
            }
        }
    })
}

/// What one call found out.
#[derive(Debug)]
pub struct Found {
    /// The pod and the port that answered.
    pub who: String,
    /// Whom it saw.
    pub peer: IpAddr,
    /// How much the client said: no other call of this process said as much. (Its port doesn't tell it apart: where
    /// the kernel still remembers another connection of that port, capture gives it another one.)
    pub bytes: usize,
}

static CALLS: AtomicUsize = AtomicUsize::new(1);

/// One echo over a connection of its own.
pub fn call(from: &Pod, to: SocketAddr) -> std::io::Result<Found> {
    let mut stream = try_dial(from, to)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut hello = String::new();
    reader.read_line(&mut hello)?;
    let (who, peer) = hello.trim_end().split_once(' ').ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let word = "w".repeat(CALLS.fetch_add(1, Ordering::Relaxed));
    stream.write_all(word.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut heard = String::new();
    reader.read_to_string(&mut heard)?;
    assert_eq!(heard, word, "from {who}");
    Ok(Found { who: who.to_owned(), peer: peer.parse().expect("an address"), bytes: word.len() })
}

/// The near proxy's line of this call.
#[track_caller]
pub fn outbound(world: &IstioWorld, found: &Found) -> Value {
    lines::wait_for(world.near(), &format!("{found:?}"), |line| {
        line["direction"] == "outbound" && line["bytes_sent"].as_u64() == u64::try_from(found.bytes).ok()
    })
}

/// A call to `to` is refused, and the log says why.
#[track_caller]
pub fn is_refused(world: &IstioWorld, to: &str, error: &str) {
    assert!(call(&world.client, to.parse().unwrap()).is_err(), "{to} answered");
    lines::wait_for(world.near(), error, |line| {
        text(line, "error") == error && text(line, "dst.addr") == to && line["direction"] == "outbound"
    });
}
