//! Request and response: on kept connections (closed loop, or open loop at a given rate), on a new connection
//! each time, or each time to another address; and connections that are only held.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::{sleep_until, timeout};

use super::client::{GRACE, SharedTally, Target, open_from, shared_tally};
use super::protocol::Opening;

const WARM_UP_EXCHANGES: u32 = 20;

#[derive(Clone, Debug, clap::Args)]
pub struct Requests {
    #[command(flatten)]
    pub target: Target,
    #[arg(long, default_value_t = 1)]
    pub connections: u16,
    #[arg(long, default_value_t = 1_024)]
    pub request_bytes: u32,
    #[arg(long, default_value_t = 1_024)]
    pub response_bytes: u32,
    /// Requests a second on each connection at fixed times (open loop); without it, one after the other.
    #[arg(long)]
    pub rate: Option<f64>,
}

impl Requests {
    fn opening(&self) -> Opening {
        Opening::Exchange { request_bytes: self.request_bytes, response_bytes: self.response_bytes }
    }
}

/// Kept connections.
pub async fn rr(requests: Requests) -> Result<()> {
    let tally = shared_tally()?;
    let mut streams = Vec::new();
    for _ in 0..requests.connections {
        let mut stream = requests.target.open(requests.opening(), &tally).await?;
        for _ in 0..WARM_UP_EXCHANGES {
            exchange(&mut stream, &requests).await?;
        }
        streams.push(stream);
    }
    requests.target.ready()?;
    let begun = Instant::now();
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|stream| spawn_local(kept(stream, requests.clone(), SharedTally::clone(&tally))))
        .collect();
    for task in tasks {
        task.await?;
    }
    let outcome = tally.borrow_mut().finish(begun.elapsed());
    requests.target.report(&outcome)
}

/// One kept connection until time is up. An open loop's latency counts from when the request was due, unless
/// the connection was free by then: a late timer of ours is not the proxy's.
pub async fn kept(mut stream: TcpStream, requests: Requests, tally: SharedTally) {
    let end = Instant::now() + requests.target.duration();
    let period = requests.rate.map(|rate| Duration::from_secs_f64(1.0 / rate.max(0.001)));
    let mut due = Instant::now();
    while Instant::now() < end {
        let begun = match period {
            None => Instant::now(),
            Some(period) => {
                due += period;
                if due > Instant::now() {
                    sleep_until(due.into()).await;
                    Instant::now()
                } else {
                    due
                }
            }
        };
        match timeout(end.duration_since(Instant::now()) + GRACE, exchange(&mut stream, &requests)).await {
            Ok(Ok(())) => tally.borrow_mut().operation(begun.elapsed()),
            Ok(Err(fault)) => return tally.borrow_mut().error(fault),
            Err(_) => {
                tally.borrow_mut().outcome.unanswered += 1;
                return;
            }
        }
    }
}

