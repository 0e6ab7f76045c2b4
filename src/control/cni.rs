//! The thread that talks to the CNI agent: blocking socket, pauses, logs. Nothing else waits on this thread and it
//! waits for nobody without a bound, so that every message is answered within the agent's 5 s whatever the control
//! thread does. What a message means is `control::session`'s to decide.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{error, info, warn};

use crate::base::limits::{
    CNI_CONNECT_BACKOFF_FIRST_MS, CNI_CONNECT_BACKOFF_LAST_MS, CNI_SESSION_BACKOFF_AGAIN_MS,
    CNI_SESSION_BACKOFF_FIRST_MS, CNI_SILENCE_FIRST_MS, CNI_SILENCE_LAST_MS, CONTROL_TICK_MS,
    ZDS_MESSAGE_BYTES,
};
use crate::base::text::Text;
use crate::bridge::mailbox::Letterbox;
use crate::bridge::order::{Order, Pod, PodInfo, PodKind};
use crate::bridge::settings::Settings;
use crate::control::publish::Orders;
use crate::control::ready::{PODS, Readiness};
use crate::control::recorder::Registry;
use crate::control::session::{Action, PodView, Session};
use crate::sys::fdpass::{self, ReceiveError, SeqPacket, Wakeup};
use crate::sys::netns::Netns;
use crate::sys::signal;
use crate::wire::zds::{self, Message};

const TARGET: &str = "ztunnel::inpod::workloadmanager";

/// What the control thread tells this one.
#[derive(Debug)]
pub enum Letter {
    Started {
        uid: Text,
        shard: usize,
        result: Result<(), String>,
    },
    Stopped {
        uid: Text,
        shard: usize,
    },
    /// The process ends: leave the agent.
    Drain,
}

/// The pods as the agent named them, for whoever shows them.
#[derive(Default)]
pub struct Board(Mutex<Vec<PodView>>);

impl Board {
    pub fn pods(&self) -> Vec<PodView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, pods: Vec<PodView>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pods;
    }
}

/// Pods that are up, that are pending, and (started, stopped) since the process began.
fn count_proxies(up: usize, pending: usize, (started, stopped): (u64, u64)) {
    metrics::gauge!("workload_manager_active_proxy_count").set(up as f64);
    metrics::gauge!("workload_manager_pending_proxy_count").set(pending as f64);
    metrics::counter!("workload_manager_proxies_started").absolute(started);
    metrics::counter!("workload_manager_proxies_stopped").absolute(stopped);
}

/// The agent's side of the house.
pub struct Cni {
    uds: PathBuf,
    settings: Arc<Settings>,
    orders: Orders,
    letters: Letterbox<Letter>,
    readiness: Arc<Readiness>,
    board: Arc<Board>,
    session: Session<Place>,
    pace: Pace,
    was_ready: bool,
}

/// The running thread.
pub struct CniThread(oneshot::Receiver<Infallible>);

impl CniThread {
    /// Waits until it has ended.
    pub async fn ended(&mut self) {
        let _ = (&mut self.0).await;
    }
}

/// What came as a pod's network namespace.
#[derive(Clone, Debug)]
enum Place {
    Namespace(Netns),
    /// Something else, and how that was seen. The pod stays known, so that it isn't ready unnoticed.
    Unusable(Text),
}

impl From<OwnedFd> for Place {
    fn from(fd: OwnedFd) -> Self {
        Netns::from_fd(fd).map_or_else(|error| Self::Unusable(error.to_string().into()), Self::Namespace)
    }
}

/// The same place is the same namespace, by device and inode.
impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Namespace(one), Self::Namespace(other)) => one.same_as(other),
            (Self::Namespace(_) | Self::Unusable(_), _) => false,
        }
    }
}

/// Why a connection to the agent is over.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the process ends")]
    Drained,
    #[error("it closed the connection")]
    Eof,
    #[error("the connection broke ({0})")]
    Broken(io::Error),
    #[error("it didn't take the hello ({0})")]
    HelloFailed(io::Error),
    #[error("it sent what can't be read ({0})")]
    Unreadable(String),
    #[error("it broke the protocol ({0})")]
    Refused(String),
    #[error("it was silent for {0:?} before its snapshot was complete")]
    Silent(Duration),
}

