//! Policies: everything is read, nothing is lost silently, and what can't be understood fails closed.

use proptest::prelude::*;
use prost::Message as _;

use super::super::authorization;
use super::{encode, full_match, policy_of, text};
use crate::base::fault::Problem;
use crate::base::limits::{POLICY_PARTS, POLICY_PROBLEMS};
use crate::base::text::Interner;
use crate::mesh::policy::{Action, Match, Policy, PolicyScope, StringMatch};
use crate::wire::pb::security as pb;

fn read(bytes: &[u8]) -> (Policy, Vec<Problem>) {
    authorization(bytes, &mut Interner::default()).unwrap()
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
}

#[test]
fn everything_a_policy_says_is_read() {
    let form = policy_of(vec![full_match()]);
    let (policy, problems) = read(&form.encode_to_vec());
    assert_eq!(problems, []);
    assert_eq!((&*policy.namespace, &*policy.name), ("shop", "p"));
    assert_eq!((policy.scope, policy.action), (PolicyScope::Namespace, Action::Deny));
    assert!(policy.dry_run);
    assert!(matches!(&policy.rules[0][0][0].namespaces[..],
        [StringMatch::Exact(text), StringMatch::Presence] if **text == *"shop"));
    assert_eq!(encode::policy(&policy), form);
}

#[test]
fn what_a_match_cannot_say_spoils_it_alone_and_is_told() {
    for (spoil, wanted) in [
        (
            (|entry| entry.principals.push(pb::StringMatch { match_type: None })) as fn(&mut pb::Match),
            "principals: a text match of no kind is not one of exact, prefix, suffix, presence",
        ),
        (
            |entry| entry.source_ips[0].length = 33,
            "sourceIps: 4 bytes with a prefix of 33 bits is not an address range",
        ),
        (
            |entry| entry.not_destination_ips[0].address = vec![1; 3].into(),
            "notDestinationIps: 3 bytes with a prefix of 32 bits is not an address range",
        ),
        (|entry| entry.destination_ports.push(65_536), "destinationPorts: 65536 is not a port"),
        (|entry| entry.not_destination_ports.push(u32::MAX), "notDestinationPorts: 4294967295 is not a port"),
    ] {
        let mut bad = full_match();
        spoil(&mut bad);
        let (policy, problems) = read(&policy_of(vec![full_match(), bad]).encode_to_vec());
        assert!(!policy.rules[0][0][0].unreadable && policy.rules[0][0][1].unreadable, "{wanted}");
        let said: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(said, [format!("shop/p rules[0][0][1] {wanted}")]);
    }
}

