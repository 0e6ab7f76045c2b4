//! Names in a pod: the datagram sockets of its DNS port, the replies it remembers, its queries at name servers.
//! What a query means and how it is answered is `path::dns`'s.

mod ask;
mod cache;
mod resolve;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use monoio::net::udp::UdpSocket;

pub use ask::{AskError, Over, take_frame};
use cache::Cache;
pub use resolve::ResolveError;

use crate::base::limits;
use crate::base::net::canonical;
use crate::base::text::Text;
use crate::shard::places::Places;
use crate::shard::pod::{PodWorld, within};
use crate::shard::ready::give_way;
use crate::shard::spares::Spares;
use crate::shard::stats::bump;
use crate::sys::conntrack::Conntrack;
use crate::sys::lend::lend;
use crate::sys::{listener, udp};
use crate::wire::dns::Query;

/// Datagrams of one pod on this shard.
pub struct PodDns {
    ports: RefCell<Vec<Rc<DnsPort>>>,
    cache: RefCell<Cache>,
    /// Queries that wait for a name server.
    in_flight: Rc<Places>,
    /// The search domains of the namespace that asked last: a pod has one.
    search: RefCell<Option<(Text, Rc<[Text]>)>>,
    spares: Spares,
    /// While it is in use: a pod that doesn't ask holds no descriptor.
    conntrack: RefCell<Option<Conntrack>>,
    tracked: Cell<bool>,
    /// The kernel doesn't tell.
    untracked: Cell<bool>,
}

/// One bound socket.
pub struct DnsPort {
    socket: UdpSocket,
    addr: SocketAddr,
}

/// A datagram as it came.
pub struct Datagram<'a> {
    pub port: &'a Rc<DnsPort>,
    pub message: &'a [u8],
    pub from: SocketAddr,
}

impl DnsPort {
    /// Sends an answer. One that the kernel doesn't take is lost, as datagrams may be: its asker asks again.
    pub fn answer(&self, world: &PodWorld, message: &[u8], to: SocketAddr) {
        if udp::send_to(lend(&self.socket), message, to).is_err() {
            bump(&world.shard.stats.engine.dns_unsent);
        }
    }
}

impl PodDns {
    pub(super) fn new(sockets: Vec<(SocketAddr, OwnedFd)>) -> Result<Self, String> {
        let mut ports = Vec::new();
        for (addr, fd) in sockets {
            let socket = UdpSocket::from_std(std::net::UdpSocket::from(fd))
                .map_err(|error| format!("cannot register the DNS socket of {addr}: {error}"))?;
            ports.push(Rc::new(DnsPort { socket, addr }));
        }
        Ok(Self {
            ports: RefCell::new(ports),
            cache: RefCell::default(),
            in_flight: Places::new(limits::DNS_IN_FLIGHT),
            search: RefCell::default(),
            spares: Spares::new(udp::blank),
            conntrack: RefCell::default(),
            tracked: Cell::new(false),
            untracked: Cell::new(false),
        })
    }

    pub(super) fn tick(&self) {
        self.spares.tick();
        if !self.tracked.take() {
            self.conntrack.take();
        }
    }

    /// Whether `tick` has nothing to give back.
    pub(super) fn is_at_rest(&self) -> bool {
        self.spares.is_empty() && !self.tracked.get() && self.conntrack.borrow().is_none()
    }

    /// Lets go of the sockets; what is on its way is still answered, but for want of a socket, not by datagram.
    pub(super) fn close(&self) {
        if !self.ports.take().is_empty() {
            tracing::info!(target: "ztunnel::dns", "shutting down the DNS server");
        }
    }
}

impl PodWorld {
    /// Starts to take datagrams.
    pub(super) fn serve_datagrams(self: &Rc<Self>) {
        for port in self.dns.ports.borrow().iter() {
            let (world, port) = (self.clone(), port.clone());
            self.spawn_door(async move { world.take_datagrams(&port).await });
        }
    }

