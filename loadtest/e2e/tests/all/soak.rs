//! A soak: for RINGWAY_SOAK_SECONDS random clients come and go, while pods, policies and certificates change and
//! control plane, CNI agents and proxies are replaced. Afterwards everything is back where it was, and not one byte
//! was wrong. RINGWAY_SOAK_SEED repeats a run's choices.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use ringway::demo::agent::{Agent, Manner};
use ringway::demo::cluster::{READY_BOUND, agent_pod};
use ringway::demo::node::ended_well;
use ringway::demo::topology::Pod;
use ringway::wire::pb::security::{
    Action, Authorization, Clause, Match, Rule, Scope, StringMatch, string_match,
};
use ringway_e2e::baseline::Baseline;
use ringway_e2e::report;
use ringway_e2e::serve::{Server, digest, echo, source};
use ringway_e2e::standin_world::{StandinWorld, workload};
use ringway_e2e::visits::{Places, Visit, Visitor};
use ringway_e2e::world::{APP_PORT, STEP, service, try_dial};
use ringway_standin::mesh::{Change, Item};
use rustix::process::Signal;

const SECONDS: u64 = 60;
/// Clients at a time whose every visit must succeed.
const VISITORS: usize = 4;
/// Certificates live so short that each is renewed several times.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(30);
/// Longer than any visit, so that a replaced proxy has none to cut.
const DRAIN: &str = "120s";
const SOURCE_PORT: u16 = 8_081;
const DIGEST_PORT: u16 = 8_082;
const CLOSED_PORT: u16 = 9;

/// What was done to the mesh, or by its clients, and how often.
#[derive(Default)]
struct Tally {
    counts: Mutex<BTreeMap<String, usize>>,
    slowest: Mutex<Duration>,
    /// What went wrong, and whose connection it was.
    wrong: Mutex<Vec<(String, SocketAddr)>>,
}

impl Tally {
    fn count(&self, what: &str) {
        *self.counts.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }

    fn slowest(&self, took: Duration) {
        let mut slowest = self.slowest.lock().unwrap();
        *slowest = took.max(*slowest);
    }

    fn wrong(&self, what: String, from: IpAddr, port: u16) {
        report(&format!("soak: {what}"));
        self.wrong.lock().unwrap().push((what, SocketAddr::new(from, port)));
    }

    fn of(&self, what: &str) -> usize {
        self.counts.lock().unwrap().get(what).copied().unwrap_or_default()
    }
}

/// Visits one after another. Where `lasts`, nothing takes the pod away, so none may fail.
fn visits(from: &Pod, places: Places, random: Rng, lasts: bool, stop: &AtomicBool, tally: &Tally) {
    let mut visitor = Visitor::new(from, places, random);
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let (name, what) = match visitor.visit() {
            (name, Visit::Fine) => {
                tally.count(name);
                tally.slowest(started.elapsed());
                continue;
            }
            (_, Visit::Failed(_)) if !lasts => {
                tally.count("visits of a pod that comes and goes, cut or refused");
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            (name, Visit::Failed(error)) => (name, error.to_string()),
            (name, Visit::Wrong(what)) => (name, what),
        };
        let (port, took) = (visitor.port, started.elapsed());
        tally.wrong(
            format!("{name} from {}:{port}, after {took:.1?}: {what}", from.name),
            from.v4.into(),
            port,
        );
    }
}

/// Whoever is outside the mesh says anything at all to the proxy's ports in the server's pod.
fn noise(from: &Pod, to: SocketAddr, mut random: Rng, stop: &AtomicBool, tally: &Tally) {
    while !stop.load(Ordering::Relaxed) {
        let port = [15_001, 15_006, 15_008][random.usize(..3)];
        if let Ok(mut stream) = try_dial(from, SocketAddr::new(to.ip(), port)) {
            let mut bytes = vec![0; random.usize(..2_000)];
            random.fill(&mut bytes);
            // It may have been ended already.
            let _ = stream.write_all(&bytes);
            if random.bool() {
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
            tally.count("noise");
        }
        std::thread::sleep(Duration::from_millis(random.u64(1..200)));
    }
}

/// What happens to a mesh in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    PodGoesOrComes,
    PoliciesChange,
    ControlPlaneRestarts,
    AgentRestarts(u8),
    Upgrade(u8),
}

const EVENTS: [Event; 9] = [
    Event::PodGoesOrComes,
    Event::PoliciesChange,
    Event::PodGoesOrComes,
    Event::AgentRestarts(1),
    Event::Upgrade(1),
    Event::ControlPlaneRestarts,
    Event::PoliciesChange,
    Event::AgentRestarts(2),
    Event::Upgrade(2),
];

