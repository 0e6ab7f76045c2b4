//! Whether a call may reach a workload: the verdict over all policies (reference section 12.2). How one policy
//! matches is in `mesh::policy`; where an inbound CONNECT goes is in `mesh::inbound`, handed on from here.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::mesh::identity::Identity;
pub use crate::mesh::inbound::{Inbound, InboundRefuse, InboundRequest, Tunnel, guess_service, inbound};
use crate::mesh::policy::{Action, Policy};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;

/// One call, as far as policies care.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub source: IpAddr,
    /// Attested by the peer's certificate; none for plaintext.
    pub identity: Option<&'a Identity>,
    /// Where the application listens.
    pub destination: SocketAddr,
    /// Whose policies count.
    pub workload: &'a Workload,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// `by`: the ALLOW policy that let the call pass; none where no policy has to.
    Allowed {
        by: Option<Ground>,
    },
    Denied(Denial),
}

/// The policy that decided, and where in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Ground {
    pub policy: Arc<Policy>,
    /// Which of its rules matched.
    pub rule: usize,
    /// The first clause of that rule with matches, and which of them matched; none where the rule has none.
    pub clause: Option<(usize, usize)>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Denial {
    Explicit(Ground),
    NoneAllowed,
    /// Nobody has told us the policies yet.
    NotSynced,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Explicit(Ground { policy, .. }) => {
                write!(f, "explicitly denied by: {}/{}", policy.namespace, policy.name)
            }
            Self::NoneAllowed => f.write_str("allow policies exist, but none allowed"),
            Self::NotSynced => f.write_str("policies are not known yet"),
        }
    }
}

/// The verdict over a call. Allocates nothing.
pub fn admit(snapshot: &Snapshot, call: &Call<'_>) -> Verdict {
    if !snapshot.synced {
        return Verdict::Denied(Denial::NotSynced);
    }
    let (mut guarded, mut allowed) = (false, None);
    for policy in snapshot.policies_for(call.workload).filter(|policy| !policy.dry_run) {
        match policy.action {
            Action::Deny => {
                if let Some(ground) = ground(policy, call) {
                    return Verdict::Denied(Denial::Explicit(ground));
                }
            }
            Action::Allow => {
                guarded = true;
                if allowed.is_none() {
                    allowed = ground(policy, call);
                }
            }
        }
    }
    match allowed {
        None if guarded => Verdict::Denied(Denial::NoneAllowed),
        by => Verdict::Allowed { by },
    }
}

