//! The pods of this node as the CNI agent names them: a state machine without socket, descriptor or clock of its
//! own. Messages, shards' answers and time go in; orders and acks come out. `control::cni` carries them out.
//! `N` is a pod's network namespace, equal where it is the same one.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use crate::base::limits::{POD_ORDER_DEADLINE_MS, POD_RETRY_MS};
use crate::base::text::Text;
use crate::bridge::order::PodInfo;
use crate::wire::zds::{Info, Message};

const TARGET: &str = "ztunnel::inpod::statemanager";

/// What has to be done, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Action<N> {
    /// To all the pod's shards.
    Start { uid: Text, info: PodInfo, place: N },
    /// To all the pod's shards, at once.
    Stop { uid: Text },
    /// The answer to the one message that awaits it; `None` is success.
    Ack(Option<String>),
    /// The agent broke the protocol: say so with this text, then leave the connection. Pods stay.
    Refuse(String),
}

/// How far a pod has come.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// Shards that still owe an answer, and the first failure among those that came.
    Launching {
        owing: usize,
        failure: Option<String>,
        late: bool,
    },
    Up,
    Failed(String),
}

#[derive(Debug)]
struct Known<N> {
    info: PodInfo,
    place: N,
    /// Tells the answers to this launch from those to an earlier one of the same uid.
    launch: u64,
    state: State,
}

/// An answer that a shard owes; each shard answers in the order of its orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owing {
    Started(u64),
    Stopped(u64),
}

/// The message whose ack waits for shards.
#[derive(Debug)]
struct Unanswered {
    uid: Text,
    by: Instant,
    what: Awaited,
}

#[derive(Debug)]
enum Awaited {
    Launch,
    Stops { launch: u64, owing: usize },
}

/// One pod, for the dump and the metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodView {
    pub uid: Text,
    pub info: PodInfo,
    pub up: bool,
}

/// The shards of a uid.
type Placement = Box<dyn Fn(&str) -> Vec<usize> + Send>;

/// The pods of a node across connections to the agent.
pub struct Session<N> {
    shards_of: Placement,
    pods: BTreeMap<Text, Known<N>>,
    owing: HashMap<(Text, usize), VecDeque<Owing>>,
    /// Uids that this connection named before its snapshot was complete.
    named: BTreeSet<Text>,
    snapshot: bool,
    unanswered: Option<Unanswered>,
    retry_at: Option<Instant>,
    launches: u64,
    started: u64,
    stopped: u64,
}

impl<N: Clone + PartialEq + Debug> Session<N> {
    pub fn new(shards_of: impl Fn(&str) -> Vec<usize> + Send + 'static) -> Self {
        Self {
            shards_of: Box::new(shards_of),
            pods: BTreeMap::new(),
            owing: HashMap::new(),
            named: BTreeSet::new(),
            snapshot: false,
            unanswered: None,
            retry_at: None,
            launches: 0,
            started: 0,
            stopped: 0,
        }
    }

    /// A new connection: nothing is named yet. Pods that failed to start are the agent's to name again; those
    /// that run or are being started stay.
    pub fn connected(&mut self) {
        self.disconnected();
        self.named.clear();
        self.pods.retain(|_, entry| !matches!(entry.state, State::Failed(_)));
    }

    /// The connection is gone, and with it whoever waited for an ack. Pods stay.
    pub fn disconnected(&mut self) {
        self.snapshot = false;
        self.unanswered = None;
        self.retry_at = None;
    }

    /// Whether the next message may be read: each is answered before the next one.
    pub fn may_read(&self) -> bool {
        self.unanswered.is_none()
    }

    pub fn ready(&self) -> bool {
        self.snapshot && self.pending() == 0
    }

    pub fn has_snapshot(&self) -> bool {
        self.snapshot
    }

    /// Pods that should run, but don't.
    pub fn pending(&self) -> usize {
        self.pods.values().filter(|entry| entry.state.is_pending()).count()
    }

    /// The first reason among the pending pods.
    pub fn why_pending(&self) -> Option<String> {
        self.pods.iter().find_map(|(uid, entry)| {
            let why = entry.state.why_pending()?;
            Some(format!("pod {}/{} ({uid}): {why}", entry.info.namespace, entry.info.name))
        })
    }

    /// Pods started and pods stopped so far.
    pub fn totals(&self) -> (u64, u64) {
        (self.started, self.stopped)
    }

    pub fn view(&self) -> Vec<PodView> {
        let view = |(uid, entry): (&Text, &Known<N>)| PodView {
            uid: uid.clone(),
            info: entry.info.clone(),
            up: entry.state == State::Up,
        };
        self.pods.iter().map(view).collect()
    }

