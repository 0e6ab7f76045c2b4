//! Places of which there are only so many: clients that haven't said where they want to go, queries that wait.

use std::cell::Cell;
use std::rc::Rc;

/// So many at the most.
pub struct Places {
    taken: Cell<usize>,
    most: usize,
}

/// One of them; dropping it gives it back.
pub struct Place(Rc<Places>);

impl Places {
    pub fn new(most: usize) -> Rc<Self> {
        Rc::new(Self { taken: Cell::new(0), most })
    }

    /// `None` where all are taken.
    pub fn take(self: &Rc<Self>) -> Option<Place> {
        let taken = self.taken.get();
        (taken < self.most).then(|| {
            self.taken.set(taken + 1);
            Place(self.clone())
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits;

    #[test]
    fn there_are_only_so_many_at_a_time() {
        let places = Places::new(limits::PROXY_DIALOGUES);
        let mut all: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(all.len(), limits::PROXY_DIALOGUES);
        all.pop();
        let last = places.take();
        assert!(last.is_some() && places.take().is_none());
        drop((all, last));
        assert_eq!(places.taken.get(), 0);
    }
}
