//! An embedded CNI agent: the side of istio-cni that talks to the node proxy. It listens, a proxy connects,
//! says hello and gets a snapshot of the node's pods with their network namespaces, then pods one by one as
//! they come and go. Adds go to the newest connection, deletes to all. `Manner` makes it misbehave, for
//! tests.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use prost::Message as _;

use super::agent_messages::{
    AddWorkload, DelWorkload, Hello, KeepWorkload, Payload, Request, Response, SnapshotSent, WorkloadInfo,
};
use crate::sys::fdpass::{ReceiveError, SeqPacket, SeqPacketListener};

/// Bound of each read and write towards the proxy, as istio-cni has it.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long a connection may be idle before the agent looks whether it is alive.
const KEEPALIVE_CHECK: Duration = Duration::from_secs(5);
const KEEPALIVE_READ: Duration = Duration::from_millis(10);
/// istio-cni takes at most five connections a second.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
const QUEUE: usize = 100;
/// istio-cni reads into a buffer of this size; what is longer is an error to it.
const RECEIVE_BYTES: usize = 1_024;

/// How the agent behaves towards connections that come from now on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Manner {
    #[default]
    Ordinary,
    /// Reads the hello, then says nothing at all.
    Silent,
    /// Sends the adds of the snapshot, then hangs up without its end.
    DiesMidway,
    /// Sends each add of the snapshot twice.
    Repeats,
    /// Sends these bytes as the first datagram, then goes on as usual.
    Junk(Vec<u8>),
    /// Sends every pod of the snapshot as `keep`, as after a restart that lost the namespaces.
    Keeps,
    /// Sends the adds of the snapshot without a descriptor.
    Bare,
    /// Sends this descriptor count with each add of the snapshot.
    Descriptors(usize),
}

/// A pod as the agent knows it.
pub struct AgentPod {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub service_account: String,
    pub netns: OwnedFd,
}

/// The agent of one node. Dropping it closes its socket, as when istio-cni restarts.
pub struct Agent {
    path: PathBuf,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    pods: Mutex<BTreeMap<String, Arc<AgentPod>>>,
    manner: Mutex<Manner>,
    /// In the order they came; the newest is last.
    connections: Mutex<Vec<(usize, Sender<Job>)>>,
    accepted: AtomicUsize,
    snapshots: AtomicUsize,
    faults: Mutex<Vec<String>>,
    stopping: AtomicBool,
}

struct Job {
    message: Payload,
    netns: Option<Arc<AgentPod>>,
    answer: Sender<Result<String>>,
}

impl Agent {
    pub fn listen(path: &Path) -> Result<Self> {
        Self::listen_with(path, Manner::Ordinary, [])
    }

