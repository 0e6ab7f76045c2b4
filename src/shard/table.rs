//! The live connections of this shard: what `/config_dump` shows, and whom a change of the mesh has to ask again.
//! Those that policies decide about stand together by the workload they came to, so that a change touches no others.
//! A connection is entered before it is admitted, so that no change can fall between.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use slab::Slab;

use crate::base::text::Text;
use crate::bridge::flow::LiveDetail;
use crate::bridge::report::{LiveConnection, LiveProtocol};
use crate::mesh::admit::{Call, Decision, Verdict, decide, is_waypoint_no_more};
use crate::mesh::guard::Guard;
use crate::mesh::identity::{Identity, TrustDomains};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;
use crate::shard::closer::{CloseReason, Closer};
use crate::shard::flows::Describe;
use crate::shard::meter::Meter;
use crate::shard::shrink::shrink;
use crate::wire::access_log::Direction;

/// One live connection.
pub struct Entry {
    pub pod: Text,
    pub src: SocketAddr,
    pub original: Original,
    pub actual_dst: SocketAddr,
    pub protocol: LiveProtocol,
    pub closer: Closer,
    /// Whom policies decide about; none for outbound connections.
    pub subject: Option<Box<Subject>>,
    /// Once the far side is reached.
    pub detail: Option<Detail>,
}

/// What an open record knows of the connection.
pub struct Detail {
    pub about: Rc<dyn Describe>,
    pub meter: Rc<Meter>,
}

/// Where the connection was meant to go.
pub enum Original {
    /// Outbound: the captured address.
    Captured(SocketAddr),
    /// Inbound: the service host of the Forwarded header.
    Host(Option<Box<str>>),
}

/// What is needed to decide again later.
pub struct Subject {
    pub source: IpAddr,
    pub identity: Option<Identity>,
    pub destination: SocketAddr,
    /// What the peer asked for, where that isn't the address it called: a service that this workload is the waypoint
    /// of. Whether it still is, is asked again too.
    pub asked: Option<IpAddr>,
}

/// All live connections of a shard.
#[derive(Default)]
pub struct Table {
    outbound: Rc<Group>,
    inbound: RefCell<HashMap<Text, Rc<Group>, foldhash::fast::RandomState>>,
    len: Cell<usize>,
    domains: TrustDomains,
}

/// Connections that came to one workload, or all outbound ones.
#[derive(Default)]
pub struct Group {
    /// Each in a box of its own, so that many at once leave little room behind.
    entries: RefCell<Slab<Box<Entry>>>,
    /// How many came for what, by where they came to and what they asked for.
    asked: RefCell<HashMap<(IpAddr, IpAddr), usize, foldhash::fast::RandomState>>,
    reached: RefCell<Option<Reached>>,
}

/// The workload of a group, and the policies that all of its connections have been asked about.
struct Reached {
    workload: Arc<Workload>,
    guard: Guard,
}

/// Keeps an entry in the table; dropping it takes the entry out.
pub struct Entered {
    table: Rc<Table>,
    group: Rc<Group>,
    key: usize,
}

impl Table {
    pub fn new(domains: TrustDomains) -> Self {
        Self { domains, ..Self::default() }
    }

    /// Enters a connection that no policy decides about.
    pub fn enter(self: &Rc<Self>, entry: Entry) -> Entered {
        self.enter_in(self.outbound.clone(), entry)
    }

    /// Enters one that came to this workload.
    pub fn enter_at(self: &Rc<Self>, workload: &Arc<Workload>, snapshot: &Snapshot, entry: Entry) -> Entered {
        let known = self.inbound.borrow().get(&workload.uid).cloned();
        let group = known.unwrap_or_else(|| {
            let group = Rc::new(Group::default());
            let guard = Guard::of(snapshot, workload);
            *group.reached.borrow_mut() = Some(Reached { workload: workload.clone(), guard });
            self.inbound.borrow_mut().insert(workload.uid.clone(), group.clone());
            group
        });
        self.enter_in(group, entry)
    }

