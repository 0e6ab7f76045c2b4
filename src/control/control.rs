//! The control thread: everything that is not traffic. One task owns the mesh's source, the certificates and the
//! orders to the shards, and ends with the process; the HTTP servers are tasks beside it, the CNI agent has a thread
//! of its own. It may stall for a moment (a large file) without any connection noticing.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::base::limits::{
    CNI_LETTERS_QUEUED, CONTROL_TICK_MS, DRAIN_REPORT_MS, POD_RETRY_MS, REPORTS_QUEUED,
};
use crate::base::text::Text;
use crate::bridge::absent::{Absent, AbsentNames};
use crate::bridge::hosts::Hosts;
use crate::bridge::identities::Identities;
use crate::bridge::lines::LineSink;
use crate::bridge::mailbox::{Letterbox, Mailbox, mailbox};
use crate::bridge::order::{Order, Pod, PodKind};
use crate::bridge::published::Published;
use crate::bridge::report::Report;
use crate::bridge::settings::Settings;
use crate::control::admin::AdminServer;
use crate::control::ca::Ca;
use crate::control::cni::{Board, Cni, Letter};
use crate::control::crl::RevocationFile;
use crate::control::flows::FlowDesk;
use crate::control::heartbeat::Heartbeat;
use crate::control::hosts::{HostDesk, NameServers};
use crate::control::http::{BindError, Server, Serving};
use crate::control::live::Pods;
use crate::control::logging::{LogLevels, Logging};
use crate::control::mesh_thread::{self, Answer, MeshThread, Seed, Update};
use crate::control::metrics::{MetricsServer, Sources};
use crate::control::publish::{Orders, Source};
use crate::control::ready::{DRAIN, PODS, PROXY, Readiness, ReadinessServer, STATE};
use crate::control::recorder::Registry;
use crate::control::signing::{Desk, Signer};
use crate::control::wake::{Bell, Signals};
use crate::control::xds::{Client, Dial};
use crate::wire::pb::discovery::Node;

/// What the control thread is given.
pub struct Wiring {
    pub published: Arc<Published>,
    pub identities: Arc<Identities>,
    /// One mailbox a shard, in the order of their numbers.
    pub shards: Vec<Mailbox<Order>>,
    pub reports: Letterbox<Report>,
    pub settings: Arc<Settings>,
    /// Where the mesh comes from, either or both; with neither it stays empty, and counts as complete.
    pub file: Option<Box<dyn Source>>,
    pub control_plane: Option<Discovery>,
    /// Whose workloads are local; all, where it isn't set.
    pub local_node: Option<Text>,
    pub absent: Arc<Absent>,
    pub hosts: Arc<Hosts>,
    pub name_servers: NameServers,
    /// `CRL_PATH`.
    pub revocation: Option<RevocationFile>,
    pub signer: Arc<dyn Signer>,
    pub certificate_ttl: Duration,
    pub mode: Mode,
    /// Pods that are this process's own: the workload of dedicated mode, or the proxy's own inbound listener.
    /// Started once the mesh is known.
    pub own: Vec<Arc<Pod>>,
    pub readiness_addresses: Vec<SocketAddr>,
    pub metrics_addresses: Vec<SocketAddr>,
    pub admin_addresses: Vec<SocketAddr>,
    /// `RINGWAY_ADMIN_SOCKET`.
    pub admin_socket: Option<PathBuf>,
    pub facts: Facts,
    pub lines: LineSink,
    /// `None`: `/logging` says that logging isn't there.
    pub logs: Option<Arc<dyn LogLevels>>,
}

/// The control plane that tells the mesh.
pub struct Discovery {
    pub dial: Box<dyn Dial>,
    pub on_demand: bool,
    pub node: Node,
}

#[derive(Clone, Debug)]
pub enum Mode {
    /// Pods are named by the CNI agent behind this socket; certificates are made ahead.
    Shared { cni: PathBuf },
    /// One workload, in the process's own namespace.
    Dedicated,
}

