//! A pod's application calls somebody: port 15001. Captured address -> plan -> tunnel or plain dial -> relay.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::limits;
use crate::base::net::{Captured, Source};
use crate::bridge::report::LiveProtocol;
use crate::mesh::demand;
use crate::mesh::labels::{Reporter, Security};
use crate::mesh::route::{Carrier, Plan, Refuse, Request, Routed, route, self_call};
use crate::mesh::seen::View;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;
use crate::path::record::{About, Record, Side, deny_early, outcome};
use crate::path::unrelayed::Unrelayed;
use crate::shard::closer::Closer;
use crate::shard::failure::{Failure, Status};
use crate::shard::link::dial_tunnel;
use crate::shard::meter::Way;
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::pool::{Key, Reservation};
use crate::shard::relay::{Ending, StreamRelay};
use crate::shard::socket::{Held, Socket};
use crate::shard::splice::Splice;
use crate::shard::stream::{Answer, Cut, Stream};
use crate::shard::table::{Entered, Entry, Original};
use crate::shard::tunnel::Tunnel;
use crate::shard::within;
use crate::sys::origdst::original_destination;
use crate::wire::access_log::Direction;
use crate::wire::h2::ConnectHead;
use crate::wire::hbone::{baggage_of, forwarded, traceparent};

/// Carries one captured connection to its end.
pub async fn serve(world: Rc<PodWorld>, accepted: Accepted) {
    let Accepted { fd, source, counted: _counted } = accepted;
    // Getting there needs much more room than being there, so it is given back on arrival.
    let Some(underway) = Box::pin(prepare(&world, fd, source)).await else { return };
    drop(world);
    let Underway { running, record, entered: _entered } = underway;
    record.close(outcome(running.await));
}

/// A connection that has arrived on both sides.
struct Underway {
    running: Pin<Box<dyn Future<Output = Ending>>>,
    record: Record,
    entered: Entered,
}

enum Carried {
    Tunnel(StreamRelay, Reservation),
    Plain(Splice),
}

impl Carried {
    /// In a box of the size that it needs: a tunnelled connection is half as large as a plain one.
    fn run(self) -> Pin<Box<dyn Future<Output = Ending>>> {
        match self {
            Self::Tunnel(relay, reservation) => Box::pin(async move {
                let ending = relay.run().await;
                drop(reservation);
                ending
            }),
            Self::Plain(splice) => Box::pin(splice.run()),
        }
    }
}

async fn prepare(world: &Rc<PodWorld>, fd: OwnedFd, source: Source) -> Option<Underway> {
    let shard = &world.shard;
    let target = original_destination(fd.as_fd()).ok()?;
    let app = Socket::new(fd).ok()?;
    let (plan, local) = match decide(world, source, target).await {
        Ok(decided) => decided,
        Err(failure) => {
            deny_early(shard, Direction::Outbound, source.0, target.0, &failure);
            app.abort();
            return None;
        }
    };
    let record = Record::open(shard, about(&plan, source, &local));
    let closer = Closer::default();
    let entered = shard.table.enter(entry(world, source, target, &plan, closer.clone()));
    let carried = match plan.carrier {
        Carrier::Tcp => splice(world, app, &plan, &record, closer).await,
        Carrier::Hbone | Carrier::DoubleHbone { .. } => {
            tunnel(world, app, source, &local, &plan, &record, closer).await
        }
    };
    match carried {
        Ok(carried) => Some(Underway { running: carried.run(), record, entered }),
        Err(failure) => {
            record.close(Err(failure));
            None
        }
    }
}

/// Where the connection goes, by one look at one snapshot, once the pod's own record is known.
async fn decide(
    world: &Rc<PodWorld>,
    source: Source,
    target: Captured,
) -> Result<(Plan, Arc<Workload>), Failure> {
    let shard = &world.shard;
    if self_call(target, &shard.settings.illegal_ports) {
        return Err(Failure::Refused(Refuse::SelfCall));
    }
    let (mut snapshot, local) = shard.local_workload(&world.pod.info).await?;
    if shard.settings.on_demand {
        let missing =
            |snapshot: &Snapshot| demand::outbound(&request(world, snapshot, &local, source, target));
        snapshot = Box::pin(shard.looked_up(missing)).await?;
    }
    let plan =
        match route(&request(world, &snapshot, &local, source, target), &mut shard.random.borrow_mut())? {
            Routed::Go(plan) if !matches!(plan.carrier, Carrier::DoubleHbone { .. }) => plan,
            Routed::Go(_) => return Err(Refuse::Unsupported("a destination in another network").into()),
            Routed::Resolve(_) => {
                return Err(Refuse::Unsupported("a workload known by its host name only").into());
            }
        };
    Ok((plan, local))
}

