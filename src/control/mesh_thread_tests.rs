//! The thread against a client and a control thread that are the test.

use super::*;
use crate::control::xds::testing::response as said;
use crate::control::xds::testing::{bad_pod, pod, policy, service, soon, uid};
use crate::wire::pb::discovery::Resource;
use crate::wire::xds::{ADDRESS_TYPE, AUTHORIZATION_TYPE};

struct Scene {
    mesh: MeshThread,
    absent: Arc<crate::bridge::absent::Absent>,
    readiness: Arc<Readiness>,
    current: Arc<Snapshot>,
    locals: Vec<LocalChange>,
}

/// The client's side of a stream.
struct Client {
    requests: mpsc::Receiver<DeltaDiscoveryRequest>,
    ended: tokio::sync::oneshot::Receiver<Fault>,
}

impl Scene {
    fn start(file: Option<Box<dyn Source>>, discovery: Option<bool>) -> Self {
        let absent = Arc::default();
        let readiness = Arc::new(Readiness::default());
        readiness.expect(STATE, None);
        let node = Node { id: "me".into(), metadata: None };
        let mesh = start(Seed {
            file,
            discovery: discovery.map(|on_demand| Discovery { at: "plane".into(), on_demand, node }),
            local_node: Some("here".into()),
            absent: AbsentNames::new(Arc::clone(&absent)),
            readiness: readiness.clone(),
            registry: Registry::default(),
        });
        Self { mesh: mesh.unwrap(), absent, readiness, current: Arc::default(), locals: Vec::new() }
    }

    /// The next step, taken as the control thread takes it.
    async fn step(&mut self) -> bool {
        let update = soon(self.mesh.updates.recv()).await.unwrap();
        let news = update.snapshot.is_some();
        if let Some(snapshot) = update.snapshot {
            self.current = snapshot;
        }
        self.locals.extend(update.local);
        update.answers.into_iter().for_each(Answer::send);
        news
    }

    async fn open(&mut self) -> Client {
        let (tell, requests) = mpsc::channel(1_000);
        let (end, ended) = tokio::sync::oneshot::channel();
        let stream = Stream { id: 1, requests: tell, end };
        soon(self.mesh.words.send(Word::Opened(stream))).await.unwrap();
        Client { requests, ended }
    }

    async fn say(&mut self, type_url: &str, resources: Vec<Resource>, removed: &[&str]) {
        let bytes = said(type_url, "n", resources, removed);
        let part = Part { bytes, last: true };
        assert!(soon(self.mesh.words.send(Word::Part(part))).await.is_ok());
    }

    /// Says it and waits for the answer to it; returns the text of a refusal.
    async fn told(
        &mut self,
        client: &mut Client,
        type_url: &str,
        resources: Vec<Resource>,
        removed: &[&str],
    ) -> Option<String> {
        self.say(type_url, resources, removed).await;
        self.step().await;
        let answer = client.next().await;
        assert_eq!((&*answer.type_url, &*answer.response_nonce), (type_url, "n"));
        answer.error_detail.map(|status| status.message)
    }

