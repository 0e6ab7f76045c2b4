//! The session against shards, an agent and a clock that all follow one seed.

use super::*;
use proptest::prelude::*;

const SHARDS: usize = 4;

fn session() -> Session<u32> {
    Session::new(|uid| crate::bridge::settings::shards_of(uid, SHARDS, 2))
}

fn add(uid: &str) -> Message {
    let info = Info { name: uid.into(), namespace: "ns".into(), service_account: "sa".into() };
    Message::Add { uid: uid.into(), info: Some(info) }
}

fn del(uid: &str) -> Message {
    Message::Del { uid: uid.into() }
}

fn shards(uid: &str) -> Vec<usize> {
    crate::bridge::settings::shards_of(uid, SHARDS, 2)
}

fn all_started(
    session: &mut Session<u32>,
    uid: &str,
    result: &Result<(), String>,
    now: Instant,
) -> Vec<Action<u32>> {
    let answer = |shard| session.started(&uid.into(), shard, result.clone(), now);
    shards(uid).into_iter().flat_map(answer).collect()
}

fn acks(actions: &[Action<u32>]) -> Vec<Option<String>> {
    let ack = |action: &Action<u32>| match action {
        Action::Ack(error) => Some(error.clone()),
        Action::Start { .. } | Action::Stop { .. } | Action::Refuse(_) => None,
    };
    actions.iter().filter_map(ack).collect()
}

#[test]
fn a_pod_is_acknowledged_when_all_its_shards_stand_and_only_then() {
    let (mut session, now) = (session(), Instant::now());
    session.connected();
    let actions = session.message(add("a"), Some(1), now);
    assert!(matches!(actions.as_slice(), [Action::Start { place: 1, .. }]));
    assert!(!session.may_read());
    let of = shards("a");
    assert_eq!(session.started(&"a".into(), of[0], Ok(()), now), []);
    assert_eq!(session.started(&"a".into(), of[1], Ok(()), now), [Action::Ack(None)]);
    assert_eq!(session.message(Message::SnapshotSent, None, now), [Action::Ack(None)]);
    assert!(session.ready());
    // The same again: nothing to do. Another namespace: the old one goes at once.
    assert_eq!(session.message(add("a"), Some(1), now), [Action::Ack(None)]);
    let actions = session.message(add("a"), Some(2), now);
    assert!(matches!(actions.as_slice(), [Action::Stop { .. }, Action::Start { place: 2, .. }]));
    let _ = of.iter().map(|shard| session.stopped(&"a".into(), *shard)).count();
    assert_eq!(all_started(&mut session, "a", &Ok(()), now), [Action::Ack(None)]);
    assert_eq!(session.totals(), (2, 1));
}

#[test]
fn a_bad_pod_is_refused_and_retried_without_hurting_the_others() {
    let (mut session, mut now) = (session(), Instant::now());
    session.connected();
    session.message(add("bad"), Some(1), now);
    let actions = all_started(&mut session, "bad", &Err("no such namespace".into()), now);
    assert!(matches!(actions.as_slice(), [Action::Stop { .. }, Action::Ack(Some(_))]), "{actions:?}");
    let text = acks(&actions).remove(0).unwrap();
    assert!(text.starts_with("failure to start proxy : ") && text.contains("no such namespace"), "{text}");
    session.message(add("good"), Some(2), now);
    assert_eq!(all_started(&mut session, "good", &Ok(()), now), [Action::Ack(None)]);
    session.message(Message::SnapshotSent, None, now);
    assert!(!session.ready() && session.pending() == 1);
    assert!(session.why_pending().unwrap().contains("ns/bad"));
    now += Duration::from_millis(POD_RETRY_MS - 1);
    assert_eq!(session.tick(now), []);
    now += Duration::from_millis(1);
    assert!(matches!(session.tick(now).as_slice(), [Action::Start { place: 1, .. }]));
    assert!(!session.ready(), "it is being tried, but it isn't there");
    assert_eq!(all_started(&mut session, "bad", &Ok(()), now), []);
    assert!(session.ready());
    now += Duration::from_millis(2 * POD_RETRY_MS);
    assert_eq!(session.tick(now), []);
}

#[test]
fn a_pod_without_a_namespace_is_retried_and_its_place_may_become_good() {
    let (mut session, mut now) = (session(), Instant::now());
    session.connected();
    session.message(add("none"), Some(1), now);
    let actions = session.cannot_start(&"none".into(), "no namespace".into(), now);
    assert_eq!(actions, [Action::Ack(Some("failure to start proxy : no namespace".to_owned()))]);
    assert_eq!(session.message(Message::SnapshotSent, None, now), [Action::Ack(None)]);
    for _ in 0..3 {
        assert!(!session.ready() && session.pending() == 1);
        now += Duration::from_millis(POD_RETRY_MS);
        assert!(matches!(session.tick(now).as_slice(), [Action::Start { place: 1, .. }]));
        assert_eq!(session.cannot_start(&"none".into(), "no namespace".into(), now), []);
    }
    let actions = session.message(add("none"), Some(2), now);
    assert!(matches!(actions.as_slice(), [Action::Start { place: 2, .. }]), "{actions:?}");
    assert_eq!(all_started(&mut session, "none", &Ok(()), now), [Action::Ack(None)]);
    assert!(session.ready());
}