fn request<'a>(
    world: &'a PodWorld,
    snapshot: &'a Snapshot,
    source: &'a Workload,
    caller: Source,
    target: Captured,
) -> Request<'a> {
    let settings = &world.shard.settings;
    let (network, ipv6) = (&*settings.network, settings.ipv6);
    Request { snapshot, network, source, caller: caller.ip(), target, ipv6, view: View::default() }
}

async fn splice(
    world: &Rc<PodWorld>,
    client: Socket,
    plan: &Plan,
    record: &Record,
    closer: Closer,
) -> Result<Carried, Failure> {
    let held = Held::new(client);
    let server = world.dial(plan.upstream.0, None).await.map_err(|error| {
        if error.kind() == ErrorKind::TimedOut { Failure::ConnectDeadline } else { Failure::io(&error) }
    })?;
    let client = held.reached();
    let (meter, buffers) = (record.meter().clone(), world.shard.buffers.clone());
    Ok(Carried::Plain(Splice { client, server, meter, buffers, closer, clean: Cell::new(false) }))
}

async fn tunnel(
    world: &Rc<PodWorld>,
    app: Socket,
    source: Source,
    local: &Arc<Workload>,
    plan: &Plan,
    record: &Record,
    closer: Closer,
) -> Result<Carried, Failure> {
    let held = Held::new(app);
    let Reached { reservation, unrelayed, ahead } = reach(world, source, local, plan, &held).await?;
    let app = held.reached();
    take_ahead(world, &app, ahead).map_err(|error| Failure::io(&error))?;
    record.meter().add(Way::ToServer, ahead);
    closer.wake(unrelayed.stream.signal.clone());
    let relay = StreamRelay {
        app: Rc::new(app),
        tunnel: reservation.tunnel.clone(),
        stream: unrelayed.relayed(),
        meter: record.meter().clone(),
        buffers: world.shard.buffers.clone(),
        way: Way::ToServer,
        closer,
        clean: false,
    };
    Ok(Carried::Tunnel(relay, reservation))
}

/// A stream whose CONNECT was answered with 200.
struct Reached {
    reservation: Reservation,
    unrelayed: Unrelayed,
    /// Bytes of the application that went ahead and still stand in its socket.
    ahead: usize,
}

async fn reach(
    world: &Rc<PodWorld>,
    source: Source,
    local: &Arc<Workload>,
    plan: &Plan,
    app: &Held,
) -> Result<Reached, Failure> {
    let key = Key {
        source: source.ip(),
        identity: local.identity(),
        expected: plan.expected.clone(),
        destination: plan.upstream.0,
    };
    let host = plan.service.as_deref().map(|service| &*service.key.hostname);
    let (baggage, forwarded) = (baggage_of(local), forwarded(source.0, host));
    let traceparent = traceparent(&mut world.shard.random.borrow_mut());
    let head = ConnectHead {
        authority: plan.authority.as_deref().unwrap_or_default(),
        baggage: Some(&*baggage).filter(|baggage| !baggage.is_empty()),
        forwarded: Some(&forwarded),
        traceparent: Some(&traceparent),
        x_forwarded_network: None,
    };
    let first = acquire(world, &key).await?;
    let call = Call { world, key: &key, head: &head, app };
    let asked = within(limits::CONNECT_ANSWER_DEADLINE_MS, call.ask_again(first)).await;
    asked.ok_or(Failure::ConnectDeadline)?
}

async fn acquire(world: &Rc<PodWorld>, key: &Key) -> Result<Reservation, Failure> {
    world.pool.acquire(key, || dial_tunnel(world.clone(), key.clone())).await
}

/// Why a request came to nothing.
enum Unasked {
    /// The tunnel was full, going away or lost before it answered: another may do better.
    Unheard(Failure),
    Answered(Failure),
}

/// One connection's request, asked of one tunnel or another.
struct Call<'a> {
    world: &'a Rc<PodWorld>,
    key: &'a Key,
    head: &'a ConnectHead<'a>,
    app: &'a Held,
}

