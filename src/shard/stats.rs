//! This shard's counters: plain integers by interned label set. The control thread sums them at a scrape.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use slab::Slab;

use crate::base::limits;
use crate::base::text::Text;
use crate::bridge::counts::{Engine, TIMING_BUCKETS_NS, Timing, Timings};
use crate::bridge::report::{
    ConnectionCounts, DNS_BUCKETS_S, DnsCounts, DnsLabels, Said, ShardStats, VerdictCount,
};
use crate::mesh::labels::{Flag, LabelSet, Labels, Party, Reporter};
use crate::mesh::policy::Policy;
use crate::shard::ready::give_way;

/// The counters of one label set.
#[derive(Default)]
pub struct Counters {
    pub opened: Cell<u64>,
    pub received_bytes: Cell<u64>,
    pub sent_bytes: Cell<u64>,
    /// In the order of `Flag::ALL`.
    closed: [Cell<u64>; Flag::ALL.len()],
}

impl Counters {
    pub fn open(&self) {
        bump(&self.opened);
    }

    pub fn close(&self, flag: Flag) {
        if let Some(closed) = self.closed.get(flag as usize) {
            bump(closed);
        }
    }

    fn counts(&self, labels: &LabelSet) -> ConnectionCounts {
        ConnectionCounts {
            labels: labels.clone(),
            opened: self.opened.get(),
            received_bytes: self.received_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
            closed: self.closed.each_ref().map(Cell::get),
        }
    }

    /// Takes counts back; what came since stays.
    fn take_back(&self, told: &ConnectionCounts) {
        let less = |cell: &Cell<u64>, by: u64| cell.set(cell.get().saturating_sub(by));
        less(&self.opened, told.opened);
        less(&self.received_bytes, told.received_bytes);
        less(&self.sent_bytes, told.sent_bytes);
        for (cell, by) in self.closed.iter().zip(told.closed) {
            less(cell, by);
        }
    }

    fn is_blank(&self) -> bool {
        self.opened.get() == 0 && self.closed.iter().all(|closed| closed.get() == 0)
    }
}

/// How long something took, by `TIMING_BUCKETS_NS`.
#[derive(Default)]
pub struct Histogram {
    buckets: [Cell<u64>; TIMING_BUCKETS_NS.len() + 1],
    sum_ns: Cell<u64>,
}

impl Histogram {
    pub fn record(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Without a branch: there are few bounds, and no pattern that a processor could foresee.
        let bucket: usize = TIMING_BUCKETS_NS.iter().map(|bound| usize::from(*bound < took_ns)).sum();
        if let Some(count) = self.buckets.get(bucket) {
            bump(count);
        }
        self.sum_ns.set(self.sum_ns.get().saturating_add(took_ns));
    }

    fn timing(&self) -> Timing {
        Timing { buckets: self.buckets.each_ref().map(Cell::get), sum_ns: self.sum_ns.get() }
    }
}

/// The DNS counters of one label set.
#[derive(Default)]
pub struct DnsCounters {
    pub requests: Cell<u64>,
    pub forwarded: Cell<u64>,
    pub failed: Cell<u64>,
    durations: [Cell<u64>; DNS_BUCKETS_S.len() + 1],
    duration_sum_s: Cell<f64>,
}

impl DnsCounters {
    /// Counts one forwarded query.
    pub fn took(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = DNS_BUCKETS_S.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.durations.get(bucket) {
            bump(count);
        }
        self.duration_sum_s.set(self.duration_sum_s.get() + seconds);
    }

    fn counts(&self, labels: &DnsLabels) -> DnsCounts {
        DnsCounts {
            labels: labels.clone(),
            requests: self.requests.get(),
            forwarded: self.forwarded.get(),
            failed: self.failed.get(),
            durations: self.durations.each_ref().map(Cell::get),
            duration_sum_s: self.duration_sum_s.get(),
        }
    }
}

/// Adds one.
pub fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// All counters of a shard.
#[derive(Default)]
pub struct Stats {
    sets: RefCell<Sets>,
    on_demand_dns: RefCell<HashMap<(Party, Text), u64, foldhash::fast::RandomState>>,
    /// None until the first, as in the reference.
    sockets_source: Cell<Option<u64>>,
    sockets_destination: Cell<Option<u64>>,
    /// By namespace and name of the policy.
    verdicts: RefCell<HashMap<(Text, Text, Said), u64, foldhash::fast::RandomState>>,
    dns: RefCell<HashMap<DnsLabels, Rc<DnsCounters>, foldhash::fast::RandomState>>,
    crl_rejections_source: Cell<u64>,
    crl_rejections_destination: Cell<u64>,
    pub engine: Engine<Cell<u64>>,
    pub timings: Timings<Histogram>,
}

