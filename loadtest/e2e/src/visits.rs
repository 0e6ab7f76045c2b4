//! Clients that come and go at random: each visit is one connection with a manner of its own, and every byte of it is
//! looked at.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use fastrand::Rng;
use ringway::demo::topology::Pod;

use crate::serve::Digest;

/// What never comes on a machine that is merely busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a visitor finds `serve::echo`, `serve::source`, `serve::digest`, and nobody.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub echo: SocketAddr,
    pub source: SocketAddr,
    pub digest: SocketAddr,
    pub closed: SocketAddr,
}

/// What a visit came to.
#[derive(Debug)]
pub enum Visit {
    Fine,
    /// The connection failed, as connections may where the pod or its proxy is taken away.
    Failed(Error),
    /// Other bytes came than were sent, or more, or an answer where nobody is. Never right.
    Wrong(String),
}

type Manner<'a> = fn(&mut Visitor<'a>) -> Result<Visit>;

/// A client that makes visits, one connection each.
pub struct Visitor<'a> {
    from: &'a Pod,
    places: Places,
    random: Rng,
    /// The client's port of the last visit: access-log lines name it.
    pub port: u16,
}

impl<'a> Visitor<'a> {
    pub fn new(from: &'a Pod, places: Places, random: Rng) -> Self {
        Self { from, places, random, port: 0 }
    }

    /// One visit in a manner that the generator chooses; its name, and what it came to.
    pub fn visit(&mut self) -> (&'static str, Visit) {
        let manners: [(&str, Manner<'a>); 8] = [
            ("echo", Self::echo),
            ("echo", Self::echo),
            ("upload and half-close", Self::upload),
            ("download", Self::download),
            ("download, reset midway", Self::download_and_reset),
            ("close at once", Self::close_at_once),
            ("silence, then a word", Self::silence),
            ("closed port", Self::nobody),
        ];
        let (name, manner) = manners[self.random.usize(..manners.len())];
        (name, manner(self).unwrap_or_else(Visit::Failed))
    }

    fn dial(&mut self, to: SocketAddr) -> Result<TcpStream> {
        self.port = 0;
        let stream = self.from.space.connect(to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        self.port = stream.local_addr()?.port();
        Ok(stream)
    }

    /// Rounds of any length there and back, then an orderly end.
    fn echo(&mut self) -> Result<Visit> {
        let mut stream = self.dial(self.places.echo)?;
        for _ in 0..self.random.u32(1..8) {
            let said = bytes(self.random.u64(..), self.random.usize(1..40_000));
            let mut heard = vec![0; said.len()];
            for piece in said.chunks(self.random.usize(1_000..20_000)) {
                stream.write_all(piece)?;
            }
            stream.read_exact(&mut heard)?;
            if heard != said {
                return Ok(compared(&heard, &said, "echo"));
            }
        }
        stream.shutdown(Shutdown::Write)?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
        Ok(compared(&rest, &[], "behind an echo's end"))
    }

    /// All of it is sent before anything comes back.
    fn upload(&mut self) -> Result<Visit> {
        let mut stream = self.dial(self.places.digest)?;
        let said = bytes(self.random.u64(..), self.random.usize(..1_000_000));
        stream.write_all(&said)?;
        stream.shutdown(Shutdown::Write)?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard)?;
        let mut hash = Digest::default();
        hash.add(&said);
        let length = u64::try_from(said.len()).expect("a length");
        let right = [length.to_be_bytes(), hash.value().to_be_bytes()].concat();
        if heard.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(compared(&heard, &right, "upload"))
    }

    fn download(&mut self) -> Result<Visit> {
        let mut stream = self.dial(self.places.source)?;
        let total = self.random.usize(..2_000_000);
        let seed = u64::try_from(total).expect("a size");
        stream.write_all(&seed.to_be_bytes())?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard)?;
        let right = bytes(seed, total);
        if heard.len() < total && right.starts_with(&heard) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(compared(&heard, &right, "download"))
    }

    fn download_and_reset(&mut self) -> Result<Visit> {
        let mut stream = self.dial(self.places.source)?;
        stream.write_all(&(64_u64 << 20).to_be_bytes())?;
        let mut heard = vec![0; self.random.usize(..500_000)];
        stream.read_exact(&mut heard)?;
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        Ok(compared(&heard, &bytes(64 << 20, heard.len()), "the beginning of a download"))
    }

    fn close_at_once(&mut self) -> Result<Visit> {
        let mut stream = self.dial(self.places.echo)?;
        if self.random.bool() {
            stream.write_all(b"never heard of again")?;
        }
        Ok(Visit::Fine)
    }

    fn silence(&mut self) -> Result<Visit> {
        let mut stream = self.dial(self.places.echo)?;
        let mut heard = [0];
        for word in 0..self.random.u8(1..4) {
            std::thread::sleep(Duration::from_millis(self.random.u64(1..300)));
            stream.write_all(&[word])?;
            stream.read_exact(&mut heard)?;
            if heard != [word] {
                return Ok(compared(&heard, &[word], "a word"));
            }
        }
        Ok(Visit::Fine)
    }

    /// Whatever becomes of the connection, no byte may come.
    fn nobody(&mut self) -> Result<Visit> {
        let mut heard = Vec::new();
        let mut call = || -> Result<()> {
            let mut stream = self.dial(self.places.closed)?;
            stream.write_all(b"?")?;
            stream.read_to_end(&mut heard).map(|_| ())
        };
        match call() {
            Err(error) if !matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                Err(error)
            }
            _ => Ok(compared(&heard, &[], "where nobody is")),
        }
    }
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    crate::pattern(seed, 0, &mut bytes);
    bytes
}

fn compared(heard: &[u8], right: &[u8], what: &str) -> Visit {
    if heard == right {
        return Visit::Fine;
    }
    let at = heard.iter().zip(right).position(|(heard, right)| heard != right);
    Visit::Wrong(format!("{what}: {} bytes for {}, the first other one at {at:?}", heard.len(), right.len()))
}
