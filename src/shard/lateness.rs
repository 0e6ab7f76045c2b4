//! How long a shard lets everything else wait: how late its timer is, and how much of that it had no CPU.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::shard::stats::Histogram;
use crate::sys::proc::{ThreadClock, ThreadTimes};

/// One shard's.
pub(super) struct Lateness {
    clock: ThreadClock,
    longest_stall: Cell<Duration>,
    pace: Cell<Pace>,
}

impl Lateness {
    /// Of the thread that calls.
    pub fn new() -> Self {
        Self { clock: ThreadClock::of_this_thread(), longest_stall: Cell::default(), pace: Cell::default() }
    }

    pub fn is_busy(&self) -> bool {
        self.pace.get().looks_left > 0
    }

    /// The most that a timer was late while the thread had a CPU.
    pub fn longest_stall(&self) -> Duration {
        self.longest_stall.get()
    }

    /// How long the thread could have run so far and had no CPU.
    pub fn cpu_wait(&self) -> Duration {
        self.clock.times().waited
    }

    /// Waits until the next tick. How late a timer is tells how long the loop is busy in one go: a busy shard looks
    /// often, so that no long turn is missed, any other once, so that it isn't woken for that.
    pub async fn pass_a_tick(&self, delays: &Histogram) {
        let tick = Instant::now() + Duration::from_millis(limits::TICK_MS);
        loop {
            let left = tick.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut pace = self.pace.get();
            let (pause, before) = (pace.pause(left), pace.times);
            let due = Instant::now() + pause;
            monoio::time::sleep(pause).await;
            let late = Instant::now().saturating_duration_since(due);
            delays.record(late);
            let times = self.clock.times();
            // Not the shard's doing. It may have had no CPU before the timer was due, so this is the least.
            let stall = late.saturating_sub(times.waited.saturating_sub(before.waited));
            self.longest_stall.set(self.longest_stall.get().max(stall));
            pace.paused(pause, times);
            self.pace.set(pace);
        }
    }
}

/// Whether a shard is busy, by its thread's CPU time: it stays so until several looks in a row found it idle, since a
/// single pause tells little where other threads want the same core.
#[derive(Clone, Copy, Default)]
struct Pace {
    looks_left: u32,
    /// At the last look.
    times: ThreadTimes,
}

impl Pace {
    fn pause(&self, left: Duration) -> Duration {
        if self.looks_left > 0 { left.min(Duration::from_millis(limits::LATENESS_SAMPLE_MS)) } else { left }
    }

    fn paused(&mut self, pause: Duration, times: ThreadTimes) {
        let busy = times.cpu.saturating_sub(self.times.cpu) > pause / limits::BUSY_PART;
        self.looks_left = if busy { limits::BUSY_LOOKS } else { self.looks_left.saturating_sub(1) };
        self.times = times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_shard_looks_often_until_it_was_idle_for_several_looks() {
        let (tick, sample) = (Duration::from_secs(1), Duration::from_millis(limits::LATENESS_SAMPLE_MS));
        let mut pace = Pace::default();
        let worked = |cpu| ThreadTimes { cpu, ..ThreadTimes::default() };
        let idle = tick / limits::BUSY_PART;
        pace.paused(tick, worked(idle));
        assert_eq!(pace.pause(tick), tick);
        pace.paused(tick, worked(3 * idle));
        assert_eq!(pace.pause(tick), sample);
        assert_eq!(pace.pause(sample / 2), sample / 2, "no longer than to the tick");
        for _ in 1..limits::BUSY_LOOKS {
            pace.paused(sample, worked(3 * idle));
            assert_eq!(pace.pause(tick), sample);
        }
        pace.paused(sample, worked(3 * idle));
        assert_eq!(pace.pause(tick), tick);
    }
}
