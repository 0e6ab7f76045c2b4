//! A peer's tunnel calls a pod: port 15008. TLS -> each CONNECT: parse -> validate -> admit -> dial the pod with
//! the original source -> 200 -> relay. Statuses and texts are of section 7.2 of the reference.

use std::cell::Cell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::base::limits::FLOW_ERROR_BYTES;
use crate::base::net::Source;
use crate::base::text::beginning;
use crate::bridge::report::LiveProtocol;
use crate::mesh::admit::{Inbound, InboundRequest, inbound};
use crate::mesh::demand;
use crate::mesh::identity::Identity;
use crate::mesh::inbound::is_from_another_network;
use crate::mesh::labels::{Reporter, Security};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::{TunnelProtocol, Workload};
use crate::path::record::{About, Record, Side, closed, deny_early};
use crate::path::underway::{Staged, Underway};
use crate::path::unrelayed::Unrelayed;
use crate::shard::closer::Closer;
use crate::shard::decision::{self, Caller};
use crate::shard::failure::Failure;
use crate::shard::link::accept_tunnel;
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::pool::Carries;
use crate::shard::ready::either;
use crate::shard::relay::StreamRelay;
use crate::shard::socket::Socket;
use crate::shard::stream::{Cut, Stream};
use crate::shard::table::{Entered, Entry, Original, Subject};
use crate::shard::tunnel::Tunnel;
use crate::sys::origdst::original_destination;
use crate::wire::h2::RequestHead;
use crate::wire::hbone::{Authority, baggage_of, forwarded_host, parse_baggage};
use crate::wire::proxy_protocol::header;

/// Serves one tunnel of a peer until it ends.
pub async fn serve(world: Rc<PodWorld>, accepted: Accepted) {
    let Accepted { fd, source, counted: _counted, .. } = accepted;
    let Some(link) = Box::pin(shake(&world, fd, source)).await else { return };
    let tunnel = link.tunnel.clone();
    world.watch_inbound(tunnel.clone());
    let _watched = Watched { world: &world, tunnel: &tunnel };
    let link = Rc::new(link);
    tunnel
        .drive(&|stream, head| {
            world.spawn(answer(world.clone(), link.clone(), stream, head));
        })
        .await;
}

/// One tunnel and where it came in.
pub(super) struct Link {
    tunnel: Rc<Tunnel>,
    source: Source,
    /// The address of port 15008 that the peer called.
    local: SocketAddr,
}

struct Watched<'a> {
    world: &'a PodWorld,
    tunnel: &'a Rc<Tunnel>,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.world.unwatch(self.tunnel);
        self.tunnel.abort();
    }
}

async fn shake(world: &Rc<PodWorld>, fd: OwnedFd, source: Source) -> Option<Link> {
    let local = original_destination(fd.as_fd(), source).ok()?.0;
    let socket = Socket::new(fd).ok()?;
    let handshake = async {
        let (_, workload) = world.shard.local_workload(&world.pod.info).await?;
        let credential = world.shard.credential(&workload.identity()).await.map_err(Failure::at_signing)?;
        accept_tunnel(world, socket, source.0, &credential).await
    };
    match handshake.await {
        Ok(tunnel) => Some(Link { tunnel, source, local }),
        Err(failure) => {
            deny_early(world, source.0, local, &failure);
            None
        }
    }
}

/// Serves one request of a peer to its end.
pub(super) fn answer(
    world: Rc<PodWorld>,
    link: Rc<Link>,
    stream: Rc<Stream>,
    head: Box<RequestHead>,
) -> impl Future<Output = ()> {
    Staged::new(prepare(world, link, stream, head))
}