    /// When `tick` has something to do.
    pub fn next_tick(&self) -> Option<Instant> {
        let unanswered = self.unanswered.as_ref().map(|waiting| waiting.by);
        unanswered.into_iter().chain(self.retry_at).min()
    }

    /// One message; `place` is the namespace that came with it (with an `Add` always).
    pub fn message(&mut self, message: Message, place: Option<N>, now: Instant) -> Vec<Action<N>> {
        match message {
            Message::Add { uid, info: None } => {
                vec![Action::Refuse(format!("add of {uid} without workload info"))]
            }
            Message::Add { uid, info: Some(info) } => match place {
                Some(place) => self.add(uid.into(), info, place, now),
                None => vec![Action::Refuse(format!("add of {uid} without a namespace"))],
            },
            Message::Keep { uid } if self.snapshot => {
                vec![Action::Refuse(format!("keep of {uid} after the snapshot"))]
            }
            Message::Keep { uid } => {
                info!(target: TARGET, %uid, "pod keep received. will not delete it when snapshot is sent");
                self.named.insert(uid.into());
                vec![Action::Ack(None)]
            }
            Message::Del { uid } => self.delete(&uid, now),
            Message::SnapshotSent if self.snapshot => vec![Action::Refuse("a second snapshot".to_owned())],
            Message::SnapshotSent => self.snapshot_sent(),
        }
    }

    /// An answer of one shard to a start.
    pub fn started(
        &mut self,
        uid: &Text,
        shard: usize,
        result: Result<(), String>,
        now: Instant,
    ) -> Vec<Action<N>> {
        let wanted = |owing: &Owing| match owing {
            Owing::Started(launch) => Some(*launch),
            Owing::Stopped(_) => None,
        };
        let Some(launch) = self.paid(uid, shard, wanted) else { return Vec::new() };
        let Some(entry) = self.pods.get_mut(uid).filter(|entry| entry.launch == launch) else {
            return Vec::new();
        };
        let State::Launching { owing, failure, .. } = &mut entry.state else { return Vec::new() };
        *owing = owing.saturating_sub(1);
        if let Err(error) = result {
            failure.get_or_insert(format!("shard {shard}: {error}"));
        }
        if *owing > 0 {
            return Vec::new();
        }
        match failure.take() {
            None => self.is_up(uid),
            Some(error) => self.has_failed(uid, error, now),
        }
    }

    /// A start that no shard was asked for: the pod is pending until it is retried, replaced or deleted.
    pub fn cannot_start(&mut self, uid: &Text, why: String, now: Instant) -> Vec<Action<N>> {
        let Some(launch) = self.pods.get(uid).map(|entry| entry.launch) else { return Vec::new() };
        for shard in (self.shards_of)(uid) {
            if let Entry::Occupied(mut debts) = self.owing.entry((uid.clone(), shard)) {
                debts.get_mut().retain(|owing| *owing != Owing::Started(launch));
                if debts.get().is_empty() {
                    debts.remove();
                }
            }
        }
        self.is_pending(uid, why, now)
    }

    /// An answer of one shard to a stop.
    pub fn stopped(&mut self, uid: &Text, shard: usize) -> Vec<Action<N>> {
        let wanted = |owing: &Owing| match owing {
            Owing::Stopped(launch) => Some(*launch),
            Owing::Started(_) => None,
        };
        let Some(paid) = self.paid(uid, shard, wanted) else { return Vec::new() };
        if let Some(Unanswered { uid: of, what: Awaited::Stops { launch, owing }, .. }) = &mut self.unanswered
            && of == uid
            && *launch == paid
        {
            *owing = owing.saturating_sub(1);
            if *owing == 0 {
                return self.answer(None);
            }
        }
        Vec::new()
    }

    /// Deadlines and retries.
    pub fn tick(&mut self, now: Instant) -> Vec<Action<N>> {
        let mut actions = Vec::new();
        if let Some(waiting) = self.unanswered.take_if(|waiting| waiting.by <= now) {
            actions.extend(self.overdue(waiting, now));
        }
        if self.retry_at.take_if(|at| *at <= now).is_some() {
            actions.extend(self.retry(now));
        }
        actions
    }

