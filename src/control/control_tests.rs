//! The whole control thread, its shards being threads that answer.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::bridge::lines::LineSink;
use crate::bridge::order::{Pod, PodInfo, PodKind};
use crate::bridge::report::ShardStats;
use crate::control::hosts::NameServers;
use crate::control::http::test::get;
use crate::control::publish::Source;
use crate::control::signing::NoAuthority;
use crate::control::source::LocalSource;
use crate::control::test_support::{Shards as Fakes, settings};
use crate::control::wiring::{Discovery, Facts};
use crate::control::xds::testing::{Plain, Plane, pod as told_pod, policy, uid};
use crate::mesh::snapshot::Snapshot;
use crate::sys::fdpass::SeqPacketListener;
use crate::wire::pb::discovery::Node;
use crate::wire::xds::{ADDRESS_TYPE, AUTHORIZATION_TYPE};
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
    start_with(mode, own, source, None)
}

/// A proxy without pods that is told by this control plane.
fn told_by(plane: SocketAddr) -> Scene {
    let node = Node { id: "ztunnel~1.1.1.1~a.b~b.svc.cluster.local".into(), metadata: None };
    let plane = Discovery { dial: Box::new(Plain(plane)), on_demand: false, node };
    start_with(Mode::Dedicated, Vec::new(), None, Some(plane))
}

fn start_with(
    mode: Mode,
    own: Vec<Arc<Pod>>,
    source: Option<Box<dyn Source>>,
    control_plane: Option<Discovery>,
) -> Scene {
    let mut shards = Fakes::start(2, |_| ShardStats::default());
    let published = Arc::new(Published::new(Snapshot::default()));
    let anywhere = vec!["127.0.0.1:0".parse().unwrap()];
    let facts = Facts {
        version: serde_json::Value::Null,
        config: serde_json::Value::Null,
        istio_version: "unknown".into(),
        event_loop: "io_uring".into(),
        event_loop_cause: String::new(),
        aead: "ring".into(),
    };
    let wiring = Wiring {
        published: published.clone(),
        identities: Arc::default(),
        shards: shards.mailboxes.clone(),
        reports: shards.reports.take().unwrap(),
        settings: Arc::new(settings()),
        file: source,
        control_plane,
        local_node: None,
        absent: Arc::default(),
        hosts: Arc::default(),
        name_servers: NameServers {
            servers: Vec::new(),
            domain: None,
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(1),
            attempts: 1,
            edns0: false,
            ipv6: true,
        },
        revocation: None,
        signer: Arc::new(NoAuthority),
        certificate_ttl: Duration::from_secs(86_400),
        mode,
        own,
        readiness_addresses: anywhere.clone(),
        metrics_addresses: anywhere.clone(),
        admin_addresses: anywhere,
        admin_socket: None,
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
    let end = Instant::now() + Duration::from_secs(30);
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
    let source = Box::new(LocalSource::file(file.path().into()));
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

#[tokio::test]
async fn nothing_passes_until_the_control_plane_has_told_both_types() {
    let mut plane = Plane::start().await;
    let scene = told_by(plane.address);
    let mut dialogue = plane.stream().await;
    let [addresses, authorizations] = dialogue.opening().await;
    assert_eq!((&*addresses.type_url, &*authorizations.type_url), (ADDRESS_TYPE, AUTHORIZATION_TYPE));
    assert!(addresses.node.is_some() && addresses.node == authorizations.node);
    let pending = "not ready, pending: proxy, state manager\n";
    becomes(&scene, pending, "http://plane has not sent its first state of: Address, Authorization").await;
    assert_eq!(dialogue.told(ADDRESS_TYPE, vec![told_pod("web", "1", 1)], &[]).await, None);
    // What is acknowledged is effective, but not synced yet.
    let snapshot = scene.published.load();
    assert!(snapshot.workload(&uid("web")).is_some() && !snapshot.synced);
    becomes(&scene, pending, "first state of: Authorization").await;
    assert_eq!(dialogue.told(AUTHORIZATION_TYPE, vec![policy("deny")], &[]).await, None);
    let snapshot = scene.published.load();
    assert!(snapshot.synced && snapshot.policy("default/deny").is_some());
    becomes(&scene, "ready\n", "").await;
    // From here on each change is one, and stays while the control plane is away.
    let pods = vec![told_pod("web", "2", 2), told_pod("other", "1", 3)];
    assert_eq!(dialogue.told(ADDRESS_TYPE, pods, &[]).await, None);
    dialogue.end(14, "upgrade");
    let mut dialogue = plane.stream().await;
    let [addresses, _] = dialogue.opening().await;
    assert_eq!(addresses.initial_resource_versions[&uid("web")], "2");
    let snapshot = scene.published.load();
    assert!(snapshot.workload_count() == 2 && snapshot.synced);
    assert_eq!(dialogue.told(ADDRESS_TYPE, Vec::new(), &[&uid("web")]).await, None);
    assert_eq!(scene.published.load().workload_count(), 1);
    get(scene.admin, "POST", "/quitquitquit").await;
    scene.thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn a_control_plane_that_is_not_there_is_named() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let scene = told_by(nobody);
    let pending = "not ready, pending: proxy, state manager\n";
    becomes(&scene, pending, "no stream from http://plane: gRPC connection error connecting to").await;
    get(scene.admin, "POST", "/quitquitquit").await;
    scene.thread.join().unwrap().unwrap();
}

/// Who opens many connections, stays silent, asks slowly or reads nothing keeps nobody from anything.
#[tokio::test]
async fn a_flood_at_the_admin_port_holds_up_neither_a_push_nor_a_probe() {
    let mut plane = Plane::start().await;
    let scene = told_by(plane.address);
    let mut dialogue = plane.stream().await;
    dialogue.opening().await;
    assert_eq!(dialogue.told(ADDRESS_TYPE, vec![told_pod("web", "1", 1)], &[]).await, None);
    assert_eq!(dialogue.told(AUTHORIZATION_TYPE, vec![policy("deny")], &[]).await, None);
    becomes(&scene, "ready\n", "").await;
    let over = Arc::new(AtomicBool::new(false));
    let opened = Arc::new(AtomicUsize::new(0));
    let (admin, stop, count) = (scene.admin, over.clone(), opened.clone());
    let flood = std::thread::spawn(move || {
        use std::io::Write;
        let requests: [&[u8]; 5] = [
            b"",
            b"GET /connec",
            b"GET /config_dump HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET /flows?follow HTTP/1.1\r\nhost: a\r\n\r\n",
            b"POST /drain HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
        ];
        let mut open = VecDeque::new();
        while !stop.load(Ordering::Relaxed) {
            for request in requests {
                let Ok(mut stream) = std::net::TcpStream::connect(admin) else { continue };
                let _ = stream.write_all(request);
                open.push_back(stream);
                count.fetch_add(1, Ordering::Relaxed);
            }
            open.drain(..open.len().saturating_sub(300));
        }
    });
    let mut version = 1_u8;
    while opened.load(Ordering::Relaxed) < 500 {
        version = version % 200 + 1;
        let pods = vec![told_pod("web", &version.to_string(), version)];
        assert_eq!(dialogue.told(ADDRESS_TYPE, pods, &[]).await, None);
        assert!(get(scene.ready, "GET", "/healthz/ready").await.ends_with("\r\n\r\nready\n"));
    }
    over.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    // And it is answered again, once the flood is over.
    let answer = get(scene.admin, "GET", "/certificates").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    get(scene.admin, "POST", "/quitquitquit").await;
    scene.thread.join().unwrap().unwrap();
}
