//! Clients of a pod's explicit proxies that haven't said yet where they want to go: how many there may be, and how
//! often it is told that one was refused.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::base::limits;

/// Those of one pod on one shard.
#[derive(Default)]
pub struct Dialogues {
    open: Cell<usize>,
    told: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

/// A place among them; dropping it gives it back.
pub struct Inside(Rc<Dialogues>);

impl Dialogues {
    /// `None` where there are too many.
    pub fn enter(self: &Rc<Self>) -> Option<Inside> {
        if self.open.get() >= limits::PROXY_DIALOGUES {
            return None;
        }
        self.open.set(self.open.get() + 1);
        Some(Inside(self.clone()))
    }

    /// Whether a refusal may be told now, and how many were not since the last that was.
    pub fn tell(&self, now: Instant) -> Option<u64> {
        let pause = Duration::from_millis(limits::PROXY_TOLD_MS);
        if self.told.get().is_some_and(|at| now.saturating_duration_since(at) < pause) {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.told.set(Some(now));
        Some(self.untold.take())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many_at_a_time() {
        let dialogues = Rc::new(Dialogues::default());
        let mut all: Vec<_> = std::iter::from_fn(|| dialogues.enter()).collect();
        assert_eq!(all.len(), limits::PROXY_DIALOGUES);
        all.pop();
        let last = dialogues.enter();
        assert!(last.is_some() && dialogues.enter().is_none());
        drop((all, last));
        assert_eq!(dialogues.open.get(), 0);
    }

    #[test]
    fn a_flood_of_refusals_is_told_once_a_while_and_counted() {
        let dialogues = Dialogues::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(dialogues.tell(at(0)), Some(0));
        for ms in 1..500 {
            assert_eq!(dialogues.tell(at(ms)), None);
        }
        assert_eq!(dialogues.tell(at(limits::PROXY_TOLD_MS)), Some(499));
        assert_eq!(dialogues.tell(at(3 * limits::PROXY_TOLD_MS)), Some(0));
    }
}
