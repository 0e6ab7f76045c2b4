//! The books of the delta protocol, pure: what is held of each type and in which version, what a stream opens with,
//! what a response changes and how it is answered. Knows no bytes and no sockets; time comes in.
//!
//! What vanished while no stream stood: see `Unseen`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::version::Version;
use crate::base::limits::{NACK_BYTES, XDS_DECLARED_BYTES, XDS_LOOKUPS_PENDING, XDS_SETTLE_MS};
use crate::base::text::{Text, beginning};
use crate::mesh::delta::Change;
use crate::wire::pb::discovery::{DeltaDiscoveryRequest, Status};
use crate::wire::xds::{ADDRESS_TYPE, AUTHORIZATION_TYPE};

/// The two types of resources, in the order in which they are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Address,
    Authorization,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Address, Self::Authorization];

    pub fn of(type_url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == type_url)
    }

    pub fn type_url(self) -> &'static str {
        match self {
            Self::Address => ADDRESS_TYPE,
            Self::Authorization => AUTHORIZATION_TYPE,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "Address",
            Self::Authorization => "Authorization",
        }
    }
}

/// What a response says beside its resources.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Head {
    pub type_url: String,
    pub nonce: String,
    pub removed: Vec<String>,
}

/// A resource that can't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub name: String,
    pub reason: String,
}

/// What a whole response comes to.
#[derive(Debug, Default)]
pub struct Step {
    /// One change of the snapshot: updates first, then removals.
    pub changes: Vec<Change>,
    /// The acknowledgement, or the refusal that names each bad resource. The others are applied all the same.
    pub answer: DeltaDiscoveryRequest,
    pub refused: Vec<Refused>,
    /// Names that were looked up and are answered now; `absent` are those that the mesh doesn't have.
    pub answered: Vec<Text>,
    pub absent: Vec<Text>,
    /// The stream is to be opened anew, so that the control plane says which of the names that it left out it has.
    pub restart: bool,
}

/// What became of a look-up.
#[derive(Debug)]
pub enum Lookup {
    /// Asked for now.
    Ask(Box<DeltaDiscoveryRequest>),
    /// Asked for already: one question serves all who wait.
    Pending,
    /// Too many questions are open.
    TooMany,
}

/// The books.
pub struct Ledger {
    on_demand: bool,
    declared_bytes: usize,
    of: [Account; 2],
    arriving: Arriving,
    /// Names that were asked for and not answered yet.
    pending: HashSet<Text, foldhash::fast::RandomState>,
}

/// One type.
#[derive(Default)]
struct Account {
    held: HashMap<Text, Version, foldhash::fast::RandomState>,
    /// Resources whose name isn't the key of what they hold; no known control plane sends such.
    renamed: HashMap<Text, Text>,
    complete: bool,
    unseen: Unseen,
}

/// What this stream has not named yet of what was held when it began. The control plane may honour the versions
/// that are declared to it: then it leaves out what is as declared, and lists what is gone. Or it may send its whole
/// state and list nothing: then what it leaves out is gone. So
/// - a name that was declared without a version, or not at all, is sent again by both kinds, or it is gone. It is
///   given up when nothing of the kind was named for a moment: a state may come in several responses, and giving up
///   too late is harmless, while a policy or a workload that is missing for a moment opens what should be closed.
/// - a name that was declared with its version stands, unless the first response tells that the control plane
///   doesn't honour versions: it sends again what is as declared, or at least as many of the held names as it leaves
///   out, and lists nothing as gone. Then the versions of those left out are forgotten and the stream is opened
///   anew, once, which makes them names without a version. A wrong guess costs that one reconnect, and no state.
///
/// What can't be told: a control plane of the second kind that has changed the version of everything and lost the
/// greater part of it.
#[derive(Default)]
struct Unseen {
    names: HashSet<Text, foldhash::fast::RandomState>,
    /// No response of the type has come on this stream yet.
    fresh: bool,
    /// This stream was opened to ask once more.
    asked_again: bool,
    give_up_at: Option<Instant>,
}

/// The response that is under way.
#[derive(Default)]
struct Arriving {
    kind: Option<Kind>,
    /// Name and version of each change, in the same order.
    accepted: Vec<(Text, Version)>,
    changes: Vec<Change>,
    refused: Vec<Refused>,
    /// Used, but not all of it was understood.
    objected: Vec<Refused>,
    /// Pending names that were met.
    met: Vec<Text>,
}

