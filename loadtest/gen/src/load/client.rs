//! What all load clients share: the target, the gate between warm-up and measurement, connections.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpSocket, TcpStream};

use super::outcome::{Outcome, Tally};
use super::protocol::{Opening, open};

/// An operation under way when time is up may take this much longer.
pub const GRACE: Duration = Duration::from_secs(3);
const CONNECT_DEADLINE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, clap::Args)]
pub struct Target {
    /// Address of the load server.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub to: SocketAddrV4,
    /// How long to measure.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Print "ready" after the warm-up, go on at a line on standard input, and hold all connections after the
    /// result until another line or the end of input.
    #[arg(long)]
    pub gate: bool,
    /// Bytes a second of an upload; without it, as fast as it goes.
    #[arg(skip)]
    pub pace: Option<f64>,
}

impl Target {
    pub fn duration(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::from_secs(1))
    }

    /// Waits for the word to begin. Blocks the thread: nothing is to move now.
    pub fn ready(&self) -> Result<()> {
        if self.gate {
            say("ready")?;
            next_line()?;
        }
        Ok(())
    }

    /// Prints the result; held connections stay until the reader has measured.
    pub fn report(&self, outcome: &Outcome) -> Result<()> {
        say(&serde_json::to_string(outcome)?)?;
        if self.gate { next_line() } else { Ok(()) }
    }

    /// Opens a connection for `opening`.
    pub async fn open(&self, opening: Opening, tally: &SharedTally) -> io::Result<TcpStream> {
        open_from(None, self.to, opening, tally).await
    }
}

/// One thread's figures.
pub type SharedTally = Rc<RefCell<Tally>>;

pub fn shared_tally() -> Result<SharedTally> {
    Ok(Rc::new(RefCell::new(Tally::new()?)))
}

/// Connects, from `source` if given, says what it wants and notes whom the server saw.
pub async fn open_from(
    source: Option<Ipv4Addr>,
    to: SocketAddrV4,
    opening: Opening,
    tally: &SharedTally,
) -> io::Result<TcpStream> {
    let attempt = async {
        let socket = TcpSocket::new_v4()?;
        if let Some(source) = source {
            socket.bind(SocketAddr::from((source, 0)))?;
        }
        let mut stream = socket.connect(SocketAddr::V4(to)).await?;
        stream.set_nodelay(true)?;
        let seen = open(&mut stream, opening).await?;
        tally.borrow_mut().outcome.seen_as = Some(seen.to_string());
        Ok(stream)
    };
    tokio::time::timeout(CONNECT_DEADLINE, attempt).await?
}

/// Runs a load on this thread alone.
pub fn run_here<T>(load: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, Box::pin(load))
}

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush().context("standard output")
}

fn next_line() -> Result<()> {
    io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}
