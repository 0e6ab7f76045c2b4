//! What runs right now, as operators ask for it at the admin port: `/status`, `/connections`, `/pods`, `/shards`,
//! `/services`, `/policies`, `/certificates`. Shapes: deploy/docs/admin.md.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::base::limits::{CONNECTIONS_A_TURN, ITEMS_TOLD, SURVEY_DEADLINE_MS};
use crate::base::text::Text;
use crate::bridge::flow::{FlowEnd, Parties, PodTraffic, ShardStatus};
use crate::bridge::identities::{Known, Standing};
use crate::bridge::order::{Order, PodInfo};
use crate::bridge::report::{ConnectionCounts, LiveConnection, LiveProtocol};
use crate::control::admin::AdminServer;
use crate::control::cni::Board;
use crate::control::dump::moment;
use crate::control::filter::Filter;
use crate::control::http::{self, Reply};
use crate::control::shards;
use crate::mesh::identity::Identity;
use crate::mesh::labels::Flag;
use crate::sys::proc;
use crate::tls::cert::CertificateInfo;
use crate::wire::access_log::Direction;
use crate::wire::dump;

/// The pods of this process: those that the CNI agent named, and its own.
#[derive(Clone, Default)]
pub struct Pods {
    /// In shared mode.
    pub board: Option<Arc<Board>>,
    pub own: Arc<[(Text, PodInfo)]>,
}

/// One of them.
#[derive(Clone)]
pub struct Placed {
    pub info: PodInfo,
    pub up: bool,
}

impl Pods {
    /// By uid.
    pub fn by_uid(&self) -> BTreeMap<Text, Placed> {
        let named = self.board.iter().flat_map(|board| board.pods());
        let named = named.map(|pod| (pod.uid, Placed { info: pod.info, up: pod.up }));
        let own = self.own.iter().map(|(uid, info)| (uid.clone(), Placed { info: info.clone(), up: true }));
        named.chain(own).collect()
    }

    /// The uid of a pod that is named by it, or as `NAMESPACE/NAME`.
    pub fn find(&self, name: &str) -> Option<(Text, PodInfo)> {
        let is = |uid: &Text, info: &PodInfo| {
            &**uid == name || name.split_once('/') == Some((&*info.namespace, &*info.name))
        };
        self.by_uid().into_iter().find(|(uid, pod)| is(uid, &pod.info)).map(|(uid, pod)| (uid, pod.info))
    }
}

impl AdminServer {
    /// `/status`.
    pub(super) fn status(&self) -> Reply {
        let pending = self.readiness.pending();
        let waiting: Vec<Value> =
            pending.iter().map(|(task, reason)| json!({"task": task, "reason": reason})).collect();
        let mut shown = json!({
            "ready": waiting.is_empty(), "pending": waiting, "uptimeSeconds": self.started.elapsed().as_secs(),
            "version": self.facts.version.get("version"), "eventLoop": self.facts.event_loop,
        });
        if let (Some(shown), false) = (shown.as_object_mut(), self.facts.event_loop_cause.is_empty()) {
            shown.insert("eventLoopCause".into(), self.facts.event_loop_cause.as_str().into());
        }
        http::json(&shown)
    }

    /// `/policies`, each as in `/config_dump`.
    pub(super) fn policies(&self, parameter: impl Fn(&str) -> Option<String>) -> Reply {
        let Some(limit) = limit(&parameter) else {
            return http::text(StatusCode::BAD_REQUEST, NO_LIMIT);
        };
        let snapshot = self.published.load();
        let all: Vec<_> = snapshot.policies().collect();
        let items: Vec<Value> = all.iter().take(limit).map(|(_, policy)| dump::policy(policy)).collect();
        http::json(&json!({"items": items, "total": all.len()}))
    }

