//! A pod's application calls somebody: port 15001, or an explicit proxy that has heard where to. Address -> plan ->
//! tunnel or plain dial -> relay. Where the chosen endpoint of a service can't be reached, another one is tried, as
//! long as nothing was taken from the application.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::base::limits;
use crate::base::net::{Captured, Source};
use crate::base::text::Text;
use crate::bridge::report::LiveProtocol;
use crate::mesh::demand;
use crate::mesh::labels::{Party, Reporter, Security};
use crate::mesh::plan::{Carrier, Plan, Refuse};
use crate::mesh::route::{Request, Routed, route, self_call};
use crate::mesh::seen::{Seen, View};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;
use crate::path::opening::Opening;
use crate::path::reach::{Asker, Place, Reached, Unreached, take_ahead};
use crate::path::record::{About, Denied, Record, Side, deny};
use crate::path::underway::{Keeping, Staged, Underway};
use crate::shard::Shard;
use crate::shard::closer::Closer;
use crate::shard::ending::Ending;
use crate::shard::failure::Failure;
use crate::shard::meter::Way;
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::relay::StreamRelay;
use crate::shard::socket::{Held, Socket};
use crate::shard::splice::Splice;
use crate::shard::stats::bump;
use crate::shard::table::{Entered, Entry, Original};
use crate::sys::origdst::original_destination;
use crate::wire::access_log::{Direction, Via};
use crate::wire::hbone::parse_baggage_if_visible;

/// Carries one captured connection to its end.
pub fn serve(world: Rc<PodWorld>, accepted: Accepted) -> impl Future<Output = ()> {
    let Accepted { fd, source, at, counted } = accepted;
    Keeping { work: Staged::new(prepare(world, fd, source, at)), _kept: counted }
}

async fn prepare(
    world: Rc<PodWorld>,
    fd: OwnedFd,
    source: Source,
    since: Instant,
) -> Option<impl Future<Output = ()>> {
    let world = &world;
    let target = original_destination(fd.as_fd(), source).ok()?;
    let app = Held::new(Socket::new(fd).ok()?);
    let reaching = Outbound { world, source, target, since, via: None, others: &[] };
    let there = reaching.arrive(&app).await.ok()?;
    there.join(world, app)
}

/// A connection whose far side is reached, its record open.
pub(super) struct There {
    arrived: Arrived,
    record: Record,
    closer: Closer,
    entered: Entered,
    live: Option<Box<Live>>,
}

impl There {
    /// Makes one connection of it and the application, which then runs to its end.
    pub fn join(self, world: &Rc<PodWorld>, app: Held) -> Option<impl Future<Output = ()> + use<>> {
        let Self { arrived, record, closer, entered, live } = self;
        match carry(world, app, arrived, &record, closer) {
            Ok(running) => Some(Underway::new(running, record, (live, entered))),
            Err(failure) => {
                record.fail(&failure);
                None
            }
        }
    }

    /// The application has gone.
    pub fn give_up(self, failure: Failure) {
        self.record.fail(&failure);
    }
}

/// The far side, reached.
enum Arrived {
    Tunnel(Box<Reached>),
    Plain(Socket),
}

pin_project! {
    /// The way of the bytes. A plain one is in a box, since it is much larger than one by tunnel.
    #[project = Polled]
    enum Running<R> {
        Tunnel { #[pin] relaying: R, _place: Place },
        Plain { splicing: Pin<Box<dyn Future<Output = Ending>>> },
        Ended,
    }
}

impl<R: Future<Output = Ending>> Future for Running<R> {
    type Output = Ending;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ending> {
        let ending = match self.as_mut().project() {
            Polled::Tunnel { relaying, .. } => ready!(relaying.poll(context)),
            Polled::Plain { splicing } => ready!(splicing.as_mut().poll(context)),
            Polled::Ended => return Poll::Pending,
        };
        // The place on the tunnel is free before the record closes.
        self.set(Self::Ended);
        Poll::Ready(ending)
    }
}

/// One connection and where it wants to go.
#[derive(Clone, Copy)]
pub(super) struct Outbound<'a> {
    pub world: &'a Rc<PodWorld>,
    pub source: Source,
    pub target: Captured,
    /// When it was accepted, or its request was read.
    pub since: Instant,
    /// The explicit proxy that it came in by; none where it was captured.
    pub via: Option<Via>,
    /// Other addresses of the host that the client named, for when this one can't be reached.
    pub others: &'a [IpAddr],
}

