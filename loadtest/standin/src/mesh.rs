//! What the stand-in serves: resources as encoded bytes with versions, told to every stream at each change. Names,
//! aliases and the lookup of names are istiod's (istio-control-plane.md C.2, C.3).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message;
use ringway::wire::pb::discovery::{Payload, Resource};
use ringway::wire::pb::security::Authorization;
use ringway::wire::pb::workload::address::Type;
use ringway::wire::pb::workload::{Address, NetworkAddress, Service, Workload};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::message;

pub const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";
pub const AUTHORIZATION: &str = "type.googleapis.com/istio.security.Authorization";

/// The resources; shared by all streams, and kept while the stand-in is stopped.
#[derive(Default)]
pub struct Mesh(Mutex<State>);

/// One thing to serve.
#[derive(Clone, Debug)]
pub enum Item {
    Workload(Box<Workload>),
    Service(Service),
    Policy(Authorization),
    /// Anything at all: bytes that nobody can read, a name that fits nothing.
    Raw {
        type_url: &'static str,
        name: String,
        version: String,
        value: Bytes,
    },
}

/// What one response of each type carries: a new state of the mesh, and a push to every stream.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub put: Vec<Item>,
    /// Type and name.
    pub remove: Vec<(&'static str, String)>,
}

/// A change, encoded: what is large is prepared before a measurement begins. By type.
pub struct Prepared(Vec<(&'static str, Vec<Entry>, Vec<String>)>);

/// A resource as it goes out.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub name: Arc<str>,
    pub version: String,
    /// The encoded `Resource`.
    pub resource: Bytes,
    keys: Arc<Keys>,
}

/// By what else than its name it is found.
#[derive(Debug, Default)]
struct Keys {
    aliases: Vec<String>,
    services: Vec<String>,
    node: String,
}

/// Of one type, as the streams are told of it.
#[derive(Debug)]
pub(crate) struct Push {
    pub sequence: u64,
    pub type_url: &'static str,
    pub put: Vec<Entry>,
    pub removed: Vec<String>,
}

#[derive(Default)]
struct State {
    sequence: u64,
    addresses: BTreeMap<Arc<str>, Entry>,
    policies: BTreeMap<Arc<str>, Entry>,
    /// Made by the first lookup.
    index: Option<Index>,
    streams: Vec<UnboundedSender<Arc<Push>>>,
}

#[derive(Default)]
struct Index {
    aliases: HashMap<String, Arc<str>>,
    /// Workloads of a service.
    members: HashMap<String, BTreeSet<Arc<str>>>,
}

impl Mesh {
    /// All of it in one response.
    pub fn apply(&self, change: Change) {
        self.publish(change.prepare());
    }

    pub fn publish(&self, prepared: Prepared) {
        let mut state = self.lock();
        state.sequence += 1;
        let sequence = state.sequence;
        for (type_url, put, removed) in prepared.0 {
            put.iter().for_each(|entry| state.put(type_url, entry));
            removed.iter().for_each(|name| state.remove(type_url, name));
            let push = Arc::new(Push { sequence, type_url, put, removed });
            state.streams.retain(|stream| stream.send(Arc::clone(&push)).is_ok());
        }
    }

    /// In place of all that was; without a word to any stream.
    pub fn reset(&self, prepared: Prepared) {
        let streams = {
            let mut state = self.lock();
            (state.addresses, state.policies, state.index) = Default::default();
            std::mem::take(&mut state.streams)
        };
        self.publish(prepared);
        self.lock().streams = streams;
    }

    pub fn put(&self, items: impl IntoIterator<Item = impl Into<Item>>) {
        self.apply(Change { put: items.into_iter().map(Into::into).collect(), remove: vec![] });
    }

    /// Workloads by their uid, services by `namespace/hostname`.
    pub fn remove_addresses(&self, names: &[&str]) {
        let remove = names.iter().map(|name| (ADDRESS, (*name).to_owned())).collect();
        self.apply(Change { put: vec![], remove });
    }

    /// By `namespace/name`.
    pub fn remove_policies(&self, names: &[&str]) {
        let remove = names.iter().map(|name| (AUTHORIZATION, (*name).to_owned())).collect();
        self.apply(Change { put: vec![], remove });
    }

    /// Changes what is served without telling any stream: what a server forgets, or what changes while nobody is
    /// connected.
    pub fn apply_silently(&self, change: Change) {
        let streams = std::mem::take(&mut self.lock().streams);
        self.apply(change);
        self.lock().streams = streams;
    }

    /// Names of all resources of a type.
    pub fn names(&self, type_url: &str) -> Vec<String> {
        self.lock().of(type_url).keys().map(ToString::to_string).collect()
    }

    pub fn version(&self, type_url: &str, name: &str) -> Option<String> {
        self.lock().of(type_url).get(name).map(|entry| entry.version.clone())
    }

    /// The whole state of a type as one encoded `DeltaDiscoveryResponse`: what a first wildcard request is answered.
    pub fn response(&self, type_url: &str) -> Bytes {
        let entries: Vec<Entry> = self.lock().of(type_url).values().cloned().collect();
        let parts =
            message::response("1", type_url, "1", entries.into_iter().map(|entry| entry.resource), &[]);
        parts.concat().into()
    }

    /// From here on each change is told; the number is of the last change that is not.
    pub(crate) fn listen(&self) -> (u64, UnboundedReceiver<Arc<Push>>) {
        let (send, receive) = unbounded_channel();
        let mut state = self.lock();
        state.streams.push(send);
        (state.sequence, receive)
    }

    pub(crate) fn all(&self, type_url: &str) -> (u64, Vec<Entry>) {
        let state = self.lock();
        (state.sequence, state.of(type_url).values().cloned().collect())
    }

    /// What on-demand names stand for, services with their workloads; and the names that stand for nothing.
    pub(crate) fn look_up(&self, names: &[String]) -> (u64, Vec<Entry>, Vec<String>) {
        let mut state = self.lock();
        if state.index.is_none() {
            let mut index = Index::default();
            state.addresses.values().for_each(|entry| index.add(entry));
            state.index = Some(index);
        }
        let index = state.index.as_ref().expect("made above");
        let (mut found, mut missing) = (BTreeSet::new(), Vec::new());
        for name in names {
            let direct = state.addresses.get_key_value(name.as_str()).map(|(name, _)| Arc::clone(name));
            match direct.or_else(|| index.aliases.get(name).cloned()) {
                Some(name) => {
                    found.extend(index.members.get(&*name).into_iter().flatten().cloned());
                    found.insert(name);
                }
                None => missing.push(name.clone()),
            }
        }
        let entries = found.iter().filter_map(|name| state.addresses.get(name).cloned()).collect();
        (state.sequence, entries, missing)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Change {
    pub fn prepare(self) -> Prepared {
        let mut parts = vec![(ADDRESS, vec![], vec![]), (AUTHORIZATION, vec![], vec![])];
        for item in self.put {
            let into = parts.iter_mut().find(|part| part.0 == item.type_url());
            into.expect("one of the two types").1.push(item.entry());
        }
        for (type_url, name) in self.remove {
            let from = parts.iter_mut().find(|part| part.0 == type_url);
            from.expect("one of the two types").2.push(name);
        }
        parts.retain(|(_, put, removed)| !put.is_empty() || !removed.is_empty());
        Prepared(parts)
    }
}

impl State {
    fn of(&self, type_url: &str) -> &BTreeMap<Arc<str>, Entry> {
        if type_url == AUTHORIZATION { &self.policies } else { &self.addresses }
    }

    fn put(&mut self, type_url: &str, entry: &Entry) {
        if type_url == AUTHORIZATION {
            self.policies.insert(Arc::clone(&entry.name), entry.clone());
            return;
        }
        let before = self.addresses.insert(Arc::clone(&entry.name), entry.clone());
        if let Some(index) = &mut self.index {
            before.iter().for_each(|entry| index.forget(entry));
            index.add(entry);
        }
    }

    fn remove(&mut self, type_url: &str, name: &str) {
        if type_url == AUTHORIZATION {
            self.policies.remove(name);
        } else if let (Some(entry), Some(index)) = (self.addresses.remove(name), &mut self.index) {
            index.forget(&entry);
        }
    }
}

impl Index {
    fn add(&mut self, entry: &Entry) {
        for alias in &entry.keys.aliases {
            self.aliases.insert(alias.clone(), Arc::clone(&entry.name));
        }
        for service in &entry.keys.services {
            self.members.entry(service.clone()).or_default().insert(Arc::clone(&entry.name));
        }
    }

    fn forget(&mut self, entry: &Entry) {
        for alias in &entry.keys.aliases {
            if self.aliases.get(alias) == Some(&entry.name) {
                self.aliases.remove(alias);
            }
        }
        for service in &entry.keys.services {
            if let Some(members) = self.members.get_mut(service) {
                members.remove(&entry.name);
            }
        }
    }
}

impl Entry {
    /// Whether a stream with these on-demand names, on this node, hears of it.
    pub fn concerns(&self, names: &BTreeSet<String>, node: &str) -> bool {
        names.contains(&*self.name)
            || self.keys.aliases.iter().chain(&self.keys.services).any(|key| names.contains(key))
            || (!node.is_empty() && self.keys.node == node)
    }
}

impl Item {
    pub fn type_url(&self) -> &'static str {
        match self {
            Self::Workload(_) | Self::Service(_) => ADDRESS,
            Self::Policy(_) => AUTHORIZATION,
            Self::Raw { type_url, .. } => type_url,
        }
    }

    /// As the resource is called on the wire.
    pub fn name(&self) -> String {
        match self {
            Self::Workload(workload) => workload.uid.clone(),
            Self::Service(service) => format!("{}/{}", service.namespace, service.hostname),
            Self::Policy(policy) => format!("{}/{}", policy.namespace, policy.name),
            Self::Raw { name, .. } => name.clone(),
        }
    }

    fn entry(self) -> Entry {
        let (type_url, name) = (self.type_url(), self.name());
        let (value, keys, version): (Bytes, Keys, Option<String>) = match self {
            Self::Workload(workload) => {
                let keys = Keys {
                    aliases: workload
                        .addresses
                        .iter()
                        .map(|ip| format!("{}/{}", workload.network, ip_text(ip)))
                        .collect(),
                    services: workload.services.keys().cloned().collect(),
                    node: workload.node.clone(),
                };
                (Address { r#type: Some(Type::Workload(*workload)) }.encode_to_vec().into(), keys, None)
            }
            Self::Service(service) => {
                let aliases = service.addresses.iter().map(service_alias).collect();
                let keys = Keys { aliases, ..Keys::default() };
                (Address { r#type: Some(Type::Service(service)) }.encode_to_vec().into(), keys, None)
            }
            // These come without a version.
            Self::Policy(policy) => (policy.encode_to_vec().into(), Keys::default(), Some(String::new())),
            Self::Raw { value, version, .. } => (value, Keys::default(), Some(version)),
        };
        let version = version.unwrap_or_else(|| {
            let mut hasher = DefaultHasher::new();
            value.hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        });
        let resource = Resource {
            version: version.clone(),
            resource: Some(Payload { type_url: type_url.to_owned(), value }),
            name: name.clone(),
            aliases: keys.aliases.clone(),
        };
        Entry { name: name.into(), version, resource: resource.encode_to_vec().into(), keys: Arc::new(keys) }
    }
}

impl From<Workload> for Item {
    fn from(workload: Workload) -> Self {
        Self::Workload(Box::new(workload))
    }
}

impl From<Service> for Item {
    fn from(service: Service) -> Self {
        Self::Service(service)
    }
}

impl From<Authorization> for Item {
    fn from(policy: Authorization) -> Self {
        Self::Policy(policy)
    }
}

fn service_alias(address: &NetworkAddress) -> String {
    let text = format!("{}/{}", address.network, ip_text(&address.address));
    address.length.map_or_else(|| text.clone(), |length| format!("{text}/{length}"))
}

fn ip_text(bytes: &[u8]) -> String {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        IpAddr::from(four).to_string()
    } else if let Ok(sixteen) = <[u8; 16]>::try_from(bytes) {
        IpAddr::from(sixteen).to_string()
    } else {
        format!("{bytes:02x?}")
    }
}
