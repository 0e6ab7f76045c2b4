//! A pod as one shard serves it: its listeners, its pool, its connections. Everything a connection's path needs of
//! the world hangs off this.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use monoio::net::TcpListener;

use crate::base::limits;
use crate::base::net::Source;
use crate::bridge::counts::Holding;
use crate::bridge::order::{Pod, PodKind};
use crate::mesh::labels::Reporter;
use crate::shard::Shard;
use crate::shard::dns::PodDns;
use crate::shard::gate::Gate;
use crate::shard::handover;
use crate::shard::nested::Nested;
use crate::shard::peers;
use crate::shard::places::Places;
use crate::shard::pool::{Carries, Pool};
use crate::shard::ready::give_way;
use crate::shard::socket::Socket;
use crate::shard::spares::Spares;
use crate::shard::stats::{OpenSocket, PodSockets, Stats, bump};
use crate::shard::tally::Tally;
use crate::shard::told::Told;
use crate::shard::tunnel::Tunnel;
use crate::sys::listener::{self, ListenError, ListenerPlan, Listening};
use crate::sys::netns::Netns;
use crate::sys::socket::{Dial, blank, connect_result, dial_on, tune, unpace};
use crate::sys::udp;

/// Which port a connection came in by: captured, or an explicit proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    Outbound,
    InboundPlaintext,
    InboundHbone,
    Socks5,
    Connect,
    /// Queries by TCP; those by datagrams come in by `shard::dns`.
    Dns,
}

impl Port {
    /// `component` of the reference's log lines.
    pub fn component(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::InboundPlaintext => "inbound plaintext",
            Self::InboundHbone => "inbound",
            Self::Socks5 => "socks5",
            Self::Connect => "http connect",
            Self::Dns => "dns",
        }
    }

    fn tell_established(self, address: SocketAddr, transparent: bool) {
        let component = self.component();
        macro_rules! tell {
            ($target:literal) => {
                tracing::info!(target: $target, address = %address, component, transparent, "listener established")
            };
        }
        match self {
            Self::Outbound => tell!("ztunnel::proxy::outbound"),
            Self::InboundPlaintext => tell!("ztunnel::proxy::inbound_passthrough"),
            Self::InboundHbone => tell!("ztunnel::proxy::inbound"),
            Self::Socks5 => tell!("ztunnel::proxy::socks5"),
            Self::Connect => tell!("ztunnel::proxy::connect"),
            Self::Dns => {
                tracing::info!(target: "ztunnel::dns", address = %address, component, "starting local DNS server");
            }
        }
    }

    /// Whose sockets these are counted as; queries aren't connections of the mesh.
    fn reporter(self) -> Option<Reporter> {
        match self {
            Self::Outbound | Self::Socks5 | Self::Connect => Some(Reporter::Source),
            Self::InboundPlaintext | Self::InboundHbone => Some(Reporter::Destination),
            Self::Dns => None,
        }
    }
}

/// A connection as it was accepted.
pub struct Accepted {
    pub fd: OwnedFd,
    pub source: Source,
    pub at: Instant,
    /// Counts the socket as open.
    pub counted: Option<OpenSocket>,
}

/// See above.
pub struct PodWorld {
    pub shard: Rc<Shard>,
    pub pod: Arc<Pod>,
    pub pool: Rc<Pool>,
    /// Tunnels within tunnels, to other networks.
    pub nested: Rc<Pool<Nested>>,
    /// Clients of the explicit proxies before they are connections.
    pub dialogues: Rc<Places>,
    /// That one of them was refused.
    pub dialogue_refused: Told,
    /// Whether dials to the application keep the caller's address.
    pub keeps_source: bool,
    /// Connections of the pod are inside.
    pub gate: Rc<Gate>,
    /// Accept loops are inside.
    doors: Rc<Gate>,
    listeners: RefCell<Vec<(Port, Rc<TcpListener>)>>,
    /// Every tunnel that is up, with the idle time after which one of ours is released.
    tunnels: RefCell<Vec<(Rc<Tunnel>, Option<Duration>)>>,
    draining: Cell<bool>,
    spares: Spares,
    sockets: Rc<PodSockets>,
    pub dns: PodDns,
    pub tally: Rc<Tally>,
}

