//! Reaching the far side of an outbound connection by tunnel: a place on a tunnel, single or nested, a CONNECT on it,
//! and its answer. Nothing is taken from the application before that answer.

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;

use crate::base::limits;
use crate::base::net::Source;
use crate::base::text::Text;
use crate::mesh::identity::Identity;
use crate::mesh::plan::{Carrier, Plan};
use crate::mesh::workload::Workload;
use crate::path::nested::dial_nested;
use crate::path::unrelayed::Unrelayed;
use crate::shard::failure::{Failure, Status};
use crate::shard::link::dial_tunnel;
use crate::shard::nested::Nested;
use crate::shard::pod::PodWorld;
use crate::shard::pool::{Key, Reservation};
use crate::shard::socket::{Held, Socket};
use crate::shard::stream::{Answer, Cut, Stream};
use crate::shard::tunnel::Tunnel;
use crate::shard::within;
use crate::wire::h2::ConnectHead;
use crate::wire::hbone::{baggage_of, forwarded, traceparent};

/// Who asks, and for what: all that a CONNECT says.
#[derive(Clone)]
pub(super) struct Asker {
    identity: Identity,
    source: Source,
    authority: Text,
    baggage: String,
    forwarded: String,
    traceparent: String,
    /// The network that a nested request says it comes from.
    network: Text,
}

/// A stream whose CONNECT was answered with 200.
pub(super) struct Reached {
    pub place: Place,
    pub unrelayed: Unrelayed,
    /// Bytes of the application that went ahead and still stand in its socket.
    pub ahead: usize,
    pub baggage: Option<Vec<u8>>,
}

/// Why the far side wasn't reached.
pub(super) struct Unreached {
    pub failure: Failure,
    /// Whether nothing of the application can have got there, so that it may be tried elsewhere.
    pub untouched: bool,
}

impl From<Failure> for Unreached {
    fn from(failure: Failure) -> Self {
        Self { failure, untouched: true }
    }
}

/// A place for one stream.
pub(super) enum Place {
    Single(Reservation),
    Nested(Reservation<Nested>),
}

impl Place {
    pub fn tunnel(&self) -> &Rc<Tunnel> {
        match self {
            Self::Single(reservation) => &reservation.tunnel,
            Self::Nested(reservation) => &reservation.tunnel.tunnel,
        }
    }
}

impl Asker {
    pub fn new(world: &PodWorld, source: Source, local: &Arc<Workload>, plan: &Plan) -> Self {
        let host = plan.service.as_deref().map(|service| &*service.key.hostname);
        Self {
            identity: local.identity(),
            source,
            authority: plan.authority.clone().unwrap_or_default(),
            baggage: baggage_of(local),
            forwarded: forwarded(source.0, host),
            traceparent: traceparent(&mut world.shard.random.borrow_mut()),
            network: world.shard.settings.network.clone(),
        }
    }

    /// The pool's key of a plan that goes by tunnel.
    pub fn key(&self, plan: &Plan) -> Key {
        let inner = match &plan.carrier {
            Carrier::DoubleHbone { expected } => Some(expected.clone()),
            Carrier::Tcp | Carrier::Hbone => None,
        };
        Key {
            source: self.source.ip(),
            identity: self.identity.clone(),
            expected: plan.expected.clone(),
            destination: plan.upstream.0,
            // Each service has backends of its own behind the gateway.
            authority: inner.is_some().then(|| self.authority.clone()),
            inner,
        }
    }

    /// A stream by this key. `app`: whose first words go ahead with the request.
    pub async fn reach(
        &self,
        world: &Rc<PodWorld>,
        key: &Key,
        app: Option<&Held>,
    ) -> Result<Reached, Unreached> {
        let head = ConnectHead {
            authority: &self.authority,
            baggage: Some(&*self.baggage).filter(|baggage| !baggage.is_empty()),
            forwarded: Some(&self.forwarded),
            traceparent: Some(&self.traceparent),
            x_forwarded_network: key.inner.is_some().then_some(&*self.network),
        };
        let first = self.acquire(world, key).await?;
        let call = Call { asker: self, world, key, head: &head, app };
        let asked = within(limits::CONNECT_ANSWER_DEADLINE_MS, call.ask_again(first)).await;
        // Nobody knows what the far side did with a request that it didn't answer.
        asked.unwrap_or(Err(Unreached { failure: Failure::ConnectDeadline, untouched: false }))
    }