    fn add(&mut self, uid: Text, info: Info, place: N, now: Instant) -> Vec<Action<N>> {
        let info = PodInfo {
            name: info.name.into(),
            namespace: info.namespace.into(),
            service_account: info.service_account.into(),
        };
        if !self.snapshot {
            self.named.insert(uid.clone());
        }
        let mut actions = Vec::new();
        if let Some(entry) = self.pods.get(&uid) {
            match (&entry.state, entry.place == place) {
                (State::Up, true) => {
                    debug!(target: TARGET, %uid, "pod is served already");
                    return vec![Action::Ack(None)];
                }
                (State::Launching { .. }, true) => {
                    self.await_answer(uid, Awaited::Launch, now);
                    return Vec::new();
                }
                (State::Failed(_), _) => {}
                (State::Up | State::Launching { .. }, false) => {
                    info!(target: TARGET, %uid, "pod has another network namespace now, replacing its proxy");
                    self.stop(&uid, &mut actions);
                }
            }
        }
        info!(target: TARGET, %uid, name = %info.name, namespace = %info.namespace, "pod received, starting proxy");
        self.launch(uid.clone(), info, place, &mut actions);
        self.await_answer(uid, Awaited::Launch, now);
        actions
    }

    fn delete(&mut self, uid: &str, now: Instant) -> Vec<Action<N>> {
        info!(target: TARGET, %uid, "pod delete request, shutting down proxy");
        let uid = Text::from(uid);
        let failed = self.pods.get(&uid).is_some_and(|entry| matches!(entry.state, State::Failed(_)));
        if failed {
            self.pods.remove(&uid);
        }
        if !self.snapshot {
            // The snapshot will tell: a pod that isn't named until then is stopped with it.
            self.named.remove(&uid);
            return vec![Action::Ack(None)];
        }
        let mut actions = Vec::new();
        match self.stop(&uid, &mut actions) {
            Some((launch, owing)) if owing > 0 => {
                self.await_answer(uid, Awaited::Stops { launch, owing }, now);
            }
            Some(_) => actions.push(Action::Ack(None)),
            None => {
                debug!(target: TARGET, %uid, "no such pod to stop");
                actions.push(Action::Ack(None));
            }
        }
        actions
    }

    fn snapshot_sent(&mut self) -> Vec<Action<N>> {
        info!(target: TARGET, "received snapshot sent");
        self.snapshot = true;
        let named = std::mem::take(&mut self.named);
        let unnamed: Vec<Text> = self.pods.keys().filter(|uid| !named.contains(*uid)).cloned().collect();
        let mut actions = Vec::new();
        for uid in unnamed {
            info!(target: TARGET, %uid, "pod is not in the snapshot, shutting down proxy");
            self.stop(&uid, &mut actions);
        }
        actions.push(Action::Ack(None));
        actions
    }

    fn launch(&mut self, uid: Text, info: PodInfo, place: N, actions: &mut Vec<Action<N>>) {
        self.launches += 1;
        let launch = self.launches;
        let shards = (self.shards_of)(&uid);
        for shard in &shards {
            self.owing.entry((uid.clone(), *shard)).or_default().push_back(Owing::Started(launch));
        }
        actions.push(Action::Start { uid: uid.clone(), info: info.clone(), place: place.clone() });
        let state = State::Launching { owing: shards.len(), failure: None, late: false };
        self.pods.insert(uid, Known { info, place, launch, state });
    }

    /// Takes a pod out; answers with its launch and the number of shards that owe a `Stopped`.
    fn stop(&mut self, uid: &Text, actions: &mut Vec<Action<N>>) -> Option<(u64, usize)> {
        let entry = self.pods.remove(uid)?;
        if !matches!(entry.state, State::Failed(_)) {
            self.stopped += u64::from(entry.state == State::Up);
            return Some((entry.launch, self.order_stop(uid, entry.launch, actions)));
        }
        Some((entry.launch, 0))
    }

    fn order_stop(&mut self, uid: &Text, launch: u64, actions: &mut Vec<Action<N>>) -> usize {
        let shards = (self.shards_of)(uid);
        for shard in &shards {
            self.owing.entry((uid.clone(), *shard)).or_default().push_back(Owing::Stopped(launch));
        }
        actions.push(Action::Stop { uid: uid.clone() });
        shards.len()
    }

    /// The oldest debt of the wanted kind; older ones of the other kind will not be paid any more.
    fn paid(&mut self, uid: &Text, shard: usize, wanted: impl Fn(&Owing) -> Option<u64>) -> Option<u64> {
        let key = (uid.clone(), shard);
        let debts = self.owing.get_mut(&key)?;
        let at = debts.iter().position(|owing| wanted(owing).is_some())?;
        let launch = debts.drain(..=at).next_back().as_ref().and_then(wanted);
        if debts.is_empty() {
            self.owing.remove(&key);
        }
        launch
    }

