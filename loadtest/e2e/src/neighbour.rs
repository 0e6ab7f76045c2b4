//! A client that asks all the time, while others do what they do: what it has to wait, and what a proxy holds then.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;

use crate::world::try_dial;

const PAUSE: Duration = Duration::from_millis(1);
/// So often a request is made on a connection of its own.
const FRESH: u32 = 16;

/// What was seen in a time.
#[derive(Default)]
pub struct Seen {
    waits: Vec<Duration>,
    pub failures: Vec<String>,
    /// The most that was resident.
    pub resident_bytes: u64,
}

impl Seen {
    pub fn requests(&self) -> usize {
        self.waits.len()
    }

    /// The wait that one in a hundred requests exceeds.
    pub fn p99(&self) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits.get(waits.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// Asks until it is told to stop; what it sees is taken from it meanwhile.
#[derive(Default)]
pub struct Neighbour {
    stop: AtomicBool,
    seen: Mutex<Seen>,
}

impl Neighbour {
    /// Runs on the caller's thread: an echo at `to`, asked from `from`, and the memory of a proxy.
    pub fn run(&self, from: &Pod, to: SocketAddr, proxy: &NodeProxy) {
        let mut kept = None;
        for turn in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let started = Instant::now();
            let outcome = if turn % FRESH == 0 {
                try_dial(from, to).and_then(|mut stream| ask(&mut stream))
            } else {
                on_kept(&mut kept, from, to)
            };
            let waited = started.elapsed();
            let resident_bytes = proxy.resident_bytes().expect("memory");
            let mut seen = self.seen.lock().expect("what was seen");
            seen.waits.push(waited);
            seen.failures.extend(outcome.err().map(|error| format!("request {turn}: {error}")));
            seen.resident_bytes = seen.resident_bytes.max(resident_bytes);
            drop(seen);
            std::thread::sleep(PAUSE);
        }
    }

    /// What was seen since the last time.
    pub fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().expect("what was seen"))
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn on_kept(kept: &mut Option<TcpStream>, from: &Pod, to: SocketAddr) -> Result<()> {
    let stream = match kept {
        Some(stream) => stream,
        None => kept.insert(try_dial(from, to)?),
    };
    let outcome = ask(stream);
    if outcome.is_err() {
        *kept = None;
    }
    outcome
}

fn ask(stream: &mut TcpStream) -> Result<()> {
    let mut bytes = [0; 64];
    crate::pattern(3, 0, &mut bytes);
    stream.write_all(&bytes)?;
    let mut heard = [0; 64];
    stream.read_exact(&mut heard)?;
    if heard == bytes { Ok(()) } else { Err(std::io::Error::other("other bytes came back")) }
}