fn ground(policy: &Arc<Policy>, call: &Call<'_>) -> Option<Ground> {
    let (rule, clause) = policy.matches(call)?;
    Some(Ground { policy: policy.clone(), rule, clause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::fixture::{mesh, pod, policy};
    use crate::mesh::policy::{Match, PolicyScope, StringMatch};

    fn port(port: u16) -> Match {
        Match { destination_ports: vec![port], ..Match::default() }
    }

    fn verdict(policies: Vec<Policy>, server: &Workload) -> Verdict {
        let client = "spiffe://cluster.local/ns/default/sa/client".parse().unwrap();
        let snapshot = mesh(policies.into_iter().map(Into::into));
        admit(
            &snapshot,
            &Call {
                source: "10.0.0.1".parse().unwrap(),
                identity: Some(&client),
                destination: "10.0.0.2:80".parse().unwrap(),
                workload: server,
            },
        )
    }

    /// `-` for allowed by nobody in particular, the name of the policy that allowed, or the text of the denial.
    fn told(policies: Vec<Policy>) -> String {
        let mut server = pod("server", &["10.0.0.2"]);
        server.authorization_policies = vec!["default/chosen".into(), "default/unknown".into()];
        match verdict(policies, &server) {
            Verdict::Allowed { by: None } => "-".into(),
            Verdict::Allowed { by: Some(ground) } => ground.policy.name.to_string(),
            Verdict::Denied(denial) => denial.to_string(),
        }
    }

    #[test]
    fn denials_go_first_then_any_allowance_then_nobody() {
        use Action::{Allow, Deny};
        use PolicyScope::{Global, Namespace, WorkloadSelector};
        let none = "allow policies exist, but none allowed";
        assert_eq!(told(vec![]), "-");
        assert_eq!(told(vec![policy("a", Namespace, Allow, vec![port(80)])]), "a");
        assert_eq!(told(vec![policy("a", Namespace, Allow, vec![port(81)])]), none);
        assert_eq!(told(vec![policy("d", Namespace, Deny, vec![port(81)])]), "-");
        let both =
            vec![policy("a", Namespace, Allow, vec![port(80)]), policy("z", Namespace, Deny, vec![port(80)])];
        assert_eq!(told(both), "explicitly denied by: default/z");
        let second = vec![
            policy("a", Namespace, Allow, vec![port(81)]),
            policy("b", Namespace, Allow, vec![port(80)]),
        ];
        assert_eq!(told(second), "b");
        assert_eq!(
            told(vec![policy("chosen", WorkloadSelector, Deny, vec![port(80)])]),
            "explicitly denied by: default/chosen"
        );
        assert_eq!(told(vec![policy("other", WorkloadSelector, Deny, vec![port(80)])]), "-");
        let root = Policy { namespace: "istio-system".into(), ..policy("g", Global, Deny, vec![port(80)]) };
        assert_eq!(told(vec![root]), "explicitly denied by: istio-system/g");
        let far = Policy { namespace: "far".into(), ..policy("n", Namespace, Deny, vec![port(80)]) };
        assert_eq!(told(vec![far]), "-");
    }

    #[test]
    fn a_dry_run_is_never_enforced() {
        let dry =
            |action| Policy { dry_run: true, ..policy("p", PolicyScope::Namespace, action, vec![port(80)]) };
        assert_eq!(told(vec![dry(Action::Deny)]), "-");
        let missing =
            Policy { dry_run: true, ..policy("p", PolicyScope::Namespace, Action::Allow, vec![port(81)]) };
        assert_eq!(told(vec![missing]), "-");
        let strict = policy("strict", PolicyScope::Namespace, Action::Allow, vec![port(81)]);
        let text = "allow policies exist, but none allowed";
        assert_eq!(told(vec![dry(Action::Allow), strict]), text);
    }

    #[test]
    fn what_cannot_be_read_denies() {
        let unreadable = || vec![Match { unreadable: true, ..Match::default() }, port(81)];
        let scope = PolicyScope::Namespace;
        assert_eq!(
            told(vec![policy("d", scope, Action::Deny, unreadable())]),
            "explicitly denied by: default/d"
        );
        let text = "allow policies exist, but none allowed";
        assert_eq!(told(vec![policy("a", scope, Action::Allow, unreadable())]), text);
    }

    #[test]
    fn a_scope_change_is_filed_anew() {
        let server = pod("server", &["10.0.0.2"]);
        let call = Call {
            source: "10.0.0.1".parse().unwrap(),
            identity: None,
            destination: "10.0.0.2:80".parse().unwrap(),
            workload: &server,
        };
        let deny = |scope| policy("p", scope, Action::Deny, vec![port(80)]).into();
        let mut snapshot = mesh([deny(PolicyScope::Namespace)]);
        assert!(matches!(admit(&snapshot, &call), Verdict::Denied(_)));
        let before = snapshot.policy_version();
        snapshot = crate::mesh::delta::apply(&snapshot, [deny(PolicyScope::WorkloadSelector)], None);
        assert!(snapshot.policy_version() > before);
        assert_eq!(admit(&snapshot, &call), Verdict::Allowed { by: None });
        snapshot = crate::mesh::delta::apply(&snapshot, [deny(PolicyScope::Global)], None);
        assert!(matches!(admit(&snapshot, &call), Verdict::Denied(_)));
    }

    #[test]
    fn the_ground_says_which_rule_and_match() {
        let mut guarded = policy("a", PolicyScope::Namespace, Action::Allow, vec![]);
        guarded.rules = vec![vec![vec![port(81)]], vec![vec![], vec![port(81), port(80)]]];
        let server = pod("server", &["10.0.0.2"]);
        let Verdict::Allowed { by: Some(ground) } = verdict(vec![guarded], &server) else { panic!("denied") };
        assert_eq!((ground.rule, ground.clause), (1, Some((1, 1))));
    }

    #[test]
    fn without_a_snapshot_nobody_is_admitted() {
        let server = pod("server", &["10.0.0.2"]);
        let call = Call {
            source: "10.0.0.1".parse().unwrap(),
            identity: None,
            destination: "10.0.0.2:80".parse().unwrap(),
            workload: &server,
        };
        assert_eq!(admit(&Snapshot::default(), &call), Verdict::Denied(Denial::NotSynced));
    }

    /// The captured trap: a principal with its scheme never matches.
    #[test]
    fn principals_are_written_without_their_scheme() {
        let principal =
            |text: &str| Match { principals: vec![StringMatch::Exact(text.into())], ..Match::default() };
        let allow = |text| policy("a", PolicyScope::Namespace, Action::Allow, vec![principal(text)]);
        assert_eq!(told(vec![allow("cluster.local/ns/default/sa/client")]), "a");
        let text = "allow policies exist, but none allowed";
        assert_eq!(told(vec![allow("spiffe://cluster.local/ns/default/sa/client")]), text);
    }
}