impl PodWorld {
    /// Puts the pod's listeners up and starts accepting.
    pub fn start(shard: &Rc<Shard>, pod: Arc<Pod>) -> Result<Rc<Self>, String> {
        let PutUp { listening, datagrams, keeps_source } =
            put_up(shard, &pod).map_err(|error| error.to_string())?;
        let mut listeners = Vec::new();
        for (port, listening) in listening {
            let listener = TcpListener::from_std(std::net::TcpListener::from(listening.fd))
                .map_err(|error| format!("cannot register the listener of {}: {error}", port.component()))?;
            listeners.push((port, Rc::new(listener)));
        }
        let world = Rc::new(Self {
            shard: shard.clone(),
            pool: Rc::new(Pool::new(shard.settings.pool_streams, shard.stats.clone())),
            nested: Rc::new(Pool::new(limits::NESTED_STREAMS, shard.stats.clone())),
            dialogues: Places::new(limits::PROXY_DIALOGUES),
            dialogue_refused: Told::default(),
            tally: Rc::new(Tally::new(pod.uid.clone())),
            pod,
            keeps_source,
            gate: Rc::default(),
            doors: Rc::default(),
            listeners: RefCell::new(listeners.clone()),
            tunnels: RefCell::default(),
            draining: Cell::new(false),
            spares: Spares::new(blank),
            sockets: PodSockets::new(shard.stats.clone()),
            dns: PodDns::new(datagrams)?,
        });
        world.serve_datagrams();
        for (port, listener) in listeners {
            let there = world.clone();
            world.spawn_door(async move { there.accept(port, &listener).await });
        }
        Ok(world)
    }