/// The mesh, and who comes and goes.
struct Soak {
    world: StandinWorld,
    guest: Pod,
    /// Whether the guest is in the mesh now.
    present: bool,
    policies: u32,
}

impl Soak {
    fn start() -> Self {
        let environment = [("POOL_UNUSED_RELEASE_TIMEOUT", "2s"), ("CONNECTION_TERMINATION_DEADLINE", DRAIN)];
        let mut world = StandinWorld::build(&environment);
        world.standin.sign(|signing| signing.ttl = CERTIFICATE_LIFE);
        let guest = world.cluster.mesh_pod(1, "guest").unwrap();
        world.standin.mesh().put([workload(&guest, false)]);
        world.cluster.start().unwrap();
        Self { world, guest, present: true, policies: 0 }
    }

    fn happen(&mut self, event: Event, random: &mut Rng) {
        match event {
            Event::PodGoesOrComes => self.toggle_guest(),
            Event::PoliciesChange => self.change_policies(random),
            Event::ControlPlaneRestarts => {
                self.world.standin.stop();
                std::thread::sleep(Duration::from_millis(random.u64(10..1_500)));
                self.world.standin.restart();
            }
            Event::AgentRestarts(node) => self.restart_agent(node),
            Event::Upgrade(node) => self.upgrade(node),
        }
    }

    fn toggle_guest(&mut self) {
        let agent = self.world.cluster.agent(1).unwrap();
        if self.present {
            // The agent looks every 5 s whether a proxy that was replaced is still there.
            ringway_e2e::eventually("only one proxy is told", STEP, || agent.connected() == 1);
            agent.delete("uid-guest").unwrap();
        } else {
            // A machine without time to spare may need more than the agent waits for; then it is told again.
            let mut said = String::new();
            ringway_e2e::eventually("the guest is served", 6 * STEP, || {
                let added = agent.add(agent_pod(&self.guest).unwrap());
                let refused = added.err().map(|error| error.to_string()).unwrap_or_default();
                if !refused.is_empty() && refused != said {
                    report(&format!("soak: {refused}"));
                    said.clone_from(&refused);
                }
                refused.is_empty()
            });
        }
        self.present = !self.present;
    }

    /// A few policies come and go; none of them keeps a client of the soak out.
    fn change_policies(&mut self, random: &mut Rng) {
        for _ in 0..random.u32(1..50) {
            self.policies += 1;
            let number = random.u32(..20);
            let name = format!("other-{number}");
            let change = if random.bool() {
                let exact = format!("cluster.local/ns/default/sa/nobody-{}", self.policies);
                Change { put: vec![deny(&name, exact)], remove: vec![] }
            } else {
                Change {
                    put: vec![],
                    remove: vec![(ringway_standin::mesh::AUTHORIZATION, format!("default/{name}"))],
                }
            };
            self.world.standin.mesh().apply(change);
        }
    }

    fn restart_agent(&mut self, node: u8) {
        let cluster = &mut self.world.cluster;
        let path = cluster.stop_agent(node).unwrap();
        let pods: &[&Pod] = match (node, self.present) {
            (1, true) => &[&self.world.client, &self.guest],
            (1, false) => &[&self.world.client],
            _ => &[&self.world.server],
        };
        let known = pods.iter().map(|pod| agent_pod(pod).unwrap());
        let agent = Agent::listen_with(&path, Manner::Ordinary, known).unwrap();
        agent.wait_for_snapshot(1, READY_BOUND).unwrap();
        assert_eq!(agent.faults(), Vec::<String>::new());
        cluster.set_agent(node, agent);
    }

    /// As a DaemonSet does it: the next proxy comes up beside the old one, which then drains.
    fn upgrade(&mut self, node: u8) {
        let cluster = &mut self.world.cluster;
        let mut next = cluster.start_successor(node, &[], &[]).unwrap();
        next.wait_ready(READY_BOUND).unwrap();
        let mut old = cluster.take_over(node, next).unwrap();
        old.signal(Signal::TERM).unwrap();
        let status = old.wait(13 * STEP).unwrap_or_else(|error| panic!("{error}\n{}", old.last_words()));
        assert!(ended_well(status), "node {node}: {status}\n{}", old.last_words());
        cluster.bury(old);
    }

    fn pods(&self) -> [&Pod; 3] {
        [&self.world.client, &self.world.server, &self.guest]
    }
}

