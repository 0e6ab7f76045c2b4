//! An access-log line for each connection: formatted where it ends, written by one thread in batches.

use std::io::{BufWriter, Write};
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Instant, SystemTime};

/// Lines that may wait for the writer; then connections wait, as in the reference.
const LINES_QUEUED: usize = 10_000;

pub struct AccessLog {
    lines: SyncSender<String>,
    opened: AtomicU64,
    closed: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// One connection as the log tells it.
pub struct Connection<'a> {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub destination: SocketAddrV4,
    pub direction: &'static str,
    pub source_identity: &'a str,
    pub destination_identity: &'a str,
    pub begun: Instant,
}

impl AccessLog {
    pub fn start() -> std::io::Result<Self> {
        let (lines, queue) = sync_channel(LINES_QUEUED);
        std::thread::Builder::new().name("log".into()).spawn(move || write_lines(&queue))?;
        Ok(Self {
            lines,
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        })
    }

    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub fn closed(&self, connection: &Connection<'_>, outcome: &std::io::Result<(u64, u64)>) {
        let (sent, received) = *outcome.as_ref().unwrap_or(&(0, 0));
        self.closed.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent, Ordering::Relaxed);
        self.received_bytes.fetch_add(received, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let Connection { from, to, destination, direction, source_identity, destination_identity, begun } =
            connection;
        let (level, error) = match outcome {
            Ok(_) => ("info", String::new()),
            Err(fault) => ("error", format!(" error=\"{fault}\"")),
        };
        let line = format!(
            "{}.{:06}\t{level}\taccess\tconnection complete\tsrc.addr={from} src.identity=\"{source_identity}\" \
             dst.addr={to} dst.hbone_addr={destination} dst.identity=\"{destination_identity}\" \
             direction=\"{direction}\" bytes_sent={sent} bytes_recv={received} duration=\"{}ms\"{error}\n",
            now.as_secs(),
            now.subsec_micros(),
            begun.elapsed().as_millis(),
        );
        // The writer lives as long as the process.
        let _ = self.lines.send(line);
    }
}

fn write_lines(queue: &Receiver<String>) {
    let mut out = BufWriter::new(std::io::stdout());
    while let Ok(line) = queue.recv() {
        let mut batch = std::iter::once(line).chain(queue.try_iter().take(63));
        let written = batch.try_for_each(|line| out.write_all(line.as_bytes()));
        if written.and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}
