//! Which policies count for a workload, as something that can be compared: when it is no longer the same, the
//! workload's open connections have to be asked again, and otherwise not.

use std::sync::Arc;

use crate::mesh::policy::Policy;
use crate::mesh::policy_set::PolicySet;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;

/// Equal while the very same policies count, without looking into them.
#[derive(Clone)]
pub struct Guard {
    synced: bool,
    sets: Vec<Arc<PolicySet>>,
    named: Vec<Arc<Policy>>,
}

impl Guard {
    /// Of this record of a workload.
    pub fn of(snapshot: &Snapshot, workload: &Workload) -> Self {
        Self {
            synced: snapshot.synced,
            sets: snapshot.policy_sets(workload).cloned().collect(),
            named: snapshot.named_policies(workload).cloned().collect(),
        }
    }
}

impl PartialEq for Guard {
    fn eq(&self, other: &Self) -> bool {
        let Self { synced, sets, named } = self;
        *synced == other.synced && same(sets, &other.sets) && same(named, &other.named)
    }
}

fn same<T>(left: &[Arc<T>], right: &[Arc<T>]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| Arc::ptr_eq(left, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::delta::{Change, apply};
    use crate::mesh::fixture::{mesh, pod, policy};
    use crate::mesh::policy::{Action, PolicyScope};

    #[test]
    fn a_guard_changes_with_the_policies_of_its_workload_and_with_nothing_else() {
        let deny = |name: &str, scope, namespace: &str| {
            let policy = policy(name, scope, Action::Deny, vec![]);
            Change::from(Policy { namespace: namespace.into(), ..policy })
        };
        let mut server = pod("server", &["10.0.0.2"]);
        server.authorization_policies = vec!["default/named".into(), "default/missing".into()];
        let guard = |snapshot: &Snapshot| Guard::of(snapshot, &server);
        let start = mesh([
            deny("g", PolicyScope::Global, "root"),
            deny("n", PolicyScope::Namespace, "default"),
            deny("named", PolicyScope::WorkloadSelector, "default"),
        ]);
        for others in [
            deny("n", PolicyScope::Namespace, "other"),
            deny("unnamed", PolicyScope::WorkloadSelector, "default"),
            pod("stranger", &["10.0.0.3"]).into(),
            deny("g", PolicyScope::Global, "root"),
        ] {
            let next = apply(&start, [others.clone()], None);
            assert!(guard(&next) == guard(&start), "{others:?}");
        }
        for ours in [
            deny("new", PolicyScope::Namespace, "default"),
            deny("new", PolicyScope::Global, "root"),
            deny("missing", PolicyScope::WorkloadSelector, "default"),
            Change::RemovePolicy("default/n".into()),
            Change::RemovePolicy("root/g".into()),
            Change::RemovePolicy("default/named".into()),
        ] {
            let next = apply(&start, [ours.clone()], None);
            assert!(guard(&next) != guard(&start), "{ours:?}");
        }
    }
}