    async fn accept(self: &Rc<Self>, port: Port, listener: &TcpListener) {
        loop {
            if listener.readable(false).await.is_err() {
                monoio::time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS)).await;
            }
            match self.accept_waiting(port, listener, limits::ACCEPTS_A_TURN) {
                Ok(limits::ACCEPTS_A_TURN) => give_way().await,
                Ok(_) => {}
                Err(()) => {
                    // The connection stays in the queue, so trying again at once would spin.
                    bump(&self.shard.stats.engine.accept_pauses);
                    monoio::time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS)).await;
                }
            }
        }
    }

    /// Accepts what waits, up to a number; an error where descriptors or memory are short.
    pub(super) fn accept_waiting(
        self: &Rc<Self>,
        port: Port,
        listener: &TcpListener,
        most: usize,
    ) -> Result<usize, ()> {
        for count in 0..most {
            if !self.shard.descriptors.is_there() {
                return Err(());
            }
            match listener::accept(crate::sys::lend::lend(listener)) {
                Ok((fd, source)) => {
                    self.shard.descriptors.saw(&fd);
                    self.serve(port, fd, source);
                }
                Err(error) if listener::is_descriptor_shortage(&error) => return Err(()),
                Err(error) => {
                    if error.kind() != std::io::ErrorKind::WouldBlock {
                        tracing::error!(target: "ztunnel::proxy", "Failed TCP handshake {error}");
                    }
                    return Ok(count);
                }
            }
        }
        Ok(most)
    }

    fn serve(self: &Rc<Self>, port: Port, fd: OwnedFd, source: SocketAddr) {
        let counted = port.reporter().map(|reporter| Stats::socket(&self.sockets, reporter));
        let accepted = Accepted { fd, source: Source::new(source), at: Instant::now(), counted };
        (self.shard.ways.serve)(self.clone(), port, accepted);
    }

    /// Dials from within the pod, with a deadline.
    pub async fn dial(&self, to: SocketAddr) -> std::io::Result<Socket> {
        self.connect(self.dial_plan(to)).await
    }

    /// Dials the pod's own application, as `from` where that is kept.
    pub async fn dial_app(&self, to: SocketAddr, from: Option<IpAddr>) -> std::io::Result<Socket> {
        self.connect(Dial { from, on_node: true, ..self.dial_plan(to) }).await
    }

    fn dial_plan(&self, to: SocketAddr) -> Dial {
        let keepalive = self.shard.settings.keepalive;
        Dial { to, from: None, mark: self.mark(), keepalive, on_node: false }
    }

    async fn connect(&self, plan: Dial) -> std::io::Result<Socket> {
        if !self.shard.descriptors.is_there() {
            return Err(std::io::Error::from_raw_os_error(libc::EMFILE));
        }
        let blank = self.spares.take(self.pod.netns.as_ref(), plan.to)?;
        self.shard.descriptors.saw(&blank);
        let dialled = dial_on(blank, &plan).map_err(|error| repeat(error.io()))?;
        if let Some(warning) = &dialled.warning {
            tracing::warn!(target: "ztunnel::proxy", "{warning}");
        }
        let (socket, started) = (Socket::new(dialled.fd)?, Instant::now());
        let connect = async {
            loop {
                // Within a pod the kernel has shaken hands before the call returned, so the first look comes first.
                match connect_result(socket.fd()) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => socket.writable().await?,
                    outcome => return outcome,
                }
            }
        };
        let deadline = Duration::from_millis(limits::CONNECT_DEADLINE_MS);
        match monoio::time::timeout(deadline, connect).await {
            Ok(outcome) => {
                outcome?;
                self.shard.stats.timings.dial.record(started.elapsed());
                Ok(socket)
            }
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }

    /// SO_MARK of sockets that dial from within the pod.
    pub(super) fn mark(&self) -> Option<u32> {
        self.shard.settings.mark.filter(|_| self.pod.kind == PodKind::Workload)
    }

    /// Runs a task that ends with the pod.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        self.shard.stir();
        // Without an async block around it, which would hold all of the work twice.
        monoio::spawn(self.gate.run(work));
    }

    /// Runs a loop that ends when the pod takes nothing new.
    pub(super) fn spawn_door(&self, work: impl Future<Output = ()> + 'static) {
        monoio::spawn(self.doors.run(work));
    }

    /// Keeps a peer's tunnel in sight, for deadlines and drains.
    pub fn watch_inbound(&self, tunnel: Rc<Tunnel>) {
        if self.draining.get() {
            tunnel.drain();
        }
        self.tunnels.borrow_mut().push((tunnel, None));
    }

    /// Keeps a tunnel of ours in sight, also when its pool has let go of it.
    pub fn watch_outbound(&self, tunnel: Rc<Tunnel>, idle_release: Duration) {
        self.tunnels.borrow_mut().push((tunnel, Some(idle_release)));
    }

    pub fn unwatch(&self, tunnel: &Rc<Tunnel>) {
        self.tunnels.borrow_mut().retain(|(other, _)| !Rc::ptr_eq(other, tunnel));
    }

    /// Looks after deadlines; called about once a second.
    pub fn tick(&self, now: Instant) {
        let (shard, wall) = (&self.shard, SystemTime::now());
        for (tunnel, idle_release) in self.tunnels.borrow().iter() {
            if idle_release.is_some() && peers::retire(tunnel, &shard.identities, wall) {
                bump(&shard.stats.engine.tunnels_retired);
            }
            tunnel.tick(now, *idle_release);
        }
        self.drain_surplus();
        self.gate.tick();
        self.pool.tick(now);
        self.nested.tick(now);
        self.spares.tick();
        self.dns.tick();
    }

    /// Whether `tick` would find nothing to do, until a task of the pod is started or a datagram comes.
    pub(super) fn is_at_rest(&self) -> bool {
        self.gate.inside() == 0
            && self.tunnels.borrow().is_empty()
            && self.pool.is_empty()
            && self.nested.is_empty()
            && self.spares.is_empty()
            && self.dns.is_at_rest()
    }

    /// Whether it takes nothing new.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// How many tunnels are up that we dialled, and how many that peers did.
    pub(super) fn tunnel_counts(&self) -> (usize, usize) {
        let tunnels = self.tunnels.borrow();
        let outbound = tunnels.iter().filter(|(_, idle_release)| idle_release.is_some()).count();
        (outbound, tunnels.len() - outbound)
    }

    /// Adds what the pod holds right now.
    pub(super) fn hold(&self, holding: &mut Holding<u64>) {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        for (tunnel, idle_release) in self.tunnels.borrow().iter() {
            let (tunnels, streams) = match idle_release {
                Some(_) => (&mut holding.tunnels_client, &mut holding.streams_client),
                None => (&mut holding.tunnels_server, &mut holding.streams_server),
            };
            *tunnels += 1;
            *streams += count(tunnel.streams());
            holding.buffered_bytes += count(tunnel.buffered_bytes());
        }
    }

    /// Accepted sockets that are open.
    pub(super) fn sockets(&self) -> u64 {
        self.sockets.open()
    }

    /// Tasks that end with the pod.
    pub(super) fn tasks(&self) -> usize {
        self.gate.inside() + self.doors.inside()
    }

    /// Tunnels that an address holds up to the pod for nothing have a bound.
    fn drain_surplus(&self) {
        let tunnels = self.tunnels.borrow();
        let inbound = tunnels.iter().filter(|(_, idle_release)| idle_release.is_none());
        let idle = inbound.filter_map(|(tunnel, _)| Some((tunnel.remote.ip(), tunnel.idle_since()?, tunnel)));
        for tunnel in peers::surplus(idle, limits::IDLE_TUNNELS_A_PEER) {
            tunnel.drain();
            bump(&self.shard.stats.engine.tunnels_surplus);
        }
    }

    /// Every tunnel that is up.
    pub(super) fn tunnels(&self) -> Vec<Rc<Tunnel>> {
        self.tunnels.borrow().iter().map(|(tunnel, _)| tunnel.clone()).collect()
    }

    /// Stops accepting; what waits in the listeners' queues is served first. Takes at most half of `grace`.
    pub async fn close_doors(self: &Rc<Self>, grace: Duration) {
        self.draining.set(true);
        self.doors.close();
        let listeners = self.listeners.take();
        handover::hand_over(self, &listeners, grace / 2).await;
        self.dns.close();
    }

    /// GOAWAY on every tunnel: streams go on, new ones are for the successor.
    pub fn drain_tunnels(&self) {
        for (tunnel, _) in self.tunnels.borrow().iter() {
            tunnel.drain();
        }
    }

    /// Ends everything of the pod now, and waits until it is gone.
    pub async fn end(&self) {
        self.doors.close();
        self.listeners.take();
        self.dns.close();
        self.gate.close();
        self.pool.close();
        self.nested.close();
        for (tunnel, _) in self.tunnels.borrow().iter() {
            tunnel.abort();
        }
        self.gate.emptied().await;
        self.doors.emptied().await;
    }

    /// How many shards carry this pod's listeners: with them, listeners of one port are told from a successor's.
    pub(super) fn carriers(&self) -> usize {
        carriers(&self.shard, &self.pod)
    }
}