#[test]
fn shards_that_are_late_cost_a_refusal_in_time_and_the_pod_still_comes_up() {
    let (mut session, mut now) = (session(), Instant::now());
    session.connected();
    session.message(Message::SnapshotSent, None, now);
    session.message(add("slow"), Some(1), now);
    now += Duration::from_millis(POD_ORDER_DEADLINE_MS);
    let refused = acks(&session.tick(now));
    assert!(refused[0].as_ref().unwrap().contains("2 shard(s) have not answered within 4s"), "{refused:?}");
    assert!(!session.ready());
    now += Duration::from_millis(POD_RETRY_MS);
    assert_eq!(session.tick(now), [], "it is at it already");
    assert_eq!(all_started(&mut session, "slow", &Ok(()), now), []);
    assert!(session.ready());
}

#[test]
fn a_deletion_waits_for_the_shards_but_not_for_ever() {
    let (mut session, mut now) = (session(), Instant::now());
    session.connected();
    session.message(Message::SnapshotSent, None, now);
    for uid in ["a", "b"] {
        session.message(add(uid), Some(1), now);
        all_started(&mut session, uid, &Ok(()), now);
    }
    assert_eq!(session.message(del("a"), None, now), [Action::Stop { uid: "a".into() }]);
    let actions: Vec<_> = shards("a").iter().flat_map(|shard| session.stopped(&"a".into(), *shard)).collect();
    assert_eq!(actions, [Action::Ack(None)]);
    assert_eq!(session.message(del("b"), None, now), [Action::Stop { uid: "b".into() }]);
    now += Duration::from_millis(POD_ORDER_DEADLINE_MS);
    assert_eq!(session.tick(now), [Action::Ack(None)]);
    assert_eq!(session.message(del("never heard of"), None, now), [Action::Ack(None)]);
}

#[test]
fn the_snapshot_ends_pods_that_it_does_not_name_and_keep_saves_them() {
    let (mut session, now) = (session(), Instant::now());
    session.connected();
    for uid in ["kept", "gone", "deleted"] {
        session.message(add(uid), Some(1), now);
        all_started(&mut session, uid, &Ok(()), now);
    }
    session.message(Message::SnapshotSent, None, now);
    session.disconnected();
    assert_eq!(session.view().len(), 3, "pods outlive the connection");
    session.connected();
    assert_eq!(session.message(Message::Keep { uid: "kept".into() }, None, now), [Action::Ack(None)]);
    assert_eq!(session.message(add("deleted"), Some(1), now), [Action::Ack(None)]);
    assert_eq!(session.message(del("deleted"), None, now), [Action::Ack(None)]);
    let stop = |uid: &str| Action::Stop { uid: uid.into() };
    let actions = session.message(Message::SnapshotSent, None, now);
    assert_eq!(actions, [stop("deleted"), stop("gone"), Action::Ack(None)]);
}

#[test]
fn breaches_of_the_protocol_are_named() {
    let (mut session, now) = (session(), Instant::now());
    session.connected();
    let refused = |actions: Vec<Action<u32>>| match actions.as_slice() {
        [Action::Refuse(text)] => text.clone(),
        _ => panic!("not refused: {actions:?}"),
    };
    let bare = Message::Add { uid: "u".into(), info: None };
    assert!(refused(session.message(bare, Some(1), now)).contains("without workload info"));
    session.message(Message::SnapshotSent, None, now);
    assert!(refused(session.message(Message::SnapshotSent, None, now)).contains("second snapshot"));
    assert!(
        refused(session.message(Message::Keep { uid: "u".into() }, None, now)).contains("after the snapshot")
    );
}

#[test]
fn a_connection_that_ends_while_a_pod_starts_leaves_no_ack_behind() {
    let (mut session, now) = (session(), Instant::now());
    session.connected();
    session.message(add("a"), Some(1), now);
    session.connected();
    assert!(session.may_read());
    assert_eq!(all_started(&mut session, "a", &Ok(()), now), [], "nobody waits for this answer any more");
    assert_eq!(session.message(add("a"), Some(1), now), [Action::Ack(None)]);
}

/// What a shard has been told and not yet done, in order.
#[derive(Clone, Debug)]
enum Told {
    Start(Text, u32),
    Stop(Text),
}

