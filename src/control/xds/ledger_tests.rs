//! The books against two kinds of control planes, both simple models, and each rule by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::base::limits::XDS_SETTLE_MS;
use crate::mesh::delta::apply;
use crate::mesh::fixture::{pod, policy, service};
use crate::mesh::policy::{Action, PolicyScope};
use crate::mesh::snapshot::Snapshot;

fn uid(name: &str) -> String {
    pod(name, &[]).uid.to_string()
}

/// A pod that tells its version by its address.
fn told(ledger: &mut Ledger, name: &str, version: &str, last: u8) {
    let change = Change::from(pod(name, &[&format!("10.0.0.{last}")]));
    ledger.accept(Kind::Address, (&uid(name), version), change, std::iter::empty());
}

fn head(kind: Kind, removed: &[&str]) -> Head {
    Head {
        type_url: kind.type_url().into(),
        nonce: "n".into(),
        removed: removed.iter().map(ToString::to_string).collect(),
    }
}

fn finish(ledger: &mut Ledger, kind: Kind, removed: &[&str], now: Instant) -> Step {
    ledger.finish(head(kind, removed), now)
}

fn versions(request: &DeltaDiscoveryRequest) -> Vec<(&str, &str)> {
    request.initial_resource_versions.iter().map(|(name, version)| (&**name, &**version)).collect()
}

fn settled(now: Instant) -> Instant {
    now + Duration::from_millis(XDS_SETTLE_MS)
}

#[test]
fn a_stream_opens_with_what_is_held_and_a_response_is_answered_once() {
    let now = Instant::now();
    let mut ledger = Ledger::new(false);
    let [addresses, authorizations] = ledger.begin();
    for (request, kind) in [(&addresses, Kind::Address), (&authorizations, Kind::Authorization)] {
        assert_eq!(*request, DeltaDiscoveryRequest { type_url: kind.type_url().into(), ..<_>::default() });
    }
    assert_eq!(ledger.missing().collect::<Vec<_>>(), Kind::ALL);
    told(&mut ledger, "a", "00ff", 1);
    told(&mut ledger, "b", "", 2);
    let step = finish(&mut ledger, Kind::Address, &[], now);
    assert_eq!(step.changes.len(), 2);
    let ack = DeltaDiscoveryRequest {
        type_url: ADDRESS_TYPE.into(),
        response_nonce: "n".into(),
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(step.answer, ack);
    assert_eq!(ledger.missing().collect::<Vec<_>>(), [Kind::Authorization]);
    assert!(!ledger.is_complete());
    finish(&mut ledger, Kind::Authorization, &[], now);
    assert!(ledger.is_complete());
    let [addresses, authorizations] = ledger.begin();
    assert_eq!(versions(&addresses), [(&*uid("a"), "00ff"), (&*uid("b"), "")]);
    assert!(versions(&authorizations).is_empty() && ledger.is_complete());
}

#[test]
fn a_bad_resource_is_refused_by_name_and_what_was_known_of_it_stands() {
    let now = Instant::now();
    let mut ledger = Ledger::new(false);
    ledger.begin();
    told(&mut ledger, "known", "1", 1);
    finish(&mut ledger, Kind::Address, &[], now);
    ledger.refuse(&uid("known"), "is odd".into());
    told(&mut ledger, "good", "1", 2);
    ledger.refuse("new", "is odd too".into());
    let step = finish(&mut ledger, Kind::Address, &[], now);
    assert_eq!(step.changes, [pod("good", &["10.0.0.2"]).into()]);
    let message = step.answer.error_detail.unwrap().message;
    assert_eq!(message, format!("{}: is odd; new: is odd too", uid("known")));
    assert_eq!(step.answer.response_nonce, "n");
    // It is held, so that its removal is told; without a version, so that it is sent again.
    let [addresses, _] = ledger.begin();
    assert_eq!(versions(&addresses), [(&*uid("good"), "1"), (&*uid("known"), "")]);
}

#[test]
fn the_text_of_a_refusal_is_bounded() {
    let refused: Vec<_> =
        (0..10_000).map(|n| Refused { name: n.to_string(), reason: "bad".into() }).collect();
    let text = super::told(refused.iter());
    assert!(text.len() < NACK_BYTES + 20 && text.starts_with("0: bad; 1: bad; "), "{text}");
    assert!(text.ends_with(" more"), "{text}");
    let long = [Refused { name: "é".repeat(NACK_BYTES), reason: "bad".into() }];
    assert!(super::told(long.iter()).len() < NACK_BYTES + 20);
}

#[test]
fn what_is_both_updated_and_removed_is_removed_and_the_last_of_two_counts() {
    let now = Instant::now();
    let mut ledger = Ledger::new(false);
    ledger.begin();
    told(&mut ledger, "twice", "1", 1);
    told(&mut ledger, "twice", "2", 2);
    told(&mut ledger, "both", "1", 3);
    let step = finish(&mut ledger, Kind::Address, &[&uid("both"), "never/known"], now);
    let snapshot = apply(&Snapshot::default(), step.changes, None);
    assert_eq!(snapshot.workload_count(), 1);
    assert_eq!(
        snapshot.workload(&uid("twice")).unwrap().addresses,
        ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]
    );
    let [addresses, _] = ledger.begin();
    assert_eq!(versions(&addresses), [(&*uid("twice"), "2")]);
}