    /// `/connections`.
    pub(super) async fn connections(&self, parameter: impl Fn(&str) -> Option<String>) -> Reply {
        let filter = match Filter::parse(&parameter) {
            Ok(filter) => filter,
            Err(error) => return http::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let Some(limit) = limit(&parameter) else {
            return http::text(StatusCode::BAD_REQUEST, NO_LIMIT);
        };
        let answers =
            shards::ask_each(&self.shards, SURVEY_DEADLINE_MS, |_, answer| Order::Connections(answer)).await;
        let answering = answers.len();
        let pods = self.pods.by_uid();
        let info = |live: &LiveConnection| pods.get(&live.pod).map(|pod| &pod.info);
        let mut shown: Vec<LiveConnection> =
            answers.into_iter().flatten().filter(|live| filter.shows_connection(live, info(live))).collect();
        let total = shown.len();
        // Youngest first: what has just come is what one looks for.
        shown.sort_by_key(|live| live.detail.as_ref().map(|detail| detail.age));
        shown.truncate(limit);
        let mut items: Vec<Value> = Vec::with_capacity(shown.len());
        for some in shown.chunks(CONNECTIONS_A_TURN) {
            items.extend(some.iter().map(|live| connection(live, info(live))));
            // The control thread has other things to do.
            tokio::task::yield_now().await;
        }
        http::json(&json!({"items": items, "total": total, "shards": self.asked(answering)}))
    }

    /// `/pods`.
    pub(super) async fn pods(&self) -> Reply {
        let statuses = self.statuses().await;
        let mut items = Vec::new();
        for (uid, pod) in self.pods.by_uid() {
            let (mut sum, mut on) = (PodTraffic::default(), Vec::new());
            for status in &statuses {
                for traffic in status.pods.iter().filter(|traffic| traffic.uid == uid) {
                    on.push(status.shard);
                    add(&mut sum, traffic);
                }
            }
            let state = match (pod.up, sum.draining) {
                (false, _) => "Pending",
                (true, false) => "Up",
                (true, true) => "Draining",
            };
            items.push(json!({
                "uid": uid, "name": pod.info.name, "namespace": pod.info.namespace,
                "serviceAccount": pod.info.service_account, "state": state, "shards": on,
                "connections": sum.live, "opened": sum.opened, "denied": sum.denied, "failed": sum.failed,
                "bytesSent": sum.sent_bytes, "bytesReceived": sum.received_bytes,
            }));
        }
        http::json(&json!({"items": items, "shards": self.asked(statuses.len())}))
    }

    /// `/shards`.
    pub(super) async fn shards(&self) -> Reply {
        let statuses: HashMap<usize, ShardStatus> =
            self.statuses().await.into_iter().map(|status| (status.shard, status)).collect();
        let busy = proc::busy_of_threads("shard-");
        let one = |shard: usize| {
            let mut shown = json!({"shard": shard, "answering": false, "eventLoop": self.facts.event_loop});
            let mut put = |key: &str, value: Value| {
                drop(shown.as_object_mut().map(|all| all.insert(key.into(), value)))
            };
            if let Some(busy) = busy.get(&format!("shard-{shard}")) {
                put("busyNanoseconds", u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX).into());
            }
            if let Some(status) = statuses.get(&shard) {
                put("answering", true.into());
                put("connections", status.connections.into());
                put("pods", status.pods.len().into());
                put(
                    "tunnels",
                    json!({"outbound": status.tunnels_outbound, "inbound": status.tunnels_inbound}),
                );
                put("bufferBytes", status.buffer_bytes.into());
            }
            shown
        };
        let items: Vec<Value> = (0..self.shards.len()).map(one).collect();
        http::json(&json!({"items": items, "shards": self.asked(statuses.len())}))
    }

