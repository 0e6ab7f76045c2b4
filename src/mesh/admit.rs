//! Whether a call may reach a workload: the verdict over all policies (reference section 12.2). How one policy
//! matches is in `mesh::policy`, which ones are looked at in `mesh::policy_set`; where an inbound CONNECT goes is in
//! `mesh::inbound`, handed on from here.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::mesh::identity::{Identity, TrustDomains};
pub use crate::mesh::inbound::{
    Inbound, InboundRefuse, InboundRequest, Tunnel, guess_service, inbound, is_waypoint_no_more,
};
use crate::mesh::policy::{Action, Held, Policy};
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
    /// The names of trust domains that mean the same in principals.
    pub domains: &'a TrustDomains,
}

/// What all policies together say about a call.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    pub verdict: Verdict,
    pub rehearsal: Rehearsal,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// `by`: the ALLOW policy that let the call pass; none where no policy has to.
    Allowed {
        by: Option<Ground>,
    },
    Denied(Denial),
}

/// The policy that decided, and where in it. Of several, the first by name.
#[derive(Clone, PartialEq, Debug)]
pub struct Ground {
    pub policy: Arc<Policy>,
    /// Which of its rules matched.
    pub rule: usize,
    /// The first clause of that rule with matches, and which of them matched; none where the rule has none.
    pub held: Held,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Denial {
    Explicit(Ground),
    NoneAllowed,
    /// Nobody has told us the policies yet.
    NotSynced,
}

/// What the policies on dry run would have said. They never decide.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rehearsal {
    /// Where each of them matched: DENY policies, and ALLOW ones unless the call is denied by an enforced policy.
    pub matched: Vec<Ground>,
    /// There are ALLOW policies on dry run and none that is enforced, and none of them matched.
    pub none_allowed: bool,
}

impl Ground {
    /// `namespace/name`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.policy.namespace, self.policy.name)
    }

    /// Where in the policy, as its dump is read: `rules[1][0][2]`.
    pub fn place(&self) -> String {
        match self.held {
            Some((clause, entry)) => format!("rules[{}][{clause}][{entry}]", self.rule),
            None => format!("rules[{}]", self.rule),
        }
    }
}

impl Denial {
    /// Why, in one word (deploy/docs/access-log.md).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Explicit(_) => "policy_denied",
            Self::NoneAllowed => "policy_none_allowed",
            Self::NotSynced => "mesh_not_synced",
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Explicit(ground) => write!(f, "explicitly denied by: {}", ground.name()),
            Self::NoneAllowed => f.write_str("allow policies exist, but none allowed"),
            Self::NotSynced => f.write_str("policies are not known yet"),
        }
    }
}

/// The verdict over a call, when nobody wants to know what would have been.
pub fn admit(snapshot: &Snapshot, call: &Call<'_>) -> Verdict {
    decide(snapshot, call).verdict
}

/// The verdict over a call, and what policies on dry run would have said. Allocates only for the latter.
pub fn decide(snapshot: &Snapshot, call: &Call<'_>) -> Decision {
    if !snapshot.synced {
        return Decision { verdict: Verdict::Denied(Denial::NotSynced), rehearsal: Rehearsal::default() };
    }
    let mut finding = Finding::new(call);
    for set in snapshot.policy_sets(call.workload) {
        finding.guarded |= set.allows();
        finding.rehearsed |= set.rehearses_allows();
        set.consider(call, |policy, rule| finding.look(policy, rule));
    }
    for policy in snapshot.named_policies(call.workload) {
        let allows = policy.action == Action::Allow;
        finding.guarded |= allows && !policy.dry_run;
        finding.rehearsed |= allows && policy.dry_run;
        (0..policy.rules.len()).for_each(|rule| finding.look(policy, rule));
    }
    finding.decision()
}

/// What has been found while the rules are gone through.
struct Finding<'s, 'c> {
    call: &'c Call<'c>,
    denied: Option<Match<'s>>,
    allowed: Option<Match<'s>>,
    rehearsals: Vec<Match<'s>>,
    /// There is an enforced ALLOW policy.
    guarded: bool,
    /// There is an ALLOW policy on dry run.
    rehearsed: bool,
}

#[derive(Clone, Copy)]
struct Match<'s> {
    policy: &'s Arc<Policy>,
    rule: usize,
    held: Held,
}

impl<'s, 'c> Finding<'s, 'c> {
    fn new(call: &'c Call<'c>) -> Self {
        Self { call, denied: None, allowed: None, rehearsals: Vec::new(), guarded: false, rehearsed: false }
    }

    fn look(&mut self, policy: &'s Arc<Policy>, rule: usize) {
        let known = match (policy.dry_run, policy.action) {
            (false, Action::Deny) => self.denied.as_ref(),
            (false, Action::Allow) => self.allowed.as_ref(),
            (true, _) => self.rehearsals.iter().find(|known| Arc::ptr_eq(known.policy, policy)),
        };
        if known.is_some_and(|known| known.order() <= order(policy, rule)) {
            return;
        }
        let Some(held) = policy.rule_matches(rule, self.call) else { return };
        let found = Match { policy, rule, held };
        match (policy.dry_run, policy.action) {
            (false, Action::Deny) => self.denied = Some(found),
            (false, Action::Allow) => self.allowed = Some(found),
            (true, _) => {
                self.rehearsals.retain(|known| !Arc::ptr_eq(known.policy, policy));
                self.rehearsals.push(found);
            }
        }
    }

    fn decision(self) -> Decision {
        let Self { denied, allowed, mut rehearsals, guarded, rehearsed, .. } = self;
        let would_allow = rehearsals.iter().any(|known| known.policy.action == Action::Allow);
        let verdict = match (denied, allowed) {
            (Some(denied), _) => Verdict::Denied(Denial::Explicit(denied.ground())),
            (None, None) if guarded => Verdict::Denied(Denial::NoneAllowed),
            (None, by) => Verdict::Allowed { by: by.map(|by| by.ground()) },
        };
        if denied.is_some() {
            rehearsals.retain(|known| known.policy.action == Action::Deny);
        }
        rehearsals.sort_by(|left, right| left.order().cmp(&right.order()));
        let none_allowed = denied.is_none() && !guarded && rehearsed && !would_allow;
        let matched = rehearsals.iter().map(Match::ground).collect();
        Decision { verdict, rehearsal: Rehearsal { matched, none_allowed } }
    }
}

impl Match<'_> {
    fn order(&self) -> (&str, &str, usize) {
        order(self.policy, self.rule)
    }

    fn ground(&self) -> Ground {
        Ground { policy: self.policy.clone(), rule: self.rule, held: self.held }
    }
}

fn order(policy: &Policy, rule: usize) -> (&str, &str, usize) {
    (&policy.namespace, &policy.name, rule)
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
