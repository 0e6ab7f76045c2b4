//! The books of the delta protocol, pure: what is held of each type and in which version, what a stream opens with,
//! what a response changes and how it is answered. Knows no bytes and no sockets; time comes in.
//!
//! What vanished while no stream stood: see `account::Unseen`.

use std::collections::HashSet;
use std::time::Instant;

use super::account::{Account, Unseen};
use super::version::Version;
use crate::base::limits::{NACK_BYTES, XDS_DECLARED_BYTES, XDS_LOOKUPS_PENDING};
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