    async fn take_datagrams(self: &Rc<Self>, port: &Rc<DnsPort>) {
        loop {
            if port.socket.readable(false).await.is_err() {
                monoio::time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS)).await;
            }
            while self.receive_some(port, limits::DNS_DATAGRAMS_A_TURN) {
                give_way().await;
            }
        }
    }

    /// Serves what waits on all ports, as long as the doors close.
    pub(super) fn receive_waiting(self: &Rc<Self>) {
        let ports = self.dns.ports.borrow().clone();
        for port in &ports {
            self.receive_some(port, usize::from(u16::MAX));
        }
    }

    /// Serves what waits, up to a number; whether more may wait.
    fn receive_some(self: &Rc<Self>, port: &Rc<DnsPort>, most: usize) -> bool {
        let mut buffer = self.shard.datagram.take();
        buffer.resize(limits::DNS_MESSAGE_BYTES, 0);
        let mut left = most;
        while left > 0 {
            // Nothing, or an error of the socket that the next wait will show: both end this turn.
            let Ok((count, from)) = udp::receive_from(lend(&port.socket), &mut buffer) else { break };
            let message = buffer.get(..count).unwrap_or_default();
            (self.shard.ways.datagram)(self, &Datagram { port, message, from });
            left -= 1;
        }
        self.shard.datagram.replace(buffer);
        if left < most {
            self.shard.stir();
        }
        left == 0
    }

    /// The server that the sender of a captured datagram asked.
    pub fn asked_server(&self, port: &DnsPort, client: SocketAddr) -> Option<SocketAddr> {
        let dns = &self.dns;
        if !self.shard.settings.dns.follows_asker || dns.untracked.get() {
            return None;
        }
        dns.tracked.set(true);
        let mut conntrack = dns.conntrack.borrow_mut();
        if conntrack.is_none() {
            match within(self.pod.netns.as_ref(), Conntrack::open) {
                Ok(Ok(opened)) => *conntrack = Some(opened),
                Ok(Err(error)) | Err(error) => self.miss_conntrack(&error),
            }
        }
        conntrack.as_ref()?.original_destination(canonical(client), port.addr).ok()
    }

    fn miss_conntrack(&self, error: &std::io::Error) {
        self.dns.untracked.set(!listener::is_descriptor_shortage(error));
        if let Some(kept_back) = self.shard.dns_told.due(Instant::now(), limits::DNS_TOLD_MS) {
            tracing::info!(
                target: "ztunnel::dns",
                "connection tracking can't be asked ({error}): queries go to the name servers of resolv.conf, not to \
                 those that pods asked ({kept_back} such lines kept back)",
            );
        }
    }

    /// The name servers to ask, best first: the one that the pod asked, with its neighbours where it is one of ours.
    pub fn name_servers(&self, asked: Option<SocketAddr>) -> Vec<SocketAddr> {
        let settings = &self.shard.settings.dns;
        let own = |server: &SocketAddr| settings.addresses.contains(server) || server.ip().is_loopback();
        let asked = asked.filter(|server| settings.follows_asker && !own(server));
        let known = settings.name_servers.iter().copied();
        match asked {
            None => known.collect(),
            Some(asked) if known.clone().any(|server| server == asked) => {
                std::iter::once(asked).chain(known.filter(|server| *server != asked)).collect()
            }
            Some(asked) => vec![asked],
        }
    }

    /// The search domains of a pod of this namespace.
    pub fn search(&self, namespace: &str) -> Rc<[Text]> {
        let mut known = self.dns.search.borrow_mut();
        if let Some((_, search)) = known.as_ref().filter(|(of, _)| **of == *namespace) {
            return search.clone();
        }
        let settings = &self.shard.settings.dns;
        let search: Rc<[Text]> = match &settings.search {
            Some(search) => search.as_slice().into(),
            None => settings.names.search(namespace).into(),
        };
        *known = Some((namespace.into(), search.clone()));
        search
    }

    /// A reply that is remembered for a query to this server, if it fits.
    pub fn remembered(
        &self,
        message: &[u8],
        query: &Query,
        server: SocketAddr,
        limit_bytes: usize,
    ) -> Option<Vec<u8>> {
        if !self.shard.settings.dns.cache {
            return None;
        }
        let found = self.dns.cache.borrow_mut().find(message, query, server, limit_bytes, Instant::now())?;
        bump(&self.shard.stats.engine.dns_cache_hits);
        Some(found)
    }

    /// Remembers a reply, where it may be.
    pub fn remember(&self, message: &[u8], query: &Query, server: SocketAddr, reply: &[u8]) {
        if self.shard.settings.dns.cache {
            self.dns.cache.borrow_mut().keep(message, query, server, reply, Instant::now());
        }
    }
}