/// What doesn't change while the process lives, as the dump and the metrics show it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `version` of the dump: {version, gitRevision, rustVersion, buildProfile, buildStatus, istioVersion,
    /// cryptoProvider}.
    pub version: serde_json::Value,
    /// `config` of the dump.
    pub config: serde_json::Value,
    /// The tag of `istio_build`.
    pub istio_version: String,
    /// `io_uring` or `epoll`.
    pub event_loop: String,
    /// Why it isn't `io_uring`; empty otherwise.
    pub event_loop_cause: String,
    /// The library that protects records.
    pub aead: String,
}

/// Why the control thread, and so the process, can't go on.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the control thread can't {what}: {error}")]
    Kernel {
        what: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("the proxy for {pod} can't start: {error}")]
    OwnPod { pod: String, error: String },
    /// A supervisor starts the process anew: what that shard carried can't be carried by another one.
    #[error("shard {shard} is dead: {why}")]
    Shard { shard: usize, why: String },
    #[error("the thread that reads the mesh has ended: see the lines above")]
    MeshThread,
    #[error("the thread that serves the CNI agent has ended or stands still: see the lines above")]
    CniThread,
}

/// How it ended. Exit code 0 in both cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every shard has reported that nothing is left, or the time for it is over.
    Drained,
    /// A second interrupt: leave at once.
    Forced,
}

/// The control thread, servers bound, nothing running yet.
pub struct Control {
    readiness: Arc<Readiness>,
    registry: Registry,
    servers: [Server; 3],
    wiring: Wiring,
}

impl Control {
    /// Binds the servers. An address that can't be bound is an error that names it.
    pub fn new(wiring: Wiring) -> Result<Self, ControlError> {
        let readiness = Arc::new(Readiness::default());
        readiness.expect(STATE, Some("the mesh's state has not been read yet".into()));
        readiness.expect(PROXY, Some("the proxy has not started yet".into()));
        if let Mode::Shared { .. } = wiring.mode {
            readiness.expect(PODS, Some("waits for the mesh's state before it calls the CNI agent".into()));
        }
        let mut servers = [
            Server::bind("readiness", &wiring.readiness_addresses)?,
            Server::bind("admin", &wiring.admin_addresses)?,
            Server::bind("stats", &wiring.metrics_addresses)?,
        ];
        if let (Some(path), [_, admin, _]) = (&wiring.admin_socket, &mut servers) {
            admin.also_at(path)?;
        }
        Ok(Self { readiness, registry: Registry::default(), servers, wiring })
    }

    /// Where readiness, admin and metrics are served.
    pub fn addresses(&self) -> [Vec<SocketAddr>; 3] {
        self.servers.each_ref().map(Server::addresses)
    }