/// A new connection for each request; `connections` at once.
pub async fn crr(requests: Requests) -> Result<()> {
    let tally = shared_tally()?;
    for _ in 0..WARM_UP_EXCHANGES {
        once(&requests, None, requests.target.to, &tally).await?;
    }
    tally.borrow_mut().restart();
    requests.target.ready()?;
    let begun = Instant::now();
    let end = begun + requests.target.duration();
    let tasks: Vec<_> = (0..requests.connections)
        .map(|_| {
            let (requests, tally) = (requests.clone(), SharedTally::clone(&tally));
            spawn_local(async move {
                while Instant::now() < end {
                    timed(&requests, None, requests.target.to, &tally).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let outcome = tally.borrow_mut().finish(begun.elapsed());
    requests.target.report(&outcome)
}

#[derive(Debug, clap::Args)]
pub struct Cold {
    #[command(flatten)]
    pub requests: Requests,
    /// The client's addresses; each pair of them and a server address is used once.
    #[arg(long, value_delimiter = ',', required = true)]
    pub from: Vec<Ipv4Addr>,
    /// The server's addresses beyond the one of --to.
    #[arg(long, value_delimiter = ',', required = true)]
    pub others: Vec<Ipv4Addr>,
}

/// Each connection between a pair of addresses that never met: the proxies need a new tunnel for it. Ends
/// when time or pairs are used up.
pub async fn cold(cold: Cold) -> Result<()> {
    let tally = shared_tally()?;
    let target = &cold.requests.target;
    once(&cold.requests, None, target.to, &tally).await?;
    tally.borrow_mut().restart();
    target.ready()?;
    let begun = Instant::now();
    let pairs = cold.from.iter().flat_map(|from| cold.others.iter().map(move |to| (*from, *to)));
    for (from, to) in pairs.take_while(|_| begun.elapsed() < target.duration()) {
        timed(&cold.requests, Some(from), SocketAddrV4::new(to, target.to.port()), &tally).await;
    }
    let outcome = tally.borrow_mut().finish(begun.elapsed());
    target.report(&outcome)
}

#[derive(Debug, clap::Args)]
pub struct Hold {
    #[command(flatten)]
    pub requests: Requests,
    /// Exchanges on each connection, on all at once, before they are only held.
    #[arg(long, default_value_t = 1)]
    pub exchanges: u32,
}

/// Connections opened in small groups (the listen backlog is short), used once together, then held. After the
/// gate each must still answer.
pub async fn hold(hold: Hold) -> Result<()> {
    const OPENED_AT_ONCE: u16 = 32;
    let tally = shared_tally()?;
    let requests = hold.requests;
    let mut streams = Vec::new();
    for first in (0..requests.connections).step_by(usize::from(OPENED_AT_ONCE)) {
        let group: Vec<_> = (first..requests.connections.min(first + OPENED_AT_ONCE))
            .map(|_| {
                let (requests, tally) = (requests.clone(), SharedTally::clone(&tally));
                spawn_local(async move { requests.target.open(requests.opening(), &tally).await })
            })
            .collect();
        for opened in group {
            streams.push(opened.await??);
        }
    }
    let streams = exchange_on_all(streams, &requests, hold.exchanges, &tally).await?;
    tally.borrow_mut().restart();
    requests.target.ready()?;
    let begun = Instant::now();
    let streams = exchange_on_all(streams, &requests, 1, &tally).await?;
    let outcome = tally.borrow_mut().finish(begun.elapsed());
    requests.target.report(&outcome)?;
    drop(streams);
    Ok(())
}

async fn exchange_on_all(
    streams: Vec<TcpStream>,
    requests: &Requests,
    exchanges: u32,
    tally: &SharedTally,
) -> Result<Vec<TcpStream>> {
    const DEADLINE: Duration = Duration::from_secs(60);
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let (requests, tally) = (requests.clone(), SharedTally::clone(tally));
            spawn_local(async move {
                for _ in 0..exchanges {
                    let begun = Instant::now();
                    timeout(DEADLINE, exchange(&mut stream, &requests)).await??;
                    tally.borrow_mut().operation(begun.elapsed());
                }
                io::Result::Ok(stream)
            })
        })
        .collect();
    let mut back = Vec::with_capacity(tasks.len());
    for task in tasks {
        back.push(task.await??);
    }
    Ok(back)
}

/// One request and its whole response.
async fn exchange(stream: &mut TcpStream, requests: &Requests) -> io::Result<()> {
    const PIECE: [u8; 16 * 1024] = [0xa5; 16 * 1024];
    let mut left = requests.request_bytes as usize;
    while left > 0 {
        let piece = PIECE.get(..left.min(PIECE.len())).unwrap_or(&PIECE);
        stream.write_all(piece).await?;
        left -= piece.len();
    }
    let mut response = vec![0; requests.response_bytes as usize];
    stream.read_exact(&mut response).await?;
    let whole = response.iter().all(|byte| *byte == 0x5a);
    whole.then_some(()).ok_or_else(|| io::Error::other("the response arrived changed"))
}

/// Connects, exchanges once and closes in order.
async fn once(
    requests: &Requests,
    from: Option<Ipv4Addr>,
    to: SocketAddrV4,
    tally: &SharedTally,
) -> io::Result<()> {
    let mut stream = open_from(from, to, requests.opening(), tally).await?;
    exchange(&mut stream, requests).await?;
    stream.shutdown().await?;
    let rest = stream.read(&mut [0; 1]).await?;
    (rest == 0).then_some(()).ok_or_else(|| io::Error::other("bytes after the response"))
}

async fn timed(requests: &Requests, from: Option<Ipv4Addr>, to: SocketAddrV4, tally: &SharedTally) {
    let begun = Instant::now();
    match timeout(requests.target.duration() + GRACE, once(requests, from, to, tally)).await {
        Ok(Ok(())) => tally.borrow_mut().operation(begun.elapsed()),
        Ok(Err(fault)) => tally.borrow_mut().error(fault),
        Err(_) => tally.borrow_mut().outcome.unanswered += 1,
    }
}