/// The one workload of dedicated mode is on all shards, a pod on some.
fn carriers(shard: &Shard, pod: &Pod) -> usize {
    let all = pod.netns.is_none() && pod.kind == PodKind::Workload;
    if all { shard.settings.shards } else { shard.settings.pod_shards }
}

/// What stands in a pod's namespace.
struct PutUp {
    listening: Vec<(Port, Listening)>,
    /// DNS by datagrams.
    datagrams: Vec<(SocketAddr, OwnedFd)>,
    /// Whether dials may keep sources.
    keeps_source: bool,
}

/// All listeners of a pod, made in its namespace.
fn put_up(shard: &Shard, pod: &Pod) -> Result<PutUp, ListenError> {
    let settings = &shard.settings;
    let own = pod.kind == PodKind::OwnInbound;
    let captured = [
        (Port::Outbound, settings.outbound),
        (Port::InboundPlaintext, settings.inbound_plaintext),
        (Port::InboundHbone, settings.inbound),
    ];
    let socks5 = settings.socks5.iter().map(|addr| (Port::Socks5, *addr));
    let explicit = socks5.chain(settings.connect.iter().map(|addr| (Port::Connect, *addr)));
    let ports = captured.into_iter().chain(explicit);
    // Not the proxy's own ports, and not those of a dedicated proxy (reference section 1.2).
    let of_a_pod = pod.netns.is_some() && !own;
    let plan = |addr, transparent| ListenerPlan {
        addr,
        mark: settings.mark.filter(|_| of_a_pod),
        // Several shards share the port even where two processes must not.
        reuse_port: (of_a_pod && settings.port_reuse) || carriers(shard, pod) > 1,
        transparent,
    };
    let make = || {
        let mut put_up = PutUp { listening: Vec::new(), datagrams: Vec::new(), keeps_source: !own };
        let wanted = |port: Port| settings.proxy && (!own || port == Port::InboundHbone);
        for (port, addr) in ports.filter(|(port, _)| wanted(*port)) {
            let captured = !matches!(port, Port::Socks5 | Port::Connect);
            // On a loopback there are no foreign addresses, and one that it lacks could be bound all the same.
            let transparent = if own || !captured { Some(false) } else { settings.original_source };
            let listening = match listener::listen(&plan(addr, transparent)) {
                // A pod may have no IPv6 on its loopback.
                Err(error) if addr.ip() == Ipv6Addr::LOCALHOST && is_absent(error.io()) => continue,
                listening => listening?,
            };
            // What is accepted inherits these (tcp_create_openreq_child), which saves five calls a connection. Also on
            // 15008, where the reference has none: a peer's node that vanishes must not leave sockets behind.
            tune(listening.fd.as_fd(), settings.keepalive.as_ref());
            // Those who call there are the pod's own programs.
            if port.reporter() == Some(Reporter::Source) {
                unpace(listening.fd.as_fd());
            }
            port.tell_established(addr, listening.transparent);
            if let Some(warning) = &listening.warning {
                tracing::warn!(target: "ztunnel::inpod::config", "{warning}");
            }
            put_up.keeps_source &= listening.transparent || !captured;
            put_up.listening.push((port, listening));
        }
        for addr in settings.dns.addresses.iter().filter(|_| !own) {
            let plan = plan(*addr, Some(false));
            let datagrams = match udp::bind(&plan) {
                // A pod may have no IPv6 on its loopback.
                Err(error) if addr.ip().is_loopback() && is_absent(error.io()) && addr.is_ipv6() => continue,
                bound => bound?,
            };
            let listening = listener::listen(&plan)?;
            tune(listening.fd.as_fd(), settings.keepalive.as_ref());
            Port::Dns.tell_established(*addr, false);
            put_up.listening.push((Port::Dns, listening));
            put_up.datagrams.push((*addr, datagrams.fd));
        }
        Ok(put_up)
    };
    let first = settings.inbound;
    within(pod.netns.as_ref(), make).map_err(|error| ListenError::Bind { addr: first, error })?
}

/// Whether a bind failed since there is no such address or family here.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT))
}

/// Runs something in a pod's namespace, or where the thread is.
pub(super) fn within<R>(netns: Option<&Netns>, work: impl FnOnce() -> R) -> std::io::Result<R> {
    match netns {
        Some(netns) => netns.run(work),
        None => Ok(work()),
    }
}

/// What `io::Error` lacks: a copy.
fn repeat(error: &std::io::Error) -> std::io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), std::io::Error::from_raw_os_error)
}