    /// Runs on the calling thread until the process shall end. `threads`: those of the shards, in the order of
    /// their numbers; one that ends before it was told to is an error.
    pub fn run(self, threads: Vec<JoinHandle<()>>) -> Result<Outcome, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ControlError::Kernel { what: "make its event loop", error })?;
        let registry = self.registry.clone();
        let outcome = metrics::with_local_recorder(&registry, || runtime.block_on(self.work(threads)));
        // A name that a resolver is still looking for holds nobody up.
        runtime.shutdown_background();
        outcome
    }

    async fn work(self, threads: Vec<JoinHandle<()>>) -> Result<Outcome, ControlError> {
        let Self { readiness, registry, servers: [ready, admin, stats], mut wiring } = self;
        let kernel = |what| move |error| ControlError::Kernel { what, error };
        info!(target: "ztunnel::app", "{}", match &wiring.mode {
            Mode::Shared { .. } => "shared proxy mode - in-pod mode enabled",
            Mode::Dedicated => "proxy mode enabled",
        });
        let (close, closing) = watch::channel(false);
        let (quit, quits) = mpsc::channel(4);
        let board = Arc::new(Board::default());
        let mut serving = vec![ready.serve(Arc::new(ReadinessServer(readiness.clone())), &closing)?];
        let pods = Pods {
            board: matches!(wiring.mode, Mode::Shared { .. }).then(|| board.clone()),
            own: wiring.own.iter().map(|pod| (pod.uid.clone(), pod.info.clone())).collect(),
        };
        let admin_server = AdminServer {
            published: wiring.published.clone(),
            identities: wiring.identities.clone(),
            shards: wiring.shards.clone(),
            flows: FlowDesk::new(wiring.shards.clone(), pods.clone(), closing.clone()),
            pods,
            facts: wiring.facts.clone(),
            logging: Logging::new(wiring.logs.clone()),
            readiness: readiness.clone(),
            started: Instant::now(),
            quit,
            patience: wiring.settings.termination_deadline,
            settings: wiring.settings.clone(),
            static_config: wiring.file.as_ref().and_then(|source| source.static_config()),
        };
        serving.push(admin.serve(Arc::new(admin_server), &closing)?);
        let sources = Sources {
            registry: registry.clone(),
            facts: wiring.facts.clone(),
            identities: wiring.identities.clone(),
            published: wiring.published.clone(),
            lines: wiring.lines.clone(),
            board: matches!(wiring.mode, Mode::Shared { .. }).then(|| board.clone()),
        };
        let metrics_server = MetricsServer::new(wiring.shards.clone(), sources);
        serving.push(stats.serve(Arc::new(metrics_server), &closing)?);
        let (post, letters) = mailbox(CNI_LETTERS_QUEUED).map_err(kernel("make the CNI thread's mailbox"))?;
        let orders = Orders::new(wiring.shards.clone());
        let cni = match &wiring.mode {
            Mode::Shared { cni } => {
                let orders = orders.beside();
                let (settings, readiness) = (wiring.settings.clone(), readiness.clone());
                Some(Cni::new(cni.clone(), settings, orders, letters, readiness, board))
            }
            Mode::Dedicated => None,
        };
        let shards = Shards { orders, threads };
        let mesh = start_mesh(&mut wiring, &readiness, &registry).map_err(kernel("start the mesh thread"))?;
        let loop_ = Loop::new(wiring, readiness, registry, cni, post, shards, mesh);
        Box::pin(loop_.run(Quits { quits, close, serving })).await
    }
}

/// The mesh thread, and the client of the control plane as a task of this one.
fn start_mesh(
    wiring: &mut Wiring,
    readiness: &Arc<Readiness>,
    registry: &Registry,
) -> io::Result<MeshThread> {
    let mut dial = None;
    let discovery = wiring.control_plane.take().map(|plane| {
        let at = plane.dial.at().into();
        dial = Some(plane.dial);
        mesh_thread::Discovery { at, on_demand: plane.on_demand, node: plane.node }
    });
    let mesh = mesh_thread::start(Seed {
        file: wiring.file.take(),
        discovery,
        local_node: wiring.local_node.take(),
        absent: AbsentNames::new(wiring.absent.clone()),
        readiness: readiness.clone(),
        registry: registry.clone(),
    })?;
    if let Some(dial) = dial {
        // Ends with the mesh thread.
        tokio::spawn(Client::new(dial, mesh.words.clone(), fastrand::Rng::new()).run());
    }
    Ok(mesh)
}

/// A request to end, answered once it is accepted.
pub type Quit = oneshot::Sender<()>;

struct Quits {
    quits: mpsc::Receiver<Quit>,
    close: watch::Sender<bool>,
    serving: Vec<Serving>,
}

/// The shards, as the control thread holds them.
struct Shards {
    orders: Orders,
    threads: Vec<JoinHandle<()>>,
}

/// The one task that owns what changes.
struct Loop {
    published: Arc<Published>,
    orders: Orders,
    threads: Vec<JoinHandle<()>>,
    reports: Letterbox<Report>,
    settings: Arc<Settings>,
    mesh: MeshThread,
    /// Look-ups that the mesh thread didn't take yet.
    lookups: VecDeque<Text>,
    desk: Desk,
    hosts: HostDesk,
    revocation: Option<RevocationFile>,
    identities: Arc<Identities>,
    prefetch: bool,
    own: HashMap<Text, Own>,
    readiness: Arc<Readiness>,
    registry: Registry,
    /// Until the mesh is known, then it runs on its thread.
    cni: Option<Cni>,
    cni_thread: Option<JoinHandle<()>>,
    post: Mailbox<Letter>,
    /// Letters that the CNI thread's mailbox didn't take yet.
    letters: VecDeque<Letter>,
    heartbeat: Heartbeat,
    dedicated: bool,
    drained: BTreeSet<usize>,
}