    fn is_up(&mut self, uid: &Text) -> Vec<Action<N>> {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.state = State::Up;
            self.started += 1;
        }
        if self.awaits_launch_of(uid) { self.answer(None) } else { Vec::new() }
    }

    /// Some shards may have succeeded: all let go, so that the next try begins with nothing.
    fn has_failed(&mut self, uid: &Text, why: String, now: Instant) -> Vec<Action<N>> {
        let mut actions = Vec::new();
        if let Some(launch) = self.pods.get(uid).map(|entry| entry.launch) {
            self.order_stop(uid, launch, &mut actions);
        }
        actions.extend(self.is_pending(uid, why, now));
        actions
    }

    fn is_pending(&mut self, uid: &Text, why: String, now: Instant) -> Vec<Action<N>> {
        error!(target: "ztunnel::inpod::workloadmanager", %uid, "failed to start proxy: {why}");
        let mut actions = Vec::new();
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.state = State::Failed(why.clone());
        }
        if self.awaits_launch_of(uid) {
            actions.extend(self.answer(Some(format!("failure to start proxy : {why}"))));
        }
        self.schedule_retry(now);
        actions
    }

    fn overdue(&mut self, waiting: Unanswered, now: Instant) -> Vec<Action<N>> {
        let uid = waiting.uid;
        let limit = Duration::from_millis(POD_ORDER_DEADLINE_MS);
        match waiting.what {
            Awaited::Stops { owing, .. } => {
                // The pod is gone for the agent in any case; the shards go on with it.
                warn!(target: TARGET, %uid, shards = owing, "shards have not let go of the pod within {limit:?}");
                vec![Action::Ack(None)]
            }
            Awaited::Launch => {
                let mut owed = 0;
                if let Some(Known { state: State::Launching { owing, late, .. }, .. }) =
                    self.pods.get_mut(&uid)
                {
                    (*late, owed) = (true, *owing);
                }
                let why = format!("{owed} shard(s) have not answered within {limit:?}");
                error!(target: "ztunnel::inpod::workloadmanager", %uid, "failed to start proxy: {why}");
                self.schedule_retry(now);
                vec![Action::Ack(Some(format!("failure to start proxy : {why}")))]
            }
        }
    }

    fn schedule_retry(&mut self, now: Instant) {
        if self.retry_at.is_none() {
            let uids: Vec<&Text> =
                self.pods.iter().filter(|(_, entry)| entry.state.is_pending()).map(|(uid, _)| uid).collect();
            info!(target: "ztunnel::inpod::workloadmanager", ?uids, "scheduling retry");
            self.retry_at = Some(now + Duration::from_millis(POD_RETRY_MS));
        }
    }

    /// Every failed pod starts anew; a late one is still at it, and stays pending until its shards have answered.
    fn retry(&mut self, now: Instant) -> Vec<Action<N>> {
        let failed = self.pods.iter().filter(|(_, entry)| matches!(entry.state, State::Failed(_)));
        let failed: Vec<_> =
            failed.map(|(uid, entry)| (uid.clone(), entry.info.clone(), entry.place.clone())).collect();
        let mut actions = Vec::new();
        for (uid, info, place) in failed {
            info!(target: "ztunnel::inpod::workloadmanager", %uid, "retrying workload");
            self.launch(uid.clone(), info, place, &mut actions);
            if let Some(Known { state: State::Launching { late, .. }, .. }) = self.pods.get_mut(&uid) {
                *late = true;
            }
        }
        if self.pending() > 0 {
            self.retry_at = Some(now + Duration::from_millis(POD_RETRY_MS));
        }
        actions
    }

    fn await_answer(&mut self, uid: Text, what: Awaited, now: Instant) {
        assert!(self.unanswered.is_none(), "a message was read before the one before it was answered");
        self.unanswered =
            Some(Unanswered { uid, by: now + Duration::from_millis(POD_ORDER_DEADLINE_MS), what });
    }

    fn awaits_launch_of(&self, uid: &Text) -> bool {
        self.unanswered
            .as_ref()
            .is_some_and(|waiting| waiting.uid == *uid && matches!(waiting.what, Awaited::Launch))
    }

    fn answer(&mut self, error: Option<String>) -> Vec<Action<N>> {
        self.unanswered = None;
        vec![Action::Ack(error)]
    }
}

impl State {
    fn is_pending(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Launching { late: true, .. })
    }

    fn why_pending(&self) -> Option<&str> {
        match self {
            Self::Failed(why) => Some(why),
            Self::Launching { late: true, .. } => Some("its shards have not answered yet"),
            Self::Launching { late: false, .. } | Self::Up => None,
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
