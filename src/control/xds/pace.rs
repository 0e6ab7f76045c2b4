//! How long to wait before the next stream (reference section 4.5).

use std::time::Duration;

use crate::base::limits::{XDS_BACKOFF_FIRST_MS, XDS_BACKOFF_LAST_MS};

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It could not be opened.
    ConnectionError,
    /// It failed.
    Error,
    /// The connection went away as connections do.
    Reconnect,
    /// In order, by the control plane.
    Complete,
}

impl Reason {
    /// The value of the metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::ConnectionError => "ConnectionError",
            Self::Error => "Error",
            Self::Reconnect => "Reconnect",
            Self::Complete => "Complete",
        }
    }
}

/// The growing pause. Each is up to a fifth shorter or longer, so that the nodes of a cluster drift apart.
pub struct Pace {
    next: Duration,
    random: fastrand::Rng,
}

impl Pace {
    pub fn new(random: fastrand::Rng) -> Self {
        Self { next: first(), random }
    }

    /// The pause after a stream that ended so. `fruitful`: it brought a message; others back off however they ended.
    pub fn after(&mut self, reason: Reason, fruitful: bool) -> Duration {
        let pause = match reason {
            Reason::Complete if fruitful => {
                self.next = first();
                return Duration::ZERO;
            }
            Reason::Reconnect if fruitful => {
                self.next = first();
                self.next
            }
            Reason::ConnectionError | Reason::Error | Reason::Reconnect | Reason::Complete => {
                // What worked for a while failed for another cause than what never worked.
                let pause = if fruitful { first() } else { self.next };
                self.next = (pause * 2).min(Duration::from_millis(XDS_BACKOFF_LAST_MS));
                pause
            }
        };
        pause.mul_f64(0.8 + 0.4 * self.random.f64())
    }
}

fn first() -> Duration {
    Duration::from_millis(XDS_BACKOFF_FIRST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(pause: Duration, millis: u64) -> bool {
        let wanted = Duration::from_millis(millis);
        pause >= wanted.mul_f64(0.79) && pause <= wanted.mul_f64(1.21)
    }

    #[test]
    fn failures_back_off_to_the_last_pause_and_a_stream_that_worked_starts_anew() {
        let mut pace = Pace::new(fastrand::Rng::with_seed(7));
        for millis in [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 5_120, 10_240, 15_000, 15_000] {
            let pause = pace.after(Reason::ConnectionError, false);
            assert!(near(pause, millis), "{pause:?} is not about {millis} ms");
        }
        assert_eq!(pace.after(Reason::Complete, true), Duration::ZERO);
        assert!(near(pace.after(Reason::Error, false), 10));
        assert!(near(pace.after(Reason::Error, false), 20));
        assert!(near(pace.after(Reason::Reconnect, true), 10));
        assert!(near(pace.after(Reason::Error, true), 10));
        assert!(near(pace.after(Reason::Error, true), 10));
    }

    #[test]
    fn a_control_plane_that_closes_every_stream_at_once_is_not_hammered() {
        let mut pace = Pace::new(fastrand::Rng::with_seed(7));
        let pauses: Duration = (0..12).map(|_| pace.after(Reason::Complete, false)).sum();
        assert!(pauses > Duration::from_secs(20), "{pauses:?}");
    }
}