#[test]
fn unknown_types_are_acknowledged_and_strays_refused() {
    let now = Instant::now();
    let mut ledger = Ledger::new(false);
    ledger.begin();
    told(&mut ledger, "a", "1", 1);
    let step = ledger
        .finish(Head { type_url: "type/other".into(), nonce: "x".into(), removed: vec!["a".into()] }, now);
    assert!(step.changes.is_empty() && step.answer.error_detail.is_none());
    assert_eq!((&*step.answer.type_url, &*step.answer.response_nonce), ("type/other", "x"));
    told(&mut ledger, "a", "1", 1);
    let step = finish(&mut ledger, Kind::Authorization, &[], now);
    assert!(step.changes.is_empty());
    assert!(step.refused[0].reason.contains("a resource of type"), "{:?}", step.refused);
    told(&mut ledger, "a", "1", 1);
    let denies = policy("p", PolicyScope::Global, Action::Deny, Vec::new());
    ledger.accept(Kind::Authorization, ("default/p", ""), denies.into(), std::iter::empty());
    let step = finish(&mut ledger, Kind::Address, &[], now);
    assert_eq!((step.changes.len(), step.refused.len()), (1, 1));
}

#[test]
fn a_response_that_breaks_off_changes_nothing() {
    let mut ledger = Ledger::new(false);
    ledger.begin();
    told(&mut ledger, "a", "1", 1);
    ledger.refuse("b", "bad".into());
    ledger.end();
    let step = finish(&mut ledger, Kind::Address, &[], Instant::now());
    assert!(step.changes.is_empty() && step.refused.is_empty() && ledger.held() == 0);
}

