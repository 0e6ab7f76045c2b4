//! The thread on which the mesh is read: it owns the newest snapshot, decodes what sources say, and hands whole steps
//! to the control thread, which publishes them. So neither a push of 100,000 workloads nor a large file delays what
//! has a deadline there. Also where retired snapshots are taken apart, never on a shard.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::base::limits::{
    LOOKUPS_QUEUED, MESH_THREAD_NICE, PUBLISH_PAUSE_MS, RETIRE_MS, SOURCE_POLL_MS, UPDATES_QUEUED,
    XDS_PARTS_QUEUED, XDS_REFUSALS_LOGGED, XDS_REQUESTS_QUEUED,
};
use crate::base::text::Text;
use crate::bridge::absent::AbsentNames;
use crate::control::alone::{Alarm, run_alone};
use crate::control::locals::{LocalChange, Locals};
use crate::control::publish::Source;
use crate::control::ready::{Readiness, STATE};
use crate::control::recorder::Registry;
use crate::control::xds::{Fault, Intake, Kind, Ledger, Lookup, Part, Requests, Step, Stream, Word};
use crate::mesh::delta::{Change, apply};
use crate::mesh::snapshot::{Found, Snapshot};
use crate::sys;
use crate::wire::pb::discovery::{DeltaDiscoveryRequest, Node};

/// What the mesh is made from. Without any source the empty mesh is the complete one.
pub struct Seed {
    pub file: Option<Box<dyn Source>>,
    pub discovery: Option<Discovery>,
    /// Whose workloads are local; all, where it isn't set.
    pub local_node: Option<Text>,
    pub absent: AbsentNames,
    pub readiness: Arc<Readiness>,
    pub registry: Registry,
}

/// The control plane's part.
pub struct Discovery {
    /// For texts.
    pub at: Text,
    pub on_demand: bool,
    pub node: Node,
}

/// One step of the mesh.
#[derive(Default)]
pub struct Update {
    /// `None`: the mesh is as it was.
    pub snapshot: Option<Arc<Snapshot>>,
    pub local: Vec<LocalChange>,
    /// To be sent once the snapshot is published.
    pub answers: Vec<Answer>,
    /// Look-ups were answered.
    pub answered: bool,
}

/// An acknowledgement or refusal on its way.
pub struct Answer {
    to: Requests,
    request: DeltaDiscoveryRequest,
}

impl Answer {
    /// The queue has room for as many as there can be, so a full one is a control plane that reads nothing; its stream
    /// ends with the next look-up, or by its own deadlines.
    pub fn send(self) {
        let _ = self.to.try_send(self.request);
    }
}

/// The control thread's side.
pub struct MeshThread {
    pub words: mpsc::Sender<Word>,
    pub lookups: mpsc::Sender<Text>,
    pub updates: mpsc::Receiver<Update>,
    pub thread: JoinHandle<()>,
}

/// Starts it. It ends once the control thread has dropped its side.
pub fn start(seed: Seed) -> io::Result<MeshThread> {
    let (words, hear) = mpsc::channel(XDS_PARTS_QUEUED);
    let (lookups, asked) = mpsc::channel(LOOKUPS_QUEUED);
    let (tell, updates) = mpsc::channel(UPDATES_QUEUED);
    let registry = seed.registry.clone();
    let mesh = Mesh::new(seed);
    let work = move || {
        if let Err(error) = sys::signal::shield_thread() {
            warn!(%error, "the mesh thread can't block signals");
        }
        if let Err(error) = sys::proc::be_nice(MESH_THREAD_NICE) {
            warn!(%error, "the mesh thread can't step back behind the shards");
        }
        let alarm = Alarm::default();
        let run = run(&alarm, mesh, hear, asked, tell);
        metrics::with_local_recorder(&registry, || run_alone(&alarm, run));
    };
    let thread = std::thread::Builder::new().name("ringway-mesh".to_owned()).spawn(work)?;
    Ok(MeshThread { words, lookups, updates, thread })
}

