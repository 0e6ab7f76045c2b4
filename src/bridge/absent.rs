//! Names that the mesh is known not to have, where addresses are looked up one by one (`XDS_ON_DEMAND`).
//!
//! How a shard asks: what the snapshot doesn't hold, and `holds` doesn't either, it asks for with `Report::Lookup` and
//! waits for `Order::Look`. Then it looks at the snapshot first and here second: in the snapshot, it is known; here,
//! it isn't part of the mesh; neither, the answer is still to come. The control plane goes on telling of a name that
//! was asked for, so what appears later is struck off.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::base::limits::{ABSENT_MS, ABSENT_NAMES};
use crate::base::text::Text;

type Names =
    imbl::GenericHashMap<Text, Instant, foldhash::fast::RandomState, imbl::shared_ptr::DefaultSharedPtr>;

/// What shards see: one writer, many readers.
#[derive(Default)]
pub struct Absent(ArcSwap<Names>);

impl Absent {
    /// Whether this name is known to be absent; asked anew it may be found after all.
    pub fn holds(&self, name: &str, now: Instant) -> bool {
        self.0.load().get(name).is_some_and(|until| now < *until)
    }
}

/// The writing side. Bounded in number and time.
#[derive(Default)]
pub struct AbsentNames {
    shared: Arc<Absent>,
    names: Names,
    /// In the order of their time.
    order: VecDeque<(Text, Instant)>,
}

impl AbsentNames {
    pub fn new(shared: Arc<Absent>) -> Self {
        Self { shared, ..Self::default() }
    }

    pub fn shared(&self) -> &Absent {
        &self.shared
    }

    /// The control plane said that it has none of these.
    pub fn insert(&mut self, names: impl IntoIterator<Item = Text>, now: Instant) {
        let until = now + Duration::from_millis(ABSENT_MS);
        for name in names {
            self.names.insert(name.clone(), until);
            self.order.push_back((name, until));
        }
        while let Some((name, until)) = self.order.front() {
            if *until > now && self.order.len() <= ABSENT_NAMES {
                break;
            }
            // One that was told again has a later place in the order as well.
            if self.names.get(name) == Some(until) {
                self.names.remove(name);
            }
            self.order.pop_front();
        }
        self.publish();
    }

    /// They have appeared.
    pub fn remove<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        if self.names.is_empty() {
            return;
        }
        let before = self.names.len();
        for name in names {
            self.names.remove(name);
        }
        if self.names.len() < before {
            self.publish();
        }
    }

    /// A new stream has been told of none of them, and so wouldn't say when one appears.
    pub fn clear(&mut self) {
        if !self.order.is_empty() {
            (self.names, self.order) = <_>::default();
            self.publish();
        }
    }

    fn publish(&self) {
        self.shared.0.store(Arc::new(self.names.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_told_bounded_and_over_when_the_name_appears() {
        let start = Instant::now();
        let mut writer = AbsentNames::default();
        let shared = writer.shared.clone();
        let after = |millis| start + Duration::from_millis(millis);
        writer.insert(["a".into(), "b".into()], start);
        assert!(shared.holds("a", start) && shared.holds("b", after(ABSENT_MS - 1)));
        assert!(!shared.holds("c", start) && !shared.holds("a", after(ABSENT_MS)));
        writer.remove(["a", "c"]);
        assert!(!shared.holds("a", start) && shared.holds("b", start));
        // Told again: the earlier end doesn't count any more.
        writer.insert(["b".into()], after(10));
        writer.insert(["c".into()], after(ABSENT_MS));
        assert!(shared.holds("b", after(ABSENT_MS + 5)));
        writer.insert((0..ABSENT_NAMES).map(|number| number.to_string().into()), after(ABSENT_MS));
        assert!(!shared.holds("b", after(20)) && !shared.holds("c", after(20)) && shared.holds("0", start));
        assert_eq!((writer.names.len(), writer.order.len()), (ABSENT_NAMES, ABSENT_NAMES));
        writer.clear();
        assert!(!shared.holds("0", start));
    }
}
