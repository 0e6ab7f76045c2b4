//! Looks at every frame between the nodes: which markers pass in the clear, how much of it is TLS application
//! data. A capture of everything on an AF_PACKET socket; what it must not see it would see, which the caller
//! proves by sending a marker in the clear once.

use std::collections::HashSet;
use std::io::Read;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use super::space::Space;

const HBONE_PORT: u16 = 15008;
/// Segments remembered to count each only once (a bridge shows a frame on its way in and out).
const REMEMBERED: usize = 200_000;
const FRAME_BYTES: usize = 128 * 1_024;

/// Dropping it ends the capture.
pub struct WireTap {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    markers: Vec<Marker>,
    segments: HashSet<(IpAddr, IpAddr, u16, u16, u32)>,
    sightings: Sightings,
}

struct Marker {
    text: Vec<u8>,
    seen: u64,
}

/// What passed so far, each segment counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// Segments with payload of connections to or from 15008.
    pub hbone_segments: u64,
    /// Those that begin with the header of a TLS application data record.
    pub application_data: u64,
    /// Payload bytes to or from 15008.
    pub hbone_bytes: u64,
    /// Segments with payload of all other connections.
    pub other_segments: u64,
    /// Segments that say RST, of any connection.
    pub resets: u64,
}

impl WireTap {
    pub fn start(space: &Space, markers: &[&str]) -> Result<Self> {
        let socket = space.enter(open)?.context("opening a packet socket")?;
        let to_marker = |text: &&str| Marker { text: text.as_bytes().to_vec(), seen: 0 };
        let seen = Seen { markers: markers.iter().map(to_marker).collect(), ..Seen::default() };
        let (seen, stop) = (Arc::new(Mutex::new(seen)), Arc::new(AtomicBool::new(false)));
        let (seen_there, stop_there) = (seen.clone(), stop.clone());
        let thread = std::thread::spawn(move || watch(&socket, &seen_there, &stop_there));
        Ok(Self { seen, stop, thread: Some(thread) })
    }

    pub fn sightings(&self) -> Sightings {
        lock(&self.seen).sightings
    }

    /// How many segments carried this marker in the clear.
    pub fn seen(&self, marker: &str) -> u64 {
        let seen = lock(&self.seen);
        seen.markers.iter().find(|known| known.text == marker.as_bytes()).map_or(0, |known| known.seen)
    }
}

impl Drop for WireTap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open() -> std::io::Result<Socket> {
    // ETH_P_ALL in network order, which is where the kernel reads it.
    let everything = i32::from(0x0003_u16.to_be());
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(everything)))?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    socket.set_recv_buffer_size(8 * 1_024 * 1_024)?;
    Ok(socket)
}

fn watch(socket: &Socket, seen: &Mutex<Seen>, stop: &AtomicBool) {
    let mut frame = vec![0; FRAME_BYTES];
    let mut socket = socket;
    while !stop.load(Ordering::Relaxed) {
        // A timeout is the chance to look at `stop`; there is nothing to do about other errors.
        let Ok(length) = socket.read(&mut frame) else { continue };
        if let Some(segment) = frame.get(..length).and_then(Segment::parse) {
            lock(seen).note(&segment);
        }
    }
}

impl Seen {
    fn note(&mut self, segment: &Segment<'_>) {
        if segment.payload.is_empty() && !segment.reset {
            return;
        }
        if self.segments.len() >= REMEMBERED {
            self.segments.clear();
        }
        let (source, destination) = (segment.source, segment.destination);
        if !self.segments.insert((source.0, destination.0, source.1, destination.1, segment.sequence)) {
            return;
        }
        for marker in &mut self.markers {
            if segment.payload.windows(marker.text.len()).any(|window| window == marker.text) {
                marker.seen = marker.seen.saturating_add(1);
            }
        }
        let sightings = &mut self.sightings;
        sightings.resets = sightings.resets.saturating_add(segment.reset.into());
        if segment.payload.is_empty() {
            return;
        }
        if source.1 == HBONE_PORT || destination.1 == HBONE_PORT {
            let bytes = u64::try_from(segment.payload.len()).unwrap_or(u64::MAX);
            sightings.hbone_segments = sightings.hbone_segments.saturating_add(1);
            sightings.hbone_bytes = sightings.hbone_bytes.saturating_add(bytes);
            let record = segment.payload.starts_with(&[23, 3, 3]);
            sightings.application_data = sightings.application_data.saturating_add(record.into());
        } else {
            sightings.other_segments = sightings.other_segments.saturating_add(1);
        }
    }
}