async fn run(
    alarm: &Alarm,
    mut mesh: Mesh,
    mut words: mpsc::Receiver<Word>,
    mut lookups: mpsc::Receiver<Text>,
    updates: mpsc::Sender<Update>,
) {
    loop {
        let now = Instant::now();
        mesh.regular(now);
        if mesh.publish_at.is_some_and(|at| at <= now)
            && let Some(update) = mesh.publish(now)
            && updates.send(update).await.is_err()
        {
            return;
        }
        tokio::select! {
            biased;
            name = lookups.recv() => match name {
                Some(name) => mesh.look_up(&name, Instant::now()),
                None => return,
            },
            Some(word) = words.recv() => mesh.hear(word, Instant::now()),
            () = alarm.rings(mesh.wake_at()) => {}
        }
        // What has queued up becomes one step; the queue's bound is this loop's.
        for _ in 0..XDS_PARTS_QUEUED {
            let Ok(word) = words.try_recv() else { break };
            mesh.hear(word, Instant::now());
        }
    }
}

/// The thread's state, apart from its queues.
struct Mesh {
    current: Arc<Snapshot>,
    locals: Locals,
    file: Option<File>,
    discovery: Option<Asking>,
    absent: AbsentNames,
    readiness: Arc<Readiness>,
    /// What has come since the last step.
    pending: Vec<Change>,
    answers: Vec<Answer>,
    answered: bool,
    /// Look-ups that the pending changes may answer.
    postponed: Vec<Text>,
    publish_at: Option<Instant>,
    published: Option<Instant>,
    /// Snapshots that were published before, until nobody else holds them.
    retired: Vec<Arc<Snapshot>>,
}

struct File {
    source: Box<dyn Source>,
    poll_at: Option<Instant>,
    complete: bool,
    error: Option<String>,
}

struct Asking {
    at: Text,
    node: Node,
    intake: Intake,
    stream: Option<Stream>,
    /// Why there was no stream when one was wanted last.
    trouble: Option<String>,
}

impl Mesh {
    fn new(seed: Seed) -> Self {
        let Seed { file, discovery, local_node, absent, readiness, .. } = seed;
        let file = file.map(|source| File { source, poll_at: None, complete: false, error: None });
        let discovery = discovery.map(|Discovery { at, on_demand, node }| {
            let intake = Intake::new(Ledger::new(on_demand));
            Asking { at, node, intake, stream: None, trouble: None }
        });
        let mut mesh = Self {
            current: Arc::default(),
            locals: Locals::new(local_node),
            publish_at: (file.is_none() && discovery.is_none()).then(Instant::now),
            file,
            discovery,
            absent,
            readiness,
            pending: Vec::new(),
            answers: Vec::new(),
            answered: false,
            postponed: Vec::new(),
            published: None,
            retired: Vec::new(),
        };
        mesh.explain();
        mesh
    }