    /// `/services`: what was counted by service, one item for each side that this node saw of it.
    pub(super) async fn services(&self) -> Reply {
        let stats = shards::ask(&self.shards, Order::Scrape).await;
        let mut sums: BTreeMap<(String, &'static str), Sum> = BTreeMap::new();
        for counts in stats.iter().flat_map(|shard| &shard.connections) {
            let Some(service) = &counts.labels.service else { continue };
            let key =
                (format!("{}/{}", service.namespace, service.hostname), counts.labels.reporter.as_str());
            sums.entry(key).or_default().add(counts);
        }
        let items: Vec<Value> = sums
            .iter()
            .map(|((service, reporter), sum)| {
                json!({
                    "service": service, "reporter": reporter, "opened": sum.opened, "closed": sum.closed,
                    "denied": sum.denied, "failed": sum.failed,
                    "bytesReceived": sum.received_bytes, "bytesSent": sum.sent_bytes,
                })
            })
            .collect();
        http::json(&json!({"items": items, "shards": self.asked(stats.len())}))
    }

    /// `/certificates`.
    pub(super) fn certificates(&self) -> Reply {
        let now = SystemTime::now();
        let items: Vec<Value> =
            self.identities.all().iter().map(|(identity, known)| certificate(identity, known, now)).collect();
        http::json(&json!({"items": items}))
    }

    pub(super) async fn statuses(&self) -> Vec<ShardStatus> {
        shards::ask_each(&self.shards, SURVEY_DEADLINE_MS, |_, answer| Order::Status(answer)).await
    }

    fn asked(&self, answering: usize) -> Value {
        json!({"asked": self.shards.len(), "answering": answering})
    }
}

const NO_LIMIT: &str = "limit has to be a number\n";

/// How many items were asked for, within the bound; nothing where that isn't a number.
fn limit(parameter: impl Fn(&str) -> Option<String>) -> Option<usize> {
    parameter("limit").map_or(Some(ITEMS_TOLD), |limit| Some(limit.parse::<usize>().ok()?.min(ITEMS_TOLD)))
}

#[derive(Default)]
struct Sum {
    opened: u64,
    closed: u64,
    denied: u64,
    failed: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Sum {
    fn add(&mut self, counts: &ConnectionCounts) {
        self.opened += counts.opened;
        self.received_bytes += counts.received_bytes;
        self.sent_bytes += counts.sent_bytes;
        for (flag, count) in Flag::ALL.into_iter().zip(counts.closed) {
            self.closed += count;
            match flag {
                Flag::None => {}
                Flag::Deny => self.denied += count,
                Flag::Connect
                | Flag::TlsFailure
                | Flag::Http2Handshake
                | Flag::NetworkPolicy
                | Flag::Identity
                | Flag::CertificateRevoked => self.failed += count,
            }
        }
    }
}

fn add(sum: &mut PodTraffic, traffic: &PodTraffic) {
    sum.draining |= traffic.draining;
    sum.live += traffic.live;
    sum.opened += traffic.opened;
    sum.denied += traffic.denied;
    sum.failed += traffic.failed;
    sum.sent_bytes += traffic.sent_bytes;
    sum.received_bytes += traffic.received_bytes;
}

fn connection(live: &LiveConnection, pod: Option<&PodInfo>) -> Value {
    let mut shown = Map::new();
    shown.insert("pod".into(), pod_of(&live.pod, pod));
    shown.insert("shard".into(), live.shard.into());
    shown.insert("direction".into(), (if live.inbound { "inbound" } else { "outbound" }).into());
    shown.insert("protocol".into(), protocol(live.protocol).into());
    shown.insert("upstream".into(), live.actual_dst.to_string().into());
    if let Some(original) = &live.original_dst {
        shown.insert("originalDestination".into(), original.as_str().into());
    }
    if let Some(policy) = &live.policy {
        shown.insert("policy".into(), policy.as_str().into());
    }
    match &live.detail {
        None => {
            shown.insert("state".into(), "connecting".into());
            shown.insert("source".into(), json!({"address": live.src.to_string()}));
            shown.insert("destination".into(), json!({"address": live.actual_dst.to_string()}));
        }
        Some(detail) => {
            shown.insert("state".into(), "open".into());
            parties(&detail.parties, &mut shown);
            shown.insert("bytesSent".into(), detail.sent_bytes.into());
            shown.insert("bytesReceived".into(), detail.received_bytes.into());
            shown.insert("ageMs".into(), milliseconds(detail.age));
        }
    }
    shown.into()
}

pub(super) fn pod_of(uid: &Text, pod: Option<&PodInfo>) -> Value {
    match pod {
        Some(info) => json!({"uid": uid, "name": info.name, "namespace": info.namespace}),
        None => json!({"uid": uid}),
    }
}

pub(super) fn milliseconds(duration: std::time::Duration) -> Value {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).into()
}

/// What connections and flows tell alike.
pub(super) fn parties(parties: &Parties, shown: &mut Map<String, Value>) {
    let direction = match parties.direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    };
    shown.insert("direction".into(), direction.into());
    shown.insert("source".into(), end(&parties.source, parties.src.to_string()));
    let destination = parties.dst_name.as_ref().map_or_else(|| parties.dst.to_string(), ToString::to_string);
    shown.insert("destination".into(), end(&parties.destination, destination));
    if let Some(authority) = &parties.authority {
        shown.insert("hboneAddress".into(), (&**authority).into());
    }
    if let Some(service) = &parties.service {
        shown.insert("service".into(), service.as_str().into());
    }
    if let Some(via) = parties.via {
        shown.insert("via".into(), via.as_str().into());
    }
}