#[test]
fn a_name_that_is_no_key_is_followed() {
    let now = Instant::now();
    let mut ledger = Ledger::new(false);
    ledger.begin();
    let mut snapshot = Snapshot::default();
    let mut take = |ledger: &mut Ledger, name: &str, change: Option<Change>, removed: &[&str]| {
        if let Some(change) = change {
            ledger.accept(Kind::Address, (name, "1"), change, std::iter::empty());
        }
        let step = finish(ledger, Kind::Address, removed, now);
        snapshot = apply(&snapshot, step.changes, None);
        let names: Vec<_> = snapshot.workloads().map(|workload| workload.name.to_string()).collect();
        (names.join(" "), snapshot.services().count())
    };
    assert_eq!(take(&mut ledger, "odd", Some(pod("a", &[]).into()), &[]), ("a".into(), 0));
    assert_eq!(take(&mut ledger, "odd", Some(pod("b", &[]).into()), &[]), ("b".into(), 0));
    assert_eq!(take(&mut ledger, "odd", Some(service("s", &[], &[]).into()), &[]), (String::new(), 1));
    assert_eq!(take(&mut ledger, "odd", None, &["odd"]), (String::new(), 0));
    let name = uid("a");
    assert_eq!(take(&mut ledger, &name, Some(pod("a", &[]).into()), &[]), ("a".into(), 0));
    assert_eq!(take(&mut ledger, &name, Some(pod("b", &[]).into()), &[]), ("b".into(), 0));
    assert_eq!(take(&mut ledger, &name, Some(pod("a", &[]).into()), &[]), ("a".into(), 0));
    assert_eq!(take(&mut ledger, &name, None, &[&name]), (String::new(), 0));
    assert_eq!(ledger.held(), 0);
}

#[test]
fn look_ups_are_asked_once_survive_a_reconnect_and_are_answered_by_any_of_their_names() {
    let now = Instant::now();
    let mut ledger = Ledger::new(true);
    let [addresses, authorizations] = ledger.begin();
    assert_eq!(
        (addresses.resource_names_subscribe, addresses.resource_names_unsubscribe),
        (vec!["*".to_owned()], vec!["*".to_owned()])
    );
    assert!(authorizations.resource_names_subscribe.is_empty());
    finish(&mut ledger, Kind::Authorization, &[], now);
    assert!(ledger.is_complete(), "addresses come when they are asked for");
    for name in ["/10.0.0.1", "/10.0.0.9", "default/x"] {
        let Lookup::Ask(request) = ledger.look_up(&name.into()) else { panic!("{name} isn't asked for") };
        let asked = DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.into(),
            resource_names_subscribe: vec![name.to_owned()],
            ..DeltaDiscoveryRequest::default()
        };
        assert_eq!(*request, asked);
        assert!(matches!(ledger.look_up(&name.into()), Lookup::Pending));
    }
    let [addresses, _] = ledger.begin();
    assert_eq!(versions(&addresses), [("/10.0.0.1", ""), ("/10.0.0.9", ""), ("default/x", "")]);
    let change = Change::from(pod("a", &["10.0.0.1"]));
    ledger.accept(Kind::Address, (&uid("a"), "1"), change, ["/10.0.0.1"].into_iter());
    ledger.refuse("default/x", "bad".into());
    let step = finish(&mut ledger, Kind::Address, &["/10.0.0.9"], now);
    let mut answered = step.answered;
    answered.sort();
    assert_eq!(
        answered.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["/10.0.0.1", "/10.0.0.9", "default/x"]
    );
    assert_eq!(step.absent.iter().map(|name| &**name).collect::<Vec<_>>(), ["/10.0.0.9"]);
    assert!(
        matches!(ledger.look_up(&"/10.0.0.9".into()), Lookup::Ask(_)),
        "asked again when it matters again"
    );
    // The resource goes like any other.
    let step = finish(&mut ledger, Kind::Address, &[&uid("a")], now);
    assert_eq!(step.changes, [Change::RemoveAddress(uid("a").into())]);
}

#[test]
fn open_look_ups_are_bounded() {
    let mut ledger = Ledger::new(true);
    ledger.begin();
    for number in 0..XDS_LOOKUPS_PENDING {
        assert!(matches!(ledger.look_up(&number.to_string().into()), Lookup::Ask(_)));
    }
    assert!(matches!(ledger.look_up(&"more".into()), Lookup::TooMany));
    assert!(matches!(ledger.look_up(&"0".into()), Lookup::Pending));
}