impl Outbound<'_> {
    /// Reaches the far side. Where that fails, it has been told and counted, and the failure is for the application.
    pub async fn arrive(mut self, app: &Held) -> Result<There, Failure> {
        let shard = &self.world.shard;
        let (mut plan, local) = match self.decide(&[]).await {
            Ok(decided) => decided,
            Err(failure) => {
                let (src, dst) = (self.source.0, self.target.0);
                let denied = Denied { direction: Direction::Outbound, src, dst, name: None, via: self.via };
                deny(self.world, denied, &failure);
                return Err(failure);
            }
        };
        let closer = Closer::default();
        let mut opening = Opening::new(shard, self.about(&plan, &local), self.is_settled(&plan));
        let mut entered = shard.table.enter(self.entry(&plan, &closer));
        let mut tried = Vec::new();
        let arrived = loop {
            let Unreached { failure, untouched } = match self.reach(&plan, &local, app).await {
                Ok(arrived) => break arrived,
                Err(unreached) => unreached,
            };
            note_failure(shard, &plan, &failure);
            let next = if untouched && may_try_again(shard, &opening, &failure) {
                Box::pin(self.elsewhere(&plan, &mut tried)).await
            } else {
                None
            };
            let Some(next) = next else {
                opening.open().fail(&failure);
                return Err(failure);
            };
            bump(&shard.stats.engine.second_tries);
            plan = next;
            opening.again(self.about(&plan, &local));
            drop(entered);
            entered = shard.table.enter(self.entry(&plan, &closer));
        };
        let live = note_success(shard, &plan);
        if let Arrived::Tunnel(reached) = &arrived {
            opening.learn(|about| learn(shard, reached, about));
        }
        let record = opening.open();
        record.reached(self.since);
        record.show_in(&entered);
        Ok(There { arrived, record, closer, entered, live })
    }

    /// Where the connection goes, by one look at one snapshot, once the pod's own record is known.
    async fn decide(&self, tried: &[Text]) -> Result<(Plan, Arc<Workload>), Failure> {
        let shard = &self.world.shard;
        if self_call(self.target, &shard.settings.illegal_ports) {
            return Err(Failure::Refused(Refuse::SelfCall));
        }
        let (mut snapshot, local) = shard.local_workload(&self.world.pod.info).await?;
        if shard.settings.on_demand {
            let missing =
                |snapshot: &Snapshot| demand::outbound(&self.request(snapshot, &local, View::default()));
            snapshot = Box::pin(shard.looked_up(missing)).await?;
        }
        let routed = {
            let seen = shard.seen.borrow();
            let view = view(shard, &seen, tried);
            route(&self.request(&snapshot, &local, view), &mut shard.random.borrow_mut())?
        };
        let plan = match routed {
            Routed::Go(plan) => plan,
            Routed::Resolve(named) => {
                shard.stats.on_demand_dns(principal(&local), &named.host);
                let found = Box::pin(shard.resolved(&named.host)).await;
                named.at(found.as_deref(), &mut shard.random.borrow_mut())?
            }
        };
        Ok((plan, local))
    }

    fn request<'a>(&'a self, snapshot: &'a Snapshot, source: &'a Workload, view: View<'a>) -> Request<'a> {
        let settings = &self.world.shard.settings;
        let (network, ipv6) = (&*settings.network, settings.ipv6);
        let caller = self.caller(source).ip();
        Request { snapshot, network, source, caller, target: self.target, ipv6, view }
    }

    /// Who calls, as others may know it. Behind the loopback stands the pod itself, whose address a captured connection
    /// would have; so both kinds share tunnels.
    fn caller(&self, local: &Workload) -> Source {
        let mut caller = self.source;
        let alike = |ip: &&IpAddr| ip.is_ipv4() == self.target.ip().is_ipv4();
        let own = local.addresses.iter().find(alike).or_else(|| local.addresses.first());
        if let Some(own) = own.filter(|_| self.via.is_some() && caller.ip().is_loopback()) {
            caller.0.set_ip(*own);
        }
        caller
    }

    /// Another plan than the one that failed: at another address of the next hop, else at another endpoint, else at
    /// another address of the host that the client named.
    async fn elsewhere(&mut self, failed: &Plan, tried: &mut Vec<Text>) -> Option<Plan> {
        if let Some(plan) = failed.at_next_address() {
            return Some(plan);
        }
        if failed.picked.is_some()
            && let Some(plan) = self.at_another_endpoint(failed, tried).await
        {
            return Some(plan);
        }
        while let Some((ip, others)) = self.others.split_first() {
            self.target = Captured::new(SocketAddr::new(*ip, self.target.port()));
            self.others = others;
            if let Ok((plan, _)) = Box::pin(self.decide(tried)).await {
                return Some(plan);
            }
        }
        None
    }

    /// Behind one gateway there may be no other, and then another endpoint.
    async fn at_another_endpoint(&self, failed: &Plan, tried: &mut Vec<Text>) -> Option<Plan> {
        let next_hop = failed.destination.as_deref().map(|workload| workload.uid.clone());
        for uid in next_hop.into_iter().chain(failed.picked.clone()) {
            if tried.contains(&uid) {
                continue;
            }
            tried.push(uid);
            if let Ok((plan, _)) = Box::pin(self.decide(tried)).await
                // The mesh may have changed meanwhile; what is passed through now is not what was asked for.
                && plan.picked.is_some()
            {
                return Some(plan);
            }
        }
        None
    }

    async fn reach(&self, plan: &Plan, local: &Arc<Workload>, app: &Held) -> Result<Arrived, Unreached> {
        if plan.carrier == Carrier::Tcp {
            let server = self.world.dial(plan.upstream.0).await.map_err(|error| {
                if error.kind() == ErrorKind::TimedOut {
                    Failure::ConnectDeadline
                } else {
                    Failure::io(&error)
                }
            })?;
            return Ok(Arrived::Plain(server));
        }
        let asker = Asker::new(self.world, self.caller(local), local, plan);
        let reached = Box::pin(asker.reach(self.world, &asker.key(plan), Some(app))).await?;
        Ok(Arrived::Tunnel(Box::new(reached)))
    }

    fn entry(&self, plan: &Plan, closer: &Closer) -> Entry {
        Entry {
            pod: self.world.pod.uid.clone(),
            src: self.source.0,
            original: Original::Captured(self.target.0),
            actual_dst: plan.upstream.0,
            protocol: match plan.carrier {
                Carrier::Tcp => LiveProtocol::Tcp,
                Carrier::Hbone => LiveProtocol::Hbone,
                Carrier::DoubleHbone { .. } => LiveProtocol::DoubleHbone,
            },
            closer: closer.clone(),
            subject: None,
            detail: None,
        }
    }

    fn about(&self, plan: &Plan, local: &Arc<Workload>) -> About {
        let tunnelled = plan.carrier != Carrier::Tcp;
        let destination_identity = plan.destination.as_deref().map(Workload::identity);
        About {
            pod: self.world.tally.clone(),
            reporter: Reporter::Source,
            src_addr: self.source.0,
            dst_addr: plan.upstream.0,
            hbone_addr: plan.authority.clone(),
            source: Side::of(Some(local.clone()), tunnelled.then(|| local.identity())),
            destination: Side::of(plan.destination.clone(), destination_identity),
            service: plan.service.clone(),
            security: if tunnelled { Security::MutualTls } else { Security::Unknown },
            via: self.via,
        }
    }

    /// Whether the way is the only one, and what it will be called is known now.
    fn is_settled(&self, plan: &Plan) -> bool {
        let nested = matches!(plan.carrier, Carrier::DoubleHbone { .. });
        let is_only = plan.picked.is_none() && plan.other_addresses.is_empty() && self.others.is_empty();
        !nested && (is_only || self.world.shard.settings.retries == 0)
    }
}