#[test]
fn a_field_of_a_later_version_spoils_what_it_stands_in() {
    let unknown = field(15, b"x");
    let entry = full_match().encode_to_vec();
    let with = |body: &[u8]| [body, &unknown].concat();
    let clause = |body: &[u8]| {
        let length = u8::try_from(body.len()).unwrap();
        [&[0x12, 0x80 | (length & 0x7f), 1][..], body].concat()
    };
    assert!((0x80..0x100 - unknown.len()).contains(&entry.len()));
    let bare = Match { unreadable: true, ..Match::default() };
    let says = |bytes: &[u8]| {
        let (policy, problems) = read(bytes);
        assert_eq!(problems.len(), 1, "{problems:?}");
        (policy.rules, problems[0].to_string())
    };
    let told = "field 15 is not one that this version knows";
    // In a match.
    let bytes = pb::Authorization::default().encode_to_vec();
    assert!(bytes.is_empty());
    let nested = |body: Vec<u8>| {
        let mut rule = vec![0x0a];
        prost::encoding::encode_varint(body.len() as u64, &mut rule);
        rule.extend(body);
        rule
    };
    let policy = |rule: Vec<u8>| {
        let mut bytes = vec![0x2a];
        prost::encoding::encode_varint(rule.len() as u64, &mut bytes);
        bytes.extend(rule);
        bytes
    };
    let (rules, said) = says(&policy(nested(clause(&with(&entry)))));
    assert!(rules[0][0][0].unreadable && !rules[0][0][0].principals.is_empty());
    assert_eq!(said, format!("/ rules[0][0][0] Match: {told}"));
    // In a clause, a rule, the policy.
    let (rules, said) = says(&policy(nested(with(&clause(&entry)))));
    assert_eq!((rules, said), (vec![vec![vec![bare.clone()]]], format!("/ rules[0][0] Clause: {told}")));
    let (rules, said) = says(&policy(with(&nested(clause(&entry)))));
    assert_eq!((rules, said), (vec![vec![vec![bare.clone()]]], format!("/ rules[0] Rule: {told}")));
    let (rules, said) = says(&with(&policy(nested(clause(&entry)))));
    assert_eq!((rules, said), (vec![vec![vec![bare]]], format!("/ Authorization: {told}")));
    // In a value.
    for (number, value) in [(1, field(1, b"a")), (5, field(1, &[10, 0, 0, 0])), (11, field(1, b"a"))] {
        let (rules, said) = says(&policy(nested(field(2, &field(number, &with(&value))))));
        assert!(rules[0][0][0].unreadable, "{said}");
        assert!(said.ends_with(told), "{said}");
    }
    // A text match of a kind that is new.
    let (rules, said) = says(&policy(nested(field(2, &field(1, &unknown)))));
    assert!(rules[0][0][0].unreadable && said.contains("StringMatch"), "{said}");
}

#[test]
fn empty_parts_stay_what_they_are() {
    let mut form = policy_of(vec![pb::Match::default()]);
    form.rules.push(pb::Rule::default());
    form.rules.push(pb::Rule { clauses: vec![pb::Clause::default()] });
    let (policy, problems) = read(&form.encode_to_vec());
    assert_eq!(problems, []);
    assert_eq!(policy.rules, [vec![vec![Match::default()]], vec![], vec![vec![]]]);
    assert_eq!(read(&policy_of(vec![]).encode_to_vec()).0.rules, [vec![Vec::<Match>::new()]]);
}

#[test]
fn what_is_no_policy_is_refused() {
    let says = |bytes: &[u8]| authorization(bytes, &mut Interner::default()).unwrap_err().to_string();
    let with = |scope, action| pb::Authorization { scope, action, ..policy_of(vec![]) }.encode_to_vec();
    assert_eq!(says(&with(3, 0)), "scope: unknown enum: 3");
    assert_eq!(says(&with(0, 2)), "action: unknown enum: 2");
    assert_eq!(says(&field(1, b"\xff")), "decode: Authorization.name: is not UTF-8 text");
    assert!(says(&field(5, &field(1, &field(2, &field(9, &[0x80]))))).contains("Match.destinationPorts: "));
    assert_eq!(says(&field(5, &[0x0a, 9, 0])), "decode: Rule.clauses: 9 bytes are announced, 1 are left");
}

#[test]
fn a_policy_without_bounds_is_unreadable_rather_than_large() {
    let entries = vec![pb::Match::default(); POLICY_PARTS];
    let (policy, problems) = read(&policy_of(entries).encode_to_vec());
    assert_eq!(policy.rules[0][0], [Match { unreadable: true, ..Match::default() }]);
    assert!(problems[0].to_string().contains("65537"), "{}", problems[0]);
    let none = vec![pb::StringMatch { match_type: None }; 1_000];
    let (policy, problems) =
        read(&policy_of(vec![pb::Match { namespaces: none, ..Default::default() }]).encode_to_vec());
    assert!(policy.rules[0][0][0].unreadable);
    assert_eq!(problems.len(), POLICY_PROBLEMS);
}

