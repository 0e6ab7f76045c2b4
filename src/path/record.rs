//! The record of one connection: opened once, closed once on every exit, in metrics and access log alike.
//! A record that is dropped unclosed belongs to a task that was ended: that is an exit too.

use std::fmt::Display;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::base::level::Level;
use crate::base::limits;
use crate::base::text::{Text, beginning};
use crate::bridge::flow::{FlowEnd, FlowVerdict, Parties};
use crate::mesh::identity::Identity;
use crate::mesh::labels::{Flag, Labels, Party, Reporter, Security, ServiceLabels};
use crate::mesh::service::Service;
use crate::mesh::workload::Workload;
use crate::shard::Shard;
use crate::shard::closer::CloseReason;
use crate::shard::ending::Ending;
use crate::shard::failure::{Failure, Status};
use crate::shard::flows::{Describe, Ended};
use crate::shard::meter::{Meter, Way};
use crate::shard::pod::PodWorld;
use crate::shard::stats::bump;
use crate::shard::table::Entered;
use crate::shard::tally::Tally;
use crate::wire::access_log::{AccessLine, Direction, End, Event, HboneAddr, Ours, Via};

const MILLION: u32 = 1_000_000;

/// One end of a connection, as far as it is known.
#[derive(Clone, Default)]
pub struct Side {
    pub workload: Option<Arc<Workload>>,
    /// What the peer says of itself, where the workload isn't known.
    pub told: Option<Box<Party>>,
    /// `*_principal`; in the log only where the connection is protected by mutual TLS.
    pub identity: Option<Identity>,
}

/// What is known of a connection when its record opens.
pub struct About {
    /// Whose connection it is.
    pub pod: Rc<Tally>,
    pub reporter: Reporter,
    pub src_addr: SocketAddr,
    /// Outbound: the next hop. Inbound HBONE: the address of port 15008 that the tunnel came to.
    pub dst_addr: SocketAddr,
    /// The authority of the CONNECT.
    pub hbone_addr: Option<Text>,
    pub source: Side,
    pub destination: Side,
    pub service: Option<Arc<Service>>,
    pub security: Security,
    /// The explicit proxy that it came in by.
    pub via: Option<Via>,
}

/// See above. Small, since every live connection's task holds one.
pub struct Record {
    shard: Rc<Shard>,
    about: Rc<About>,
    attempts: u16,
    meter: Rc<Meter>,
    closed: bool,
}

impl Record {
    /// Counts a connection as opened.
    pub fn open(shard: &Rc<Shard>, about: About) -> Self {
        Self::open_since(shard, about, Instant::now(), 1)
    }

    /// The same for one that has been underway since then, and has tried so many endpoints.
    pub fn open_since(shard: &Rc<Shard>, about: About, started: Instant, attempts: u32) -> Self {
        let counters = shard.stats.of(about.labels());
        counters.open();
        about.pod.opened();
        let meter = Meter::new(counters, started);
        let attempts = u16::try_from(attempts).unwrap_or(u16::MAX);
        let (shard, about) = (shard.clone(), Rc::new(about));
        let record = Self { shard, about, attempts, meter, closed: false };
        record.write(Event::Opened, Duration::ZERO, None, None);
        record
    }

