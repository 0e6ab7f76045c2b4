//! What one shard has seen of endpoints: which of them refused lately, and how many connections each has now.
//! Plain data; the clock is the caller's. Only a leaning: where nothing else is left, an ejected endpoint serves.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::base::limits::EJECTED_ENDPOINTS;
use crate::base::text::Text;
use crate::mesh::why::{Note, Notes};
use crate::mesh::workload::Workload;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// See above. Endpoints go by their workload's uid; what failed at one port of it says nothing of the others.
#[derive(Default)]
pub struct Seen {
    /// Each, by uid and port, with the end of its ejection.
    ejected: Map<(Text, u16), Instant>,
    live: Map<Text, u32>,
}

impl Seen {
    /// Leaves an endpoint out for a while. Where too many are out already, it stays in: with so many failing, it is
    /// not the endpoints.
    pub fn eject(&mut self, uid: &Text, port: u16, now: Instant, time: Duration) {
        if time.is_zero() {
            return;
        }
        if self.ejected.len() >= EJECTED_ENDPOINTS {
            self.ejected.retain(|_, until| now < *until);
        }
        if self.ejected.len() < EJECTED_ENDPOINTS {
            self.ejected.insert((uid.clone(), port), now + time);
        }
    }

    /// It has served somebody: what was wrong with it is over.
    pub fn welcome_back(&mut self, uid: &Text, port: impl FnOnce() -> u16) {
        if !self.ejected.is_empty() {
            self.ejected.remove(&(uid.clone(), port()));
        }
    }

    pub fn is_ejected(&self, uid: &Text, port: u16, now: Instant) -> bool {
        !self.ejected.is_empty() && self.ejected.get(&(uid.clone(), port)).is_some_and(|until| now < *until)
    }

    /// Endpoints that are left out now.
    pub fn ejected(&self, now: Instant) -> usize {
        self.ejected.values().filter(|until| now < **until).count()
    }

    /// A connection to it begins.
    pub fn enter(&mut self, uid: &Text) {
        let live = self.live.entry(uid.clone()).or_default();
        *live = live.saturating_add(1);
    }

    /// A connection to it has ended.
    pub fn leave(&mut self, uid: &str) {
        if let Some(live) = self.live.get_mut(uid) {
            *live = live.saturating_sub(1);
            if *live == 0 {
                self.live.remove(uid);
            }
        }
    }

    pub fn live(&self, uid: &str) -> u32 {
        self.live.get(uid).copied().unwrap_or(0)
    }
}

/// What a choice among endpoints heeds beside the snapshot.
#[derive(Clone, Copy, Default)]
pub struct View<'a> {
    /// Endpoints that this connection has tried in vain: never again.
    pub tried: &'a [Text],
    /// What the shard has seen, and the time.
    pub seen: Option<(&'a Seen, Instant)>,
    /// Of two at random the one with fewer live connections for its capacity, rather than one at random.
    pub least_connections: bool,
    /// Where somebody asks why: what the decision came by.
    pub notes: Option<&'a Notes>,
}

impl View<'_> {
    /// Keeps a note, where somebody asked for them; otherwise it isn't even made.
    pub fn note(&self, note: impl FnOnce() -> Note) {
        if let Some(notes) = self.notes {
            notes.add(note());
        }
    }

    pub fn is_tried(&self, uid: &Text) -> bool {
        self.tried.contains(uid)
    }

    /// Whether an endpoint is left out at this port of its own.
    pub fn is_ejected(&self, uid: &Text, port: Option<u16>) -> bool {
        let ejected = |port| self.seen.is_some_and(|(seen, now)| seen.is_ejected(uid, port, now));
        port.is_some_and(ejected)
    }

    /// Whether `left` has less to do for its capacity than `right`.
    pub fn is_freer(&self, left: &Workload, right: &Workload) -> bool {
        let live = |workload: &Workload| self.seen.map_or(0, |(seen, _)| seen.live(&workload.uid));
        let weigh = |one: &Workload, other: &Workload| u64::from(live(one)) * u64::from(other.capacity);
        weigh(left, right) < weigh(right, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    #[test]
    fn an_ejection_ends_with_its_time_or_with_a_success() {
        let start = Instant::now();
        let mut seen = Seen::default();
        let [a, b, c] = ["a", "b", "c"].map(Text::from);
        seen.eject(&a, 80, start, TIME);
        seen.eject(&b, 80, start, TIME);
        seen.eject(&c, 80, start, Duration::ZERO);
        assert!(seen.is_ejected(&a, 80, start) && seen.is_ejected(&b, 80, start + TIME / 2));
        assert!(!seen.is_ejected(&c, 80, start) && !seen.is_ejected(&a, 80, start + TIME));
        assert!(!seen.is_ejected(&a, 81, start), "another port of it");
        seen.welcome_back(&a, || 81);
        assert!(seen.is_ejected(&a, 80, start));
        seen.welcome_back(&a, || 80);
        assert!(!seen.is_ejected(&a, 80, start) && seen.is_ejected(&b, 80, start));
        // Told again: later.
        seen.eject(&b, 80, start + TIME / 2, TIME);
        assert!(seen.is_ejected(&b, 80, start + TIME));
        assert_eq!((seen.ejected(start), seen.ejected(start + TIME * 2)), (1, 0));
    }

    #[test]
    fn ejections_are_bounded_and_old_ones_make_room() {
        let start = Instant::now();
        let mut seen = Seen::default();
        for number in 0..EJECTED_ENDPOINTS + 100 {
            seen.eject(&format!("e{number}").into(), 80, start, TIME);
        }
        assert_eq!(seen.ejected.len(), EJECTED_ENDPOINTS);
        seen.eject(&"late".into(), 80, start + TIME, TIME);
        assert_eq!(seen.ejected.len(), 1);
        assert!(seen.is_ejected(&"late".into(), 80, start + TIME));
    }

    #[test]
    fn live_connections_are_counted_and_forgotten() {
        let mut seen = Seen::default();
        seen.enter(&"a".into());
        seen.enter(&"a".into());
        seen.leave("a");
        seen.leave("nobody");
        assert_eq!((seen.live("a"), seen.live("b")), (1, 0));
        seen.leave("a");
        seen.leave("a");
        assert!(seen.live.is_empty());
    }

    #[test]
    fn freer_is_by_capacity() {
        let workload = |uid: &str, capacity| Workload { capacity, ..Workload::plain(uid, "", "") };
        let (small, large) = (workload("small", 1), workload("large", 4));
        let mut seen = Seen::default();
        (0..4).for_each(|_| seen.enter(&"large".into()));
        seen.enter(&"small".into());
        fn view(seen: &Seen) -> View<'_> {
            View { seen: Some((seen, Instant::now())), ..View::default() }
        }
        // Four of four against one of one: as full.
        assert!(!view(&seen).is_freer(&small, &large) && !view(&seen).is_freer(&large, &small));
        seen.leave("large");
        assert!(view(&seen).is_freer(&large, &small) && !view(&seen).is_freer(&small, &large));
        assert!(!View::default().is_freer(&small, &large));
    }
}