fn any_text() -> impl Strategy<Value = Vec<pb::StringMatch>> {
    use pb::string_match::MatchType;
    let one = (0..5_u8, "[a-z*]{0,3}").prop_map(|(kind, value)| match kind {
        0 => text(MatchType::Exact(value)),
        1 => text(MatchType::Prefix(value)),
        2 => text(MatchType::Suffix(value)),
        3 => text(MatchType::Presence(())),
        _ => pb::StringMatch { match_type: None },
    });
    prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(one, 0..3)]
}

fn any_range() -> impl Strategy<Value = Vec<pb::Address>> {
    let one = (proptest::sample::select(vec![4_usize, 16, 4, 16, 3]), any::<u8>(), 0..40_u32)
        .prop_map(|(bytes, fill, length)| pb::Address { address: vec![fill; bytes].into(), length });
    prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(one, 0..3)]
}

fn any_ports() -> impl Strategy<Value = Vec<u32>> {
    let one = prop_oneof![9 => 0..65_536_u32, 1 => any::<u32>()];
    prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(one, 0..3)]
}

fn any_match() -> impl Strategy<Value = pb::Match> {
    let texts = (any_text(), any_text(), any_text(), any_text());
    let ranges = (any_range(), any_range(), any_range(), any_range());
    (texts, ranges, any_ports(), any_ports()).prop_map(|(texts, ranges, one, two)| pb::Match {
        namespaces: texts.0,
        not_namespaces: texts.1,
        principals: texts.2,
        not_principals: texts.3,
        source_ips: ranges.0,
        not_source_ips: ranges.1,
        destination_ips: ranges.2,
        not_destination_ips: ranges.3,
        destination_ports: one,
        not_destination_ports: two,
        ..full_match()
    })
}

/// Whether everything in it can be read, said in other words than the reader's.
fn clean(entry: &pb::Match) -> bool {
    let texts = [&entry.namespaces, &entry.not_namespaces, &entry.principals, &entry.not_principals];
    let ranges =
        [&entry.source_ips, &entry.not_source_ips, &entry.destination_ips, &entry.not_destination_ips];
    let bits = |range: &pb::Address| match range.address.len() {
        4 => 32,
        16 => 128,
        _ => -1,
    };
    texts.iter().all(|list| list.iter().all(|value| value.match_type.is_some()))
        && ranges.iter().all(|list| list.iter().all(|range| i64::from(range.length) <= bits(range)))
        && entry.destination_ports.iter().chain(&entry.not_destination_ports).all(|port| *port <= 65_535)
}

proptest! {
    #[test]
    fn a_policy_reads_as_prost_reads_it(
        rules in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any_match(), 0..3), 0..3), 0..3),
    ) {
        let clauses = |clauses: Vec<Vec<pb::Match>>| pb::Rule {
            clauses: clauses.into_iter().map(|matches| pb::Clause { matches }).collect(),
        };
        let form = pb::Authorization {
            rules: rules.into_iter().map(clauses).collect(),
            ..policy_of(vec![])
        };
        let (policy, problems) = read(&form.encode_to_vec());
        let again = encode::policy(&policy);
        let mut spoilt = 0;
        for (ours, theirs) in again.rules.iter().zip(&form.rules) {
            for (ours, theirs) in ours.clauses.iter().zip(&theirs.clauses) {
                for (ours, theirs) in ours.matches.iter().zip(&theirs.matches) {
                    if clean(theirs) {
                        prop_assert_eq!(ours, theirs);
                    } else {
                        spoilt += 1;
                    }
                }
            }
        }
        let unreadable = policy.rules.iter().flatten().flatten().filter(|entry| entry.unreadable).count();
        prop_assert_eq!(unreadable, spoilt);
        prop_assert!(problems.len() >= spoilt.min(POLICY_PROBLEMS));
        let shape = |form: &pb::Authorization| -> Vec<Vec<usize>> {
            let rule = |rule: &pb::Rule| rule.clauses.iter().map(|clause| clause.matches.len()).collect();
            form.rules.iter().map(rule).collect()
        };
        prop_assert_eq!(shape(&again), shape(&form));
    }
}
