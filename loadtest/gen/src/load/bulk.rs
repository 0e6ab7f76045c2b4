//! Bulk transfers for a given time, up or down, over one or several connections; every byte checked.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::client::{GRACE, SharedTally, Target, shared_tally};
use super::protocol::{Opening, TRAILER_BYTES, decode_trailer};
use crate::pattern::{CHUNK_BYTES, Pattern};

const WRITE_BYTES: usize = 256 * 1024;
const WARM_UP_SECONDS: f64 = 0.3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    Up,
    Down,
}

#[derive(Debug, clap::Args)]
pub struct Bulk {
    #[command(flatten)]
    pub target: Target,
    #[arg(long, value_enum, default_value = "up")]
    pub way: Way,
    #[arg(long, default_value_t = 1)]
    pub connections: u16,
}

pub async fn bulk(bulk: Bulk) -> Result<()> {
    let tally = shared_tally()?;
    let warm_up = Target { seconds: WARM_UP_SECONDS, ..bulk.target.clone() };
    transfers(&warm_up, bulk.way, 1, &tally).await;
    tally.borrow_mut().restart();
    bulk.target.ready()?;
    let begun = Instant::now();
    transfers(&bulk.target, bulk.way, bulk.connections, &tally).await;
    let outcome = tally.borrow_mut().finish(begun.elapsed());
    bulk.target.report(&outcome)
}

async fn transfers(target: &Target, way: Way, connections: u16, tally: &SharedTally) {
    let tasks: Vec<_> = (0..connections)
        .map(|_| spawn_local(transfer(target.clone(), way, SharedTally::clone(tally))))
        .collect();
    for task in tasks {
        if let Err(fault) = task.await {
            tally.borrow_mut().error(fault);
        }
    }
}

/// One transfer; its bytes count only if they came whole.
pub async fn transfer(target: Target, way: Way, tally: SharedTally) {
    let attempt = async {
        match way {
            Way::Up => up(target.open(Opening::Sink, &tally).await?, &target).await,
            Way::Down => down(target.open(Opening::Source, &tally).await?, &target).await,
        }
    };
    let whole = tokio::time::timeout(target.duration() + 5 * GRACE, Box::pin(attempt)).await;
    match whole.unwrap_or_else(|late| Err(late.into())) {
        Ok(bytes) => {
            tally.borrow_mut().outcome.bytes += bytes;
            tally.borrow_mut().outcome.operations += 1;
        }
        Err(fault) => tally.borrow_mut().error(fault),
    }
}

async fn up(mut stream: TcpStream, target: &Target) -> io::Result<u64> {
    let pattern = Pattern::new();
    let begun = Instant::now();
    let end = begun + target.duration();
    let mut sent = 0;
    while Instant::now() < end {
        sent += stream.write(pattern.at(sent, WRITE_BYTES)).await? as u64;
        if let Some(pace) = target.pace {
            let due = begun + Duration::try_from_secs_f64(sent as f64 / pace).unwrap_or_default();
            tokio::time::sleep_until(due.min(end).into()).await;
        }
    }
    stream.shutdown().await?;
    let mut trailer = [0; TRAILER_BYTES];
    stream.read_exact(&mut trailer).await?;
    match decode_trailer(&trailer) {
        Some(count) if count == sent => Ok(count),
        Some(count) => Err(io::Error::other(format!("sent {sent} bytes, {count} arrived"))),
        None => Err(io::Error::other("the bytes arrived changed")),
    }
}

/// Reads to the end; the last bytes are the trailer, so they are held back from the check.
async fn down(mut stream: TcpStream, target: &Target) -> io::Result<u64> {
    let pattern = Pattern::new();
    let end = Instant::now() + target.duration();
    let mut buffer = vec![0; TRAILER_BYTES + CHUNK_BYTES];
    let (mut held, mut count, mut asked_to_end) = (0, 0_u64, false);
    loop {
        if !asked_to_end && Instant::now() >= end {
            stream.shutdown().await?;
            asked_to_end = true;
        }
        let length = stream.read(buffer.get_mut(held..).unwrap_or(&mut [])).await?;
        if length == 0 {
            break;
        }
        let have = held + length;
        let whole = have.saturating_sub(TRAILER_BYTES);
        if !buffer.get(..whole).is_some_and(|bytes| pattern.matches(count, bytes)) {
            return Err(io::Error::other(format!("the bytes after {count} arrived changed")));
        }
        count += whole as u64;
        buffer.copy_within(whole..have, 0);
        held = have - whole;
    }
    let trailer = buffer.first_chunk::<TRAILER_BYTES>().filter(|_| held == TRAILER_BYTES);
    match trailer.and_then(decode_trailer) {
        Some(sent) if sent == count => Ok(count),
        Some(sent) => Err(io::Error::other(format!("{sent} bytes were sent, {count} arrived"))),
        None => Err(io::Error::other(format!("the transfer broke off after {count} bytes"))),
    }
}