/// A pod of the process itself.
struct Own {
    pod: Arc<Pod>,
    shards: Vec<usize>,
    owing: usize,
    failure: Option<String>,
    retry_at: Option<Instant>,
}

impl Loop {
    fn new(
        wiring: Wiring,
        readiness: Arc<Readiness>,
        registry: Registry,
        cni: Option<Cni>,
        post: Mailbox<Letter>,
        Shards { orders, threads }: Shards,
        mesh: MeshThread,
    ) -> Self {
        let Wiring { published, identities, shards, reports, settings, signer, own, .. } = wiring;
        let mut revocation = wiring.revocation;
        if let Some(file) = &mut revocation {
            file.look(Instant::now(), &readiness);
        }
        let dedicated = matches!(wiring.mode, Mode::Dedicated);
        let hosts = HostDesk::new(wiring.hosts, wiring.name_servers.resolver());
        let own = own.into_iter().map(|pod| {
            // The one workload of a dedicated proxy has all shards to itself.
            let shards = if dedicated { (0..shards.len()).collect() } else { settings.shards_of(&pod.uid) };
            (pod.uid.clone(), Own { pod, shards, owing: 0, failure: None, retry_at: None })
        });
        Self {
            own: own.collect(),
            desk: Desk::new(
                Ca::new(identities.clone(), fastrand::Rng::new()),
                signer,
                wiring.certificate_ttl,
            ),
            hosts,
            revocation,
            identities,
            heartbeat: Heartbeat::new(shards),
            orders,
            threads,
            prefetch: !dedicated,
            letters: VecDeque::new(),
            cni_thread: None,
            drained: BTreeSet::new(),
            published,
            reports,
            settings,
            mesh,
            lookups: VecDeque::new(),
            readiness,
            registry,
            cni,
            post,
            dedicated,
        }
    }

    async fn run(mut self, mut quits: Quits) -> Result<Outcome, ControlError> {
        let kernel = |what| move |error| ControlError::Kernel { what, error };
        let bell = Bell::of(&self.reports).map_err(kernel("wait for reports"))?;
        let mut signals = Signals::new().map_err(kernel("wait for signals"))?;
        let mut tick = tokio::time::interval(Duration::from_millis(CONTROL_TICK_MS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                name = signals.next() => {
                    info!(target: "ztunnel::signal::imp", "received signal {name}, starting shutdown");
                    break;
                }
                Some(accepted) = quits.quits.recv() => {
                    info!(target: "ztunnel::signal::imp", "received explicit shutdown signal");
                    let _ = accepted.send(());
                    break;
                }
                rung = bell.rung() => {
                    rung.map_err(kernel("wait for reports"))?;
                    self.take_reports()?;
                }
                update = self.mesh.updates.recv() => self.update(update)?,
                changed = self.desk.finished() => self.standings_changed(changed),
                () = self.hosts.finished() => self.orders.post_all(|| Order::Look),
                _ = tick.tick() => self.tick()?,
            }
            self.desk.start(SystemTime::now());
        }
        Box::pin(self.drain(quits, signals, bell)).await
    }

    /// What is done regularly.
    fn tick(&mut self) -> Result<(), ControlError> {
        let now = Instant::now();
        self.take_reports()?;
        self.retry_own(now);
        self.orders.flush();
        self.hand_letters_on();
        self.heartbeat.beat(now, &self.readiness);
        self.follow_revocations(now);
        self.look_for_the_dead()
    }

    /// Also while the process drains: its last connections are the longest ones.
    fn follow_revocations(&mut self, now: Instant) {
        let Some(file) = &mut self.revocation else { return };
        if file.look(now, &self.readiness) {
            self.orders.post_all(|| Order::Look);
        }
        file.survey(now, SystemTime::now(), &self.identities);
    }