async fn prepare(
    world: Rc<PodWorld>,
    link: Rc<Link>,
    stream: Rc<Stream>,
    head: Box<RequestHead>,
) -> Option<impl Future<Output = ()>> {
    let (world, link, head) = (&world, &*link, &*head);
    let asked_at = Instant::now();
    let unrelayed = Unrelayed::new(link.tunnel.clone(), stream);
    let stream = &unrelayed.stream;
    // A peer that opened and reset it at once (CVE-2023-44487) gets nothing decided and nothing dialled for it.
    let checked = match stream.cut() {
        Some(cut) => Err((503, Failure::Http2(cut.to_string()))),
        None => check(world, link, head).await,
    };
    let checked = match checked {
        Ok(checked) => checked,
        Err((status, failure)) => {
            link.tunnel.refuse(stream, status);
            deny_early(world, link.source.0, link.local, &failure);
            return None;
        }
    };
    let closer = Closer::default();
    closer.wake(stream.signal.clone());
    let (record, entered) = enter(world, link, head, &checked, &closer);
    let reached = either(reach(world, link, head, &checked, &entered), interrupted(stream, &closer)).await;
    let told = reached.and_then(|app| Ok((app, introduction(link, &checked.found)?)));
    let (app, introduction) = match told {
        Ok(told) => told,
        Err((status, failure)) => {
            link.tunnel.refuse(stream, status);
            record.fail(&failure);
            return None;
        }
    };
    let baggage = world.shard.settings.response_baggage.then(|| baggage_of(&checked.local));
    let baggage = baggage.as_deref().filter(|baggage| !baggage.is_empty());
    link.tunnel.respond(stream, 200, baggage, false);
    // The first that the application hears, before any payload.
    if let Err(error) = app.send_all(&introduction).await {
        record.fail(&Failure::io(&error));
        return None;
    }
    record.reached(asked_at);
    let relay = StreamRelay {
        app: Rc::new(app),
        stream: unrelayed.relayed(),
        tunnel: link.tunnel.clone(),
        meter: record.meter().clone(),
        closer,
        clean: Cell::new(false),
    };
    Some(Underway::new(relay.run(), record, entered))
}

/// A request that may be put to the policies.
struct Checked {
    snapshot: Arc<Snapshot>,
    local: Arc<Workload>,
    found: Inbound,
}

/// Opens the record and enters the table, before any policy is asked.
fn enter(
    world: &Rc<PodWorld>,
    link: &Link,
    head: &RequestHead,
    checked: &Checked,
    closer: &Closer,
) -> (Record, Entered) {
    let Checked { snapshot, local, found } = checked;
    let host = head.forwarded.as_deref().and_then(forwarded_host);
    let record = Record::open(
        &world.shard,
        About {
            pod: world.tally.clone(),
            reporter: Reporter::Destination,
            src_addr: link.source.0,
            dst_addr: link.local,
            hbone_addr: head.authority.as_deref().map(Into::into),
            source: source_side(world, link, snapshot, head),
            destination: Side::of(Some(local.clone()), Some(local.identity())),
            service: found.service(snapshot, local, host),
            security: Security::MutualTls,
            via: None,
        },
    );
    let entry = Entry {
        pod: world.pod.uid.clone(),
        src: link.source.0,
        original: Original::Host(host.map(Into::into)),
        actual_dst: found.upstream.0,
        protocol: LiveProtocol::Hbone,
        closer: closer.clone(),
        subject: Some(Box::new(Subject {
            source: link.source.ip(),
            identity: peer(link).cloned(),
            destination: found.upstream.0,
            asked: found.asked,
        })),
        detail: None,
    };
    let entered = world.shard.table.enter_at(local, snapshot, entry);
    record.show_in(&entered);
    (record, entered)
}

/// Everything that can refuse a request before a policy is asked: the status, and why.
async fn check(world: &Rc<PodWorld>, link: &Link, head: &RequestHead) -> Result<Checked, (u16, Failure)> {
    if head.method != "CONNECT" {
        return Err((400, Failure::NotConnect(beginning(&head.method, FLOW_ERROR_BYTES).to_owned())));
    }
    let authority = head.authority.as_deref().unwrap_or_default();
    Authority::parse(authority).map_err(|error| (400, Failure::InboundRefused(error.into())))?;
    let shard = &world.shard;
    let (mut snapshot, local) =
        shard.local_workload(&world.pod.info).await.map_err(|failure| (503, failure))?;
    if shard.settings.on_demand {
        let looking =
            shard.looked_up(|snapshot| demand::inbound(&request(world, link, snapshot, &local, authority)));
        snapshot = Box::pin(looking).await.map_err(|failure| (503, failure))?;
        if caller(world, link, &snapshot, head).is_none() {
            // Only labels depend on it, so nobody waits for the answer.
            shard.ask_for(demand::address(&shard.settings.network, link.source.ip())).await;
        }
    }
    let found = inbound(&request(world, link, &snapshot, &local, authority))
        .map_err(|refuse| (refuse.status(), Failure::InboundRefused(refuse)))?;
    Ok(Checked { snapshot, local, found })
}

