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

/// The dry-run policies that apply to a call, each with whether it matches. They are told, never enforced.
pub fn rehearse<'a>(
    snapshot: &'a Snapshot,
    call: &'a Call<'a>,
) -> impl Iterator<Item = (&'a Arc<Policy>, bool)> {
    snapshot
        .policies_for(call.workload)
        .filter(|policy| policy.dry_run)
        .map(|policy| (policy, policy.matches(call).is_some()))
}
