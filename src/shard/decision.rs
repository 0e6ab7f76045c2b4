//! Asks the policies about a connection that came in, and tells the log and the counters what they said, in the
//! words of the reference (section 12.2).

use std::net::SocketAddr;

use crate::bridge::report::Said;
use crate::mesh::admit::{Decision, Denial, Ground, Rehearsal, Verdict};
use crate::mesh::policy::Action;
use crate::mesh::workload::Workload;
use crate::shard::Shard;
use crate::shard::failure::Failure;
use crate::shard::table::Entered;
use crate::wire::hbone::trace_id;

/// The connection, as the log tells it.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Whose policies count.
    pub workload: &'a Workload,
    /// Of a tunnel's request: its `traceparent`, empty where it has none, and who asks.
    pub request: Option<(&'a [u8], SocketAddr)>,
}

/// Says an event of the decision at the level that the operator wants it at.
macro_rules! say {
    ($info:expr, $message:literal $(, $($fields:tt)+)?) => {
        if $info {
            tracing::info!(target: "ztunnel::state", $($($fields)+,)? $message);
        } else {
            tracing::debug!(target: "ztunnel::state", $($($fields)+,)? $message);
        }
    };
}

/// Lets an entered connection go on, or says why not.
pub fn admit(shard: &Shard, entered: &Entered, caller: Caller<'_>) -> Result<(), Failure> {
    let Some(decision) = entered.decide(&shard.published.load()) else { return Ok(()) };
    count(shard, &decision);
    if is_told(shard.settings.policy_info) {
        tell(shard.settings.policy_info, caller, &decision);
    }
    match decision.verdict {
        Verdict::Allowed { .. } => Ok(()),
        Verdict::Denied(denial) => Err(Failure::PolicyRejection(denial)),
    }
}

fn count(shard: &Shard, decision: &Decision) {
    match &decision.verdict {
        Verdict::Allowed { .. } => {}
        Verdict::Denied(Denial::Explicit(ground)) => shard.stats.said(Some(&ground.policy), Said::Denied),
        Verdict::Denied(Denial::NoneAllowed) => shard.stats.said(None, Said::NoneAllowed),
        Verdict::Denied(Denial::NotSynced) => shard.stats.said(None, Said::NotSynced),
    }
    for ground in &decision.rehearsal.matched {
        let said = match ground.policy.action {
            Action::Deny => Said::WouldDeny,
            Action::Allow => Said::WouldAllow,
        };
        shard.stats.said(Some(&ground.policy), said);
    }
    if decision.rehearsal.none_allowed {
        shard.stats.said(None, Said::WouldAllowNone);
    }
}

fn is_told(info: bool) -> bool {
    if info {
        tracing::enabled!(target: "ztunnel::state", tracing::Level::INFO)
    } else {
        tracing::enabled!(target: "ztunnel::state", tracing::Level::DEBUG)
    }
}

fn tell(info: bool, caller: Caller<'_>, decision: &Decision) {
    let name = format!("{}/{}", caller.workload.namespace, caller.workload.name);
    let proxy = tracing::info_span!(target: "ztunnel::state", "proxy", wl = %name);
    let _proxy = proxy.enter();
    let request = caller.request.map(|(traceparent, peer)| {
        let id = trace_id(traceparent).unwrap_or_default();
        tracing::info_span!(target: "ztunnel::state", "inbound", id = %id, peer = %peer)
    });
    let _request = request.as_ref().map(tracing::Span::enter);
    let Decision { verdict, rehearsal } = decision;
    rehearsed(info, rehearsal, Action::Deny);
    match verdict {
        Verdict::Denied(Denial::Explicit(ground)) => {
            return say!(info, "deny policy match", policy = ground.name(), rule = %ground.place());
        }
        Verdict::Denied(Denial::NotSynced) => return say!(info, "policies are not known yet"),
        Verdict::Denied(Denial::NoneAllowed) | Verdict::Allowed { .. } => {}
    }
    rehearsed(info, rehearsal, Action::Allow);
    match verdict {
        Verdict::Allowed { by: Some(ground) } => {
            say!(info, "allow policy match", policy = ground.name(), rule = %ground.place());
        }
        Verdict::Allowed { by: None } => say!(info, "no allow policies, allow"),
        Verdict::Denied(_) => say!(info, "no allow policies matched"),
    }
}

/// Tells what policies on dry run, of one action, would have said.
fn rehearsed(info: bool, rehearsal: &Rehearsal, action: Action) {
    for ground in rehearsal.matched.iter().filter(|ground| ground.policy.action == action) {
        let (policy, rule) = (Ground::name(ground), ground.place());
        match action {
            Action::Deny => say!(info, "dry-run: deny policy match", policy, rule = %rule),
            Action::Allow => say!(info, "dry-run: allow policy match", policy, rule = %rule),
        }
    }
    if action == Action::Allow && rehearsal.none_allowed {
        say!(info, "dry-run: no allow policies match");
    }
}