    async fn waits_for(&self, reason: &str) {
        let told = || self.readiness.pending()[0].1.clone().unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(5);
        while *told() != *reason {
            assert!(Instant::now() < end, "{} isn't {reason}", told());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn lookups_taken(&self) {
        while self.mesh.lookups.capacity() < LOOKUPS_QUEUED {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn pods(&self) -> Vec<&str> {
        self.current.workloads().map(|workload| &*workload.name).collect()
    }
}

impl Client {
    async fn next(&mut self) -> DeltaDiscoveryRequest {
        soon(self.requests.recv()).await.unwrap()
    }

    async fn opening(&mut self) -> [DeltaDiscoveryRequest; 2] {
        [self.next().await, self.next().await]
    }
}

#[tokio::test]
async fn without_a_source_the_empty_mesh_is_complete() {
    let mut scene = Scene::start(None, None);
    scene.step().await;
    assert!(scene.current.synced);
}

#[tokio::test]
async fn a_control_plane_and_a_file_are_both_waited_for() {
    struct Script(Vec<Result<Vec<Change>, String>>);
    impl Source for Script {
        fn poll(&mut self) -> Option<Result<Vec<Change>, String>> {
            self.0.pop()
        }
        fn static_config(&self) -> Option<crate::control::publish::StaticConfig> {
            None
        }
    }
    let local = Change::from(crate::mesh::fixture::pod("local", &[]));
    let script = vec![Ok(vec![local]), Err("/a/file: is odd".to_owned())];
    let mut scene = Scene::start(Some(Box::new(Script(script))), Some(false));
    let mut client = scene.open().await;
    assert!(
        client
            .opening()
            .await
            .iter()
            .all(|request| request.node.as_ref().is_some_and(|node| node.id == "me"))
    );
    scene.waits_for("/a/file: is odd; plane has not sent its first state of: Address, Authorization").await;
    scene.told(&mut client, ADDRESS_TYPE, vec![pod("far", "1", 1)], &[]).await;
    scene.told(&mut client, AUTHORIZATION_TYPE, Vec::new(), &[]).await;
    assert!(!scene.current.synced);
    scene.waits_for("/a/file: is odd").await;
    while !scene.current.synced {
        scene.step().await;
    }
    assert_eq!(scene.pods(), ["far", "local"]);
}

#[tokio::test]
async fn a_response_is_one_step_with_its_bad_resource_named() {
    let mut scene = Scene::start(None, Some(false));
    let mut client = scene.open().await;
    client.opening().await;
    let all = vec![pod("a", "1", 1), pod("b", "1", 2), service("s", "1", 1)];
    assert_eq!(scene.told(&mut client, ADDRESS_TYPE, all, &[]).await, None);
    assert_eq!(scene.told(&mut client, AUTHORIZATION_TYPE, vec![policy("p")], &[]).await, None);
    assert!(scene.current.synced && scene.current.policy("default/p").is_some());
    let wanted: Vec<_> = scene.locals.iter().map(|(uid, identity)| (&**uid, identity.is_some())).collect();
    assert_eq!(wanted, [(&*uid("a"), true), (&*uid("b"), true)]);
    let before = scene.current.version();
    let refused = scene
        .told(
            &mut client,
            ADDRESS_TYPE,
            vec![bad_pod("a", "2"), pod("c", "1", 3)],
            &[&uid("b"), "default/s.default.svc"],
        )
        .await;
    let text = refused.unwrap();
    assert!(text.starts_with(&format!("{}: ", uid("a"))) && text.contains("had 3 bytes"), "{text}");
    assert_eq!(scene.current.version(), before + 1, "removals and additions come together");
    assert_eq!((scene.pods(), scene.current.services().count()), (vec!["a", "c"], 0));
    // What says nothing new is answered and changes nothing.
    scene.say(ADDRESS_TYPE, vec![pod("c", "1", 3)], &[]).await;
    assert!(!scene.step().await);
    assert_eq!(client.next().await.error_detail, None);
}

#[tokio::test]
async fn a_response_comes_in_parts_and_what_breaks_off_is_nothing() {
    let mut scene = Scene::start(None, Some(false));
    let mut client = scene.open().await;
    client.opening().await;
    let first = |name| Part { bytes: said("", "", vec![pod(name, "1", 1)], &[]), last: false };
    let last = Part { bytes: said(ADDRESS_TYPE, "n", vec![pod("b", "1", 2)], &[]), last: true };
    assert!(scene.mesh.words.send(Word::Part(first("a"))).await.is_ok());
    assert!(scene.mesh.words.send(Word::Part(last.clone())).await.is_ok());
    scene.step().await;
    assert_eq!(scene.pods(), ["a", "b"]);
    client.next().await;
    assert!(scene.mesh.words.send(Word::Part(first("lost"))).await.is_ok());
    assert!(scene.mesh.words.send(Word::Closed { why: "cut".into() }).await.is_ok());
    assert!(scene.mesh.words.send(Word::Part(last)).await.is_ok(), "belongs to nothing");
    let mut client = scene.open().await;
    let [addresses, _] = client.opening().await;
    assert_eq!(addresses.initial_resource_versions.len(), 2);
    scene.told(&mut client, ADDRESS_TYPE, vec![pod("c", "1", 3)], &[]).await;
    assert_eq!(scene.pods(), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_message_that_cannot_be_read_ends_the_stream_and_changes_nothing() {
    let mut scene = Scene::start(None, Some(false));
    let mut client = scene.open().await;
    client.opening().await;
    scene.told(&mut client, ADDRESS_TYPE, vec![pod("a", "1", 1)], &[]).await;
    let odd = Part { bytes: bytes::Bytes::from_static(&[0x22, 1, 0xff]), last: true };
    assert!(scene.mesh.words.send(Word::Part(odd)).await.is_ok());
    let fault = soon(client.ended).await.unwrap();
    assert!(matches!(&fault, Fault::Unreadable(why) if why.contains("type_url")), "{fault}");
    scene.say(ADDRESS_TYPE, Vec::new(), &[&uid("a")]).await;
    let mut client = scene.open().await;
    client.opening().await;
    assert!(scene.mesh.words.send(Word::Closed { why: "gone".into() }).await.is_ok());
    let mut client = scene.open().await;
    client.opening().await;
    scene.told(&mut client, AUTHORIZATION_TYPE, Vec::new(), &[]).await;
    assert_eq!(scene.pods(), ["a"], "what came on the dead stream is not taken");
}

#[tokio::test]
async fn under_load_steps_gather_and_acknowledgements_are_kept() {
    let mut scene = Scene::start(None, Some(false));
    let mut client = scene.open().await;
    client.opening().await;
    let words = scene.mesh.words.clone();
    let sender = tokio::spawn(async move {
        for number in 0..500_u16 {
            let last = u8::try_from(number % 250).unwrap();
            let resource = pod(&format!("pod-{number}"), "1", last);
            let bytes = said(ADDRESS_TYPE, &number.to_string(), vec![resource], &[]);
            assert!(words.send(Word::Part(Part { bytes, last: true })).await.is_ok());
        }
    });
    let mut steps = 0;
    while scene.current.workload_count() < 500 {
        scene.step().await;
        steps += 1;
    }
    sender.await.unwrap();
    assert!(steps < 400, "{steps} snapshots for 500 updates");
    for number in 0..500 {
        if client.requests.is_empty() {
            scene.step().await;
        }
        assert_eq!(client.next().await.response_nonce, number.to_string());
    }
}

#[tokio::test]
async fn look_ups_are_asked_answered_and_remembered() {
    let mut scene = Scene::start(None, Some(true));
    let now = Instant::now();
    // Asked before there is a stream: with its first request.
    scene.mesh.lookups.send("/10.0.0.1".into()).await.unwrap();
    scene.lookups_taken().await;
    let mut client = scene.open().await;
    let [addresses, _] = client.opening().await;
    assert_eq!(addresses.initial_resource_versions.keys().collect::<Vec<_>>(), ["/10.0.0.1"]);
    assert_eq!(addresses.resource_names_subscribe, ["*"]);
    scene.told(&mut client, AUTHORIZATION_TYPE, Vec::new(), &[]).await;
    assert!(scene.current.synced);
    for name in ["/10.0.0.9", "/10.0.0.9", "/10.0.0.1"] {
        scene.mesh.lookups.send(name.into()).await.unwrap();
    }
    scene.lookups_taken().await;
    let asked = client.next().await;
    assert_eq!((asked.resource_names_subscribe, asked.node), (vec!["/10.0.0.9".to_owned()], None));
    assert_eq!(scene.told(&mut client, ADDRESS_TYPE, vec![pod("a", "1", 1)], &["/10.0.0.9"]).await, None);
    assert!(scene.current.workload(&uid("a")).is_some());
    assert!(scene.absent.holds("/10.0.0.9", now) && !scene.absent.holds("/10.0.0.1", now));
    // Known or known to be absent: whoever asks is told to look again, and nobody else is asked.
    for name in ["/10.0.0.9", "/10.0.0.1", &uid("a")] {
        scene.mesh.lookups.send(name.into()).await.unwrap();
        assert!(!scene.step().await);
    }
    // It appears after all.
    scene.told(&mut client, ADDRESS_TYPE, vec![pod("b", "1", 9)], &[]).await;
    assert!(!scene.absent.holds("/10.0.0.9", now));
    scene.mesh.lookups.send("default/x".into()).await.unwrap();
    assert_eq!(client.next().await.resource_names_subscribe, ["default/x"]);
    scene.told(&mut client, ADDRESS_TYPE, Vec::new(), &["default/x"]).await;
    assert!(scene.absent.holds("default/x", now));
    // A new stream knows of no absent name.
    let mut client = scene.open().await;
    client.opening().await;
    assert!(!scene.absent.holds("default/x", now));
}

#[tokio::test]
async fn retired_snapshots_are_taken_apart_here() {
    let mut scene = Scene::start(None, Some(false));
    let mut client = scene.open().await;
    client.opening().await;
    scene.told(&mut client, ADDRESS_TYPE, vec![pod("a", "1", 1)], &[]).await;
    let held = Arc::downgrade(&scene.current);
    let on_a_shard = scene.current.clone();
    scene.told(&mut client, ADDRESS_TYPE, vec![pod("b", "1", 2)], &[]).await;
    drop(on_a_shard);
    assert!(held.upgrade().is_some(), "dropping it on a shard isn't what takes it apart");
    while held.upgrade().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn it_ends_with_the_control_thread() {
    let scene = Scene::start(None, Some(false));
    let MeshThread { words, lookups, updates, thread } = scene.mesh;
    drop((lookups, updates));
    while !thread.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(words.is_closed());
}

/// Prints figures for 100,000 workloads; run it by name, with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn a_large_mesh_costs_so_much() {
    use crate::wire::pb::discovery::DeltaDiscoveryResponse;
    use prost::Message as _;

    let name = |number: usize| format!("deployment-{}-7d4b9c6f5-{:05x}", number / 50, number);
    let pods = |version: &str| {
        let one = |number: usize| {
            let last = u8::try_from(number % 250).unwrap();
            pod(&name(number), &format!("{version}{number:012x}"), last)
        };
        (0..100_000).map(one).collect::<Vec<_>>()
    };
    let message = said(ADDRESS_TYPE, "n", pods("1"), &[]);
    let start = Instant::now();
    let decoded = DeltaDiscoveryResponse::decode(message.clone()).unwrap();
    for resource in &decoded.resources {
        let payload = resource.resource.as_ref().unwrap();
        crate::wire::pb::workload::Address::decode(payload.value.clone()).unwrap();
    }
    let prost = start.elapsed();
    drop(decoded);
    let readiness = Arc::new(Readiness::default());
    let node = Node { id: "me".into(), metadata: None };
    let mut mesh = Mesh::new(Seed {
        file: None,
        discovery: Some(Discovery { at: "plane".into(), on_demand: false, node }),
        local_node: Some("there".into()),
        absent: AbsentNames::default(),
        readiness,
        registry: Registry::default(),
    });
    let (requests, mut answers) = mpsc::channel(1_000);
    let (end, _ended) = tokio::sync::oneshot::channel();
    mesh.hear(Word::Opened(Stream { id: 1, requests, end }), Instant::now());
    let mut take = |bytes: bytes::Bytes, what: &str| {
        let mut frame = bytes::BytesMut::from(&[0_u8][..]);
        frame.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
        frame.extend(&bytes);
        let mut frame = frame.freeze();
        let mut frames = crate::control::xds::testing::Frames::default();
        let (start, mut longest) = (Instant::now(), Duration::ZERO);
        while let Some(part) = frames.next(&mut frame).unwrap() {
            let part_start = Instant::now();
            mesh.hear(Word::Part(part), Instant::now());
            longest = longest.max(part_start.elapsed());
        }
        let decoded = start.elapsed();
        let update = mesh.publish(Instant::now()).unwrap();
        println!(
            "{what}: {:?}, of it applied in {:?}; a part at most {longest:?}; {} bytes; prost alone {prost:?}",
            start.elapsed(),
            start.elapsed() - decoded,
            bytes.len()
        );
        update.answers.into_iter().for_each(Answer::send);
    };
    take(message.clone(), "100,000 workloads");
    take(message, "the same once more");
    take(said(ADDRESS_TYPE, "n", pods("2"), &[]), "with other versions");
    take(said(ADDRESS_TYPE, "n", vec![pod(&name(7), "3", 9)], &[]), "one of them");
    let start = Instant::now();
    let Asking { intake, .. } = mesh.discovery.as_mut().unwrap();
    let opening = intake.ledger.begin();
    println!("a stream opens after {:?}", start.elapsed());
    println!("with {} bytes", opening[0].encoded_len());
    while answers.try_recv().is_ok() {}
}