#[test]
fn what_a_control_plane_that_honours_versions_leaves_out_stands() {
    let now = Instant::now();
    let mut ledger = Ledger::new(false);
    ledger.begin();
    for (last, name) in (0..).zip(["a", "b", "c", "d"]) {
        told(&mut ledger, name, "1", last);
    }
    finish(&mut ledger, Kind::Address, &[], now);
    ledger.begin();
    // One has changed, one is gone.
    told(&mut ledger, "b", "2", 9);
    let step = finish(&mut ledger, Kind::Address, &[&uid("c")], now);
    assert!(!step.restart && step.changes.len() == 2);
    // A repetition later on is no sign.
    told(&mut ledger, "a", "1", 0);
    assert!(!finish(&mut ledger, Kind::Address, &[], now).restart);
    assert!(ledger.give_up_at().is_none() && ledger.give_up(settled(now)).is_empty());
    ledger.begin();
    assert!(!finish(&mut ledger, Kind::Address, &[], now).restart, "nothing has changed");
    assert_eq!(ledger.held(), 3);
}

#[test]
fn what_a_full_state_leaves_out_is_gone_after_it_was_asked_for_once_more() {
    let now = Instant::now();
    for version in ["1", "2"] {
        let mut ledger = Ledger::new(false);
        ledger.begin();
        for (last, name) in (0..).zip(["a", "b", "c"]) {
            told(&mut ledger, name, "1", last);
        }
        finish(&mut ledger, Kind::Address, &[], now);
        ledger.begin();
        told(&mut ledger, "a", version, 0);
        told(&mut ledger, "b", version, 1);
        let step = finish(&mut ledger, Kind::Address, &[], now);
        assert!(step.restart && step.changes.len() == 2, "nothing is lost by it");
        assert!(ledger.give_up_at().is_none());
        let [addresses, _] = ledger.begin();
        assert_eq!(addresses.initial_resource_versions[&uid("c")], "");
        told(&mut ledger, "a", version, 0);
        told(&mut ledger, "b", version, 1);
        let step = finish(&mut ledger, Kind::Address, &[], now);
        assert!(!step.restart);
        assert!(ledger.give_up(now).is_empty(), "the rest may be on its way");
        assert_eq!(ledger.give_up_at(), Some(settled(now)));
        assert_eq!(ledger.give_up(settled(now)), [Change::RemoveAddress(uid("c").into())]);
        assert_eq!((ledger.held(), ledger.give_up_at()), (2, None));
    }
}

#[test]
fn names_without_a_version_are_gone_unless_they_are_named_in_time() {
    let now = Instant::now();
    let after = |millis| now + Duration::from_millis(millis);
    let mut ledger = Ledger::new(false);
    ledger.begin();
    for name in ["a", "b", "c", "d"] {
        told(&mut ledger, name, "", 1);
    }
    finish(&mut ledger, Kind::Address, &[], now);
    ledger.begin();
    assert!(
        ledger.give_up(settled(settled(now))).is_empty(),
        "nothing is given up before the first response"
    );
    told(&mut ledger, "a", "", 1);
    assert!(!finish(&mut ledger, Kind::Address, &[], now).restart);
    // The state comes in several responses; what is named, though refused, is there.
    told(&mut ledger, "b", "", 1);
    ledger.refuse(&uid("c"), "bad".into());
    finish(&mut ledger, Kind::Address, &[], after(900));
    assert!(ledger.give_up(after(1_500)).is_empty());
    assert_eq!(ledger.give_up(after(1_900)), [Change::RemoveAddress(uid("d").into())]);
    // Neither while a response is under way, nor once the stream is over.
    ledger.begin();
    finish(&mut ledger, Kind::Address, &[], now);
    told(&mut ledger, "a", "", 1);
    assert!(ledger.give_up(settled(now)).is_empty() && ledger.give_up_at().is_none());
    ledger.end();
    assert!(ledger.give_up(settled(now)).is_empty() && ledger.give_up_at().is_none());
    // An empty state is a state.
    ledger.begin();
    finish(&mut ledger, Kind::Address, &[], now);
    assert_eq!(ledger.give_up(settled(now)).len(), 3);
}