/// Label sets of connections: found by their labels, told in an order that others coming and going don't change.
#[derive(Default)]
struct Sets {
    by_labels: HashMap<LabelSet, (usize, Rc<Counters>), foldhash::fast::RandomState>,
    in_order: Slab<(LabelSet, Rc<Counters>)>,
}

impl Sets {
    fn enter(&mut self, labels: Labels) -> Rc<Counters> {
        let (labels, counters) = (LabelSet::new(labels), Rc::<Counters>::default());
        let place = self.in_order.insert((labels.clone(), counters.clone()));
        self.by_labels.insert(labels, (place, counters.clone()));
        counters
    }
}

impl Stats {
    /// The counters of a label set, made on first use.
    pub fn of(&self, labels: Labels) -> Rc<Counters> {
        let mut sets = self.sets.borrow_mut();
        if let Some((_, counters)) = sets.by_labels.get(&labels) {
            return counters.clone();
        }
        if sets.by_labels.len() < limits::LABEL_SETS {
            return sets.enter(labels);
        }
        // What a peer of another network says of itself ends up in labels, so their number has a bound.
        let labels = labels.without_parties();
        match sets.by_labels.get(&labels) {
            Some((_, counters)) => counters.clone(),
            None => sets.enter(labels),
        }
    }

    /// Takes back what was told of label sets; those that count nothing more, and that no connection uses, are gone.
    pub fn forget(&self, told: &[ConnectionCounts]) {
        let mut sets = self.sets.borrow_mut();
        for told in told {
            let Some((place, counters)) = sets.by_labels.get(&told.labels) else { continue };
            counters.take_back(told);
            // Twice here, and once by each connection.
            if counters.is_blank() && Rc::strong_count(counters) == 2 {
                let place = *place;
                sets.by_labels.remove(&told.labels);
                sets.in_order.try_remove(place);
            }
        }
    }

    pub fn label_sets(&self) -> usize {
        self.sets.borrow().by_labels.len()
    }

    /// The DNS counters of a label set, made on first use.
    pub fn names(&self, labels: DnsLabels) -> Rc<DnsCounters> {
        let mut all = self.dns.borrow_mut();
        if let Some(counters) = all.get(&labels) {
            return counters.clone();
        }
        // Workloads come and go, so the number of their names has a bound.
        let nobody = DnsLabels { service: Text::default(), revision: Text::default(), ..labels.clone() };
        let place = if all.len() < limits::LABEL_SETS { labels } else { nobody };
        all.entry(place).or_default().clone()
    }

    /// Counts what a policy said, or all of them together.
    pub fn said(&self, policy: Option<&Policy>, said: Said) {
        let mut all = self.verdicts.borrow_mut();
        let name = policy.map(|policy| (policy.namespace.clone(), policy.name.clone()));
        let (namespace, name) = name
            .filter(|(namespace, name)| {
                // Policies come and go, so the number of names has a bound.
                all.len() < limits::VERDICT_SETS || all.contains_key(&(namespace.clone(), name.clone(), said))
            })
            .unwrap_or_default();
        *all.entry((namespace, name, said)).or_default() += 1;
    }

    /// Counts a request for a host name's addresses. Further ones than there may be label sets aren't told apart.
    pub fn on_demand_dns(&self, source: Party, host: &Text) {
        let mut all = self.on_demand_dns.borrow_mut();
        let key = (source, host.clone());
        let known = all.len() < limits::LABEL_SETS || all.contains_key(&key);
        *all.entry(if known { key } else { <_>::default() }).or_default() += 1;
    }

    /// Counts an accepted socket of one side until the guard is dropped.
    pub fn socket(pod: &Rc<PodSockets>, reporter: Reporter) -> OpenSocket {
        bump(&pod.open);
        let gauge = pod.stats.gauge(reporter);
        gauge.set(Some(gauge.get().unwrap_or_default() + 1));
        OpenSocket { pod: pod.clone(), reporter }
    }

    fn gauge(&self, reporter: Reporter) -> &Cell<Option<u64>> {
        match reporter {
            Reporter::Source => &self.sockets_source,
            Reporter::Destination => &self.sockets_destination,
        }
    }

    /// Handshakes refused because the peer's certificate is revoked.
    pub fn crl_rejections(&self, reporter: Reporter) -> &Cell<u64> {
        match reporter {
            Reporter::Source => &self.crl_rejections_source,
            Reporter::Destination => &self.crl_rejections_destination,
        }
    }

    /// All that is counted here, for one scrape. Others get their turn in between, since label sets may be many.
    pub async fn report(&self, shard: usize) -> ShardStats {
        ShardStats { connections: self.connections().await, ..self.the_rest(shard) }
    }