fn view<'a>(shard: &Shard, seen: &'a Seen, tried: &'a [Text]) -> View<'a> {
    let least_connections = shard.settings.least_connections;
    View { tried, seen: Some((seen, Instant::now())), least_connections, notes: None }
}

fn may_try_again(shard: &Shard, opening: &Opening, failure: &Failure) -> bool {
    let window = Duration::from_millis(limits::RETRY_WINDOW_MS);
    failure.another_may_do()
        && opening.attempts() <= shard.settings.retries
        && opening.started().elapsed() < window
}

fn carry(
    world: &Rc<PodWorld>,
    app: Held,
    arrived: Arrived,
    record: &Record,
    closer: Closer,
) -> Result<Running<impl Future<Output = Ending> + use<>>, Failure> {
    let meter = record.meter().clone();
    let client = app.reached();
    let Reached { place, unrelayed, ahead, .. } = match arrived {
        Arrived::Tunnel(reached) => *reached,
        Arrived::Plain(server) => {
            let (buffers, clean) = (world.shard.buffers.clone(), Cell::new(false));
            let splice = Splice { client, server, meter, buffers, closer, clean };
            return Ok(Running::Plain { splicing: Box::pin(splice.run()) });
        }
    };
    take_ahead(world, &client, ahead).map_err(|error| Failure::io(&error))?;
    meter.add(Way::ToServer, ahead);
    closer.wake(unrelayed.stream.signal.clone());
    let relay = StreamRelay {
        app: Rc::new(client),
        tunnel: place.tunnel().clone(),
        stream: unrelayed.relayed(),
        meter,
        closer,
        clean: Cell::new(false),
    };
    Ok(Running::Tunnel { relaying: relay.run(), _place: place })
}