#[test]
fn what_does_not_fit_into_the_first_request_is_sent_again_or_gone() {
    let now = Instant::now();
    let mut ledger = Ledger::new(false);
    ledger.begin();
    let names: Vec<_> = (0..100).map(|number| format!("p{number}")).collect();
    for name in &names {
        told(&mut ledger, name, "1", 1);
    }
    finish(&mut ledger, Kind::Address, &[], now);
    ledger.declared_bytes = 40 * (uid("p10").len() + 11);
    let [addresses, _] = ledger.begin();
    let declared = addresses.initial_resource_versions.clone();
    assert!((35..=45).contains(&declared.len()) && addresses.encoded_len() <= ledger.declared_bytes + 60);
    assert!(ledger.begin()[0] == addresses, "an attempt that comes to nothing changes nothing");
    // All but one of the others are sent again.
    let mut others = names.iter().filter(|name| !declared.contains_key(&uid(name)));
    let lost = others.next().unwrap();
    for name in others {
        told(&mut ledger, name, "1", 1);
    }
    assert!(!finish(&mut ledger, Kind::Address, &[], now).restart);
    assert_eq!(ledger.give_up(settled(now)), [Change::RemoveAddress(uid(lost).into())]);
    ledger.declared_bytes = XDS_DECLARED_BYTES;
    let [addresses, _] = ledger.begin();
    assert!(addresses.initial_resource_versions.values().all(|version| version == "1"));
    assert_eq!(addresses.initial_resource_versions.len(), 99);
}

/// A control plane with pods and their contents.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// Leaves out what is as declared, lists what is gone.
    Honours,
    /// Sends its whole state in so many responses, lists nothing.
    Repeats { responses: usize, versions: bool },
}

#[derive(Clone, Debug)]
enum Act {
    Set {
        name: usize,
        content: u8,
    },
    Remove(usize),
    Refuse(usize),
    /// What happens while the stream is away, then a reconnect.
    Away(Vec<(usize, Option<u8>)>),
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let name = 0..NAMES.len();
    let act = prop_oneof![
        4 => (name.clone(), 0..4_u8).prop_map(|(name, content)| Act::Set { name, content }),
        2 => name.clone().prop_map(Act::Remove),
        1 => name.clone().prop_map(Act::Refuse),
        2 => proptest::collection::vec((name, proptest::option::of(0..4_u8)), 0..5).prop_map(Act::Away),
    ];
    proptest::collection::vec(act, 0..24)
}

