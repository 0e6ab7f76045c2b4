//! The whole control thread, its shards being threads that answer.

use super::*;
use crate::bridge::order::PodInfo;
use crate::bridge::report::ShardStats;

use crate::control::http::test::get;
use crate::control::signing::NoAuthority;
use crate::control::source::LocalSource;
use crate::control::test_support::{Shards as Fakes, settings};
use crate::mesh::snapshot::Snapshot;
use crate::sys::fdpass::SeqPacketListener;
use crate::wire::zds::{self, Message};

struct Scene {
    _shards: Fakes,
    published: Arc<Published>,
    ready: SocketAddr,
    admin: SocketAddr,
    thread: JoinHandle<Result<Outcome, ControlError>>,
}

fn pod(uid: &str, kind: PodKind) -> Arc<Pod> {
    let info = PodInfo { name: "web".into(), namespace: "shop".into(), service_account: "sa".into() };
    Arc::new(Pod { uid: uid.into(), info, netns: None, kind })
}

fn start(mode: Mode, own: Vec<Arc<Pod>>, source: Option<Box<dyn Source>>) -> Scene {
    let mut shards = Fakes::start(2, |_| ShardStats::default());
    let published = Arc::new(Published::new(Snapshot::default()));
    let anywhere = vec!["127.0.0.1:0".parse().unwrap()];
    let facts = Facts {
        version: serde_json::Value::Null,
        config: serde_json::Value::Null,
        istio_version: "unknown".into(),
        event_loop: "io_uring".into(),
        event_loop_cause: String::new(),
    };
    let wiring = Wiring {
        published: published.clone(),
        identities: Arc::default(),
        shards: shards.mailboxes.clone(),
        reports: shards.reports.take().unwrap(),
        settings: Arc::new(settings()),
        source,
        signer: Arc::new(NoAuthority),
        certificate_ttl: Duration::from_secs(86_400),
        mode,
        own,
        readiness_addresses: anywhere.clone(),
        metrics_addresses: anywhere.clone(),
        admin_addresses: anywhere,
        facts,
        lines: LineSink::new(crossbeam::channel::bounded(1).0),
        logs: None,
    };
    let control = Control::new(wiring).unwrap();
    let [ready, admin, _] = control.addresses().map(|addresses| addresses[0]);
    let threads = std::mem::take(&mut shards.threads);
    let thread = std::thread::spawn(|| control.run(threads));
    Scene { _shards: shards, published, ready, admin, thread }
}

/// Asks until the readiness answer has this body, and somewhere in its head this reason.
async fn becomes(scene: &Scene, wanted: &str, reason: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let answer = get(scene.ready, "GET", "/healthz/ready").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        if body == wanted && head.contains(reason) {
            return;
        }
        assert!(Instant::now() < end, "never {wanted:?} because of {reason:?}: {answer}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn dedicated_mode_gets_ready_and_ends_on_request() {
    let scene = start(Mode::Dedicated, vec![pod("own", PodKind::Workload)], None);
    becomes(&scene, "ready\n", "").await;
    assert!(scene.published.peek().synced);
    let answer = get(scene.admin, "POST", "/quitquitquit").await;
    assert!(answer.ends_with("shutdown now\n"), "{answer}");
    assert_eq!(scene.thread.join().unwrap().unwrap(), Outcome::Drained);
    assert!(tokio::net::TcpStream::connect(scene.ready).await.is_err());
}

#[test]
fn a_dedicated_workload_that_cannot_start_ends_the_process_with_the_reason() {
    let scene = start(Mode::Dedicated, vec![pod("bad", PodKind::Workload)], None);
    let error = scene.thread.join().unwrap().unwrap_err().to_string();
    assert!(
        error.starts_with("the proxy for shop/web can't start: shard ") && error.ends_with("no luck"),
        "{error}"
    );
}

#[test]
fn a_dead_shard_ends_the_process_with_the_reason() {
    let scene = start(Mode::Dedicated, vec![pod("fatal", PodKind::Workload)], None);
    let error = scene.thread.join().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("shard ") && error.ends_with(" is dead: it panicked: out of luck"), "{error}");
}

#[tokio::test]
async fn a_bad_file_is_named_and_nothing_passes_until_it_is_mended() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "workloads: 7\n").unwrap();
    let source = Box::new(LocalSource::file(file.path().into(), None));
    let scene = start(Mode::Dedicated, Vec::new(), Some(source));
    let reason = file.path().to_str().unwrap();
    becomes(&scene, "not ready, pending: proxy, state manager\n", reason).await;
    assert!(!scene.published.peek().synced);
    std::fs::write(file.path(), "workloads: []\n").unwrap();
    becomes(&scene, "ready\n", "").await;
    assert!(scene.published.peek().synced);
    get(scene.admin, "POST", "/quitquitquit").await;
    scene.thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn shared_mode_serves_its_agent_and_tells_it_by_leaving_that_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let uds = directory.path().join("agent.sock");
    let listener = SeqPacketListener::bind(&uds).unwrap();
    // The proxy's own listener can't start: the pods of the node don't depend on it.
    let scene = start(Mode::Shared { cni: uds }, vec![pod("bad", PodKind::OwnInbound)], None);
    let patience = Some(Duration::from_secs(5));
    let agent = listener.accept(patience).unwrap();
    let mut buffer = [0; 1_024];
    assert_eq!(agent.recv(&mut buffer, patience).unwrap().len, zds::hello().len());
    let pending = "not ready, pending: workload proxy manager\n";
    becomes(&scene, pending, "its snapshot is not complete yet").await;
    let info = zds::Info { name: "a".into(), namespace: "ns".into(), service_account: "sa".into() };
    let add = Message::Add { uid: "pod-a".into(), info: Some(info) };
    let namespace = std::fs::File::open("/proc/self/ns/net").unwrap();
    agent.send_with_fd(&add.encode(), std::os::fd::AsFd::as_fd(&namespace)).unwrap();
    let received = agent.recv(&mut buffer, patience).unwrap();
    assert_eq!(zds::decode_ack(&buffer[..received.len]).unwrap(), None);
    agent.send(&Message::SnapshotSent.encode()).unwrap();
    agent.recv(&mut buffer, patience).unwrap();
    becomes(&scene, "ready\n", "").await;
    let dump = get(scene.admin, "GET", "/config_dump").await;
    assert!(dump.contains("\"pod-a\": {"), "{dump}");
    get(scene.admin, "POST", "/quitquitquit").await;
    assert_eq!(agent.recv(&mut buffer, patience).unwrap().len, 0, "the agent is left at once");
    assert_eq!(scene.thread.join().unwrap().unwrap(), Outcome::Drained);
}
