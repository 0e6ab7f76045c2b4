//! Queries at name servers: each attempt from a socket of its own (a new random port, a new random id), made in the
//! pod's namespace. A server that stays silent is asked again, or the next one is, while the first may still answer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use monoio::net::udp::UdpSocket;

use crate::base::limits;
use crate::shard::places::Place;
use crate::shard::pod::PodWorld;
use crate::shard::ready::give_way;
use crate::shard::socket::Socket;
use crate::shard::stats::bump;
use crate::sys::lend::lend;
use crate::sys::udp;
use crate::wire::dns::{Header, Rcode, reply, set_id};

/// How a server is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    Udp,
    Tcp,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no name server is known")]
    NoServer,
    #[error("too many queries of this pod wait for name servers")]
    Crowded,
    #[error("the name servers refuse to answer")]
    Refused,
    #[error("no reply within {0:?}")]
    Silent(Duration),
    #[error("{server}: {error}")]
    Server { server: SocketAddr, error: io::Error },
}

type Attempt<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, AskError>> + 'a>>;

impl PodWorld {
    /// A place among the queries that wait at a time, for whatever they wait.
    pub fn place_for_query(&self) -> Result<Place, AskError> {
        self.dns.in_flight.take().ok_or_else(|| {
            bump(&self.shard.stats.engine.dns_crowded);
            AskError::Crowded
        })
    }

    /// The reply to a message, under the message's own id. Every server gets its turn, within the patience for all.
    pub async fn ask(&self, message: &[u8], servers: &[SocketAddr], over: Over) -> Result<Vec<u8>, AskError> {
        let _place = self.place_for_query()?;
        let settings = &self.shard.settings.dns;
        let (started, patience) = (Instant::now(), settings.patience);
        let most =
            settings.attempts.max(servers.len()).clamp(limits::DNS_ATTEMPTS, limits::DNS_ATTEMPTS_MOST);
        let wait = settings.timeout.min(patience / u32::try_from(most).unwrap_or(1));
        let mut turns = servers.iter().cycle().take(most).enumerate().peekable();
        let mut running: Vec<Attempt<'_>> = Vec::new();
        let (mut refusal, mut failure, mut next_at) = (None, None, started);
        loop {
            let now = Instant::now();
            if now >= next_at
                && let Some((turn, server)) = turns.next()
            {
                running.push(Box::pin(self.attempt(message, *server, over)));
                next_at = now + wait;
                if turn > 0 {
                    bump(&self.shard.stats.engine.dns_retries);
                }
            }
            let left = patience.saturating_sub(started.elapsed());
            let more = turns.peek().is_some();
            if left.is_zero() || (running.is_empty() && !more) {
                break;
            }
            let pause = if more { left.min(next_at.saturating_duration_since(now)) } else { left };
            match monoio::time::timeout(pause, first_of(&mut running)).await {
                Ok(Ok(reply)) if more && servers.len() > 1 && is_refusal(&reply) => {
                    (refusal, next_at) = (Some(reply), now);
                }
                Ok(Ok(reply)) => return Ok(reply),
                // A want of ports or memory may pass; it isn't tried in a tight loop.
                Ok(Err(error)) if is_shortage(&error) => failure = Some(error),
                Ok(Err(error)) => (failure, next_at) = (Some(error), now),
                Err(_) => {}
            }
        }
        let nobody = || if servers.is_empty() { AskError::NoServer } else { AskError::Silent(patience) };
        refusal.ok_or_else(|| failure.unwrap_or_else(nobody))
    }

    /// Asks one server over TCP for what may be many messages (a transfer of a zone), and hands them on as they come
    /// until the transfer is whole, the server ends, or `take` says `false`.
    pub async fn transfer(
        &self,
        message: &[u8],
        server: SocketAddr,
        mut take: impl AsyncFnMut(Vec<u8>) -> bool,
    ) -> Result<(), AskError> {
        let _place = self.place_for_query()?;
        let patience = self.shard.settings.dns.patience;
        let failed = |error| AskError::Server { server, error };
        let open = async {
            let mut link = Link::open(self, server, message).await?;
            let first = link.reply(message).await?;
            Ok((link, first))
        };
        let opened = monoio::time::timeout(patience, open).await.map_err(|_| AskError::Silent(patience))?;
        let (mut link, mut part) = opened.map_err(failed)?;
        let mut soas = 0;
        loop {
            let found = reply::soas(&part);
            soas += found.unwrap_or(2);
            if !take(part).await || soas >= 2 {
                return Ok(());
            }
            let next = monoio::time::timeout(patience, link.next()).await;
            part = next.map_err(|_| AskError::Silent(patience))?.map_err(failed)?;
        }
    }

    async fn attempt(&self, message: &[u8], server: SocketAddr, over: Over) -> Result<Vec<u8>, AskError> {
        let outcome = match over {
            Over::Udp => self.by_udp(message, server).await,
            Over::Tcp => match self.by_tcp(message, server).await {
                // Some servers lack TCP; what fits into a datagram can still be had.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self
                    .by_udp(message, server)
                    .await
                    .and_then(|reply| if is_cut(&reply) { Err(error) } else { Ok(reply) }),
                outcome => outcome,
            },
        };
        outcome.map_err(|error| AskError::Server { server, error })
    }