    /// Whether each source has told its whole state once.
    fn is_complete(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.complete)
            && self.discovery.as_ref().is_none_or(|asking| asking.intake.ledger.is_complete())
    }

    /// When there is something to do without a word from anybody.
    fn wake_at(&self) -> Option<Instant> {
        let poll = self.file.as_ref().and_then(|file| file.poll_at);
        let give_up = self.discovery.as_ref().and_then(|asking| asking.intake.ledger.give_up_at());
        let retire = (!self.retired.is_empty()).then(|| Instant::now() + Duration::from_millis(RETIRE_MS));
        [poll, give_up, self.publish_at, retire].into_iter().flatten().min()
    }

    fn regular(&mut self, now: Instant) {
        // The last holder takes a snapshot apart, and that is this thread.
        self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
        if self.file.as_ref().is_some_and(|file| file.poll_at.is_none_or(|at| at <= now)) {
            self.poll_file(now);
        }
        if let Some(asking) = &mut self.discovery {
            let gone = asking.intake.ledger.give_up(now);
            if !gone.is_empty() {
                info!(target: "ztunnel::xds", "{} resources are gone since the last connection", gone.len());
                self.pending.extend(gone);
                self.want_publish(now);
            }
        }
    }

    fn poll_file(&mut self, now: Instant) {
        let Some(file) = &mut self.file else { return };
        file.poll_at = Some(now + Duration::from_millis(SOURCE_POLL_MS));
        match file.source.poll() {
            None => {}
            Some(Ok(changes)) => {
                (file.complete, file.error) = (true, None);
                self.pending.extend(changes);
                self.want_publish(now);
                self.explain();
            }
            Some(Err(error)) => {
                error!("the mesh's source can't be read, what was known stands: {error}");
                file.error = Some(error);
                self.explain();
            }
        }
    }

    /// A single step is taken at once, under load they gather.
    fn want_publish(&mut self, now: Instant) {
        let pause = Duration::from_millis(PUBLISH_PAUSE_MS);
        let earliest = self.published.map_or(now, |at| (at + pause).max(now));
        self.publish_at.get_or_insert(earliest);
    }

    fn hear(&mut self, word: Word, now: Instant) {
        let Some(asking) = &mut self.discovery else { return };
        match word {
            Word::Opened(stream) => {
                asking.intake.end();
                self.absent.clear();
                asking.trouble = None;
                for mut request in asking.intake.ledger.begin() {
                    request.node = Some(asking.node.clone());
                    // The queue is new.
                    let _ = stream.requests.try_send(request);
                }
                asking.stream = Some(stream);
                self.explain();
            }
            Word::Part(part) => self.part(part, now),
            Word::Closed { why } => {
                asking.intake.end();
                asking.stream = None;
                asking.trouble = Some(why);
                self.explain();
            }
        }
    }

    fn part(&mut self, part: Part, now: Instant) {
        let Some(asking) = &mut self.discovery else { return };
        // What still comes of a stream that is given up.
        let Some(stream) = &asking.stream else { return };
        let span = tracing::info_span!("xds", id = stream.id);
        let _entered = span.enter();
        match asking.intake.part(part, &self.current, &mut self.absent, now) {
            Ok(None) => {}
            Ok(Some(step)) => self.step(step, now),
            Err(error) => {
                asking.intake.end();
                asking.fault(Fault::Unreadable(error.to_string()));
            }
        }
    }

    fn step(&mut self, step: Step, now: Instant) {
        let Some(asking) = &mut self.discovery else { return };
        for refused in step.refused.iter().take(XDS_REFUSALS_LOGGED) {
            warn!(target: "ztunnel::xds", "refused {}: {}", refused.name, refused.reason);
        }
        if step.refused.len() > XDS_REFUSALS_LOGGED {
            let more = step.refused.len() - XDS_REFUSALS_LOGGED;
            warn!(target: "ztunnel::xds", "refused {more} more resources of the same response");
        }
        tell_of_policies(&self.current, &step.changes);
        if let Some(stream) = &asking.stream {
            self.answers.push(Answer { to: stream.requests.clone(), request: step.answer });
        }
        if step.restart {
            asking.fault(Fault::AskAgain);
        }
        self.answered |= !step.answered.is_empty();
        if !step.absent.is_empty() {
            self.absent.insert(step.absent, now);
        }
        if self.pending.is_empty() {
            self.pending = step.changes;
        } else {
            self.pending.extend(step.changes);
        }
        self.want_publish(now);
        self.explain();
    }

    fn look_up(&mut self, name: &Text, now: Instant) {
        let known = self.absent.shared().holds(name, now) || is_known(&self.current, name);
        let Some(asking) = self.discovery.as_mut().filter(|_| !known) else {
            // Whoever asks looks again.
            self.answered = true;
            return self.want_publish(now);
        };
        if !self.pending.is_empty() {
            return self.postponed.push(name.clone());
        }
        match asking.intake.ledger.look_up(name) {
            Lookup::Pending => {}
            Lookup::TooMany => metrics::counter!("ringway_xds_lookups_refused").increment(1),
            Lookup::Ask(request) => {
                let of = Kind::Address.type_url();
                info!(target: "ztunnel::xds::client", "received on demand request {of}/{name}");
                // Without a stream it is asked with the first request of the next one.
                if let Some(stream) = &asking.stream
                    && let Err(mpsc::error::TrySendError::Full(_)) = stream.requests.try_send(*request)
                {
                    asking.fault(Fault::NotReading(XDS_REQUESTS_QUEUED));
                }
            }
        }
    }

    /// The step that is due; nothing where nobody would notice.
    fn publish(&mut self, now: Instant) -> Option<Update> {
        self.publish_at = None;
        let changes = std::mem::take(&mut self.pending);
        let local = changes.iter().filter_map(|change| self.locals.follow(change)).collect();
        let naming = self.locals.naming_policies(&changes);
        let mut next = apply(&self.current, changes, self.locals.node());
        next.synced = self.is_complete();
        for (uid, key) in self.locals.missing_policies(&self.current, &next, naming) {
            warn!(target: "ztunnel::state", workload = %uid, "skipping unknown policy {key}");
        }
        let news = next.version() != self.current.version() || next.synced != self.current.synced;
        let update = Update {
            snapshot: news.then(|| Arc::new(next)),
            local,
            answers: std::mem::take(&mut self.answers),
            answered: std::mem::take(&mut self.answered),
        };
        if let Some(next) = &update.snapshot {
            self.published = Some(now);
            self.retired.push(std::mem::replace(&mut self.current, next.clone()));
            metrics::counter!("ringway_mesh_snapshots").increment(1);
        }
        for name in std::mem::take(&mut self.postponed) {
            self.look_up(&name, now);
        }
        let empty = update.snapshot.is_none()
            && update.local.is_empty()
            && update.answers.is_empty()
            && !update.answered;
        (!empty).then_some(update)
    }

    /// What the first whole state waits for.
    fn explain(&mut self) {
        if self.current.synced {
            return;
        }
        let mut reasons = Vec::new();
        if let Some(File { complete: false, error, .. }) = &self.file {
            reasons.push(error.clone().unwrap_or_else(|| "the local file has not been read yet".to_owned()));
        }
        if let Some(Asking { at, intake, stream, trouble, .. }) = &self.discovery {
            let missing: Vec<_> = intake.ledger.missing().map(Kind::name).collect();
            let missing = missing.join(", ");
            match (stream, trouble) {
                _ if missing.is_empty() => {}
                (None, Some(trouble)) => reasons.push(format!("no stream from {at}: {trouble}")),
                (None, None) => reasons.push(format!("connects to {at}")),
                (Some(_), _) => reasons.push(format!("{at} has not sent its first state of: {missing}")),
            }
        }
        if !reasons.is_empty() {
            self.readiness.explain(STATE, reasons.join("; ").into());
        }
    }
}