    pub fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }

    /// From here on, operators are told of the live connection what this record knows.
    pub fn show_in(&self, entered: &Entered) {
        entered.describe(self.about.clone(), self.meter.clone());
    }

    /// The far side is there, and bytes may flow. `since`: when the connection was accepted, or its request was read.
    pub fn reached(&self, since: Instant) {
        let now = Instant::now();
        let setup_ms = now.saturating_duration_since(self.meter.started).as_millis();
        self.meter.setup_ms.set(Some(u32::try_from(setup_ms).unwrap_or(u32::MAX)));
        let timings = &self.shard.stats.timings;
        let setup = match self.about.reporter {
            Reporter::Source => &timings.setup_outbound,
            Reporter::Destination => &timings.setup_inbound,
        };
        setup.record(now.saturating_duration_since(since));
    }

    /// Its bytes were relayed, and now that is over: counts it as closed, and writes its line.
    pub fn end(mut self, ending: Ending) {
        match ending {
            Ending::Finished => self.settle(None, None),
            Ending::Reset => self.settle(None, Some("reset")),
            Ending::Failed(Way::ToServer, fault) => self.settle_failed(&Failure::Send(fault)),
            Ending::Failed(Way::ToClient, fault) => self.settle_failed(&Failure::Receive(fault)),
            Ending::Closed(reason) => self.settle_failed(&closed(reason)),
        }
    }

    /// The same for one that could not be carried.
    pub fn fail(mut self, failure: &Failure) {
        self.settle_failed(failure);
    }

    fn settle_failed(&mut self, failure: &Failure) {
        self.settle(Some(failure), Some(failure.reason()));
    }

    fn settle(&mut self, failure: Option<&Failure>, reason: Option<&'static str>) {
        self.closed = true;
        let flag = failure.map_or(Flag::None, Failure::flag);
        self.meter.counters().close(flag);
        let lasted = self.meter.started.elapsed();
        let error = failure.map(|failure| failure as &dyn Display);
        self.write(Event::Complete, lasted, error, reason);
        let (sent_bytes, received_bytes) = self.sent_and_received();
        let verdict = verdict(failure);
        self.about.pod.ended(verdict, sent_bytes, received_bytes);
        self.shard.flows.push(Ended {
            at: SystemTime::now(),
            lasted,
            about: self.about.clone(),
            sent_bytes,
            received_bytes,
            attempts: self.attempts.into(),
            verdict,
            error: failure.map(told),
        });
    }

    /// As the log tells it: outbound, client to server; inbound, server to client.
    fn sent_and_received(&self) -> (u64, u64) {
        let (to_server, to_client) = (self.meter.to_server(), self.meter.to_client());
        match self.about.reporter {
            Reporter::Source => (to_server, to_client),
            Reporter::Destination => (to_client, to_server),
        }
    }

    fn write(
        &self,
        event: Event,
        duration: Duration,
        error: Option<&dyn Display>,
        reason: Option<&'static str>,
    ) {
        let about = &self.about;
        let mutual = about.security == Security::MutualTls;
        let (bytes_sent, bytes_recv) = self.sent_and_received();
        let line = AccessLine {
            event,
            src_addr: about.src_addr,
            src: about.source.end(mutual, SOURCE_NAME),
            dst_addr: about.dst_addr,
            dst_name: None,
            dst_hbone_addr: about.hbone_addr.as_deref().map(hbone_addr),
            dst_service: about.service.as_ref().map(|service| &*service.key.hostname),
            dst: about.destination.end(mutual, DESTINATION_NAME),
            direction: about.direction(),
            bytes_sent,
            bytes_recv,
            duration,
            error,
            ours: Ours {
                reason,
                attempts: self.attempts.into(),
                setup: self.meter.setup_ms.get().map(|setup_ms| Duration::from_millis(setup_ms.into())),
                shard: self.shard.index,
                via: about.via,
            },
        };
        write_line(&self.shard, &line);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.closed {
            self.settle_failed(&Failure::Drained);
        }
    }
}

/// The failure that closing a connection from outside is.
pub fn closed(reason: CloseReason) -> Failure {
    match reason {
        CloseReason::PolicyChange => Failure::PolicyChange,
        CloseReason::WaypointChange => Failure::WaypointChange,
        CloseReason::Revoked => Failure::Revoked,
        CloseReason::HalfCloseIdle => Failure::HalfCloseIdle,
    }
}

/// A failure in words that are kept: some of them may be a peer's.
fn told(failure: &Failure) -> Text {
    beginning(&failure.to_string(), limits::FLOW_ERROR_BYTES).into()
}

/// What an ending means to operators. 401 is how the far side says that a policy of its own refuses.
fn verdict(failure: Option<&Failure>) -> FlowVerdict {
    match failure {
        None => FlowVerdict::Allowed,
        Some(Failure::Status(Status(401 | 403))) => FlowVerdict::Denied,
        Some(failure) if failure.flag() == Flag::Deny => FlowVerdict::Denied,
        Some(_) => FlowVerdict::Failed,
    }
}

/// A connection that came in and is refused before anything is known of it: a line, but no metrics.
pub fn deny_early(world: &PodWorld, src: SocketAddr, dst: SocketAddr, why: &Failure) {
    deny(world, Denied { direction: Direction::Inbound, src, dst, name: None, via: None }, why);
}

/// A connection that is refused before anything is known of it.
#[derive(Clone)]
pub struct Denied {
    pub direction: Direction,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// Told instead of `dst`, where that isn't known.
    pub name: Option<Text>,
    pub via: Option<Via>,
}

/// See `deny_early`.
pub fn deny(world: &PodWorld, denied: Denied, why: &Failure) {
    let line = AccessLine {
        event: Event::Failed,
        src_addr: denied.src,
        src: End::default(),
        dst_addr: denied.dst,
        dst_name: denied.name.as_deref(),
        dst_hbone_addr: None,
        dst_service: None,
        dst: End::default(),
        direction: denied.direction,
        bytes_sent: 0,
        bytes_recv: 0,
        duration: Duration::ZERO,
        error: Some(why),
        ours: Ours {
            reason: Some(why.reason()),
            shard: world.shard.index,
            via: denied.via,
            ..Ours::default()
        },
    };
    write_line(&world.shard, &line);
    let verdict = verdict(Some(why));
    world.tally.ended(verdict, 0, 0);
    world.shard.flows.push(Ended {
        at: SystemTime::now(),
        lasted: Duration::ZERO,
        about: Rc::new(Unopened { pod: world.tally.uid.clone(), denied }),
        sent_bytes: 0,
        received_bytes: 0,
        attempts: 1,
        verdict,
        error: Some(told(why)),
    });
}

/// What is known of a connection whose record never opened.
struct Unopened {
    pod: Text,
    denied: Denied,
}

