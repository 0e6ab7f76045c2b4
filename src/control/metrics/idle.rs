//! Label sets that nobody uses any more. A set is dropped on all shards at once and by what each of them told, so that
//! its series ends, or starts anew with what came since: Prometheus takes both for what they are.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::base::limits::LABEL_SET_IDLE_MS;
use crate::bridge::report::{ConnectionCounts, ShardStats};
use crate::mesh::labels::LabelSet;

/// What was seen of each label set last, over all scrapes.
#[derive(Default)]
pub(super) struct Idle {
    sets: HashMap<LabelSet, Seen, foldhash::fast::RandomState>,
    round: u64,
}

struct Seen {
    round: u64,
    opened: u64,
    since: Instant,
}

impl Idle {
    /// Looks at the answers of all shards of one scrape: what each of them, in that order, is to take back.
    pub(super) fn look(&mut self, stats: &[ShardStats], now: Instant) -> Vec<Vec<ConnectionCounts>> {
        self.round += 1;
        let mut sums = HashMap::<&LabelSet, (u64, u64), foldhash::fast::RandomState>::default();
        for counts in stats.iter().flat_map(|shard| &shard.connections) {
            let (opened, live) = sums.entry(&counts.labels).or_default();
            (*opened, *live) = (*opened + counts.opened, *live + counts.live());
        }
        for (labels, (opened, live)) in sums {
            let round = self.round;
            match self.sets.get_mut(labels) {
                Some(seen) if seen.opened == opened && live == 0 => seen.round = round,
                Some(seen) => *seen = Seen { round, opened, since: now },
                None => drop(self.sets.insert(labels.clone(), Seen { round, opened, since: now })),
            }
        }
        let (round, most) = (self.round, Duration::from_millis(LABEL_SET_IDLE_MS));
        self.sets.retain(|_, seen| seen.round == round);
        let due: HashMap<LabelSet, Seen, foldhash::fast::RandomState> =
            self.sets.extract_if(|_, seen| now.saturating_duration_since(seen.since) >= most).collect();
        let told = |shard: &ShardStats| {
            let of_due = shard.connections.iter().filter(|counts| due.contains_key(&counts.labels));
            of_due.cloned().collect()
        };
        if due.is_empty() { Vec::new() } else { stats.iter().map(told).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::labels::{Flag, Labels, Party, Reporter, Security};

    fn counts(name: &str, opened: u64, closed: u64) -> ConnectionCounts {
        let party = Party { workload: name.into(), ..Party::default() };
        let labels = Labels {
            reporter: Reporter::Source,
            source: Some(party),
            destination: None,
            service: None,
            security: Security::Unknown,
        };
        let mut by_flag = [0; Flag::ALL.len()];
        by_flag[0] = closed;
        ConnectionCounts {
            labels: LabelSet::new(labels),
            opened,
            received_bytes: 0,
            sent_bytes: 0,
            closed: by_flag,
        }
    }

    fn shards(each: [Vec<ConnectionCounts>; 2]) -> Vec<ShardStats> {
        let stats = |(shard, connections)| ShardStats { shard, connections, ..ShardStats::default() };
        each.into_iter().enumerate().map(stats).collect()
    }

    #[test]
    fn a_set_that_nobody_used_for_long_is_taken_back_from_every_shard_and_one_in_use_is_not() {
        let mut idle = Idle::default();
        let start = Instant::now();
        let at = |part: u64| start + Duration::from_millis(LABEL_SET_IDLE_MS * part / 4);
        let told = |busy: u64| {
            shards([
                vec![counts("idle", 3, 3), counts("held", 1, 0), counts("busy", busy, busy)],
                vec![counts("idle", 2, 2)],
            ])
        };
        for part in 0..4 {
            assert!(idle.look(&told(part + 1), at(part)).is_empty(), "{part}");
        }
        let due = idle.look(&told(5), at(4));
        assert_eq!(due, [vec![counts("idle", 3, 3)], vec![counts("idle", 2, 2)]]);
        assert!(idle.look(&told(6), at(5)).is_empty(), "once is enough");
        assert!(idle.look(&shards([Vec::new(), Vec::new()]), at(6)).is_empty());
        assert!(idle.sets.is_empty(), "what shards no longer tell isn't remembered");
    }
}