/// An endpoint among others that can't be reached is left out for a while.
fn note_failure(shard: &Shard, plan: &Plan, failure: &Failure) {
    let was_last = plan.picked.is_some() && plan.other_addresses.is_empty();
    let Some(workload) = plan.destination.as_deref().filter(|_| was_last) else { return };
    // A waypoint's or gateway's answer says something of what lies behind it.
    let blamed = !matches!(failure, Failure::Status(_)) || plan.ends_at_next_hop();
    if blamed && failure.another_may_do() && !shard.settings.ejection.is_zero() {
        bump(&shard.stats.engine.ejections);
        shard.seen.borrow_mut().eject(&workload.uid, plan.port(), Instant::now(), shard.settings.ejection);
    }
}

fn note_success(shard: &Rc<Shard>, plan: &Plan) -> Option<Box<Live>> {
    let picked = plan.picked.as_ref()?;
    let mut seen = shard.seen.borrow_mut();
    if let Some(next_hop) = plan.destination.as_deref() {
        seen.welcome_back(&next_hop.uid, || plan.port());
    }
    if !shard.settings.least_connections {
        return None;
    }
    seen.enter(picked);
    Some(Box::new(Live { shard: shard.clone(), uid: picked.clone() }))
}

/// Counts a connection at its endpoint.
struct Live {
    shard: Rc<Shard>,
    uid: Text,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shard.seen.borrow_mut().leave(&self.uid);
    }
}

/// Through another network's gateway, the far end tells who it is; what can't be read leaves the gateway's name.
fn learn(shard: &Shard, reached: &Reached, about: &mut About) {
    if matches!(reached.place, Place::Single(_)) {
        return;
    }
    about.destination.identity = reached.place.tunnel().peer.identity.clone();
    let told: Vec<&[u8]> = reached.baggage.iter().map(Vec::as_slice).collect();
    if shard.settings.response_baggage
        && let Some(baggage) = parse_baggage_if_visible(&told)
    {
        about.destination.workload = None;
        about.destination.told = Some(Box::new(baggage.party()));
    }
}

fn principal(local: &Arc<Workload>) -> Party {
    Party { principal: Some(local.identity()), ..Party::of(local) }
}
