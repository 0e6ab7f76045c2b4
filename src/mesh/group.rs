//! A group of workloads that share something: an address, a service, a pod name. Most groups hold one or two, some
//! ten thousand; the small ones are a plain array (a persistent map of one entry takes 576 bytes), the large ones
//! a persistent set, so that one change costs O(log n) and the snapshot before keeps its own view.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::base::limits::GROUP_ARRAY_WORKLOADS;
use crate::mesh::workload::Workload;

pub(crate) type PersistentMap<K, V> =
    imbl::GenericHashMap<K, V, foldhash::fast::RandomState, imbl::shared_ptr::DefaultSharedPtr>;
/// imbl's own sets can't hand out the member they hold.
pub(crate) type ByUidSet = PersistentMap<ByUid, ()>;

/// Workloads by uid; cheap to clone.
#[derive(Clone)]
pub struct Group(Form);

#[derive(Clone)]
enum Form {
    /// Nearly every address, so it goes without an array.
    One(Arc<Workload>),
    /// Sorted by uid.
    Few(Arc<[Arc<Workload>]>),
    Many(Box<ByUidSet>),
}

/// A workload that hashes and compares as its uid: eight bytes in a set instead of a key beside the value.
#[derive(Clone)]
pub(crate) struct ByUid(pub Arc<Workload>);

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid.hash(state);
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for ByUid {}

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        &self.0.uid
    }
}

impl Default for Group {
    fn default() -> Self {
        Self(Form::Few(Arc::new([])))
    }
}

impl Group {
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::One(_) => 1,
            Form::Few(few) => few.len(),
            Form::Many(many) => many.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The members, sorted by uid only while they are few.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        let (few, many) = match &self.0 {
            Form::One(one) => (Some(std::slice::from_ref(one).iter()), None),
            Form::Few(few) => (Some(few.iter()), None),
            Form::Many(many) => (None, Some(many.keys().map(|member| &member.0))),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    pub fn contains(&self, uid: &str) -> bool {
        match &self.0 {
            Form::One(one) => *one.uid == *uid,
            Form::Few(few) => few.iter().any(|member| *member.uid == *uid),
            Form::Many(many) => many.contains_key(uid),
        }
    }

    /// Puts a workload in, in the place of one with the same uid.
    pub(crate) fn insert(&mut self, workload: Arc<Workload>) {
        if let Form::Many(many) = &mut self.0 {
            many.remove(&*workload.uid);
            many.insert(ByUid(workload), ());
            return;
        }
        let mut members: Vec<_> = self.iter().filter(|member| member.uid != workload.uid).cloned().collect();
        let place = members.partition_point(|member| member.uid < workload.uid);
        members.insert(place, workload);
        *self = Self::of(members);
    }

    /// Takes a workload out. A large group turns into an array again only well below the bound, so that one that
    /// wavers around it isn't rebuilt each time.
    pub(crate) fn remove(&mut self, uid: &str) {
        if let Form::Many(many) = &mut self.0 {
            many.remove(uid);
            if many.len() > GROUP_ARRAY_WORKLOADS / 2 {
                return;
            }
        }
        let mut members: Vec<_> = self.iter().filter(|member| *member.uid != *uid).cloned().collect();
        members.sort_by(|left, right| left.uid.cmp(&right.uid));
        *self = Self::of(members);
    }

    /// The members must be sorted by uid.
    fn of(mut members: Vec<Arc<Workload>>) -> Self {
        if members.len() > GROUP_ARRAY_WORKLOADS {
            let many = members.into_iter().map(|member| (ByUid(member), ())).collect();
            return Self(Form::Many(Box::new(many)));
        }
        match (members.pop(), members.is_empty()) {
            (Some(only), true) => Self(Form::One(only)),
            (last, _) => {
                members.extend(last);
                Self(Form::Few(members.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_group_holds_what_a_map_by_uid_would(
            steps in proptest::collection::vec((0..40_u8, any::<bool>(), 0..9_u32), 0..200),
        ) {
            let mut group = Group::default();
            let mut plain = BTreeMap::new();
            for (number, insert, capacity) in steps {
                let before = group.clone();
                let seen: Vec<_> = before.iter().cloned().collect();
                let uid = format!("uid-{number}");
                if insert {
                    let workload = Workload { capacity, ..Workload::plain(&uid, "ns", "name") };
                    group.insert(Arc::new(workload));
                    plain.insert(uid, capacity);
                } else {
                    group.remove(&uid);
                    plain.remove(&uid);
                }
                prop_assert!(before.iter().eq(seen.iter()), "an older view has changed");
            }
            let held: BTreeMap<_, _> = group.iter().map(|member| (member.uid.to_string(), member.capacity)).collect();
            prop_assert_eq!(&held, &plain);
            prop_assert_eq!(group.len(), plain.len());
            prop_assert!(plain.keys().all(|uid| group.contains(uid)));
        }
    }
}
