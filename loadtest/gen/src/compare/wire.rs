//! Looks at what crosses between the nodes while a marker goes through: a proxied arm must show TLS records on
//! the HBONE port and never the marker; a plain one shows the marker, which proves that the look works.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns;

/// Every protocol, in network order (ETH_P_ALL).
const EVERY_PROTOCOL: i32 = 0x0300;
const PACKET_BYTES: usize = 65_536;
/// Header of a TLS record with application data.
const TLS_DATA: [u8; 3] = [0x17, 0x03, 0x03];
const HBONE_PORT: [u8; 2] = 15_008_u16.to_be_bytes();

/// The bytes that requests are filled with: long enough a run not to come by chance.
const MARKER: [u8; 64] = [0xa5; 64];

pub struct Tap {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Seen>>,
}

#[derive(Debug, Default)]
pub struct Seen {
    pub packets: u64,
    pub hbone_records: u64,
    pub markers: u64,
}

impl Tap {
    /// Begins to look at all packets of a node.
    pub fn start(namespace: &Path) -> Result<Self> {
        let namespace = namespace.to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (listening, listens) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("tap".into()).spawn(move || {
            netns::enter(&namespace)?;
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(EVERY_PROTOCOL)))?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            listening.send(())?;
            Ok(watch(&socket, &stopped))
        })?;
        // If the thread failed, its error comes from `finish`.
        let _ = listens.recv();
        Ok(Self { stop, thread })
    }

    pub fn finish(self) -> Result<Seen> {
        std::thread::sleep(Duration::from_millis(200));
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the tap panicked")?
    }
}

fn watch(mut socket: &Socket, stop: &AtomicBool) -> Seen {
    let mut packet = vec![0; PACKET_BYTES];
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let Some(bytes) = socket.read(&mut packet).ok().and_then(|length| packet.get(..length)) else {
            continue;
        };
        seen.packets += 1;
        seen.markers += u64::from(holds(bytes, &MARKER));
        seen.hbone_records += u64::from(is_hbone_record(bytes));
    }
    seen
}

/// Ethernet, IPv4 without options in our namespaces, TCP with its own header length.
fn is_hbone_record(bytes: &[u8]) -> bool {
    const TCP_AT: usize = 14 + 20;
    let Some(tcp) = bytes.get(TCP_AT..) else { return false };
    let to_or_from = tcp.get(..2) == Some(&HBONE_PORT) || tcp.get(2..4) == Some(&HBONE_PORT);
    let header = tcp.get(12).map_or(0, |word| usize::from(word >> 4) * 4);
    to_or_from && tcp.get(header..header + TLS_DATA.len()) == Some(&TLS_DATA)
}

fn holds(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}
