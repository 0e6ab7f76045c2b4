//! A small measurement for the demo: how fast one stream is and how long a request takes. A taste, not a
//! benchmark: loadtest/gen compares, with ratios and rounds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::topology::Pod;

const CHUNK_BYTES: usize = 64 * 1_024;
const PING_BYTES: usize = 64;
const PINGS: usize = 2_000;
const BULK_TIME: Duration = Duration::from_secs(2);
const CONNECT_BOUND: Duration = Duration::from_secs(10);

pub struct Measured {
    pub bytes: u64,
    pub took: Duration,
    pub median: Duration,
    pub p99: Duration,
}

impl Measured {
    pub fn gigabits_per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
        let bits = self.bytes as f64 * 8.0;
        bits / self.took.as_secs_f64().max(1e-9) / 1e9
    }
}

/// Serves both kinds of measurement: `e` as first byte asks for an echo, anything else for a count at the
/// end.
pub fn serve(pod: &Pod, port: u16) -> Result<()> {
    let listener = pod.space.listen((std::net::Ipv6Addr::UNSPECIFIED, port).into())?;
    std::thread::spawn(move || accept(&listener));
    Ok(())
}

pub fn measure(from: &Pod, to: SocketAddr) -> Result<Measured> {
    let (median, p99) = from.space.enter(|| ping(to))?.context("measuring latency")?;
    let (bytes, took) = from.space.enter(|| push(to))?.context("measuring throughput")?;
    Ok(Measured { bytes, took, median, p99 })
}

fn accept(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            // A broken measurement shows at the client.
            let _ = answer(stream);
        });
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    let mut total = 0_u64;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        total = total.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        if kind == *b"e" {
            stream.write_all(buffer.get(..count).unwrap_or_default())?;
        }
    }
    if kind == *b"e" { Ok(()) } else { stream.write_all(&total.to_be_bytes()) }
}

fn ping(to: SocketAddr) -> Result<(Duration, Duration)> {
    let mut stream = TcpStream::connect_timeout(&to, CONNECT_BOUND)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT_BOUND))?;
    stream.write_all(b"e")?;
    let mut times = Vec::with_capacity(PINGS);
    let mut bytes = [7; PING_BYTES];
    for _ in 0..PINGS {
        let started = Instant::now();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let at = |percent: usize| times.get(PINGS.saturating_mul(percent) / 100).copied().unwrap_or_default();
    Ok((at(50), at(99)))
}

fn push(to: SocketAddr) -> Result<(u64, Duration)> {
    let mut stream = TcpStream::connect_timeout(&to, CONNECT_BOUND)?;
    stream.set_read_timeout(Some(CONNECT_BOUND))?;
    stream.write_all(b"s")?;
    let chunk = vec![7; CHUNK_BYTES];
    let started = Instant::now();
    let mut sent = 0_u64;
    while started.elapsed() < BULK_TIME {
        stream.write_all(&chunk)?;
        sent = sent.saturating_add(u64::try_from(CHUNK_BYTES)?);
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut arrived = [0; 8];
    stream.read_exact(&mut arrived)?;
    anyhow::ensure!(u64::from_be_bytes(arrived) == sent, "{sent} bytes were sent, another count arrived");
    Ok((sent, started.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_echoes_and_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::spawn(move || accept(&listener));
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(b"sabc").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut count = [0; 8];
        stream.read_exact(&mut count).unwrap();
        assert_eq!(u64::from_be_bytes(count), 3);
        let (median, p99) = ping(to).unwrap();
        assert!(median <= p99 && median > Duration::ZERO);
    }
}