fn deny(name: &str, principal: String) -> Item {
    let principals = vec![StringMatch { match_type: Some(string_match::MatchType::Exact(principal)) }];
    let only = Match { principals, ..Match::default() };
    Item::Policy(Authorization {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        scope: Scope::Namespace.into(),
        action: Action::Deny.into(),
        rules: vec![Rule { clauses: vec![Clause { matches: vec![only] }] }],
        dry_run: false,
    })
}

fn number(variable: &str, default: impl FnOnce() -> u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => default(),
    }
}

#[test]
fn random_clients_and_a_changing_mesh_leave_nothing_behind_and_change_no_byte() {
    let (seconds, seed) =
        (number("RINGWAY_SOAK_SECONDS", || SECONDS), number("RINGWAY_SOAK_SEED", || fastrand::u64(..)));
    report(&format!("soak: RINGWAY_SOAK_SECONDS={seconds} RINGWAY_SOAK_SEED={seed}"));
    let mut random = Rng::with_seed(seed);
    let mut soak = Soak::start();
    let server = soak.world.server.clone();
    let stranger = soak.world.cluster.plain_pod(2, "stranger").unwrap();
    let _apps = (
        Server::start(&server, APP_PORT, echo),
        Server::start(&server, SOURCE_PORT, source),
        Server::start(&server, DIGEST_PORT, digest),
    );
    let at = |port| server.at(port);
    let places =
        Places { echo: service(), source: at(SOURCE_PORT), digest: at(DIGEST_PORT), closed: at(CLOSED_PORT) };
    let baseline = Baseline::of(&soak.world.cluster, &soak.pods());
    let (tally, stop) = (Tally::default(), AtomicBool::new(false));
    let (client, guest) = (soak.world.client.clone(), soak.guest.clone());
    let started = Instant::now();
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let (tally, stop) = (&tally, &stop);
        for number in 0..VISITORS + 1 {
            let (from, lasts) = if number < VISITORS { (&client, true) } else { (&guest, false) };
            let random = random.fork();
            scope.spawn(move || visits(from, places, random, lasts, stop, tally));
        }
        let for_noise = random.fork();
        let (stranger, to) = (&stranger, server.at(0));
        scope.spawn(move || noise(stranger, to, for_noise, stop, tally));
        let mut events = Vec::new();
        while started.elapsed() < Duration::from_secs(seconds) {
            if events.is_empty() {
                events.extend(EVENTS);
                random.shuffle(&mut events);
                tell(&soak, started);
            }
            let event = events.pop().expect("filled above");
            let begun = started.elapsed();
            soak.happen(event, &mut random);
            report(&format!("soak: {begun:.1?} to {:.1?}: {event:?}", started.elapsed()));
            tally.count(&format!("{event:?}"));
            std::thread::sleep(Duration::from_millis(random.u64(..1_000)));
        }
    });
    tell(&soak, started);
    for (what, count) in &*tally.counts.lock().unwrap() {
        report(&format!("soak: {count:8} {what}"));
    }
    report(&format!("soak: the longest visit took {:.1?}", tally.slowest.lock().unwrap()));
    let signed = soak.world.standin.asked().len();
    report(&format!("soak: {signed:8} certificates asked for"));
    let wrong = tally.wrong.lock().unwrap();
    for (_, client) in &*wrong {
        tell_lines(&soak, &format!("\"{client}\""));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tally.of("echo") > 20 && tally.of("download") > 5, "too little happened to tell");
    if !soak.present {
        soak.toggle_guest();
    }
    baseline.is_back_in(&soak.world.cluster, &soak.pods());
}

/// What any of the proxies said about a client's connection, also those that were replaced.
fn tell_lines(soak: &Soak, client: &str) {
    for file in std::fs::read_dir(soak.world.cluster.directory()).unwrap().flatten() {
        let Ok(text) = std::fs::read_to_string(file.path()) else { continue };
        for line in text.lines().filter(|line| line.contains(client)) {
            report(&format!("soak: {} {line}", file.file_name().display()));
        }
    }
}

/// How the proxies are.
fn tell(soak: &Soak, started: Instant) {
    for (node, proxy) in [(1, soak.world.near()), (2, soak.world.far())] {
        report(&format!(
            "soak: after {:4} s node {node}: {} KiB resident, {} descriptors, {:.1?} of CPU",
            started.elapsed().as_secs(),
            proxy.resident_bytes().unwrap() >> 10,
            proxy.open_descriptors().unwrap(),
            proxy.cpu_time().unwrap(),
        ));
    }
}

/// A failed assertion must not leave the others running.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
