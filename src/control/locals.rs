//! Whose certificates this node holds: the identities of its own workloads, as the mesh changes.

use std::collections::HashMap;

use crate::base::text::Text;
use crate::mesh::delta::Change;
use crate::mesh::identity::Identity;
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

    fn needs_certificate(&self, workload: &Workload) -> bool {
        let local = self.node().is_none_or(|node| *workload.node == *node);
        local && (workload.native_tunnel || workload.protocol == Protocol::Hbone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::fixture::{pod, service};

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
}