    fn enter_in(self: &Rc<Self>, group: Rc<Group>, entry: Entry) -> Entered {
        self.len.set(self.len.get() + 1);
        if let Some(asked) = entry.foreign() {
            *group.asked.borrow_mut().entry(asked).or_default() += 1;
        }
        let key = group.entries.borrow_mut().insert(Box::new(entry));
        Entered { table: self.clone(), group, key }
    }

    pub fn len(&self) -> usize {
        self.len.get()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets connections with an unread side see whether they are over, and forgets workloads without connections;
    /// called about once a second.
    pub fn tick(&self) {
        self.inbound.borrow_mut().retain(|_, group| !group.entries.borrow().is_empty());
        for group in self.groups() {
            let mut entries = group.entries.borrow_mut();
            entries.iter().for_each(|(_, entry)| entry.closer.look_again());
            shrink(&mut entries);
        }
    }

    /// One entry as operators are told of it.
    pub fn report(&self, shard: usize, group: &Group, entry: &Entry, snapshot: &Snapshot) -> LiveConnection {
        let subject = entry.subject.as_ref();
        let verdict =
            subject.and_then(|subject| self.decide(group, subject, snapshot)).map(|said| said.verdict);
        let policy = match verdict {
            Some(Verdict::Allowed { by: Some(ground) }) => Some(ground.name()),
            Some(Verdict::Allowed { by: None } | Verdict::Denied(_)) | None => None,
        };
        LiveConnection { shard, policy, ..entry.report() }
    }

    pub(super) fn groups(&self) -> Vec<Rc<Group>> {
        std::iter::once(self.outbound.clone()).chain(self.inbound.borrow().values().cloned()).collect()
    }

    /// Groups that this snapshot says something new about.
    pub fn touched(&self, snapshot: &Snapshot, network: &str) -> Vec<Touched> {
        let inbound = self.inbound.borrow();
        inbound.values().filter_map(|group| group.touched(snapshot, network)).collect()
    }

    /// Why a connection of a group may not go on.
    pub fn objection(
        &self,
        touched: &Touched,
        subject: &Subject,
        snapshot: &Snapshot,
    ) -> Option<(CloseReason, String)> {
        if let Some((_, asked)) = subject.foreign().filter(|foreign| touched.lost.contains(foreign)) {
            let why = format!("this workload doesn't serve {asked} any more");
            return Some((CloseReason::WaypointChange, why));
        }
        if !touched.by_policies {
            return None;
        }
        match self.decide(&touched.group, subject, snapshot)?.verdict {
            Verdict::Denied(denial) => Some((CloseReason::PolicyChange, denial.to_string())),
            Verdict::Allowed { .. } => None,
        }
    }

    /// What the policies of a snapshot say about a connection of a group.
    fn decide(&self, group: &Group, subject: &Subject, snapshot: &Snapshot) -> Option<Decision> {
        let workload = group.workload(snapshot)?;
        Some(decide(
            snapshot,
            &Call {
                source: subject.source,
                identity: subject.identity.as_ref(),
                destination: subject.destination,
                workload: &workload,
                domains: &self.domains,
            },
        ))
    }
}

/// A group whose connections have to be asked again.
pub struct Touched {
    pub group: Rc<Group>,
    /// Other policies count than before: everybody is asked.
    by_policies: bool,
    /// Whoever came for one of these came for something that is no longer this workload's.
    lost: Vec<(IpAddr, IpAddr)>,
    guard: Guard,
}

impl Touched {
    /// Everybody has been asked.
    pub fn settle(&self, snapshot: &Snapshot) {
        if let Some(reached) = &mut *self.group.reached.borrow_mut() {
            reached.guard = self.guard.clone();
            if let Some(workload) = snapshot.workload(&reached.workload.uid) {
                reached.workload = workload.clone();
            }
        }
    }
}

impl Group {
    /// The newest record of the workload; its last one where the mesh has dropped it.
    fn workload(&self, snapshot: &Snapshot) -> Option<Arc<Workload>> {
        let reached = self.reached.borrow();
        let known = &reached.as_ref()?.workload;
        Some(snapshot.workload(&known.uid).unwrap_or(known).clone())
    }

