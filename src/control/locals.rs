//! Whose certificates this node holds: the identities of its own workloads, as the mesh changes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::text::Text;
use crate::mesh::delta::Change;
use crate::mesh::identity::Identity;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::{Protocol, Workload};

/// This node's meshed workloads.
pub struct Locals {
    /// Whose workloads are local; all, where it isn't set.
    node: Option<Text>,
    /// By uid.
    identities: HashMap<Text, Identity, foldhash::fast::RandomState>,
}

/// A workload of this node that came or changed, or (`None`) left: uid, and the identity to hold a certificate for.
pub type LocalChange = (Text, Option<Identity>);

impl Locals {
    pub fn new(node: Option<Text>) -> Self {
        Self { node: node.filter(|node| !node.is_empty()), identities: HashMap::default() }
    }

    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// What a change of the mesh means for this node's identities; nothing for all the workloads elsewhere.
    pub fn follow(&mut self, change: &Change) -> Option<LocalChange> {
        let (uid, identity) = match change {
            Change::Workload(workload) => {
                (&workload.uid, self.needs_certificate(workload).then(|| workload.identity()))
            }
            Change::RemoveWorkload(uid) | Change::RemoveAddress(uid) => (uid, None),
            Change::Service { .. }
            | Change::RemoveService(_)
            | Change::Policy { .. }
            | Change::RemovePolicy(_) => return None,
        };
        match &identity {
            Some(new) => {
                let before = self.identities.insert(uid.clone(), new.clone());
                (before.as_ref() != Some(new)).then(|| (uid.clone(), identity))
            }
            None => self.identities.remove(uid).map(|_| (uid.clone(), None)),
        }
    }

    /// This node's workloads among these changes that name policies of their own.
    pub fn naming_policies(&self, changes: &[Change]) -> Vec<Arc<Workload>> {
        let workload = |change: &Change| match change {
            Change::Workload(workload) => Some(workload.clone()),
            Change::RemoveWorkload(_)
            | Change::RemoveAddress(_)
            | Change::Service { .. }
            | Change::RemoveService(_)
            | Change::Policy { .. }
            | Change::RemovePolicy(_) => None,
        };
        changes.iter().filter_map(workload).filter(|workload| self.names_policies_here(workload)).collect()
    }

    /// Policies that workloads of this node name and that nobody has sent, with the workload's uid first: such a policy
    /// doesn't count (reference section 12.1). Told where a workload is `changed`, and of all with the first whole
    /// state, before which they may still be on their way.
    pub fn missing_policies(
        &self,
        before: &Snapshot,
        now: &Snapshot,
        changed: Vec<Arc<Workload>>,
    ) -> Vec<(Text, Text)> {
        let asked = match (before.synced, now.synced) {
            (_, false) => Vec::new(),
            (true, true) => changed,
            (false, true) => now.workloads().filter(|one| self.names_policies_here(one)).cloned().collect(),
        };
        let missing = |workload: &Arc<Workload>| {
            now.missing_policies(workload).map(|key| (workload.uid.clone(), key.clone())).collect::<Vec<_>>()
        };
        asked.iter().flat_map(missing).collect()
    }

    fn names_policies_here(&self, workload: &Workload) -> bool {
        !workload.authorization_policies.is_empty() && self.is_here(workload)
    }

    fn is_here(&self, workload: &Workload) -> bool {
        self.node().is_none_or(|node| *workload.node == *node)
    }

    fn needs_certificate(&self, workload: &Workload) -> bool {
        self.is_here(workload) && (workload.native_tunnel || workload.protocol == Protocol::Hbone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::fixture::{mesh, pod, service, with};

    fn on(node: &str, name: &str, protocol: Protocol) -> Workload {
        Workload { node: node.into(), protocol, ..pod(name, &[]) }
    }

    #[test]
    fn only_local_meshed_workloads_get_certificates_and_only_news_are_told() {
        let mut locals = Locals::new(Some("here".into()));
        let near = on("here", "near", Protocol::Hbone);
        let (uid, identity) = (near.uid.clone(), near.identity());
        assert_eq!(locals.follow(&near.clone().into()), Some((uid.clone(), Some(identity))));
        assert_eq!(locals.follow(&near.clone().into()), None, "nothing new");
        assert_eq!(locals.follow(&on("here", "plain", Protocol::Tcp).into()), None);
        assert_eq!(locals.follow(&on("there", "far", Protocol::Hbone).into()), None);
        assert_eq!(locals.follow(&service("near", &[], &[]).into()), None);
        assert_eq!(locals.follow(&Change::RemoveAddress("Kubernetes//Pod/default/far".into())), None);
        // A pod that leaves the mesh, or the node.
        let plain = on("here", "near", Protocol::Tcp);
        assert_eq!(locals.follow(&plain.into()), Some((uid.clone(), None)));
        assert!(locals.follow(&near.into()).is_some());
        assert_eq!(locals.follow(&Change::RemoveAddress(uid.clone())), Some((uid.clone(), None)));
        assert_eq!(locals.follow(&Change::RemoveWorkload(uid)), None);
        let mut anywhere = Locals::new(None);
        assert!(anywhere.follow(&on("there", "far", Protocol::Hbone).into()).is_some());
        let native = Workload { native_tunnel: true, ..on("x", "native", Protocol::Tcp) };
        assert!(anywhere.follow(&native.into()).is_some());
    }

    #[test]
    fn policies_that_nobody_sent_are_told_once_the_state_is_whole() {
        let locals = Locals::new(Some("here".into()));
        let naming = |node: &str, name: &str| {
            let naming =
                with(pod(name, &[]), |common| common.authorization_policies = vec!["shop/gone".into()]);
            Arc::new(Workload { node: node.into(), ..naming })
        };
        let (near, far) = (naming("here", "near"), naming("there", "far"));
        let changes = [Change::Workload(near.clone()), Change::Workload(far), pod("plain", &[]).into()];
        let changed = locals.naming_policies(&changes);
        assert_eq!(changed, std::slice::from_ref(&near));
        let (empty, whole) = (Snapshot::default(), mesh(changes));
        let partly = Snapshot { synced: false, ..whole.clone() };
        assert_eq!(locals.missing_policies(&empty, &partly, changed.clone()), []);
        let told = [(near.uid.clone(), "shop/gone".into())];
        assert_eq!(locals.missing_policies(&partly, &whole, Vec::new()), told);
        assert_eq!(locals.missing_policies(&whole, &whole, changed), told);
        assert_eq!(locals.missing_policies(&whole, &whole, Vec::new()), []);
    }
}