impl Asking {
    /// Ends the stream; the client opens another.
    fn fault(&mut self, fault: Fault) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.end.send(fault);
        }
    }
}

/// Whether the snapshot has the address of this name.
fn is_known(snapshot: &Snapshot, name: &str) -> bool {
    if snapshot.workload(name).is_some() {
        return true;
    }
    let by_address = name.rsplit_once('/').and_then(|(network, ip)| {
        let ip = ip.parse().ok()?;
        snapshot.lookup(network, ip, None).map(|found| match found {
            Found::Workload(_) | Found::Service(_) => true,
        })
    });
    by_address.unwrap_or_else(|| name.parse().is_ok_and(|key| snapshot.service(&key).is_some()))
}

/// The reference's lines, but only for what isn't said a second time after a reconnect.
fn tell_of_policies(current: &Snapshot, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Policy { key, policy } if current.policy(key) != Some(policy) => {
                info!(target: "ztunnel::xds", "handling RBAC update {}", policy.name);
            }
            Change::RemovePolicy(key) => {
                info!(target: "ztunnel::xds", "handling RBAC delete {key}");
            }
            Change::Policy { .. }
            | Change::Workload(_)
            | Change::RemoveWorkload(_)
            | Change::Service { .. }
            | Change::RemoveService(_)
            | Change::RemoveAddress(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "mesh_thread_tests.rs"]
mod tests;