/// What the node holds must be what the control plane holds, whatever happens, as soon as things are settled.
fn play(manner: Manner, acts: &[Act], declared_bytes: usize) {
    let mut now = Instant::now();
    let mut ledger = Ledger::new(false);
    ledger.declared_bytes = declared_bytes;
    let mut snapshot = Snapshot::default();
    let mut mesh: BTreeMap<&str, u8> = BTreeMap::new();
    let version = |content: &u8| match manner {
        Manner::Honours | Manner::Repeats { versions: true, .. } => format!("{content:02x}"),
        Manner::Repeats { versions: false, .. } => String::new(),
    };
    let connect = |ledger: &mut Ledger, snapshot: &mut Snapshot, mesh: &BTreeMap<&str, u8>, now: Instant| {
        for attempt in 0.. {
            assert!(attempt < 3, "it asks again and again");
            let [addresses, _] = ledger.begin();
            let declared = addresses.initial_resource_versions;
            let (responses, removed) = match manner {
                Manner::Honours => {
                    let news = mesh.iter().filter(|(name, content)| {
                        declared
                            .get(&uid(name))
                            .is_none_or(|held| held.is_empty() || *held != version(content))
                    });
                    let gone = declared.keys().filter(|held| !mesh.keys().any(|name| uid(name) == **held));
                    (vec![news.collect::<Vec<_>>()], gone.cloned().collect())
                }
                Manner::Repeats { responses, .. } => {
                    let all: Vec<_> = mesh.iter().collect();
                    let each = all.len().div_ceil(responses).max(1);
                    let mut all: Vec<_> = all.chunks(each).map(<[_]>::to_vec).collect();
                    if all.is_empty() {
                        all.push(Vec::new());
                    }
                    (all, Vec::new())
                }
            };
            let mut restart = false;
            for response in responses {
                for (name, content) in response {
                    told(ledger, name, &version(content), *content);
                }
                let head =
                    Head { type_url: ADDRESS_TYPE.into(), nonce: "n".into(), removed: removed.clone() };
                let step = ledger.finish(head, now);
                *snapshot = apply(snapshot, step.changes, None);
                restart |= step.restart;
                if restart {
                    break;
                }
            }
            if !restart {
                return;
            }
        }
    };
    connect(&mut ledger, &mut snapshot, &mesh, now);
    for act in acts {
        now += Duration::from_millis(10);
        match act {
            Act::Set { name, content } => {
                mesh.insert(NAMES[*name], *content);
                told(&mut ledger, NAMES[*name], &version(content), *content);
                snapshot = apply(&snapshot, finish(&mut ledger, Kind::Address, &[], now).changes, None);
            }
            Act::Remove(name) => {
                mesh.remove(NAMES[*name]);
                let gone = uid(NAMES[*name]);
                snapshot = apply(&snapshot, finish(&mut ledger, Kind::Address, &[&gone], now).changes, None);
            }
            // A refused resource has no version that could tell anything.
            Act::Refuse(_) if matches!(manner, Manner::Repeats { versions: true, .. }) => {}
            Act::Refuse(name) => {
                ledger.refuse(&uid(NAMES[*name]), "bad".into());
                let step = finish(&mut ledger, Kind::Address, &[], now);
                assert!(step.changes.is_empty());
            }
            Act::Away(meanwhile) => {
                let before = mesh.clone();
                for (name, content) in meanwhile {
                    match content {
                        Some(content) => drop(mesh.insert(NAMES[*name], *content)),
                        None => drop(mesh.remove(NAMES[*name])),
                    }
                }
                // What no books can tell, see `Unseen`.
                let kept = before.iter().filter(|(name, content)| mesh.get(*name) == Some(content)).count();
                let named = before.keys().filter(|name| mesh.contains_key(*name)).count();
                let lost = before.len() - named;
                if let Manner::Repeats { versions: true, .. } = manner
                    && kept == 0
                    && named < lost
                {
                    mesh = before;
                }
                connect(&mut ledger, &mut snapshot, &mesh, now);
                now = settled(now);
                snapshot = apply(&snapshot, ledger.give_up(now), None);
            }
        }
        assert_eq!(ledger.held(), snapshot.workload_count());
        let seen: Vec<_> =
            snapshot.workloads().map(|pod| (&*pod.name, pod.addresses[0].to_string())).collect();
        let wanted: Vec<_> =
            mesh.iter().map(|(name, content)| (*name, format!("10.0.0.{content}"))).collect();
        assert_eq!(seen, wanted, "{manner:?} after {act:?}");
    }
}

proptest! {
    #[test]
    fn the_node_follows_a_control_plane_that_honours_versions(acts in acts()) {
        play(Manner::Honours, &acts, XDS_DECLARED_BYTES);
    }

    #[test]
    fn and_one_that_can_not_be_told_all(acts in acts(), declared_bytes in 0..300_usize) {
        play(Manner::Honours, &acts, declared_bytes);
    }

    #[test]
    fn the_node_follows_a_control_plane_that_repeats_everything(acts in acts(), versions: bool) {
        play(Manner::Repeats { responses: 1, versions }, &acts, XDS_DECLARED_BYTES);
    }

    #[test]
    fn a_state_without_versions_may_come_in_several_responses(acts in acts(), responses in 2..4_usize) {
        play(Manner::Repeats { responses, versions: false }, &acts, XDS_DECLARED_BYTES);
    }
}