impl Call<'_> {
    /// Asks on one tunnel after another, a bounded number of times: nothing has been taken from the application yet,
    /// so a request that no tunnel answered may be made again.
    async fn ask_again(&self, mut reservation: Reservation) -> Result<Reached, Failure> {
        let mut tries = 1;
        loop {
            match self.ask(&reservation.tunnel).await {
                Ok((unrelayed, ahead)) => return Ok(Reached { reservation, unrelayed, ahead }),
                Err(Unasked::Unheard(_)) if tries < limits::TUNNEL_TRIES => tries += 1,
                Err(Unasked::Unheard(failure) | Unasked::Answered(failure)) => return Err(failure),
            }
            drop(reservation);
            reservation = acquire(self.world, self.key).await?;
        }
    }

    async fn ask(&self, tunnel: &Rc<Tunnel>) -> Result<(Unrelayed, usize), Unasked> {
        let stream =
            tunnel.open(self.head).map_err(|error| Unasked::Unheard(Failure::Http2(error.to_string())))?;
        let asked = Unrelayed::new(tunnel.clone(), stream);
        let ahead = self.send_ahead(tunnel, &asked.stream);
        match answer_of(&asked.stream).await {
            Ok(Answer { status: 200, .. }) => Ok((asked, ahead)),
            Ok(Answer { status, .. }) => Err(Unasked::Answered(Failure::Status(Status(status)))),
            Err(cut) => {
                let failure = Failure::Http2(format!("no answer: {cut}"));
                // Lost with its tunnel, what went ahead may have reached the application there: never send it twice.
                let unheard = cut.may_try_again() && (ahead == 0 || cut != Cut::Lost);
                Err(if unheard { Unasked::Unheard(failure) } else { Unasked::Answered(failure) })
            }
        }
    }

    /// Sends what the application has said already in one record with the request, so that a caller that speaks
    /// first waits a round trip less (decisions/first-bytes-with-the-request.md). The bytes stay in the socket.
    fn send_ahead(&self, tunnel: &Rc<Tunnel>, stream: &Rc<Stream>) -> usize {
        let Some(app) = self.app.socket() else { return 0 };
        let mut scratch = self.world.shard.buffers.bulk.borrow_mut();
        let room = tunnel.capacity(stream).min(limits::AHEAD_BYTES);
        let first = scratch.get_mut(..room).unwrap_or_default();
        // The end and an error show again when the relay reads.
        let said = if first.is_empty() { 0 } else { app.peek(first).unwrap_or(0) };
        if said > 0 {
            tunnel.send_small(stream, first.get(..said).unwrap_or_default());
        }
        said
    }
}

/// Takes from the application what was sent ahead of the answer.
fn take_ahead(world: &PodWorld, app: &Socket, ahead: usize) -> io::Result<()> {
    let mut scratch = world.shard.buffers.bulk.borrow_mut();
    let mut left = ahead;
    while left > 0 {
        match app.receive(scratch.get_mut(..left).unwrap_or_default())? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            taken => left -= taken,
        }
    }
    Ok(())
}

async fn answer_of(stream: &Stream) -> Result<Answer, Cut> {
    loop {
        if let Some(answer) = stream.take_answer() {
            return Ok(answer);
        }
        if let Some(cut) = stream.cut() {
            return Err(cut);
        }
        stream.signal.wait().await;
    }
}

fn about(plan: &Plan, source: Source, local: &Arc<Workload>) -> About {
    let tunnelled = plan.carrier == Carrier::Hbone;
    let destination_identity = plan.destination.as_deref().map(Workload::identity);
    About {
        reporter: Reporter::Source,
        src_addr: source.0,
        dst_addr: plan.upstream.0,
        hbone_addr: plan.authority.clone(),
        source: Side::of(Some(local.clone()), tunnelled.then(|| local.identity())),
        destination: Side::of(plan.destination.clone(), destination_identity),
        service: plan.service.clone(),
        security: if tunnelled { Security::MutualTls } else { Security::Unknown },
    }
}

fn entry(world: &PodWorld, source: Source, target: Captured, plan: &Plan, closer: Closer) -> Entry {
    Entry {
        pod: world.pod.uid.clone(),
        src: source.0,
        original: Original::Captured(target.0),
        actual_dst: plan.upstream.0,
        protocol: match plan.carrier {
            Carrier::Tcp => LiveProtocol::Tcp,
            Carrier::Hbone => LiveProtocol::Hbone,
            Carrier::DoubleHbone { .. } => LiveProtocol::DoubleHbone,
        },
        closer,
        subject: None,
    }
}