fn request<'a>(
    world: &'a PodWorld,
    link: &Link,
    snapshot: &'a Snapshot,
    local: &'a Workload,
    authority: &'a str,
) -> InboundRequest<'a> {
    let settings = &world.shard.settings;
    let (network, illegal_ports) = (&*settings.network, &*settings.illegal_ports);
    InboundRequest { snapshot, network, local, connection_dst: link.local.ip(), authority, illegal_ports }
}

async fn reach(
    world: &Rc<PodWorld>,
    link: &Link,
    head: &RequestHead,
    checked: &Checked,
    entered: &Entered,
) -> Result<Socket, (u16, Failure)> {
    let traceparent = head.traceparent.as_deref().unwrap_or_default();
    let caller = Caller { workload: &checked.local, request: Some((traceparent, link.source.0)) };
    decision::admit(&world.shard, entered, caller).map_err(|failure| (401, failure))?;
    let found = &checked.found;
    let (mut to, mut from) = (found.upstream.0, world.keeps_source.then_some(link.source.ip()));
    if world.shard.settings.localhost_app_tunnel && proxy_target(found).is_some() {
        // The header tells the application who calls, so the connection needn't.
        to.set_ip(if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        from = None;
    }
    world.dial_app(to, from).await.map_err(|error| (503, Failure::Application(error.to_string())))
}

/// What the caller asked for, where the application wants to be told.
fn proxy_target(found: &Inbound) -> Option<SocketAddr> {
    found.tunnel.filter(|tunnel| tunnel.protocol == TunnelProtocol::Proxy).map(|tunnel| tunnel.target)
}

/// The header of an application tunnel of protocol PROXY; nothing for others.
fn introduction(link: &Link, found: &Inbound) -> Result<Vec<u8>, (u16, Failure)> {
    let Some(target) = proxy_target(found) else { return Ok(Vec::new()) };
    let identity = peer(link).map(ToString::to_string);
    header(link.source.0, target, identity.as_deref())
        .map_err(|error| (503, Failure::Application(error.to_string())))
}

/// What ends the wait for the application early: a policy that changed, or a peer that gave its request up.
async fn interrupted(stream: &Stream, closer: &Closer) -> Result<Socket, (u16, Failure)> {
    loop {
        // A revoked certificate is told before a policy (reference section 7.8).
        match (stream.cut(), closer.reason()) {
            (Some(Cut::Revoked), _) => return Err((503, Failure::Revoked)),
            (_, Some(reason)) => return Err((401, closed(reason))),
            (Some(cut), None) => return Err((503, Failure::Http2(cut.to_string()))),
            (None, None) => {}
        }
        stream.signal.wait().await;
    }
}

fn peer(link: &Link) -> Option<&Identity> {
    link.tunnel.peer.identity.as_ref()
}

/// The caller: by its address; by what it says of itself where nobody is known there, or it comes through another
/// network's gateway (reference sections 7.7 and 15.2).
fn source_side(world: &PodWorld, link: &Link, snapshot: &Snapshot, head: &RequestHead) -> Side {
    let settings = &world.shard.settings;
    let identity = peer(link).cloned();
    if let Some(workload) = caller(world, link, snapshot, head) {
        return Side::of(Some(workload.clone()), identity);
    }
    let values: Vec<&[u8]> = head.baggage.iter().map(Vec::as_slice).collect();
    let speaks = settings.response_baggage && !values.is_empty();
    let told = speaks.then(|| Box::new(parse_baggage(&values).party()));
    Side { workload: None, told, identity }
}

fn caller<'a>(
    world: &PodWorld,
    link: &Link,
    snapshot: &'a Snapshot,
    head: &RequestHead,
) -> Option<&'a Arc<Workload>> {
    let network = &world.shard.settings.network;
    let local = !is_from_another_network(head.x_forwarded_network.as_deref(), network);
    snapshot.workload_at(network, link.source.ip()).filter(|_| local)
}