    async fn acquire(&self, world: &Rc<PodWorld>, key: &Key) -> Result<Place, Failure> {
        if key.inner.is_none() {
            let dial = || dial_tunnel(world.clone(), key.clone());
            return Ok(Place::Single(world.pool.acquire(key, dial).await?));
        }
        let dial = || dial_nested(world.clone(), key.clone(), self.clone());
        let reservation = Box::pin(world.nested.acquire(key, dial)).await?;
        reservation.tunnel.carry();
        Ok(Place::Nested(reservation))
    }
}

/// Why a request came to nothing.
enum Unasked {
    /// The tunnel was full, going away or lost before it answered: another may do better.
    Unheard(Failure),
    Answered(Failure),
    /// There was no answer, and what went ahead may have reached the application there.
    Doubtful(Failure),
}

/// One connection's request, asked of one tunnel or another.
struct Call<'a> {
    asker: &'a Asker,
    world: &'a Rc<PodWorld>,
    key: &'a Key,
    head: &'a ConnectHead<'a>,
    app: Option<&'a Held>,
}

impl Call<'_> {
    /// Asks on one tunnel after another, a bounded number of times: nothing has been taken from the application yet,
    /// so a request that no tunnel answered may be made again.
    async fn ask_again(&self, mut place: Place) -> Result<Reached, Unreached> {
        let mut tries = 1;
        loop {
            match self.ask(place.tunnel()).await {
                Ok((unrelayed, ahead, baggage)) => return Ok(Reached { place, unrelayed, ahead, baggage }),
                Err(Unasked::Unheard(_)) if tries < limits::TUNNEL_TRIES => tries += 1,
                Err(Unasked::Unheard(failure) | Unasked::Answered(failure)) => return Err(failure.into()),
                Err(Unasked::Doubtful(failure)) => return Err(Unreached { failure, untouched: false }),
            }
            drop(place);
            place = self.asker.acquire(self.world, self.key).await?;
        }
    }

    async fn ask(&self, tunnel: &Rc<Tunnel>) -> Result<(Unrelayed, usize, Option<Vec<u8>>), Unasked> {
        let stream =
            tunnel.open(self.head).map_err(|error| Unasked::Unheard(Failure::Http2(error.to_string())))?;
        let asked = Unrelayed::new(tunnel.clone(), stream);
        let ahead = self.send_ahead(tunnel, &asked.stream);
        match answer_of(&asked.stream).await {
            Ok(Answer { status: 200, baggage }) => Ok((asked, ahead, baggage)),
            // Without a tunnel the far side has handed nothing on (RFC 9113 section 8.5).
            Ok(Answer { status, .. }) => Err(Unasked::Answered(Failure::Status(Status(status)))),
            Err(Cut::Revoked) if ahead == 0 => Err(Unasked::Answered(Failure::Revoked)),
            Err(Cut::Revoked) => Err(Unasked::Doubtful(Failure::Revoked)),
            Err(cut) => {
                let failure = Failure::Http2(format!("no answer: {cut}"));
                Err(match cut {
                    Cut::Lost | Cut::Broken(_) if ahead == 0 => Unasked::Unheard(failure),
                    // The peer has not looked at it (RFC 9113 section 8.7).
                    Cut::Reset(_) if cut.may_try_again() => Unasked::Unheard(failure),
                    Cut::Reset(_) if ahead == 0 => Unasked::Answered(failure),
                    Cut::Lost | Cut::Broken(_) | Cut::Reset(_) | Cut::Revoked => Unasked::Doubtful(failure),
                })
            }
        }
    }

    /// Sends what the application has said already in one record with the request, so that a caller that speaks
    /// first waits a round trip less (decisions/first-bytes-with-the-request.md). The bytes stay in the socket.
    fn send_ahead(&self, tunnel: &Rc<Tunnel>, stream: &Rc<Stream>) -> usize {
        let Some(app) = self.app.and_then(Held::socket) else { return 0 };
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
pub(super) fn take_ahead(world: &PodWorld, app: &Socket, ahead: usize) -> io::Result<()> {
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