    fn touched(self: &Rc<Self>, snapshot: &Snapshot, network: &str) -> Option<Touched> {
        let workload = self.workload(snapshot)?;
        let guard = Guard::of(snapshot, &workload);
        let by_policies = self.reached.borrow().as_ref().is_some_and(|reached| reached.guard != guard);
        let lost = self.lost(snapshot, network, &workload);
        (by_policies || !lost.is_empty()).then(|| Touched { group: self.clone(), by_policies, lost, guard })
    }

    fn lost(&self, snapshot: &Snapshot, network: &str, workload: &Workload) -> Vec<(IpAddr, IpAddr)> {
        let is_lost =
            |(to, asked): &(IpAddr, IpAddr)| is_waypoint_no_more(snapshot, network, workload, *to, *asked);
        self.asked.borrow().keys().filter(|pair| is_lost(pair)).copied().collect()
    }

    /// Shows so many entries that policies decide about, from a place on; the place to go on from, if there are more.
    pub fn each(&self, from: usize, count: usize, mut look: impl FnMut(&Entry, &Subject)) -> Option<usize> {
        self.slice(from, count, |entry| {
            if let Some(subject) = &entry.subject {
                look(entry, subject);
            }
        })
    }

    /// The same for all entries.
    pub fn slice(&self, from: usize, count: usize, mut look: impl FnMut(&Entry)) -> Option<usize> {
        let entries = self.entries.borrow();
        let end = from.saturating_add(count);
        (from..end.min(entries.capacity())).filter_map(|key| entries.get(key)).for_each(|entry| look(entry));
        (end < entries.capacity()).then_some(end)
    }
}

impl Subject {
    /// Where it came to and what it asked for, where these differ.
    fn foreign(&self) -> Option<(IpAddr, IpAddr)> {
        self.asked.map(|asked| (self.destination.ip(), asked))
    }
}

impl Entry {
    fn foreign(&self) -> Option<(IpAddr, IpAddr)> {
        self.subject.as_ref()?.foreign()
    }

    pub(super) fn is_inbound(&self) -> bool {
        matches!(self.original, Original::Host(_))
    }

    fn report(&self) -> LiveConnection {
        let (inbound, original_dst) = match &self.original {
            Original::Captured(address) => (false, Some(address.to_string())),
            Original::Host(host) => (true, host.as_deref().map(str::to_owned)),
        };
        LiveConnection {
            pod: self.pod.clone(),
            inbound,
            src: self.src,
            original_dst,
            actual_dst: self.actual_dst,
            protocol: self.protocol,
            shard: 0,
            detail: self.detail.as_ref().map(Detail::told),
            policy: None,
        }
    }
}

impl Detail {
    /// The pod's applications sent so many bytes, and received so many.
    pub fn sent_and_received(&self, inbound: bool) -> (u64, u64) {
        let (to_server, to_client) = (self.meter.to_server(), self.meter.to_client());
        if inbound { (to_client, to_server) } else { (to_server, to_client) }
    }

    fn told(&self) -> LiveDetail {
        let parties = self.about.describe();
        let (sent_bytes, received_bytes) = self.sent_and_received(parties.direction == Direction::Inbound);
        LiveDetail { parties, sent_bytes, received_bytes, age: self.meter.started.elapsed() }
    }
}

impl Entered {
    /// The connection's record is open.
    pub fn describe(&self, about: Rc<dyn Describe>, meter: Rc<Meter>) {
        if let Some(entry) = self.group.entries.borrow_mut().get_mut(self.key) {
            entry.detail = Some(Detail { about, meter });
        }
    }

    /// What the policies say about this connection now; none where no policy decides.
    pub fn decide(&self, snapshot: &Snapshot) -> Option<Decision> {
        let entries = self.group.entries.borrow();
        let subject = entries.get(self.key)?.subject.as_ref()?;
        self.table.decide(&self.group, subject, snapshot)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let Some(entry) = self.group.entries.borrow_mut().try_remove(self.key) else { return };
        self.table.len.set(self.table.len.get().saturating_sub(1));
        if let Some(asked) = entry.foreign() {
            let mut all = self.group.asked.borrow_mut();
            if let Some(count) = all.get_mut(&asked) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    all.remove(&asked);
                }
            }
        }
    }
}