impl Ledger {
    /// `on_demand`: addresses are asked for one by one; policies are always held all.
    pub fn new(on_demand: bool) -> Self {
        Self {
            on_demand,
            declared_bytes: XDS_DECLARED_BYTES,
            of: <_>::default(),
            arriving: Arriving::default(),
            pending: HashSet::default(),
        }
    }

    /// Whether each type that is held as a whole has had its first response.
    pub fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }

    /// The types that this node still waits for.
    pub fn missing(&self) -> impl Iterator<Item = Kind> {
        let whole = Kind::ALL.into_iter().filter(|kind| !self.by_name(*kind));
        whole.filter(|kind| !self.account(*kind).complete)
    }

    /// How many resources are held.
    pub fn held(&self) -> usize {
        self.of.iter().map(|account| account.held.len()).sum()
    }

    fn by_name(&self, kind: Kind) -> bool {
        self.on_demand && kind == Kind::Address
    }

    fn account(&self, kind: Kind) -> &Account {
        let [addresses, authorizations] = &self.of;
        match kind {
            Kind::Address => addresses,
            Kind::Authorization => authorizations,
        }
    }

    fn account_mut(&mut self, kind: Kind) -> &mut Account {
        let [addresses, authorizations] = &mut self.of;
        match kind {
            Kind::Address => addresses,
            Kind::Authorization => authorizations,
        }
    }

    /// A stream begins. Returns what it opens with, but for the node. A response that was under way is forgotten.
    pub fn begin(&mut self) -> [DeltaDiscoveryRequest; 2] {
        self.arriving = Arriving::default();
        Kind::ALL.map(|kind| {
            let (by_name, declared_bytes) = (self.by_name(kind), self.declared_bytes);
            let account = self.account_mut(kind);
            account.unseen = Unseen {
                names: account.held.keys().cloned().collect(),
                fresh: true,
                asked_again: account.unseen.asked_again,
                give_up_at: None,
            };
            let mut versions = account.declare(declared_bytes);
            let mut request = DeltaDiscoveryRequest { type_url: kind.type_url().into(), ..<_>::default() };
            if by_name {
                // Subscribed and unsubscribed in one breath: nothing, as opposed to everything.
                request.resource_names_subscribe = vec!["*".to_owned()];
                request.resource_names_unsubscribe = vec!["*".to_owned()];
                versions.extend(self.pending.iter().map(|name| (name.to_string(), String::new())));
            }
            request.initial_resource_versions = versions;
            request
        })
    }

    /// A resource of the response under way can be used. `aliases`: other names it may have been looked up by.
    pub fn accept<'a>(
        &mut self,
        kind: Kind,
        (name, version): (&'a str, &str),
        change: Change,
        aliases: impl Iterator<Item = &'a str>,
    ) {
        if let Some(other) = self.arriving.kind.filter(|other| *other != kind) {
            return self.refuse(name, stray(kind, other.type_url()));
        }
        self.arriving.kind = Some(kind);
        if !self.pending.is_empty() {
            let met = aliases.chain([name]).filter_map(|name| self.pending.get(name).cloned());
            self.arriving.met.extend(met);
        }
        let shared = match &change {
            Change::Workload(workload) if *workload.uid == *name => Some(workload.uid.clone()),
            Change::Policy { key, .. } if **key == *name => Some(key.clone()),
            Change::Workload(_)
            | Change::Policy { .. }
            | Change::RemoveWorkload(_)
            | Change::Service { .. }
            | Change::RemoveService(_)
            | Change::RemoveAddress(_)
            | Change::RemovePolicy(_) => None,
        };
        let name = shared.unwrap_or_else(|| name.into());
        self.arriving.accepted.push((name, Version::parse(version)));
        self.arriving.changes.push(change);
    }

    /// A resource of the response under way can't be used; what was known of it before stands.
    pub fn refuse(&mut self, name: &str, reason: String) {
        self.arriving.refused.push(Refused { name: name.to_owned(), reason });
    }

    /// A resource of the response under way is used, but not all of it was understood: the control plane is told.
    pub fn object(&mut self, name: &str, reason: String) {
        self.arriving.objected.push(Refused { name: name.to_owned(), reason });
    }

    /// The stream is over: the response under way will never be whole, nor will the state that it belonged to.
    pub fn end(&mut self) {
        self.arriving = Arriving::default();
        for account in &mut self.of {
            account.unseen.give_up_at = None;
        }
    }

    fn is_arriving(&self) -> bool {
        self.arriving.kind.is_some() || !self.arriving.refused.is_empty()
    }

    /// The response is whole. One of an unknown type is acknowledged and changes nothing.
    pub fn finish(&mut self, head: Head, now: Instant) -> Step {
        let mut arrived = std::mem::take(&mut self.arriving);
        let mut step = Step::default();
        if let Some(kind) = Kind::of(&head.type_url) {
            if let Some(other) = arrived.kind.filter(|other| *other != kind) {
                let refused = arrived.accepted.drain(..).map(|(name, _)| Refused {
                    name: name.to_string(),
                    reason: stray(other, &head.type_url),
                });
                arrived.refused.extend(refused);
                arrived.changes.clear();
            }
            self.answer_lookups(&arrived, &head.removed, &mut step);
            step.refused = arrived.refused;
            step.changes = arrived.changes;
            self.account_mut(kind).take(kind, arrived.accepted, &head.removed, now, &mut step);
        }
        let told = told(step.refused.iter().chain(&arrived.objected));
        let refusal = (!told.is_empty()).then_some(Status { code: 0, message: told });
        step.answer = DeltaDiscoveryRequest {
            type_url: head.type_url,
            response_nonce: head.nonce,
            error_detail: refusal,
            ..<_>::default()
        };
        step
    }

    fn answer_lookups(&mut self, arrived: &Arriving, removed: &[String], step: &mut Step) {
        if self.pending.is_empty() {
            return;
        }
        for name in &arrived.met {
            step.answered.extend(self.pending.take(name));
        }
        for refused in &arrived.refused {
            step.answered.extend(self.pending.take(&*refused.name));
        }
        for name in removed {
            if let Some(name) = self.pending.take(&**name) {
                step.answered.push(name.clone());
                step.absent.push(name);
            }
        }
    }

    /// What vanished while no stream stood, once that is certain.
    pub fn give_up(&mut self, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.is_arriving() {
            return changes;
        }
        for kind in Kind::ALL {
            let account = self.account_mut(kind);
            if account.unseen.give_up_at.is_some_and(|at| at <= now) {
                for name in std::mem::take(&mut account.unseen).names {
                    changes.extend(account.remove(kind, &name));
                }
            }
        }
        changes
    }

    /// When `give_up` has something to do.
    pub fn give_up_at(&self) -> Option<Instant> {
        self.of.iter().filter_map(|account| account.unseen.give_up_at).min().filter(|_| !self.is_arriving())
    }

    /// Somebody needs the address of this name: `NETWORK/IP`, a workload's uid, or `NAMESPACE/HOSTNAME`.
    pub fn look_up(&mut self, name: &Text) -> Lookup {
        if self.pending.contains(name) {
            return Lookup::Pending;
        }
        if self.pending.len() >= XDS_LOOKUPS_PENDING {
            return Lookup::TooMany;
        }
        self.pending.insert(name.clone());
        Lookup::Ask(Box::new(DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_subscribe: vec![name.to_string()],
            ..<_>::default()
        }))
    }
}