    async fn by_udp(&self, message: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
        if !self.shard.descriptors.is_there() {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let blank = self.dns.spares.take(self.pod.netns.as_ref(), server)?;
        self.shard.descriptors.saw(&blank);
        let connected = udp::connect(blank, server, self.mark())?;
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(connected))?;
        let sent = with_new_id(message)?;
        udp::send_datagram(lend(&socket), &sent)?;
        let mut strays = 0_usize;
        loop {
            match self.receive(&socket) {
                Ok(reply) if reply::answers(&reply, &sent) => return Ok(with_id_of(reply, message)),
                Ok(_) => {
                    bump(&self.shard.stats.engine.dns_strays);
                    strays += 1;
                    if strays.is_multiple_of(limits::DNS_DATAGRAMS_A_TURN) {
                        give_way().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.readable(false).await?,
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&self, socket: &UdpSocket) -> io::Result<Vec<u8>> {
        let mut buffer = self.shard.datagram.borrow_mut();
        buffer.resize(limits::DNS_MESSAGE_BYTES, 0);
        let count = udp::receive(lend(socket), &mut buffer)?;
        Ok(buffer.get(..count).unwrap_or_default().to_vec())
    }

    async fn by_tcp(&self, message: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
        Link::open(self, server, message).await?.reply(message).await
    }
}

/// A connection to a name server that was sent one message.
struct Link {
    socket: Socket,
    sent: Vec<u8>,
    id: [u8; 2],
    unread: RefCell<Vec<u8>>,
}

impl Link {
    async fn open(world: &PodWorld, server: SocketAddr, message: &[u8]) -> io::Result<Self> {
        let socket = world.dial(server).await?;
        let sent = with_new_id(message)?;
        let length = u16::try_from(sent.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let framed = [&length.to_be_bytes()[..], &sent].concat();
        let mut rest = framed.as_slice();
        while !rest.is_empty() {
            match socket.send(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
                Err(error) => return Err(error),
            }
        }
        let id = message.first_chunk().copied().unwrap_or_default();
        Ok(Self { socket, sent, id, unread: RefCell::default() })
    }

    /// The message that answers; others are an error, since nobody else can have sent them.
    async fn reply(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        let part = self.read().await?;
        if !reply::answers(&part, &self.sent) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply is to another question"));
        }
        Ok(with_id_of(part, message))
    }

    /// A further message: it may lack the question (RFC 5936 section 2.2.1).
    async fn next(&mut self) -> io::Result<Vec<u8>> {
        let mut part = self.read().await?;
        set_id(&mut part, u16::from_be_bytes(self.id));
        Ok(part)
    }

    async fn read(&self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = take_frame(&mut self.unread.borrow_mut()) {
                return Ok(message);
            }
            let mut chunk = [0; 2_048];
            match self.socket.receive(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.unread.borrow_mut().extend(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.readable().await?,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Takes the first whole message off a stream of them (RFC 1035 section 4.2.2).
pub fn take_frame(stream: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::from(u16::from_be_bytes(*stream.first_chunk()?));
    if stream.len() < length + 2 {
        return None;
    }
    let message = stream.drain(..length + 2).skip(2).collect();
    Some(message)
}

/// The first attempt that ends is taken out.
async fn first_of(running: &mut Vec<Attempt<'_>>) -> Result<Vec<u8>, AskError> {
    poll_fn(|context| {
        for (place, attempt) in running.iter_mut().enumerate() {
            if let Poll::Ready(outcome) = attempt.as_mut().poll(context) {
                drop(running.swap_remove(place));
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

/// An id that nobody can guess: with the port it is all that tells a reply from a forged one (RFC 5452).
fn with_new_id(message: &[u8]) -> io::Result<Vec<u8>> {
    let mut id = [0; 2];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| io::Error::from(io::ErrorKind::Other))?;
    let mut sent = message.to_vec();
    set_id(&mut sent, u16::from_be_bytes(id));
    Ok(sent)
}

fn with_id_of(mut reply: Vec<u8>, message: &[u8]) -> Vec<u8> {
    if let Some(id) = message.first_chunk() {
        set_id(&mut reply, u16::from_be_bytes(*id));
    }
    reply
}

/// Another server may know better.
fn is_refusal(reply: &[u8]) -> bool {
    let rcode = Header::read(reply).map(|header| header.rcode());
    matches!(rcode, Some(Rcode::ServFail | Rcode::NotImp | Rcode::Refused))
}

fn is_cut(reply: &[u8]) -> bool {
    Header::read(reply).is_some_and(|header| header.is_truncated())
}

fn is_shortage(error: &AskError) -> bool {
    let AskError::Server { error, .. } = error else { return false };
    matches!(
        error.raw_os_error(),
        Some(
            libc::EAGAIN
                | libc::EADDRNOTAVAIL
                | libc::EADDRINUSE
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOBUFS
                | libc::ENOMEM
        )
    )
}