    /// Threads end by themselves only at a drain. Without one of them the process only looks alive.
    fn look_for_the_dead(&mut self) -> Result<(), ControlError> {
        if let Some(shard) = self.threads.iter().position(JoinHandle::is_finished) {
            let why = match self.threads.swap_remove(shard).join() {
                Ok(()) => "its event loop has ended".to_owned(),
                Err(panic) => format!("it panicked: {}", panic_text(panic.as_ref())),
            };
            return Err(ControlError::Shard { shard, why });
        }
        if let Some(shard) = self.orders.lost() {
            return Err(ControlError::Shard { shard, why: "it takes no orders any more".to_owned() });
        }
        let stands_still = self.letters.len() > CNI_LETTERS_QUEUED;
        if stands_still || self.cni_thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return Err(ControlError::CniThread);
        }
        Ok(())
    }

    /// A step of the mesh: published first, then acknowledged.
    fn update(&mut self, update: Option<Update>) -> Result<(), ControlError> {
        let Update { snapshot, local, answers, answered } = update.ok_or(ControlError::MeshThread)?;
        let now = SystemTime::now();
        for (uid, identity) in local {
            self.desk.keeper.local(uid, identity, self.prefetch, now);
        }
        let known_now = snapshot.as_ref().is_some_and(|next| next.synced && !self.published.peek().synced);
        let look = answered || snapshot.is_some();
        if let Some(next) = snapshot {
            self.published.swap(next);
        }
        if look {
            self.orders.post_all(|| Order::Look);
        }
        answers.into_iter().for_each(Answer::send);
        if known_now { self.mesh_is_known() } else { Ok(()) }
    }

    /// The first full state: from here on traffic may flow.
    fn mesh_is_known(&mut self) -> Result<(), ControlError> {
        self.readiness.complete(STATE);
        let uids: Vec<Text> = self.own.keys().cloned().collect();
        for uid in &uids {
            self.start_own(uid);
        }
        if !self.dedicated || uids.is_empty() {
            self.readiness.complete(PROXY);
        }
        let Some(cni) = self.cni.take() else { return Ok(()) };
        let registry = self.registry.clone();
        let thread = std::thread::Builder::new()
            .name("ringway-cni".to_owned())
            .spawn(move || {
                // Signals are for the control thread.
                if let Err(error) = crate::sys::signal::shield_thread() {
                    warn!(%error, "the CNI thread can't block signals");
                }
                metrics::with_local_recorder(&registry, || cni.run());
            })
            .map_err(|error| ControlError::Kernel { what: "start the CNI thread", error })?;
        self.cni_thread = Some(thread);
        Ok(())
    }

    fn start_own(&mut self, uid: &Text) {
        let Some(own) = self.own.get_mut(uid) else { return };
        (own.owing, own.failure, own.retry_at) = (own.shards.len(), None, None);
        for shard in &own.shards {
            self.orders.post(*shard, Order::Start(own.pod.clone()));
        }
    }

    fn retry_own(&mut self, now: Instant) {
        let due = self.own.values().filter(|own| own.retry_at.is_some_and(|at| at <= now));
        let due: Vec<Text> = due.map(|own| own.pod.uid.clone()).collect();
        for uid in due {
            self.start_own(&uid);
        }
    }

    fn own_started(
        &mut self,
        uid: &Text,
        shard: usize,
        result: Result<(), String>,
    ) -> Result<(), ControlError> {
        let Some(own) = self.own.get_mut(uid) else { return Ok(()) };
        own.owing = own.owing.saturating_sub(1);
        if let Err(error) = result {
            own.failure.get_or_insert(format!("shard {shard}: {error}"));
        }
        if own.owing > 0 {
            return Ok(());
        }
        let Some(error) = own.failure.take() else {
            if own.pod.kind == PodKind::Workload {
                self.readiness.complete(PROXY);
            }
            return Ok(());
        };
        let pod = format!("{}/{}", own.pod.info.namespace, own.pod.info.name);
        if self.dedicated {
            return Err(ControlError::OwnPod { pod, error });
        }
        // Scrapes over HBONE fail until then; the pods of the node don't depend on it.
        error!(%pod, "the proxy's own inbound listener can't start, trying again: {error}");
        own.retry_at = Some(Instant::now() + Duration::from_millis(POD_RETRY_MS));
        for shard in &own.shards {
            let how = crate::bridge::order::Ending::Now;
            self.orders.post(*shard, Order::Stop { uid: uid.clone(), how });
        }
        Ok(())
    }

    fn take_reports(&mut self) -> Result<(), ControlError> {
        self.reports.silence();
        while let Some(report) = self.reports.take() {
            match report {
                Report::Started { uid, shard, result } if self.own.contains_key(&uid) => {
                    self.own_started(&uid, shard, result)?;
                }
                Report::Started { uid, shard, result } => {
                    self.letters.push_back(Letter::Started { uid, shard, result });
                }
                Report::Stopped { uid, .. } if self.own.contains_key(&uid) => {}
                Report::Stopped { uid, shard } => self.letters.push_back(Letter::Stopped { uid, shard }),
                Report::Want(identity) => self.desk.keeper.want(identity, SystemTime::now()),
                Report::Lookup(name) => self.lookups.push_back(name),
                Report::Resolve(host) => self.hosts.want(host, Instant::now()),
                Report::Drained { shard } => {
                    self.drained.insert(shard);
                }
            }
        }
        self.hand_letters_on();
        Ok(())
    }

    fn hand_letters_on(&mut self) {
        while let Some(letter) = self.letters.pop_front() {
            if let Err(letter) = self.post.post(letter) {
                self.letters.push_front(letter);
                break;
            }
        }
        while let Some(name) = self.lookups.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(name)) = self.mesh.lookups.try_send(name) {
                self.lookups.push_front(name);
                break;
            }
        }
        // Reports are bounded, but may keep coming; whoever waits longer than his patience asks in vain.
        self.lookups.truncate(REPORTS_QUEUED);
    }

    fn standings_changed(&mut self, changed: bool) {
        if changed {
            if let Some(file) = &mut self.revocation {
                file.signers_changed();
            }
            self.orders.post_all(|| Order::Look);
        }
    }

    /// Connections go on for the grace, certificates and counters with them.
    async fn drain(
        mut self,
        mut quits: Quits,
        mut signals: Signals,
        bell: Bell,
    ) -> Result<Outcome, ControlError> {
        let grace = self.settings.termination_deadline;
        let reason = format!("the process ends, within {grace:?}");
        info!(target: "ztunnel::readiness", "no longer ready: {reason}");
        self.readiness.expect(DRAIN, Some(reason.into()));
        self.letters.clear();
        let _ = self.post.post(Letter::Drain);
        self.orders.post_all(|| Order::Drain { grace });
        let end = tokio::time::Instant::now() + grace + Duration::from_millis(DRAIN_REPORT_MS);
        let mut tick = tokio::time::interval(Duration::from_millis(CONTROL_TICK_MS));
        while self.drained.len() < self.orders.shards() {
            tokio::select! {
                () = signals.second_interrupt() => {
                    info!(target: "ztunnel::signal::imp", "Double Ctrl+C, exit immediately");
                    return Ok(Outcome::Forced);
                }
                Some(accepted) = quits.quits.recv() => {
                    let _ = accepted.send(());
                }
                Ok(()) = bell.rung() => self.take_reports()?,
                update = self.mesh.updates.recv() => self.update(update)?,
                changed = self.desk.finished() => self.standings_changed(changed),
                () = self.hosts.finished() => self.orders.post_all(|| Order::Look),
                _ = tick.tick() => {
                    self.orders.flush();
                    self.take_reports()?;
                    self.follow_revocations(Instant::now());
                    // A dead one has nothing left either.
                    let ended = self.threads.iter().enumerate().filter(|(_, thread)| thread.is_finished());
                    self.drained.extend(ended.map(|(shard, _)| shard));
                }
                () = tokio::time::sleep_until(end) => {
                    let silent = self.orders.shards() - self.drained.len();
                    warn!("{silent} shard(s) have not finished their drain, leaving without them");
                    break;
                }
            }
            self.desk.start(SystemTime::now());
        }
        let _ = quits.close.send(true);
        for serving in quits.serving {
            serving.finish().await;
        }
        info!("shutdown complete");
        Ok(Outcome::Drained)
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