    /// Knows these pods before anybody can connect: a proxy that waits for an agent is there at once, and ends what its
    /// snapshot lacks.
    pub fn listen_with(
        path: &Path,
        manner: Manner,
        pods: impl IntoIterator<Item = AgentPod>,
    ) -> Result<Self> {
        let pods = pods.into_iter().map(|pod| (pod.uid.clone(), Arc::new(pod))).collect();
        let listener =
            SeqPacketListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
        let shared = Arc::new(Shared {
            pods: Mutex::new(pods),
            manner: Mutex::new(manner),
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            snapshots: AtomicUsize::new(0),
            faults: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let for_acceptor = shared.clone();
        let acceptor = std::thread::Builder::new()
            .name("cni-agent".to_owned())
            .spawn(move || accept(&listener, &for_acceptor))
            .context("starting the agent's thread")?;
        Ok(Self { path: path.to_owned(), shared, acceptor: Some(acceptor) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manner of connections from now on.
    pub fn set_manner(&self, manner: Manner) {
        *lock(&self.shared.manner) = manner;
    }

    /// Puts the pod into later snapshots without telling anyone now.
    pub fn know(&self, pod: AgentPod) {
        lock(&self.shared.pods).insert(pod.uid.clone(), Arc::new(pod));
    }

    /// Adds a pod; returns when the newest proxy has acknowledged it, with its error text if it refused.
    pub fn add(&self, pod: AgentPod) -> Result<()> {
        let pod = Arc::new(pod);
        lock(&self.shared.pods).insert(pod.uid.clone(), pod.clone());
        let newest = lock(&self.shared.connections).last().map(|(_, queue)| queue.clone());
        let newest = newest.context("no proxy is connected to the CNI agent")?;
        let refusal = ask(&newest, add_message(&pod), Some(pod))?;
        if !refusal.is_empty() {
            bail!("got ack error: {refusal}");
        }
        Ok(())
    }

    /// Deletes a pod; returns when every connected proxy has answered.
    pub fn delete(&self, uid: &str) -> Result<()> {
        lock(&self.shared.pods).remove(uid);
        let all = lock(&self.shared.connections).clone();
        for (_, queue) in all {
            ask(&queue, Payload::Del(DelWorkload { uid: uid.to_owned() }), None)?;
        }
        Ok(())
    }

    /// Sends any message to the newest proxy and gives its acknowledgement.
    pub fn say(&self, message: Payload) -> Result<String> {
        let newest = lock(&self.shared.connections).last().map(|(_, queue)| queue.clone());
        ask(&newest.context("no proxy is connected to the CNI agent")?, message, None)
    }

    /// Proxies connected now.
    pub fn connected(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Connections taken so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Snapshots delivered and acknowledged so far.
    pub fn snapshots(&self) -> usize {
        self.shared.snapshots.load(Ordering::Relaxed)
    }

    /// What proxies did wrong or answered with an error, in order.
    pub fn faults(&self) -> Vec<String> {
        lock(&self.shared.faults).clone()
    }

    pub fn wait_for_snapshot(&self, number: usize, within: Duration) -> Result<()> {
        let until = Instant::now() + within;
        while self.snapshots() < number {
            if Instant::now() > until {
                bail!("no proxy took snapshot {number} within {within:?}; faults: {:?}", self.faults());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        lock(&self.shared.connections).clear();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic there has been printed already.
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &SeqPacketListener, shared: &Arc<Shared>) {
    let mut served = Vec::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let connection = match listener.accept(Some(Duration::from_millis(50))) {
            Ok(connection) => connection,
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => continue,
            Err(error) => return shared.fault(format!("accepting: {error}")),
        };
        let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
        let (queue, jobs) = bounded(QUEUE);
        // Known before its hello, so that a pod added meanwhile is delivered after the snapshot.
        lock(&shared.connections).push((number, queue));
        let shared_there = shared.clone();
        served.push(std::thread::spawn(move || {
            if let Err(error) = serve(&connection, &jobs, &shared_there) {
                shared_there.fault(format!("{error:#}"));
            }
            lock(&shared_there.connections).retain(|(other, _)| *other != number);
        }));
        std::thread::sleep(ACCEPT_PAUSE);
    }
    // One may have come between the order to stop and this; without its queue it ends.
    lock(&shared.connections).clear();
    for thread in served {
        let _ = thread.join();
    }
}

/// One proxy's connection from hello to end.
fn serve(proxy: &SeqPacket, jobs: &Receiver<Job>, shared: &Shared) -> Result<()> {
    let hello = receive(proxy, DEADLINE)?.context("no hello within 5 s")?;
    if hello.is_empty() {
        bail!("closed before its hello");
    }
    Hello::decode(hello.as_slice()).context("unreadable hello")?;
    let manner = lock(&shared.manner).clone();
    if manner == Manner::Silent {
        return stay_silent(proxy, shared);
    }
    if let Manner::Junk(bytes) = &manner {
        proxy.send(bytes)?;
        shared.fault(format!("junk was answered with {:?}", answer(proxy)?));
    }
    send_snapshot(proxy, &manner, shared)?;
    if manner == Manner::DiesMidway {
        return Ok(());
    }
    let refusal = exchange(proxy, Payload::SnapshotSent(SnapshotSent {}), &[])?;
    shared.refused("snapshot_sent", &refusal);
    shared.snapshots.fetch_add(1, Ordering::Relaxed);
    loop {
        match jobs.recv_timeout(KEEPALIVE_CHECK) {
            Ok(job) => {
                let descriptors: Vec<_> = job.netns.iter().map(|pod| pod.netns.as_fd()).collect();
                let outcome = exchange(proxy, job.message, &descriptors);
                let broken = outcome.as_ref().is_err_and(is_broken_pipe);
                // The asker may have given up.
                let _ = job.answer.send(outcome);
                if broken {
                    return Ok(());
                }
            }
            Err(RecvTimeoutError::Timeout) => match receive(proxy, KEEPALIVE_READ)? {
                None => {}
                Some(bytes) if bytes.is_empty() => return Ok(()),
                Some(bytes) => bail!("{} bytes that nobody asked for", bytes.len()),
            },
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn stay_silent(proxy: &SeqPacket, shared: &Shared) -> Result<()> {
    while !shared.stopping.load(Ordering::Relaxed) {
        match receive(proxy, Duration::from_millis(50))? {
            Some(bytes) if bytes.is_empty() => return Ok(()),
            Some(bytes) => bail!("{} bytes before the snapshot", bytes.len()),
            None => {}
        }
    }
    Ok(())
}

fn send_snapshot(proxy: &SeqPacket, manner: &Manner, shared: &Shared) -> Result<()> {
    let pods: Vec<_> = lock(&shared.pods).values().cloned().collect();
    for pod in pods {
        let keep = Payload::Keep(KeepWorkload { uid: pod.uid.clone() });
        let one = [pod.netns.as_fd()];
        let refusal = match manner {
            Manner::Keeps => exchange(proxy, keep, &[])?,
            Manner::Bare => exchange(proxy, add_message(&pod), &[])?,
            Manner::Descriptors(count) => exchange(proxy, add_message(&pod), &one.repeat(*count))?,
            Manner::Repeats => {
                shared.refused(&pod.uid, &exchange(proxy, add_message(&pod), &one)?);
                exchange(proxy, add_message(&pod), &one)?
            }
            Manner::Ordinary | Manner::Silent | Manner::DiesMidway | Manner::Junk(_) => {
                exchange(proxy, add_message(&pod), &one)?
            }
        };
        shared.refused(&pod.uid, &refusal);
    }
    Ok(())
}

/// One message and its acknowledgement: the error text, empty where all went well.
fn exchange(
    proxy: &SeqPacket,
    message: Payload,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> Result<String> {
    let request = Request { payload: Some(message) };
    proxy.send_with_fds(&request.encode_to_vec(), descriptors)?;
    answer(proxy)
}

/// One datagram; none where nothing came within the time. The end of the stream is an empty datagram.
fn receive(proxy: &SeqPacket, within: Duration) -> Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    match proxy.recv(&mut buffer, Some(within)) {
        Ok(received) if received.fds.is_empty() => {
            buffer.truncate(received.len);
            Ok(Some(buffer))
        }
        Ok(_) => bail!("the proxy sent a descriptor"),
        Err(ReceiveError::Timeout(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn answer(proxy: &SeqPacket) -> Result<String> {
    let bytes = receive(proxy, DEADLINE)?.context("no acknowledgement within 5 s")?;
    if bytes.is_empty() {
        return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
    }
    let response = Response::decode(bytes.as_slice()).context("unreadable acknowledgement")?;
    Ok(response.ack.context("an answer that is no acknowledgement")?.error)
}

fn ask(queue: &Sender<Job>, message: Payload, netns: Option<Arc<AgentPod>>) -> Result<String> {
    let (answer, answers) = bounded(1);
    let job = Job { message, netns, answer };
    queue.send_timeout(job, DEADLINE).map_err(|_| anyhow::anyhow!("the connection's queue is full"))?;
    // A snapshot may be under way before it: each of its pods has its own deadline.
    answers.recv_timeout(DEADLINE * 4).context("the connection to the proxy ended")?
}

fn add_message(pod: &AgentPod) -> Payload {
    let info = WorkloadInfo {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        service_account: pod.service_account.clone(),
    };
    Payload::Add(AddWorkload { uid: pod.uid.clone(), workload_info: Some(info) })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(BrokenPipe | ConnectionReset))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn fault(&self, text: String) {
        lock(&self.faults).push(text);
    }

    fn refused(&self, what: &str, error: &str) {
        if !error.is_empty() {
            self.fault(format!("{what}: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::agent_messages::Ack;

    struct Proxy(SeqPacket);

    impl Proxy {
        fn connect(agent: &Agent) -> Self {
            let proxy = Self(SeqPacket::connect(agent.path()).unwrap());
            proxy.0.send(&Hello { version: 1 }.encode_to_vec()).unwrap();
            proxy
        }

        fn acknowledge(&self, error: &str) {
            let ack = Ack { error: error.to_owned() };
            self.0.send(&Response { ack: Some(ack) }.encode_to_vec()).unwrap();
        }

        fn receive(&self) -> (Option<Payload>, usize) {
            let mut bytes = [0; 1_024];
            let received = self.0.recv(&mut bytes, Some(DEADLINE)).unwrap();
            (Request::decode(&bytes[..received.len]).unwrap().payload, received.fds.len())
        }
    }

    fn pod(uid: &str) -> AgentPod {
        let netns = std::fs::File::open("/proc/self/ns/net").unwrap().into();
        let name = uid.to_owned();
        AgentPod { uid: name.clone(), name, namespace: "default".into(), service_account: "sa".into(), netns }
    }

    #[test]
    fn a_proxy_gets_the_snapshot_then_adds_go_to_the_newest_and_deletes_to_all() {
        let directory = tempfile::tempdir().unwrap();
        let agent = Agent::listen(&directory.path().join("agent.sock")).unwrap();
        agent.know(pod("first"));
        let mut proxies = Vec::new();
        for number in 1..=2 {
            let proxy = Proxy::connect(&agent);
            let (message, descriptors) = proxy.receive();
            assert!(matches!(message, Some(Payload::Add(add)) if add.uid == "first"));
            assert_eq!(descriptors, 1);
            proxy.acknowledge(if number == 1 { "" } else { "not today" });
            assert_eq!(proxy.receive(), (Some(Payload::SnapshotSent(SnapshotSent {})), 0));
            proxy.acknowledge("");
            agent.wait_for_snapshot(number, DEADLINE).unwrap();
            proxies.push(proxy);
        }
        assert_eq!(agent.faults(), ["first: not today"]);
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| agent.add(pod("second")));
            assert!(matches!(proxies[1].receive(), (Some(Payload::Add(_)), 1)));
            proxies[1].acknowledge("no room");
            assert_eq!(adding.join().unwrap().unwrap_err().to_string(), "got ack error: no room");
            let deleting = scope.spawn(|| agent.delete("first"));
            for proxy in &proxies {
                assert_eq!(proxy.receive(), (Some(Payload::Del(DelWorkload { uid: "first".into() })), 0));
                proxy.acknowledge("");
            }
            deleting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn unsolicited_data_ends_a_connection_and_junk_can_be_said() {
        let directory = tempfile::tempdir().unwrap();
        let agent =
            Agent::listen_with(&directory.path().join("agent.sock"), Manner::Junk(vec![255]), []).unwrap();
        let proxy = Proxy::connect(&agent);
        let mut bytes = [0; 8];
        assert_eq!((proxy.0.recv(&mut bytes, Some(DEADLINE)).unwrap().len, bytes[0]), (1, 255));
        proxy.acknowledge("failure to read message : junk");
        assert!(matches!(proxy.receive(), (Some(Payload::SnapshotSent(_)), 0)));
        proxy.acknowledge("");
        proxy.acknowledge("");
        let until = Instant::now() + DEADLINE * 2;
        while agent.connected() > 0 {
            assert!(Instant::now() < until, "the connection stayed");
            std::thread::sleep(Duration::from_millis(20));
        }
        let faults = agent.faults();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[1].contains("nobody asked for"), "{faults:?}");
    }
}
