//! Shared, immutable text. Names repeat a great deal in a mesh (namespaces, clusters, trust domains), so an
//! `Interner` on the control thread hands out one allocation for each distinct value; a `Pool` does so for others.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Immutable text that is cheap to clone and may cross threads.
pub type Text = Arc<str>;

/// The beginning of `text` that fits into `bytes` and ends between two characters.
pub fn beginning(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// Gives equal values one allocation. Owned by one thread; forgets values that nobody else holds.
pub struct Pool<T: ?Sized> {
    known: HashSet<Arc<T>, foldhash::fast::RandomState>,
    sweep_at: usize,
}

/// Gives equal strings one allocation.
pub type Interner = Pool<str>;

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { known: HashSet::default(), sweep_at: 0 }
    }
}

impl Pool<str> {
    /// The shared copy of `value`.
    pub fn intern(&mut self, value: &str) -> Text {
        if let Some(known) = self.known.get(value) {
            return known.clone();
        }
        self.add(value.into())
    }
}

impl<T: Hash + Eq> Pool<T> {
    /// The shared copy of `value`.
    pub fn share(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        self.add(Arc::new(value))
    }
}

impl<T: Hash + Eq + ?Sized> Pool<T> {
    fn add(&mut self, value: Arc<T>) -> Arc<T> {
        if self.known.len() >= self.sweep_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = (self.known.len() * 2).max(1024);
        }
        self.known.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_fits_and_splits_no_character() {
        for (bytes, fits) in [(0, ""), (1, "a"), (2, "a"), (3, "aé"), (4, "aéb"), (9, "aéb")] {
            assert_eq!(beginning("aéb", bytes), fits, "{bytes}");
        }
    }

    #[test]
    fn equal_values_share_one_allocation_and_unused_ones_are_forgotten() {
        let mut interner = Interner::default();
        let first = interner.intern("default");
        assert!(Arc::ptr_eq(&first, &interner.intern("default")));
        for number in 0..5_000 {
            interner.intern(&number.to_string());
        }
        assert!(interner.known.len() <= 2_048, "unused names pile up: {}", interner.known.len());
        assert!(Arc::ptr_eq(&first, &interner.intern("default")));
    }
}
