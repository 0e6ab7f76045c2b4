//! The thread against an agent on a real socket and shards that answer as their pods' names say.

use super::*;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::bridge::mailbox::{Mailbox, mailbox};
use crate::control::test_support::settings;
use crate::sys::fdpass::SeqPacketListener;

const SHARDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(4);

/// A thread under test with everything around it.
struct Scene {
    listener: SeqPacketListener,
    post: Mailbox<Letter>,
    readiness: Arc<Readiness>,
    board: Arc<Board>,
    /// `start UID` and `stop UID`, once a shard.
    done: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
    cni: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Cni)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let uds = directory.path().join("agent.sock");
        let listener = SeqPacketListener::bind(&uds).unwrap();
        let (post, letters) = mailbox(100).unwrap();
        let (mailboxes, boxes): (Vec<_>, Vec<_>) = (0..SHARDS).map(|_| mailbox::<Order>(10).unwrap()).unzip();
        let readiness = Arc::new(Readiness::default());
        readiness.expect(PODS, None);
        let board = Arc::new(Board::default());
        let mut settings = settings();
        (settings.shards, settings.pod_shards) = (SHARDS, 2);
        let orders = Orders::new(mailboxes);
        let mut cni = Cni::new(uds, Arc::new(settings), orders, letters, readiness.clone(), board.clone());
        cni.pace.next = Duration::from_millis(1);
        change(&mut cni);
        let (done, over) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(AtomicBool::new(false)));
        for (shard, orders) in boxes.into_iter().enumerate() {
            let (post, done, over) = (post.clone(), done.clone(), over.clone());
            std::thread::spawn(move || {
                let mut seen = HashSet::new();
                while !over.load(Ordering::Relaxed) {
                    while let Some(order) = orders.take() {
                        serve(shard, order, &post, &done, &mut seen);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let cni = Some(std::thread::spawn(move || cni.run()));
        Self { listener, post, readiness, board, done, over, cni, _directory: directory }
    }

    /// The agent's side of the next connection, hello taken.
    fn agent(&self) -> Agent {
        let link = self.listener.accept(Some(PATIENCE)).expect("the proxy doesn't call");
        let mut hello = [0; 64];
        let received = link.recv(&mut hello, Some(PATIENCE)).unwrap();
        assert_eq!(zds::hello_version(&hello[..received.len]).unwrap(), 1);
        assert_eq!(received.fds.len(), 0);
        Agent { link }
    }

    fn done(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }

    fn becomes(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is(self) {
            assert!(Instant::now() < end, "never {what}: {:?}, {:?}", self.readiness.pending(), self.done());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn becomes_ready(&self) {
        self.becomes("ready", |scene| scene.readiness.pending().is_empty());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.post.post(Letter::Drain);
        let ended = self.cni.take().unwrap().join();
        self.over.store(true, Ordering::Relaxed);
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// `bad`: fails; `once-bad`: fails the first time; others come up.
fn serve(
    shard: usize,
    order: Order,
    post: &Mailbox<Letter>,
    done: &Mutex<Vec<String>>,
    seen: &mut HashSet<Text>,
) {
    let letter = match order {
        Order::Start(pod) => {
            let uid = pod.uid.clone();
            done.lock().unwrap().push(format!("start {uid}"));
            assert!(pod.netns.is_some());
            let fails = &*uid == "bad" || (&*uid == "once-bad" && seen.insert(uid.clone()));
            let result =
                if fails { Err("failed to bind to address [::]:15008: in use".into()) } else { Ok(()) };
            Letter::Started { uid, shard, result }
        }
        Order::Stop { uid } => {
            done.lock().unwrap().push(format!("stop {uid}"));
            Letter::Stopped { uid, shard }
        }
        Order::Look
        | Order::Drain { .. }
        | Order::DrainPod { .. }
        | Order::Beat(_)
        | Order::Scrape(_)
        | Order::Forget(_)
        | Order::Connections(_)
        | Order::Flows { .. }
        | Order::Status(_) => panic!("not an order of this thread"),
    };
    post.post(letter).unwrap();
}

struct Agent {
    link: SeqPacket,
}

impl Agent {
    fn says(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Option<String> {
        self.link.send_with_fds(bytes, fds).unwrap();
        self.hears().expect("the proxy closed the connection instead of an answer")
    }

    /// An answer, or `None` for the end.
    fn hears(&self) -> Option<Option<String>> {
        let mut buffer = [0; 1_024];
        let received = self.link.recv(&mut buffer, Some(PATIENCE + Duration::from_secs(1))).unwrap();
        (received.len > 0).then(|| zds::decode_ack(&buffer[..received.len]).unwrap())
    }

    fn adds(&self, uid: &str, namespace: &str) -> Option<String> {
        self.says(&add(uid).encode(), &[File::open(namespace).unwrap().as_fd()])
    }

    fn tells(&self, message: Message) -> Option<String> {
        self.says(&message.encode(), &[])
    }
}

const HERE: &str = "/proc/self/ns/net";
/// Some other namespace file, so another inode.
const ELSEWHERE: &str = "/proc/self/ns/uts";

fn add(uid: &str) -> Message {
    let info = zds::Info { name: uid.into(), namespace: "ns".into(), service_account: "sa".into() };
    Message::Add { uid: uid.into(), info: Some(info) }
}

fn twice(first: &str, rest: &[&str]) -> Vec<String> {
    [first].iter().chain(rest).flat_map(|text| [(*text).to_owned(), (*text).to_owned()]).collect()
}

#[test]
fn pods_come_and_go_and_come_again_elsewhere() {
    let scene = Scene::new();
    let agent = scene.agent();
    assert_eq!(agent.adds("a", HERE), None);
    assert_eq!(agent.tells(Message::Keep { uid: "unknown".into() }), None);
    assert_eq!(scene.readiness.pending().len(), 1, "ready before the snapshot");
    assert_eq!(agent.tells(Message::SnapshotSent), None);
    scene.becomes_ready();
    assert_eq!(agent.adds("a", HERE), None, "the same pod again");
    assert_eq!(scene.done(), twice("start a", &[]));
    assert_eq!(agent.adds("a", ELSEWHERE), None);
    let done = scene.done();
    assert_eq!(done.iter().filter(|what| *what == "stop a").count(), 2, "{done:?}");
    assert_eq!(done.iter().filter(|what| *what == "start a").count(), 4, "{done:?}");
    scene.becomes("shown", |scene| scene.board.pods().iter().any(|pod| &*pod.uid == "a" && pod.up));
    assert_eq!(agent.tells(Message::Del { uid: "a".into() }), None);
    assert_eq!(scene.done().iter().filter(|what| *what == "stop a").count(), 4, "acknowledged too early");
    scene.becomes("empty", |scene| scene.board.pods().is_empty());
}

#[test]
fn a_lost_agent_costs_readiness_but_no_pod_and_the_next_snapshot_reconciles() {
    let scene = Scene::new();
    let agent = scene.agent();
    agent.adds("a", HERE);
    agent.adds("b", HERE);
    agent.tells(Message::SnapshotSent);
    scene.becomes_ready();
    drop(agent);
    scene.becomes("unready", |scene| !scene.readiness.pending().is_empty());
    let agent = scene.agent();
    assert_eq!(scene.done().len(), 4, "pods were touched: {:?}", scene.done());
    assert_eq!(agent.tells(Message::Keep { uid: "b".into() }), None);
    assert_eq!(agent.tells(Message::SnapshotSent), None);
    scene.becomes_ready();
    scene.becomes("reconciled", |scene| scene.done()[4..] == twice("stop a", &[]));
}

#[test]
fn a_pod_that_cannot_start_is_refused_alone() {
    let scene = Scene::new();
    let agent = scene.agent();
    let refused = agent.adds("bad", HERE).unwrap();
    assert!(refused.starts_with("failure to start proxy : "), "{refused}");
    assert!(refused.contains("failed to bind to address [::]:15008"), "{refused}");
    assert_eq!(agent.adds("good", HERE), None);
    assert_eq!(agent.tells(Message::SnapshotSent), None);
    scene.becomes("explained", |scene| {
        let pending = scene.readiness.pending();
        pending.len() == 1 && pending[0].1.as_ref().is_some_and(|why| why.contains("pod ns/bad (bad)"))
    });
    // The agent tries again on its own account, or gives the pod up.
    assert!(agent.adds("once-bad", HERE).is_some());
    assert_eq!(agent.adds("once-bad", HERE), None);
    assert_eq!(agent.tells(Message::Del { uid: "bad".into() }), None);
    scene.becomes_ready();
}

#[test]
fn what_cannot_be_read_is_refused_and_the_connection_made_anew() {
    let scene = Scene::new();
    let wrong: [(&[u8], usize, &str); 6] = [
        (&[0xff; 8], 0, "not a workload request"),
        (&[0x3a, 0x00], 0, "field on the wire: 7"),
        (&[0; 2_000], 0, "longer than 1024"),
        (&add("a").encode(), 0, "1 descriptor(s), but 0 came"),
        (&add("a").encode(), 2, "2 descriptors instead of one"),
        (&Message::SnapshotSent.encode(), 1, "0 descriptor(s), but 1 came"),
    ];
    for (bytes, descriptors, says) in wrong {
        let agent = scene.agent();
        let file = File::open(HERE).unwrap();
        let fds = vec![file.as_fd(); descriptors];
        let refused = agent.says(bytes, &fds).unwrap();
        assert!(refused.starts_with("failure to read message : ") && refused.contains(says), "{refused}");
        assert_eq!(agent.hears(), None, "the connection goes on");
    }
    let agent = scene.agent();
    assert_eq!(agent.tells(Message::SnapshotSent), None);
    scene.becomes_ready();
}

#[test]
fn a_descriptor_of_no_namespace_leaves_the_pod_pending_until_it_is_replaced_or_deleted() {
    let scene = Scene::new();
    let agent = scene.agent();
    assert_eq!(agent.tells(Message::SnapshotSent), None);
    scene.becomes_ready();
    for uid in ["replaced", "deleted"] {
        let refused = agent.adds(uid, "/dev/null").unwrap();
        let why = "failure to start proxy : the descriptor is of no namespace";
        assert!(refused.starts_with(why), "{refused}");
    }
    assert_eq!(agent.adds("good", HERE), None);
    scene.becomes("unready", |scene| {
        let shown = &scene.readiness.pending()[..];
        matches!(shown, [(_, Some(why))] if why.contains("the descriptor is of no namespace"))
    });
    scene.becomes("both pods shown as pending", |scene| {
        scene.board.pods().iter().filter(|pod| !pod.up).count() == 2
    });
    assert_eq!(agent.adds("replaced", HERE), None);
    assert_eq!(agent.tells(Message::Del { uid: "deleted".into() }), None);
    scene.becomes_ready();
    assert_eq!(
        scene.done(),
        twice("start good", &["start replaced"]),
        "a shard was troubled with no namespace"
    );
}

#[test]
fn a_breach_of_the_protocol_ends_the_connection_but_neither_process_nor_pods() {
    let scene = Scene::new();
    let agent = scene.agent();
    agent.adds("a", HERE);
    agent.tells(Message::SnapshotSent);
    let refused = agent.tells(Message::SnapshotSent).unwrap();
    assert_eq!(refused, "failure to process message : a second snapshot");
    assert_eq!(agent.hears(), None);
    scene.becomes("unready", |scene| !scene.readiness.pending().is_empty());
    let agent = scene.agent();
    assert_eq!(agent.adds("a", HERE), None);
    assert_eq!(agent.tells(Message::SnapshotSent), None);
    scene.becomes_ready();
    assert_eq!(scene.done(), twice("start a", &[]));
}

#[test]
fn an_agent_that_dies_before_its_answer_leaves_the_pod_starting() {
    let scene = Scene::new();
    let agent = scene.agent();
    agent.link.send_with_fd(&add("a").encode(), File::open(HERE).unwrap().as_fd()).unwrap();
    drop(agent);
    let agent = scene.agent();
    assert_eq!(agent.adds("a", HERE), None);
    assert_eq!(scene.done(), twice("start a", &[]), "it was started twice");
}

#[test]
fn a_silent_agent_is_called_again_and_the_reason_is_shown() {
    let scene = Scene::with(|cni| cni.pace.silence = Duration::from_millis(30));
    let silent = scene.agent();
    let shown = |scene: &Scene| scene.readiness.pending()[0].1.clone().unwrap_or_default();
    scene.becomes("explained", |scene| shown(scene).contains("its snapshot is not complete yet"));
    assert_eq!(silent.hears(), None, "it waits for ever");
    let agent = scene.agent();
    assert_eq!(agent.tells(Message::SnapshotSent), None);
    scene.becomes_ready();
}

#[test]
fn a_drain_ends_the_thread_and_a_missing_agent_is_named_until_then() {
    let mut scene = Scene::with(|cni| cni.uds = "/nonexistent/agent.sock".into());
    scene.becomes("explained", |scene| {
        scene.readiness.pending()[0].1.as_ref().is_some_and(|why| why.contains("/nonexistent/agent.sock"))
    });
    scene.post.post(Letter::Drain).unwrap();
    scene.cni.take().unwrap().join().unwrap();
    scene.cni = Some(std::thread::spawn(|| ()));
}

#[test]
fn pauses_grow_to_their_bound_and_start_small_after_readiness() {
    let mut pace = Pace::new(fastrand::Rng::with_seed(7));
    assert_eq!(pace.after_session(false), Duration::ZERO);
    let second = pace.after_session(false);
    assert!((400..=600).contains(&second.as_millis()), "{second:?}");
    let pauses: Vec<_> = (0..20).map(|_| pace.fruitless()).collect();
    assert!(pauses.iter().all(|pause| pause.as_secs() <= 15) && pauses[19].as_secs() >= 12, "{pauses:?}");
    pace.reached_ready();
    assert!(pace.fruitless().as_millis() <= 6);
    assert_eq!(pace.after_session(true), Duration::ZERO);
    (0..10).for_each(|_| pace.longer_silence());
    assert_eq!(pace.silence.as_secs(), 160);
}
