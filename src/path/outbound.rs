//! A pod's application calls somebody: port 15001. Captured address -> plan -> tunnel or plain dial -> relay.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::limits;
use crate::base::net::{Captured, Source};
use crate::bridge::report::LiveProtocol;
use crate::mesh::labels::{Reporter, Security};
use crate::mesh::route::{Carrier, Plan, Refuse, Request, route, self_call};
use crate::mesh::workload::Workload;
use crate::path::record::{About, Record, Side, deny_early, outcome};
use crate::shard::closer::Closer;
use crate::shard::failure::{Failure, Status};
use crate::shard::link::dial_tunnel;
use crate::shard::meter::Way;
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::pool::{Key, Reservation};
use crate::shard::relay::{Ending, StreamRelay};
use crate::shard::socket::Socket;
use crate::shard::splice::Splice;
use crate::shard::stream::{Answer, Stream};
use crate::shard::table::{Entered, Entry, Original};
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
        Carrier::Hbone => tunnel(world, app, source, &local, &plan, &record, closer).await,
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
    let (snapshot, local) = shard.local_workload(&world.pod.info).await?;
    let request = Request {
        snapshot: &snapshot,
        network: &shard.settings.network,
        source: &local,
        caller: source.ip(),
        target,
        ipv6: shard.settings.ipv6,
    };
    let plan = route(&request, &mut shard.random.borrow_mut())?;
    Ok((plan, local))
}

async fn splice(
    world: &Rc<PodWorld>,
    client: Socket,
    plan: &Plan,
    record: &Record,
    closer: Closer,
) -> Result<Carried, Failure> {
    let server = match world.dial(plan.upstream.0, None).await {
        Ok(server) => server,
        Err(error) => {
            client.abort();
            return Err(match error.kind() {
                ErrorKind::TimedOut => Failure::ConnectDeadline,
                _ => Failure::io(&error),
            });
        }
    };
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
    let (reservation, stream) = match open_stream(world, source, local, plan).await {
        Ok(opened) => opened,
        Err(failure) => {
            app.abort();
            return Err(failure);
        }
    };
    closer.wake(stream.signal.clone());
    let relay = StreamRelay {
        app: Rc::new(app),
        stream,
        tunnel: reservation.tunnel.clone(),
        meter: record.meter().clone(),
        buffers: world.shard.buffers.clone(),
        way: Way::ToServer,
        closer,
        clean: false,
    };
    // Where it isn't 200, dropping the relay resets both sides.
    let answer = within(limits::CONNECT_ANSWER_DEADLINE_MS, answer_of(&relay.stream)).await;
    match answer.ok_or(Failure::ConnectDeadline)??.status {
        200 => Ok(Carried::Tunnel(relay, reservation)),
        status => Err(Failure::Status(Status(status))),
    }
}

/// Asks for a stream on a pooled tunnel. A tunnel that was found full or going away in the meantime is left for
/// another one, a bounded number of times.
async fn open_stream(
    world: &Rc<PodWorld>,
    source: Source,
    local: &Arc<Workload>,
    plan: &Plan,
) -> Result<(Reservation, Rc<Stream>), Failure> {
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
    let mut refused = None;
    for _ in 0..limits::TUNNEL_TRIES {
        let reservation = world.pool.acquire(&key, || dial_tunnel(world.clone(), key.clone())).await?;
        match reservation.tunnel.open(&head) {
            Ok(stream) => return Ok((reservation, stream)),
            Err(error) => refused = Some(error),
        }
    }
    Err(Failure::Http2(refused.map_or_else(String::new, |error| error.to_string())))
}

async fn answer_of(stream: &Stream) -> Result<Answer, Failure> {
    loop {
        if let Some(answer) = stream.take_answer() {
            return Ok(answer);
        }
        if let Some(code) = stream.reset_by_peer() {
            return Err(Failure::Http2(format!("stream reset before the answer: {code}")));
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
        },
        closer,
        subject: None,
    }
}
