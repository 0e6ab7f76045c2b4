//! Workloads found by something they have: a uid, an address, a name, a service. One ordered persistent map from
//! the hash of that and the hash of the uid to the workload, so the members of a group stand side by side and an
//! entry takes 40 bytes, however large or small its group (a hash map of groups took 110). Two groups whose hashes
//! meet are found together: who asks compares the real thing.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use crate::mesh::workload::Workload;

/// Persistent: a clone costs two reference counts, a change O(log n).
#[derive(Clone, Default)]
pub(crate) struct Index {
    slots: imbl::GenericOrdMap<u64, Slot, imbl::shared_ptr::DefaultSharedPtr>,
    hasher: foldhash::fast::RandomState,
    len: usize,
}

/// The workloads of one place in the order: nearly always one, unless both hashes meet.
#[derive(Clone)]
enum Slot {
    One(Arc<Workload>),
    #[expect(clippy::box_collection, reason = "keeps the usual slot at 16 bytes")]
    More(Box<Vec<Arc<Workload>>>),
}

impl Slot {
    fn members(&self) -> &[Arc<Workload>] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more,
        }
    }
}

impl Index {
    /// Entries: a workload counts once for each key.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Everybody under this key, and now and then somebody else.
    pub fn find<K: Hash + ?Sized>(&self, key: &K) -> impl Iterator<Item = &Arc<Workload>> {
        let group = self.group(key);
        self.slots
            .range(group..)
            .take_while(move |(place, _)| **place & GROUP == group)
            .flat_map(|(_, slot)| slot.members())
    }

    /// The workload of this uid under this key.
    pub fn member<K: Hash + ?Sized>(&self, key: &K, uid: &str) -> Option<&Arc<Workload>> {
        self.slots.get(&self.place(key, uid))?.members().iter().find(|member| *member.uid == *uid)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.slots.iter().flat_map(|(_, slot)| slot.members())
    }

    /// Puts a workload under a key, in the place of one with the same uid.
    pub fn insert<K: Hash + ?Sized>(&mut self, key: &K, workload: &Arc<Workload>) {
        let place = self.place(key, &workload.uid);
        self.len += 1;
        let Some(before) = self.slots.insert(place, Slot::One(workload.clone())) else { return };
        let others = before.members().iter().filter(|member| member.uid != workload.uid);
        let mut members: Vec<_> = others.cloned().collect();
        self.len -= before.members().len() - members.len();
        if !members.is_empty() {
            members.push(workload.clone());
            self.slots.insert(place, Slot::More(Box::new(members)));
        }
    }

    /// Takes a workload out from under a key.
    pub fn remove<K: Hash + ?Sized>(&mut self, key: &K, uid: &str) {
        let place = self.place(key, uid);
        let Some(before) = self.slots.remove(&place) else { return };
        let left: Vec<_> = before.members().iter().filter(|member| *member.uid != *uid).cloned().collect();
        self.len -= before.members().len() - left.len();
        if !left.is_empty() {
            self.slots.insert(place, Slot::More(Box::new(left)));
        }
    }

    /// The high half of every place of this key.
    fn group<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.hasher.hash_one(key) & GROUP
    }

    fn place<K: Hash + ?Sized>(&self, key: &K, uid: &str) -> u64 {
        self.group(key) | (self.hasher.hash_one(uid) >> 32)
    }
}

const GROUP: u64 = !0 << 32;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A key that hashes like half of all others, so that places meet.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    struct Coarse(u8);

    impl Hash for Coarse {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            (self.0 % 2).hash(state);
        }
    }

    proptest! {
        #[test]
        fn an_index_holds_what_a_map_by_key_and_uid_would(
            steps in proptest::collection::vec((0..4_u8, 0..40_u8, any::<bool>(), 0..9_u32), 0..200),
        ) {
            let mut index = Index::default();
            let mut plain = BTreeMap::new();
            for (key, number, insert, capacity) in steps {
                let before = index.clone();
                let seen: Vec<_> = before.iter().cloned().collect();
                // A workload has one key here, so that meeting keys can't stand for each other.
                let (key, uid) = (Coarse(key), format!("uid-{key}-{number}"));
                if insert {
                    let workload = Workload { capacity, ..Workload::plain(&uid, "ns", "name") };
                    index.insert(&key, &Arc::new(workload));
                    plain.insert((key, uid), capacity);
                } else {
                    index.remove(&key, &uid);
                    plain.remove(&(key, uid));
                }
                prop_assert!(before.iter().eq(seen.iter()), "an older view has changed");
                prop_assert_eq!(index.len(), plain.len());
                prop_assert_eq!(index.iter().count(), plain.len());
            }
            for key in (0..4).map(Coarse) {
                let mine = format!("uid-{}-", key.0);
                let held = index.find(&key).filter(|member| member.uid.starts_with(&mine));
                let mut held: Vec<_> = held.map(|member| (member.uid.to_string(), member.capacity)).collect();
                held.sort();
                let wanted = plain.iter().filter(|((other, _), _)| *other == key);
                let wanted: Vec<_> = wanted.map(|((_, uid), capacity)| (uid.clone(), *capacity)).collect();
                prop_assert_eq!(held, wanted);
            }
            for ((key, uid), capacity) in plain {
                prop_assert_eq!(index.member(&key, &uid).map(|member| member.capacity), Some(capacity));
                prop_assert!(index.member(&key, "nobody").is_none());
            }
        }
    }

    #[test]
    fn workloads_whose_hashes_meet_keep_apart() {
        let workload = |uid: &str, capacity| Arc::new(Workload { capacity, ..Workload::plain(uid, "", "") });
        let mut index = Index::default();
        index.insert("key", &workload("a", 1));
        // As if the hash of another uid were the same.
        let place = index.place("key", "a");
        index.slots.insert(place, Slot::More(Box::new(vec![workload("a", 1), workload("b", 2)])));
        index.len = 2;
        index.insert("key", &workload("a", 3));
        assert_eq!(index.find("key").map(|member| member.capacity).sum::<u32>(), 5);
        assert_eq!((index.len(), index.member("key", "a").unwrap().capacity), (2, 3));
        index.remove("key", "a");
        assert_eq!((index.len(), index.find("key").count()), (1, 1));
        assert!(index.member("key", "a").is_none());
    }
}
