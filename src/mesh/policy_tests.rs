//! Single policies, compared with the slow evaluator.

use proptest::prelude::*;

use super::*;
use crate::mesh::fixture::pod;
use crate::mesh::identity::TrustDomains;
use crate::mesh::slow;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_policy_matches_as_its_words_say(
        rules in slow::rules(),
        deny in any::<bool>(),
        (source, identity, destination) in slow::calls(),
        aliases in any::<bool>(),
    ) {
        let action = if deny { Action::Deny } else { Action::Allow };
        let policy = Policy {
            name: "p".into(),
            namespace: "default".into(),
            scope: PolicyScope::Global,
            action,
            rules,
            dry_run: false,
        };
        let workload = pod("server", &[]);
        let domains = if aliases { TrustDomains::parse("td", "old").unwrap() } else { TrustDomains::default() };
        let identity = identity.as_ref();
        let call = Call { source, identity, destination, workload: &workload, domains: &domains };
        let held = (0..policy.rules.len()).any(|rule| policy.rule_matches(rule, &call).is_some());
        prop_assert_eq!(held, slow::matches(&policy, &call));
    }

    #[test]
    fn text_in_pieces_compares_as_the_whole(
        pieces in proptest::collection::vec("[ab]{0,3}", 0..5),
        wanted in "[ab]{0,5}",
    ) {
        let whole = pieces.concat();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let wanted: Text = wanted.into();
        prop_assert_eq!(StringMatch::Exact(wanted.clone()).holds(&pieces), *whole == *wanted);
        prop_assert_eq!(StringMatch::Prefix(wanted.clone()).holds(&pieces), whole.starts_with(&*wanted));
        prop_assert_eq!(StringMatch::Suffix(wanted.clone()).holds(&pieces), whole.ends_with(&*wanted));
        prop_assert_eq!(StringMatch::Presence.holds(&pieces), !whole.is_empty());
    }
}