impl Cni {
    pub fn new(
        uds: PathBuf,
        settings: Arc<Settings>,
        orders: Orders,
        letters: Letterbox<Letter>,
        readiness: Arc<Readiness>,
        board: Arc<Board>,
    ) -> Self {
        // The families are there before the agent is called for the first time.
        count_proxies(0, 0, (0, 0));
        let placing = settings.clone();
        let session = Session::new(move |uid| placing.shards_of(uid));
        let pace = Pace::new(fastrand::Rng::new());
        Self { uds, settings, orders, letters, readiness, board, session, pace, was_ready: false }
    }

    /// Serves the agent on a thread of its own.
    pub fn spawn(self, registry: Registry) -> io::Result<CniThread> {
        let (alive, gone) = oneshot::channel();
        let work = move || {
            // Dropped with the thread's end, whatever that is.
            let _alive: oneshot::Sender<Infallible> = alive;
            // Signals are for the control thread.
            if let Err(error) = signal::shield_thread() {
                warn!(%error, "the CNI thread can't block signals");
            }
            metrics::with_local_recorder(&registry, || self.run());
        };
        std::thread::Builder::new().name("ringway-cni".to_owned()).spawn(work)?;
        Ok(CniThread(gone))
    }

    /// Serves the agent, connection after connection, until a drain.
    pub fn run(mut self) {
        while let Some(link) = self.connect() {
            let ended = self.converse(&link);
            drop(link);
            let had_snapshot = self.session.has_snapshot();
            self.session.disconnected();
            if !self.after(&ended, had_snapshot) {
                break;
            }
        }
        info!(target: TARGET, "drain requested");
    }

    /// Tries until it works, letters being read meanwhile. `None`: drain.
    fn connect(&mut self) -> Option<SeqPacket> {
        let mut pause = Duration::from_millis(CNI_CONNECT_BACKOFF_FIRST_MS);
        loop {
            let uds = &self.uds;
            match SeqPacket::connect(uds) {
                Ok(link) => return Some(link),
                Err(error) => {
                    warn!(
                        target: TARGET,
                        "failed to connect to the Istio CNI node agent over {uds:?}, is the node agent healthy? \
                         details: {error}. retrying in {pause:?}"
                    );
                    self.readiness.explain(PODS, error.to_string().into());
                }
            }
            if !self.rest(pause) {
                return None;
            }
            pause = (pause * 2).min(Duration::from_millis(CNI_CONNECT_BACKOFF_LAST_MS));
        }
    }

    fn converse(&mut self, link: &SeqPacket) -> Ended {
        info!(target: TARGET, "handling new stream");
        self.session.connected();
        if let Err(error) = link.send(&zds::hello()) {
            return Ended::HelloFailed(error);
        }
        let mut heard = Instant::now();
        loop {
            if let Err(ended) = self.settle(Some(link)) {
                return ended;
            }
            let silence = self.pace.silence;
            if !self.session.has_snapshot() && heard.elapsed() >= silence && self.session.may_read() {
                return Ended::Silent(silence);
            }
            let step = match self.wait(link, heard) {
                Ok(Wakeup::Message) => self.receive(link),
                Ok(Wakeup::Bell | Wakeup::Timeout) => continue,
                Err(error) => Err(Ended::Broken(error)),
            };
            if let Err(ended) = step {
                return ended;
            }
            heard = Instant::now();
        }
    }

    /// Letters, deadlines, and what follows from them.
    fn settle(&mut self, link: Option<&SeqPacket>) -> Result<(), Ended> {
        self.letters.silence();
        while let Some(letter) = self.letters.take() {
            let actions = match letter {
                Letter::Started { uid, shard, result } => {
                    self.session.started(&uid, shard, result, Instant::now())
                }
                Letter::Stopped { uid, shard } => self.session.stopped(&uid, shard),
                Letter::Drain => return Err(Ended::Drained),
            };
            self.carry_out(actions, link)?;
        }
        let actions = self.session.tick(Instant::now());
        self.carry_out(actions, link)?;
        self.orders.flush();
        self.tell(link.is_some());
        Ok(())
    }

