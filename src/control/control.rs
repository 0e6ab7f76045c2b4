//! The control thread: everything that is not traffic. One task owns the mesh's source, the certificates and the
//! orders to the shards, and ends with the process; the HTTP servers are tasks beside it, the CNI agent has a thread
//! of its own. It may stall for a moment (a large file) without any connection noticing.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use crate::base::limits::{CNI_LETTERS_QUEUED, CONTROL_TICK_MS, DRAIN_REPORT_MS};
use crate::base::text::Text;
use crate::bridge::absent::AbsentNames;
use crate::bridge::identities::Identities;
use crate::bridge::mailbox::{Letterbox, Mailbox, mailbox};
use crate::bridge::order::Order;
use crate::bridge::published::Published;
use crate::bridge::report::Report;
use crate::bridge::settings::Settings;
use crate::control::admin::AdminServer;
use crate::control::ca::Ca;
use crate::control::cni::{Board, Cni, CniThread, Letter};
use crate::control::crl::RevocationFile;
use crate::control::flows::FlowDesk;
use crate::control::heartbeat::Heartbeat;
use crate::control::hosts::HostDesk;
use crate::control::http::{BindError, Server, Serving};
use crate::control::live::Pods;
use crate::control::logging::Logging;
use crate::control::mesh_thread::{self, Answer, MeshThread, Seed, Update};
use crate::control::metrics::{MetricsServer, Sources};
use crate::control::own::OwnPods;
use crate::control::publish::Orders;
use crate::control::ready::{DNS_PROXY, DRAIN, PODS, PROXY, Readiness, ReadinessServer, STATE};
use crate::control::recorder::Registry;
use crate::control::signing::Desk;
use crate::control::wake::{Bell, Signals};
use crate::control::wiring::{Mode, Wiring};
use crate::control::xds::Client;

mod regular;

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
        let (proxy, dns) = (wiring.settings.proxy, !wiring.settings.dns.addresses.is_empty());
        for (task, _) in [(PROXY, proxy), (DNS_PROXY, dns)].into_iter().filter(|(_, awaited)| *awaited) {
            readiness.expect(task, Some("the proxy has not started yet".into()));
        }
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
    own: OwnPods,
    readiness: Arc<Readiness>,
    registry: Registry,
    /// Until the mesh is known, then it runs on its thread.
    cni: Option<Cni>,
    cni_thread: Option<CniThread>,
    post: Mailbox<Letter>,
    /// Letters that the CNI thread's mailbox didn't take yet.
    letters: VecDeque<Letter>,
    heartbeat: Heartbeat,
    dedicated: bool,
    drained: BTreeSet<usize>,
    /// Shards whose threads have ended, in whatever way.
    ended: BTreeSet<usize>,
    /// When the regular work was done last.
    ticked: Instant,
    /// Until the process was ready once.
    starting: bool,
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
        Self {
            own: OwnPods::new(own, dedicated, shards.len(), &settings),
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
            ended: BTreeSet::new(),
            ticked: Instant::now(),
            starting: true,
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
        self.tick()?;
        loop {
            let due = self.due();
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
                    self.look_for_the_dead()?;
                }
                update = self.mesh.updates.recv() => self.update(update)?,
                changed = self.desk.finished() => self.standings_changed(changed),
                () = self.hosts.finished() => self.orders.post_all(|| Order::Look),
                () = ended(&mut self.cni_thread) => return Err(ControlError::CniThread),
                () = tokio::time::sleep_until(due.into()) => self.tick()?,
            }
            self.desk.start(SystemTime::now());
        }
        Box::pin(self.drain(quits, signals, bell)).await
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
        self.own.start(&mut self.orders);
        if !self.dedicated || self.own.is_empty() {
            self.listeners_are_up();
        }
        let Some(cni) = self.cni.take() else { return Ok(()) };
        let started = cni.spawn(self.registry.clone());
        let kernel = |error| ControlError::Kernel { what: "start the CNI thread", error };
        self.cni_thread = Some(started.map_err(kernel)?);
        Ok(())
    }

    fn listeners_are_up(&self) {
        self.readiness.complete(PROXY);
        self.readiness.complete(DNS_PROXY);
    }

    fn take_reports(&mut self) -> Result<(), ControlError> {
        self.reports.silence();
        while let Some(report) = self.reports.take() {
            match report {
                Report::Started { uid, shard, result } if self.own.contains(&uid) => {
                    if self.own.started(&uid, shard, result, &mut self.orders)? {
                        self.listeners_are_up();
                    }
                }
                Report::Started { uid, shard, result } => {
                    self.letters.push_back(Letter::Started { uid, shard, result });
                }
                Report::Stopped { uid, .. } if self.own.contains(&uid) => {}
                Report::Stopped { uid, shard } => self.letters.push_back(Letter::Stopped { uid, shard }),
                Report::Want(identity) => self.desk.keeper.want(identity, SystemTime::now()),
                Report::Lookup(name) => self.lookups.push_back(name),
                Report::Resolve(host) => self.hosts.want(host, Instant::now()),
                Report::Drained { shard } => drop(self.drained.insert(shard)),
                Report::Ended { shard } => drop(self.ended.insert(shard)),
            }
        }
        self.hand_letters_on();
        Ok(())
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

/// Waits for the end of the CNI thread, for ever where none runs.
async fn ended(thread: &mut Option<CniThread>) {
    match thread {
        Some(thread) => thread.ended().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