    async fn connections(&self) -> Vec<ConnectionCounts> {
        let places = self.sets.borrow().in_order.capacity();
        let mut told = Vec::with_capacity(self.label_sets());
        for first in (0..places).step_by(limits::LABEL_SETS_A_TURN) {
            if first > 0 {
                give_way().await;
            }
            let sets = self.sets.borrow();
            let here = (first..places.min(first + limits::LABEL_SETS_A_TURN))
                .filter_map(|place| sets.in_order.get(place));
            told.extend(here.map(|(labels, counters)| counters.counts(labels)));
        }
        told
    }

    fn the_rest(&self, shard: usize) -> ShardStats {
        let verdicts = self.verdicts.borrow();
        let verdicts = verdicts.iter().map(|((namespace, name, said), count)| VerdictCount {
            namespace: namespace.clone(),
            name: name.clone(),
            said: *said,
            count: *count,
        });
        let on_demand_dns = self.on_demand_dns.borrow();
        let on_demand_dns =
            on_demand_dns.iter().map(|((source, host), count)| (source.clone(), host.clone(), *count));
        ShardStats {
            shard,
            verdicts: verdicts.collect(),
            dns: self.dns.borrow().iter().map(|(labels, counters)| counters.counts(labels)).collect(),
            on_demand_dns: on_demand_dns.collect(),
            sockets_open: [Reporter::Source, Reporter::Destination]
                .into_iter()
                .filter_map(|reporter| Some((reporter, self.gauge(reporter).get()?)))
                .collect(),
            crl_rejections: vec![
                (Reporter::Source, self.crl_rejections_source.get()),
                (Reporter::Destination, self.crl_rejections_destination.get()),
            ],
            engine: self.engine.map(Cell::get),
            timings: self.timings.map(Histogram::timing),
            ..ShardStats::default()
        }
    }
}

/// Accepted sockets of one pod.
pub struct PodSockets {
    stats: Rc<Stats>,
    open: Cell<u64>,
}

impl PodSockets {
    pub fn new(stats: Rc<Stats>) -> Rc<Self> {
        Rc::new(Self { stats, open: Cell::new(0) })
    }

    pub fn open(&self) -> u64 {
        self.open.get()
    }
}

/// See `Stats::socket`.
pub struct OpenSocket {
    pod: Rc<PodSockets>,
    reporter: Reporter,
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        let gauge = self.pod.stats.gauge(self.reporter);
        gauge.set(gauge.get().map(|open| open.saturating_sub(1)));
        self.pod.open.set(self.pod.open.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::labels::Security;

    fn labels(name: &str) -> Labels {
        Labels {
            reporter: Reporter::Source,
            source: Some(Party { workload: name.into(), ..Party::default() }),
            destination: None,
            service: None,
            security: Security::Unknown,
        }
    }

    fn told(stats: &Stats) -> Vec<ConnectionCounts> {
        let sets = stats.sets.borrow();
        sets.in_order.iter().map(|(_, (labels, counters))| counters.counts(labels)).collect()
    }

    #[test]
    fn a_forgotten_set_is_gone_and_one_that_was_used_since_keeps_only_what_came_since() {
        let stats = Stats::default();
        for name in ["idle", "used", "held"] {
            let counters = stats.of(labels(name));
            counters.open();
            counters.close(Flag::Connect);
        }
        let before = told(&stats);
        stats.of(labels("used")).open();
        let held = stats.of(labels("held"));
        stats.forget(&before);
        let after = told(&stats);
        let named = |name: &str| after.iter().find(|counts| *counts.labels == labels(name));
        assert_eq!(named("idle"), None);
        let used = named("used").unwrap();
        assert_eq!((used.opened, used.live()), (1, 1));
        assert_eq!(named("held").unwrap().opened, 0);
        held.open();
        assert_eq!(told(&stats).iter().map(|counts| counts.opened).sum::<u64>(), 2);
        assert_eq!(stats.label_sets(), 2);
    }

    #[test]
    fn past_the_bound_sets_are_counted_together_without_parties() {
        let stats = Stats::default();
        for number in 0..limits::LABEL_SETS + 10 {
            stats.of(labels(&number.to_string())).open();
        }
        assert_eq!(stats.label_sets(), limits::LABEL_SETS + 1);
        assert_eq!(stats.of(labels("0").without_parties()).opened.get(), 10);
    }

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for (took, bucket) in [
            (Duration::ZERO, 0),
            (Duration::from_micros(100), 0),
            (Duration::from_nanos(100_001), 1),
            (Duration::from_millis(25), 7),
            (Duration::from_secs(10), 15),
            (Duration::from_secs(11), 16),
            (Duration::MAX, 16),
        ] {
            let before = histogram.timing().buckets[bucket];
            histogram.record(took);
            assert_eq!(histogram.timing().buckets[bucket], before + 1, "{took:?}");
        }
        assert_eq!(histogram.timing().buckets.iter().sum::<u64>(), 7);
        assert_eq!(histogram.timing().sum_ns, u64::MAX);
    }
}