/// Shards, agent and clock around a session.
struct World {
    session: Session<u32>,
    now: Instant,
    queues: Vec<VecDeque<Told>>,
    live: HashMap<(usize, Text), u32>,
    /// Messages sent on this connection that have no ack yet.
    unacked: usize,
    random: fastrand::Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut session = session();
        session.connected();
        let queues = (0..SHARDS).map(|_| VecDeque::new()).collect();
        let random = fastrand::Rng::with_seed(seed);
        Self { session, now: Instant::now(), queues, live: HashMap::new(), unacked: 0, random }
    }

    fn carry_out(&mut self, actions: Vec<Action<u32>>) {
        for action in actions {
            match action {
                Action::Start { uid, place, .. } => {
                    for shard in shards(&uid) {
                        self.queues[shard].push_back(Told::Start(uid.clone(), place));
                    }
                }
                Action::Stop { uid } => {
                    for shard in shards(&uid) {
                        self.queues[shard].push_back(Told::Stop(uid.clone()));
                    }
                }
                Action::Ack(_) => {
                    assert_eq!(self.unacked, 1, "an ack that nobody waits for");
                    self.unacked = 0;
                }
                Action::Refuse(_) => self.reconnect(),
            }
        }
    }

    fn reconnect(&mut self) {
        self.session.disconnected();
        self.unacked = 0;
        assert!(!self.session.ready());
        self.session.connected();
    }

    /// The oldest order of one shard is done, well or badly.
    fn one_shard_works(&mut self) {
        let shard = self.random.usize(0..SHARDS);
        let actions = match self.queues[shard].pop_front() {
            None => return,
            Some(Told::Stop(uid)) => {
                self.live.remove(&(shard, uid.clone()));
                self.session.stopped(&uid, shard)
            }
            Some(Told::Start(uid, _)) if self.random.u8(..) < 60 => {
                self.session.started(&uid, shard, Err("bad luck".into()), self.now)
            }
            Some(Told::Start(uid, place)) => {
                let before = self.live.insert((shard, uid.clone()), place);
                assert!(before.is_none(), "{uid} lives twice on shard {shard}: {before:?} and {place}");
                self.session.started(&uid, shard, Ok(()), self.now)
            }
        };
        self.carry_out(actions);
    }

    fn agent_speaks(&mut self) {
        if !self.session.may_read() {
            assert_eq!(self.unacked, 1);
            return;
        }
        assert_eq!(self.unacked, 0, "the next message is read before the last one is answered");
        self.unacked = 1;
        let uid = format!("pod-{}", self.random.u8(0..5));
        let (message, place) = match self.random.u8(0..20) {
            0..10 => (add(&uid), Some(self.random.u32(0..2))),
            10..13 => (del(&uid), None),
            13..15 if !self.session.has_snapshot() => (Message::Keep { uid }, None),
            15..19 if !self.session.has_snapshot() => (Message::SnapshotSent, None),
            19 => (Message::SnapshotSent, None),
            _ => (del(&uid), None),
        };
        let actions = self.session.message(message, place, self.now);
        self.carry_out(actions);
    }

    fn step(&mut self) {
        match self.random.u8(0..100) {
            0..45 => self.one_shard_works(),
            45..85 => self.agent_speaks(),
            85..98 => {
                self.now += Duration::from_millis(self.random.u64(0..3_000));
                let actions = self.session.tick(self.now);
                self.carry_out(actions);
            }
            _ => self.reconnect(),
        }
        let ready = self.session.has_snapshot() && self.session.pending() == 0;
        assert_eq!(self.session.ready(), ready);
        assert!(self.unacked == 0 || !self.session.may_read(), "a message has been forgotten");
    }

    /// Shards work their queues off and the clock goes on: everything comes to rest as the session says it is.
    fn settle(&mut self) {
        for _ in 0..200 {
            for _ in 0..50 {
                self.one_shard_works();
            }
            self.now += Duration::from_millis(POD_RETRY_MS);
            let actions = self.session.tick(self.now);
            self.carry_out(actions);
            if self.queues.iter().all(VecDeque::is_empty) && self.session.pending() == 0 {
                break;
            }
        }
        while self.queues.iter().any(|queue| !queue.is_empty()) {
            self.one_shard_works();
        }
        assert_eq!(self.unacked, 0, "an ack is owed for ever");
        let mut expected = HashMap::new();
        for (uid, entry) in self.session.pods.iter().filter(|(_, entry)| entry.state == State::Up) {
            for shard in shards(uid) {
                expected.insert((shard, uid.clone()), entry.place);
            }
        }
        if self.session.pending() == 0 {
            assert_eq!(self.live, expected, "what runs is not what should run");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// The seed is the whole story of a run; a failure prints it.
    #[test]
    fn any_agent_any_shards_any_clock(seed: u64) {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
        world.settle();
    }
}
