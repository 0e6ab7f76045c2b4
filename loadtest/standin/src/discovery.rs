//! A discovery stream: delta ADS as istiod speaks it (istio-control-plane.md C.2), unless told to misbehave.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use prost::Message;
use prost_types::value::Kind as Value;
use ringway::wire::pb::discovery::DeltaDiscoveryRequest;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::behaviour::{Fault, code};
use crate::heard::{Heard, Kind};
use crate::mesh::{ADDRESS, AUTHORIZATION, Entry, Push};
use crate::message::{Answer, Gone, Messages, field, response};
use crate::serve::{Link, Shared};

/// What a stream subscribed of a type.
#[derive(Default)]
struct Watched {
    wildcard: bool,
    names: BTreeSet<String>,
    nonce: String,
    /// Changes up to this one are in what was sent.
    sequence: u64,
}

struct Stream {
    shared: Arc<Shared>,
    link: Link,
    number: u64,
    node: String,
    watched: BTreeMap<String, Watched>,
    answer: Answer,
}

/// Until the stream ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    link: Link,
    number: u64,
    body: RecvStream,
    respond: SendResponse<Bytes>,
) {
    let mut answer = Answer::new(respond);
    let refused = shared.behaviour().refuse_discovery.clone();
    if let Some((code, text)) = refused {
        let _ = answer.end(code, &text);
        return;
    }
    let (_, mut pushes) = shared.mesh.listen();
    let (mut messages, mut endings) = (Messages::new(body), shared.endings.subscribe());
    let watched = BTreeMap::new();
    let mut stream = Stream { shared, link, number, node: String::new(), watched, answer };
    loop {
        let outcome = tokio::select! {
            message = messages.next() => match message {
                Some(message) => stream.take(&message).await,
                // The client closed its side: so does a server.
                None => return drop(stream.answer.end(0, "")),
            },
            Some(push) = pushes.recv() => stream.push(push, &mut pushes).await,
            Ok((code, text)) = endings.recv() => return drop(stream.answer.end(code, &text)),
            () = stream.answer.abandoned() => return,
        };
        if outcome.is_err() {
            return;
        }
    }
}

impl Stream {
    async fn take(&mut self, message: &[u8]) -> Result<(), Gone> {
        let Ok(request) = DeltaDiscoveryRequest::decode(message) else {
            return self.answer.end(code::INTERNAL, "the request can't be decoded").and(Err(Gone));
        };
        if self.node.is_empty() {
            let Some(node) = request.node.as_ref().filter(|node| !node.id.is_empty()) else {
                return self.answer.end(code::INVALID_ARGUMENT, "missing node information").and(Err(Gone));
            };
            self.node = node_name(node);
        }
        let kind = self.kind(&request);
        self.shared.record.lock().requests.push(Heard {
            at: Instant::now(),
            connection: self.link.number,
            stream: self.number,
            kind,
            request: request.clone(),
        });
        if self.shared.behaviour().withheld.iter().any(|withheld| *withheld == request.type_url) {
            return Ok(());
        }
        match kind {
            Kind::First => self.first(request).await,
            Kind::Subscribe => self.subscribe(request).await,
            Kind::Ack | Kind::Nack | Kind::Stale | Kind::Odd => Ok(()),
        }
    }

    fn kind(&self, request: &DeltaDiscoveryRequest) -> Kind {
        let changes =
            !request.resource_names_subscribe.is_empty() || !request.resource_names_unsubscribe.is_empty();
        match self.watched.get(&request.type_url) {
            None => Kind::First,
            Some(_) if request.error_detail.is_some() => Kind::Nack,
            Some(known) if !request.response_nonce.is_empty() && request.response_nonce != known.nonce => {
                Kind::Stale
            }
            Some(_) if changes => Kind::Subscribe,
            Some(_) if request.response_nonce.is_empty() => Kind::Odd,
            Some(_) => Kind::Ack,
        }
    }

    async fn first(&mut self, request: DeltaDiscoveryRequest) -> Result<(), Gone> {
        let held = request.initial_resource_versions;
        let mut names: BTreeSet<String> =
            request.resource_names_subscribe.iter().chain(held.keys()).cloned().collect();
        for name in &request.resource_names_unsubscribe {
            names.remove(name);
        }
        let wildcard = request.resource_names_subscribe.is_empty() || names.contains("*");
        names.remove("*");
        let type_url = request.type_url;
        // Policies are always all sent.
        if wildcard || type_url == AUTHORIZATION {
            let watched = Watched { wildcard: true, ..Watched::default() };
            self.watched.insert(type_url.clone(), watched);
            let (sequence, mut entries) = self.shared.mesh.all(&type_url);
            let mut removed = Vec::new();
            if !self.shared.behaviour().omits_nothing {
                let present: BTreeSet<&str> = entries.iter().map(|entry| &*entry.name).collect();
                removed = held.keys().filter(|name| !present.contains(name.as_str())).cloned().collect();
                entries.retain(|entry| !holds(&held, entry));
            }
            return self.send(&type_url, sequence, entries, removed).await;
        }
        self.watched.insert(type_url.clone(), Watched::default());
        self.answer_names(&type_url, names.into_iter().collect(), &held).await
    }