    /// One message of the agent.
    fn receive(&mut self, link: &SeqPacket) -> Result<(), Ended> {
        let mut buffer = [0; ZDS_MESSAGE_BYTES];
        let received = match link.recv(&mut buffer, None) {
            Ok(received) => received,
            Err(ReceiveError::Io(error)) => return Err(Ended::Broken(error)),
            Err(
                error @ (ReceiveError::Timeout(_)
                | ReceiveError::Truncated(_)
                | ReceiveError::ControlTruncated
                | ReceiveError::TooManyDescriptors(_)),
            ) => return Err(unreadable(link, &error)),
        };
        if received.len == 0 {
            return Err(Ended::Eof);
        }
        let datagram = buffer.get(..received.len).unwrap_or_default();
        let message = match Message::decode(datagram, received.fds.len()) {
            Ok(message) => message,
            Err(error) => return Err(unreadable(link, &error)),
        };
        let place = received.fds.into_iter().next().map(Place::from);
        let actions = self.session.message(message, place, Instant::now());
        self.carry_out(actions, Some(link))?;
        self.tell(true);
        Ok(())
    }

    fn carry_out(&mut self, actions: Vec<Action<Place>>, link: Option<&SeqPacket>) -> Result<(), Ended> {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Start { uid, info, place } => actions.extend(self.start(&uid, info, &place)),
                Action::Stop { uid } => {
                    for shard in self.settings.shards_of(&uid) {
                        self.orders.post(shard, Order::Stop { uid: uid.clone() });
                    }
                }
                Action::Ack(error) => {
                    if let Some(link) = link {
                        link.send(&zds::ack(error.as_deref())).map_err(Ended::Broken)?;
                    }
                }
                Action::Refuse(text) => {
                    if let Some(link) = link {
                        let _ = link.send(&zds::ack(Some(&format!("failure to process message : {text}"))));
                    }
                    return Err(Ended::Refused(text));
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, uid: &Text, info: PodInfo, place: &Place) -> Vec<Action<Place>> {
        let netns = match place {
            Place::Namespace(netns) => Some(netns.clone()),
            Place::Unusable(why) => return self.session.cannot_start(uid, why.to_string(), Instant::now()),
        };
        let shards = self.settings.shards_of(uid);
        let pod = Arc::new(Pod { uid: uid.clone(), info, netns, kind: PodKind::Workload });
        let mut actions = Vec::new();
        for shard in shards {
            if !self.orders.post(shard, Order::Start(pod.clone())) {
                let refused = Err("takes no orders".to_owned());
                actions.extend(self.session.started(uid, shard, refused, Instant::now()));
            }
        }
        actions
    }

    /// Readiness, board and gauges.
    fn tell(&mut self, connected: bool) {
        let ready = self.session.ready();
        if ready && !self.was_ready {
            self.pace.reached_ready();
            self.readiness.complete(PODS);
        } else if !ready && connected {
            let why = self.session.why_pending().unwrap_or_else(|| {
                let uds = self.uds.display();
                format!("the CNI agent at {uds} is connected, but its snapshot is not complete yet")
            });
            if self.was_ready {
                self.readiness.lose(PODS, why.into());
            } else {
                self.readiness.explain(PODS, why.into());
            }
        }
        self.was_ready = ready;
        let pods = self.session.view();
        let up = pods.iter().filter(|pod| pod.up).count();
        count_proxies(up, self.session.pending(), self.session.totals());
        self.board.set(pods);
    }

    /// Logs the end of a connection and makes the pause that it asks for. False: drain.
    fn after(&mut self, ended: &Ended, had_snapshot: bool) -> bool {
        let pause = match ended {
            Ended::Drained => return false,
            Ended::Eof => {
                info!(target: TARGET, "process stream ended with eof");
                self.pace.after_session(had_snapshot)
            }
            Ended::Broken(error) => {
                warn!(target: TARGET, "process stream ended: {error:?}");
                self.pace.after_session(had_snapshot)
            }
            Ended::Unreadable(_) => self.pace.after_session(had_snapshot),
            Ended::Silent(silence) => {
                warn!(
                    target: TARGET,
                    "the node agent accepted the connection, but was silent for {silence:?} before its snapshot \
                     was complete; connecting anew"
                );
                self.pace.longer_silence();
                Duration::ZERO
            }
            Ended::HelloFailed(error) => {
                let pause = self.pace.fruitless();
                error!(target: TARGET, "node agent announcement failed ({error}), retrying in {pause:?}");
                pause
            }
            Ended::Refused(text) => {
                let pause = self.pace.fruitless();
                error!(
                    target: TARGET,
                    "protocol mismatch error while processing stream: {text}; pods keep their proxies, connecting \
                     anew in {pause:?}"
                );
                pause
            }
        };
        self.was_ready = false;
        self.readiness.lose(PODS, format!("no connection to the CNI agent: {ended}").into());
        pause.is_zero() || self.rest(pause)
    }

    /// Waits without a connection, letters being read. False: drain.
    fn rest(&mut self, pause: Duration) -> bool {
        let end = Instant::now() + pause;
        loop {
            if self.settle(None).is_err() {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let limit = self.nap().map_or(left, |nap| nap.min(left));
            if fdpass::wait(self.letters.bell().as_fd(), None, Some(limit)).is_err() {
                std::thread::sleep(limit);
            }
        }
    }

    /// A message where one may be read, else only letters.
    fn wait(&mut self, link: &SeqPacket, heard: Instant) -> io::Result<Wakeup> {
        let bell = self.letters.bell().as_fd();
        if self.session.may_read() {
            let silence = self.pace.silence.saturating_sub(heard.elapsed());
            let patience = (!self.session.has_snapshot()).then_some(silence);
            return link.wait(Some(bell), self.nap().into_iter().chain(patience).min());
        }
        fdpass::wait(bell, None, self.nap()).map(|_| Wakeup::Bell)
    }

    /// How long nothing can be due but what rings; `None`: for ever.
    fn nap(&self) -> Option<Duration> {
        let due = self.session.next_tick().map(|at| at.saturating_duration_since(Instant::now()));
        let again = self.orders.waiting().then_some(Duration::from_millis(CONTROL_TICK_MS / 10));
        due.into_iter().chain(again).min()
    }
}

fn unreadable(link: &SeqPacket, error: &dyn std::fmt::Display) -> Ended {
    error!(target: TARGET, "failed to read message: {error}");
    let _ = link.send(&zds::ack(Some(&format!("failure to read message : {error}"))));
    Ended::Unreadable(error.to_string())
}

/// The pauses between connections that come to nothing, and the patience with a silent agent.
struct Pace {
    next: Duration,
    fruitless: u32,
    silence: Duration,
    random: fastrand::Rng,
}

impl Pace {
    fn new(random: fastrand::Rng) -> Self {
        Self {
            next: Duration::from_millis(CNI_SESSION_BACKOFF_FIRST_MS),
            fruitless: 0,
            silence: Duration::from_millis(CNI_SILENCE_FIRST_MS),
            random,
        }
    }

    fn reached_ready(&mut self) {
        self.next = Duration::from_millis(CNI_SESSION_BACKOFF_AGAIN_MS);
        self.fruitless = 0;
        self.silence = Duration::from_millis(CNI_SILENCE_FIRST_MS);
    }

    /// At once, but an agent that breaks one connection after another is not called in a busy loop.
    fn after_session(&mut self, had_snapshot: bool) -> Duration {
        if had_snapshot {
            return Duration::ZERO;
        }
        self.fruitless += 1;
        if self.fruitless == 1 { Duration::ZERO } else { self.fruitless() }
    }

    fn fruitless(&mut self) -> Duration {
        let last = Duration::from_millis(CNI_CONNECT_BACKOFF_LAST_MS);
        let pause = self.next.mul_f64(0.8 + 0.4 * self.random.f64()).min(last);
        self.next = (self.next * 2).min(last);
        pause
    }

    fn longer_silence(&mut self) {
        self.silence = (self.silence * 2).min(Duration::from_millis(CNI_SILENCE_LAST_MS));
    }
}

#[cfg(test)]
#[path = "cni_tests.rs"]
mod tests;