/// One TCP segment of a frame.
struct Segment<'a> {
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    sequence: u32,
    reset: bool,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    fn parse(frame: &'a [u8]) -> Option<Self> {
        let (ethernet, packet) = frame.split_at_checked(14)?;
        match ethernet.get(12..14)? {
            [0x08, 0x00] => Self::of_v4(packet),
            [0x86, 0xdd] => Self::of_v6(packet),
            _ => None,
        }
    }

    fn of_v4(packet: &'a [u8]) -> Option<Self> {
        let header = usize::from(packet.first()? & 0x0f).checked_mul(4)?;
        if *packet.get(9)? != 6 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes(packet.get(2..4)?.try_into().ok()?));
        // A total of 0: segmentation is left to a device, the frame's length counts.
        let packet = if total == 0 { packet } else { packet.get(..total)? };
        let address = |at: usize| {
            let bytes: [u8; 4] = packet.get(at..at.checked_add(4)?)?.try_into().ok()?;
            Some(IpAddr::from(bytes))
        };
        Self::of_tcp(address(12)?, address(16)?, packet.get(header..)?)
    }

    fn of_v6(packet: &'a [u8]) -> Option<Self> {
        if *packet.get(6)? != 6 {
            return None;
        }
        let address = |at: usize| {
            let bytes: [u8; 16] = packet.get(at..at.checked_add(16)?)?.try_into().ok()?;
            Some(IpAddr::from(bytes))
        };
        Self::of_tcp(address(8)?, address(24)?, packet.get(40..)?)
    }

    fn of_tcp(source: IpAddr, destination: IpAddr, segment: &'a [u8]) -> Option<Self> {
        let port = |at: usize| {
            let bytes: [u8; 2] = segment.get(at..at.checked_add(2)?)?.try_into().ok()?;
            Some(u16::from_be_bytes(bytes))
        };
        let header = usize::from(segment.get(12)? >> 4).checked_mul(4)?;
        Some(Self {
            source: (source, port(0)?),
            destination: (destination, port(2)?),
            sequence: u32::from_be_bytes(segment.get(4..8)?.try_into().ok()?),
            reset: segment.get(13)? & 0x04 != 0,
            payload: segment.get(header..)?,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;
    use crate::demo::topology::Topology;

    fn wait(what: &str, mut done: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(5);
        while !done() {
            assert!(Instant::now() < until, "never happened: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_passes_between_nodes_is_seen_once_in_both_families_and_records_are_told_apart() {
        let mut topology = Topology::build("rwunit", 2).expect("namespaces (root is needed)");
        let near = topology.add_pod(1, "near").unwrap();
        let far = topology.add_pod(2, "far").unwrap();
        let tap = WireTap::start(&topology.wire, &["open-secret", "kept-secret"]).unwrap();
        for (to, bytes) in [
            (far.at(7000), b"an open-secret here".as_slice()),
            (far.at6(7000), b"another open-secret"),
            (far.at(HBONE_PORT), &[23, 3, 3, 0, 2, 1, 2]),
        ] {
            let listener = far.space.listen(to).unwrap();
            let mut stream = near.space.connect(to, Duration::from_secs(5)).unwrap();
            stream.write_all(bytes).unwrap();
            listener.accept().unwrap();
        }
        wait("all three", || tap.sightings().hbone_segments == 1 && tap.seen("open-secret") == 2);
        assert_eq!(tap.seen("kept-secret"), 0);
        let sightings = tap.sightings();
        assert_eq!((sightings.application_data, sightings.hbone_bytes), (1, 7));
        assert!(near.space.connect(far.at(9), Duration::from_secs(5)).is_err());
        wait("a reset", || tap.sightings().resets >= 1);
    }

    #[test]
    fn cut_frames_are_no_segments() {
        for length in 0..60 {
            let mut frame = vec![0x45; length];
            if length > 14 {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            }
            assert!(Segment::parse(&frame).is_none());
        }
    }
}