    async fn subscribe(&mut self, request: DeltaDiscoveryRequest) -> Result<(), Gone> {
        let Some(watched) = self.watched.get_mut(&request.type_url) else { return Ok(()) };
        for name in &request.resource_names_unsubscribe {
            watched.names.remove(name);
        }
        let subscribe = request.resource_names_subscribe;
        let fresh: Vec<String> = subscribe.into_iter().filter(|name| !watched.names.contains(name)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        self.answer_names(&request.type_url, fresh, &BTreeMap::new()).await
    }

    async fn answer_names(
        &mut self,
        type_url: &str,
        names: Vec<String>,
        held: &BTreeMap<String, String>,
    ) -> Result<(), Gone> {
        let (sequence, mut entries, missing) = self.shared.mesh.look_up(&names);
        if let Some(watched) = self.watched.get_mut(type_url) {
            watched.names.extend(names);
            watched.names.extend(entries.iter().map(|entry| entry.name.to_string()));
        }
        entries.retain(|entry| !holds(held, entry));
        self.send(type_url, sequence, entries, missing).await
    }

    /// What queued up while the stream was busy is told as one, as istiod merges pushes.
    async fn push(
        &mut self,
        first: Arc<Push>,
        queued: &mut UnboundedReceiver<Arc<Push>>,
    ) -> Result<(), Gone> {
        let mut pushes = vec![first];
        pushes.extend(std::iter::from_fn(|| queued.try_recv().ok()));
        for type_url in [ADDRESS, AUTHORIZATION] {
            let Some(watched) = self.watched.get(type_url) else { continue };
            let (mut last, mut put, mut removed) = (watched.sequence, BTreeMap::new(), BTreeSet::new());
            for push in
                pushes.iter().filter(|push| push.type_url == type_url && push.sequence > watched.sequence)
            {
                last = last.max(push.sequence);
                let wanted = |entry: &&Entry| watched.wildcard || entry.concerns(&watched.names, &self.node);
                for entry in push.put.iter().filter(wanted) {
                    removed.remove(&*entry.name);
                    put.insert(Arc::clone(&entry.name), entry.clone());
                }
                let gone = |name: &&String| watched.wildcard || watched.names.contains(*name);
                for name in push.removed.iter().filter(gone) {
                    put.remove(name.as_str());
                    removed.insert(name.clone());
                }
            }
            let withheld = self.shared.behaviour().withheld.contains(&type_url);
            let nothing = put.is_empty() && removed.is_empty();
            if !withheld && !nothing {
                let (put, removed) = (put.into_values().collect(), removed.into_iter().collect());
                self.send(type_url, last, put, removed).await?;
            }
        }
        Ok(())
    }

    async fn send(
        &mut self,
        type_url: &str,
        sequence: u64,
        entries: Vec<Entry>,
        mut removed: Vec<String>,
    ) -> Result<(), Gone> {
        let nonce = self.shared.next_nonce();
        if let Some(watched) = self.watched.get_mut(type_url) {
            watched.nonce.clone_from(&nonce);
            watched.sequence = watched.sequence.max(sequence);
        }
        let (delay, trickle, fault) = {
            let mut behaviour = self.shared.behaviour();
            (behaviour.delay, behaviour.trickle, behaviour.faults.pop_front())
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let version = sequence.to_string();
        let mut resources: Vec<Bytes> = entries.into_iter().map(|entry| entry.resource).collect();
        let (mut told_type, mut padding) = (type_url.to_owned(), None);
        match fault {
            None => {}
            Some(Fault::Swallow) => return Ok(()),
            Some(Fault::Half | Fault::Stall) => {
                let whole: Bytes = response(&version, type_url, &nonce, resources, &removed).concat().into();
                let half = whole.slice(..whole.len() / 2);
                self.answer.part_of_message(whole.len(), vec![half], trickle).await?;
                return self.leave_off(fault).await;
            }
            Some(Fault::Promised(length)) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                self.answer.part_of_message(length, vec![], trickle).await?;
                return self.leave_off(Some(Fault::Stall)).await;
            }
            Some(Fault::Status(..) | Fault::Reset | Fault::Close) => return self.leave_off(fault).await,
            Some(Fault::Message(bytes)) => return self.answer.message(vec![bytes], trickle).await,
            Some(Fault::Also(more)) => {
                resources.extend(more.iter().map(|resource| Bytes::from(resource.encode_to_vec())));
            }
            Some(Fault::Twice) => {
                resources = resources.iter().flat_map(|one| [one.clone(), one.clone()]).collect()
            }
            Some(Fault::Removed(names)) => removed.extend(names),
            Some(Fault::TypeUrl(other)) => told_type = other,
            // Field 100 is nobody's.
            Some(Fault::Padded(bytes)) => padding = Some(field(100, &vec![0; bytes])),
        }
        let mut parts = response(&version, &told_type, &nonce, resources, &removed);
        parts.extend(padding);
        self.answer.message(parts, trickle).await?;
        self.shared.record.lock().responses += 1;
        Ok(())
    }

    /// The stream says nothing more.
    async fn leave_off(&mut self, how: Option<Fault>) -> Result<(), Gone> {
        match how {
            Some(Fault::Status(code, text)) => drop(self.answer.end(code, &text)),
            Some(Fault::Half | Fault::Reset) => {
                // What was sent before goes out first; a reset overtakes what is queued.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                self.answer.reset();
            }
            Some(Fault::Close) => self.link.close(),
            Some(_) | None => pending().await,
        }
        Err(Gone)
    }
}

/// Empty versions mean that the client wants it again.
fn holds(held: &BTreeMap<String, String>, entry: &Entry) -> bool {
    held.get(&*entry.name).is_some_and(|version| !version.is_empty() && *version == entry.version)
}

fn node_name(node: &ringway::wire::pb::discovery::Node) -> String {
    let metadata = node.metadata.as_ref().and_then(|metadata| metadata.fields.get("NODE_NAME"));
    match metadata.and_then(|value| value.kind.as_ref()) {
        Some(Value::StringValue(name)) => name.clone(),
        // No node of this name exists; it only tells that a node was named.
        _ => "\0".to_owned(),
    }
}
