//! Trouble of one kind that is told in the log now and then, however often it comes.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// When it was told last, and how often it came since.
#[derive(Default)]
pub struct Told {
    at: Cell<Option<Instant>>,
    kept_back: Cell<u64>,
}

impl Told {
    /// Whether it may be told now, `pause_ms` after the last time; then how many lines were kept back since.
    pub fn due(&self, now: Instant, pause_ms: u64) -> Option<u64> {
        let pause = Duration::from_millis(pause_ms);
        if self.at.get().is_some_and(|at| now.saturating_duration_since(at) < pause) {
            self.kept_back.set(self.kept_back.get() + 1);
            return None;
        }
        self.at.set(Some(now));
        Some(self.kept_back.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits;

    #[test]
    fn a_flood_of_refusals_is_told_once_a_while_and_counted() {
        let told = Told::default();
        let start = Instant::now();
        let at = |ms| told.due(start + Duration::from_millis(ms), limits::PROXY_TOLD_MS);
        assert_eq!(at(0), Some(0));
        for ms in 1..500 {
            assert_eq!(at(ms), None);
        }
        assert_eq!(at(limits::PROXY_TOLD_MS), Some(499));
        assert_eq!(at(3 * limits::PROXY_TOLD_MS), Some(0));
    }
}