impl Describe for Unopened {
    fn describe(&self) -> Parties {
        let Denied { direction, src, dst, name, via } = self.denied.clone();
        Parties {
            pod: self.pod.clone(),
            direction,
            src,
            dst,
            dst_name: name,
            authority: None,
            source: FlowEnd::default(),
            destination: FlowEnd::default(),
            service: None,
            via,
        }
    }
}

fn write_line(shard: &Rc<Shard>, line: &AccessLine<'_>) {
    let level = line.level();
    if !shard.lines().access_enabled(level) {
        return;
    }
    // Whatever failed or was denied is always told.
    if level == Level::Info && !is_drawn(shard) {
        return bump(&shard.stats.engine.access_lines_sampled_out);
    }
    let now = SystemTime::now();
    shard.write_line(|out| {
        if shard.settings.log_json { line.write_json(now, out) } else { line.write_plain(now, out) }
    });
}

/// Whether the line of a connection that ended well is one of those that are written.
fn is_drawn(shard: &Shard) -> bool {
    let sampled = shard.settings.access_log_per_million;
    sampled >= MILLION || draw(sampled, &mut shard.random.borrow_mut())
}

/// True so many times in a million.
fn draw(sampled: u32, random: &mut fastrand::Rng) -> bool {
    random.u32(..MILLION) < sampled
}

fn hbone_addr(text: &str) -> HboneAddr<'_> {
    text.parse().map_or(HboneAddr::Named(text), HboneAddr::Address)
}

impl Describe for About {
    fn describe(&self) -> Parties {
        let mutual = self.security == Security::MutualTls;
        Parties {
            pod: self.pod.uid.clone(),
            direction: self.direction(),
            src: self.src_addr,
            dst: self.dst_addr,
            dst_name: None,
            authority: self.hbone_addr.clone(),
            source: self.source.told(mutual, SOURCE_NAME),
            destination: self.destination.told(mutual, DESTINATION_NAME),
            service: self.service.as_ref().map(|service| service.key.to_string()),
            via: self.via,
        }
    }
}

impl About {
    fn direction(&self) -> Direction {
        match self.reporter {
            Reporter::Source => Direction::Outbound,
            Reporter::Destination => Direction::Inbound,
        }
    }

    fn labels(&self) -> Labels {
        Labels {
            reporter: self.reporter,
            source: self.source.party(),
            destination: self.destination.party(),
            service: self.service.as_deref().map(ServiceLabels::of),
            security: self.security,
        }
    }
}

/// What a party that is known by its baggage only is called in the log (reference section 16.1): a caller by its
/// service, the far end behind a gateway by its workload.
type NameOf = fn(&Party) -> &Text;

const SOURCE_NAME: NameOf = |told| &told.canonical_service;
const DESTINATION_NAME: NameOf = |told| &told.workload;

impl Side {
    pub fn of(workload: Option<Arc<Workload>>, identity: Option<Identity>) -> Self {
        Self { workload, told: None, identity }
    }

    fn told(&self, mutual: bool, name: NameOf) -> FlowEnd {
        let end = self.end(mutual, name);
        let text = |value: Option<&str>| value.unwrap_or_default().into();
        FlowEnd {
            workload: text(end.workload),
            namespace: text(end.namespace),
            cluster: text(end.cluster),
            identity: end.identity.map(ToString::to_string),
        }
    }

    fn party(&self) -> Option<Party> {
        let known = self.workload.as_deref().map(Party::of).or_else(|| self.told.as_deref().cloned());
        match (known, &self.identity) {
            (None, None) => None,
            (known, identity) => Some(Party { principal: identity.clone(), ..known.unwrap_or_default() }),
        }
    }

    fn end(&self, mutual: bool, name: NameOf) -> End<'_> {
        let identity = self.identity.as_ref().filter(|_| mutual).map(|identity| identity as &dyn Display);
        let filled = |text: &'_ Text| !text.is_empty();
        match (&self.workload, &self.told) {
            (Some(workload), _) => End {
                workload: Some(&*workload.name),
                namespace: Some(&*workload.namespace),
                identity,
                cluster: Some(&*workload.cluster_id),
            },
            (None, Some(told)) => End {
                workload: Some(name(told)).filter(|text| filled(text)).map(|text| &**text),
                namespace: Some(&told.namespace).filter(|text| filled(text)).map(|text| &**text),
                identity,
                cluster: Some(&told.cluster).filter(|text| filled(text)).map(|text| &**text),
            },
            (None, None) => End { identity, ..End::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_as_large_as_it_was_asked_for() {
        let mut random = fastrand::Rng::with_seed(7);
        for (sampled, least, most) in
            [(0, 0, 0), (1_000, 50, 150), (100_000, 9_700, 10_300), (MILLION, 100_000, 100_000)]
        {
            let drawn = (0..100_000).filter(|_| draw(sampled, &mut random)).count();
            assert!((least..=most).contains(&drawn), "{drawn} of 100,000 for {sampled}");
        }
    }
}