fn end(end: &FlowEnd, address: String) -> Value {
    let mut shown = Map::new();
    shown.insert("address".into(), address.into());
    let texts = [("workload", &end.workload), ("namespace", &end.namespace), ("cluster", &end.cluster)];
    for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        shown.insert(key.into(), (&**text).into());
    }
    if let Some(identity) = &end.identity {
        shown.insert("identity".into(), identity.as_str().into());
    }
    shown.into()
}

/// As `/config_dump` names them.
pub(super) fn protocol(protocol: LiveProtocol) -> &'static str {
    match protocol {
        LiveProtocol::Tcp => "TCP",
        LiveProtocol::Hbone => "HBONE",
        LiveProtocol::DoubleHbone => "DOUBLEHBONE",
    }
}

fn certificate(identity: &Identity, known: &Known, now: SystemTime) -> Value {
    let mut shown = Map::new();
    shown.insert("identity".into(), identity.to_string().into());
    shown.insert("trustDomain".into(), (&*identity.trust_domain).into());
    match &known.standing {
        Standing::Initializing => drop(shown.insert("state".into(), "Initializing".into())),
        Standing::Unavailable(error) => {
            shown.insert("state".into(), "Unavailable".into());
            shown.insert("error".into(), (&**error).into());
        }
        Standing::Available(credential) => {
            let remaining = credential.not_after().duration_since(now).ok();
            let state = if remaining.is_some() { "Available" } else { "Expired" };
            shown.insert("state".into(), state.into());
            shown.insert("remainingSeconds".into(), remaining.unwrap_or_default().as_secs().into());
            if let Some(leaf) = credential.chain().first() {
                shown.extend(validity(leaf));
            }
            let roots = credential.roots().iter().map(|root| Value::Object(validity(root)));
            shown.insert("roots".into(), roots.collect());
        }
    }
    if let Some(error) = &known.last_error {
        shown.insert("lastError".into(), (&**error).into());
    }
    if let Some(at) = known.next_attempt {
        shown.insert("nextAttempt".into(), moment(at).into());
    }
    shown.into()
}

fn validity(of: &CertificateInfo) -> Map<String, Value> {
    let mut shown = Map::new();
    shown.insert("serialNumber".into(), of.serial.to_string().into());
    shown.insert("validFrom".into(), moment(of.not_before).into());
    shown.insert("expirationTime".into(), moment(of.not_after).into());
    shown
}