impl Account {
    /// What is held, as far as it can be told. The versions of the rest are forgotten: it is sent again.
    fn declare(&mut self, mut bytes: usize) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        for blank in [false, true] {
            for (name, version) in &mut self.held {
                if (*version == Version::Blank) != blank || versions.contains_key(&**name) {
                    continue;
                }
                let text = version.text();
                // Two lengths of two bytes, one of three, three tags.
                let Some(left) = bytes.checked_sub(name.len() + text.len() + 10) else {
                    *version = Version::Blank;
                    continue;
                };
                bytes = left;
                versions.insert(name.to_string(), text);
            }
        }
        versions
    }

    fn take(
        &mut self,
        kind: Kind,
        accepted: Vec<(Text, Version)>,
        removed: &[String],
        now: Instant,
        step: &mut Step,
    ) {
        self.complete = true;
        let mut again = Again::default();
        let mut replaced = Vec::new();
        for ((name, version), change) in accepted.into_iter().zip(&step.changes) {
            if self.unseen.names.remove(&name) {
                let held = self.held.get(&name).filter(|held| **held != Version::Blank);
                again.names += 1;
                again.versioned += usize::from(held.is_some());
                again.as_declared += usize::from(held == Some(&version));
            }
            replaced.extend(self.follow_key(kind, &name, change));
            self.held.insert(name, version);
        }
        if !replaced.is_empty() {
            // What another name stands for now comes after it.
            replaced.append(&mut step.changes);
            step.changes = replaced;
        }
        for refused in &step.refused {
            self.unseen.names.remove(&*refused.name);
            // Declared without a version it is sent again, and told if it goes.
            if let Some(version) = self.held.get_mut(&*refused.name) {
                *version = Version::Blank;
            }
        }
        for name in removed {
            self.unseen.names.remove(&**name);
            step.changes.extend(self.remove(kind, name));
        }
        step.restart = self.judge(removed.is_empty(), &again, now);
    }

    /// See `Unseen`. True: the stream is to be opened anew.
    fn judge(&mut self, nothing_gone: bool, again: &Again, now: Instant) -> bool {
        let settled = Some(now + Duration::from_millis(XDS_SETTLE_MS));
        let Unseen { names, fresh, asked_again, give_up_at } = &mut self.unseen;
        if !std::mem::take(fresh) {
            if give_up_at.is_some() && again.names > 0 {
                *give_up_at = settled;
            }
            return false;
        }
        let versioned = |name: &Text| self.held.get(name).is_some_and(|version| *version != Version::Blank);
        let left_out = names.iter().filter(|name| versioned(name)).count();
        let suspicious =
            left_out > 0 && nothing_gone && (again.as_declared > 0 || again.versioned >= left_out);
        *asked_again = suspicious && !*asked_again;
        if *asked_again {
            for name in names.drain() {
                self.held.insert(name, Version::Blank);
            }
            return true;
        }
        names.retain(|name| !versioned(name));
        names.shrink_to_fit();
        *give_up_at = settled.filter(|_| !names.is_empty());
        false
    }

    /// Where the name now stands for another thing than before, that other thing goes.
    fn follow_key(&mut self, kind: Kind, name: &Text, change: &Change) -> Option<Change> {
        let own = |key: &str| (key != &**name).then(|| Text::from(key));
        let other = match change {
            Change::Workload(workload) => own(&workload.uid),
            Change::Service { service, .. } => own(&service.key.to_string()),
            Change::Policy { .. }
            | Change::RemoveWorkload(_)
            | Change::RemoveService(_)
            | Change::RemoveAddress(_)
            | Change::RemovePolicy(_) => None,
        };
        if other.is_none() && self.renamed.is_empty() {
            return None;
        }
        let before = match &other {
            Some(key) => self.renamed.insert(name.clone(), key.clone()),
            None => self.renamed.remove(name),
        };
        let before = before.or_else(|| self.held.contains_key(name).then(|| name.clone()))?;
        (before != *other.as_ref().unwrap_or(name)).then(|| gone(kind, before))
    }

    /// The change that takes a held resource out of the snapshot.
    fn remove(&mut self, kind: Kind, name: &str) -> Option<Change> {
        let (name, _) = self.held.remove_entry(name)?;
        let key = self.renamed.remove(&name).unwrap_or(name);
        Some(gone(kind, key))
    }
}

/// Names of a response that were held when the stream began and had not been named on it.
#[derive(Default)]
struct Again {
    names: usize,
    /// Declared with a version,
    versioned: usize,
    /// and sent with the same.
    as_declared: usize,
}

fn gone(kind: Kind, key: Text) -> Change {
    match kind {
        Kind::Address => Change::RemoveAddress(key),
        Kind::Authorization => Change::RemovePolicy(key),
    }
}

fn stray(kind: Kind, response: &str) -> String {
    format!("a resource of type {} in a response of type {response}", kind.type_url())
}

/// `name: reason; name: reason`, bounded: a control plane logs it. Empty where there is nothing to tell.
fn told<'a>(refused: impl Iterator<Item = &'a Refused>) -> String {
    let (mut text, mut left_out) = (String::new(), 0);
    for Refused { name, reason } in refused {
        let one = format!("{}{name}: {reason}", if text.is_empty() { "" } else { "; " });
        if text.is_empty() {
            text.push_str(beginning(&one, NACK_BYTES));
        } else if left_out == 0 && text.len() + one.len() <= NACK_BYTES {
            text.push_str(&one);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        text.push_str(&format!("; {left_out} more"));
    }
    text
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
