//! This shard's counters: plain integers by interned label set. The control thread sums them at a scrape.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::limits;
use crate::base::text::Text;
use crate::bridge::report::{
    ConnectionCounts, DNS_BUCKETS_S, DnsCounts, DnsLabels, Said, ShardStats, VerdictCount,
};
use crate::mesh::labels::{Flag, LabelSet, Labels, Party, Reporter};
use crate::mesh::policy::Policy;

/// The counters of one label set.
#[derive(Default)]
pub struct Counters {
    pub opened: Cell<u64>,
    pub received_bytes: Cell<u64>,
    pub sent_bytes: Cell<u64>,
    closed: RefCell<Vec<(Flag, u64)>>,
}

impl Counters {
    pub fn open(&self) {
        self.opened.set(self.opened.get() + 1);
    }

    pub fn close(&self, flag: Flag) {
        let mut closed = self.closed.borrow_mut();
        match closed.iter_mut().find(|(known, _)| *known == flag) {
            Some((_, count)) => *count += 1,
            None => closed.push((flag, 1)),
        }
    }
}

/// Counters that aren't about one connection; the name and help of each stand in `engine`.
#[derive(Default)]
pub struct Engine {
    pub accept_pauses: Cell<u64>,
    pub tls_handshakes: Cell<u64>,
    pub tls_handshake_failures: Cell<u64>,
    pub pool_hits: Cell<u64>,
    pub pool_dials: Cell<u64>,
    pub tunnels_cut_off: Cell<u64>,
    pub policy_closes: Cell<u64>,
    pub tunnels_retired: Cell<u64>,
    pub tunnels_revoked: Cell<u64>,
    pub second_tries: Cell<u64>,
    pub ejections: Cell<u64>,
    pub proxy_refusals: Cell<u64>,
    pub dns_cache_hits: Cell<u64>,
    pub dns_retries: Cell<u64>,
    pub dns_strays: Cell<u64>,
    pub dns_crowded: Cell<u64>,
    pub dns_unsent: Cell<u64>,
    pub access_lines_sampled_out: Cell<u64>,
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
    by_labels: RefCell<HashMap<LabelSet, Rc<Counters>, foldhash::fast::RandomState>>,
    on_demand_dns: RefCell<HashMap<(Party, Text), u64, foldhash::fast::RandomState>>,
    /// None until the first, as in the reference.
    sockets_source: Cell<Option<u64>>,
    sockets_destination: Cell<Option<u64>>,
    /// By namespace and name of the policy.
    verdicts: RefCell<HashMap<(Text, Text, Said), u64, foldhash::fast::RandomState>>,
    dns: RefCell<HashMap<DnsLabels, Rc<DnsCounters>, foldhash::fast::RandomState>>,
    crl_rejections_source: Cell<u64>,
    crl_rejections_destination: Cell<u64>,
    pub engine: Engine,
}

impl Stats {
    /// The counters of a label set, made on first use.
    pub fn of(&self, labels: Labels) -> Rc<Counters> {
        let mut all = self.by_labels.borrow_mut();
        if let Some(counters) = all.get(&labels) {
            return counters.clone();
        }
        // What a peer of another network says of itself ends up in labels, so their number has a bound.
        let labels = if all.len() < limits::LABEL_SETS { labels } else { labels.without_parties() };
        all.entry(Arc::new(labels)).or_default().clone()
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

    /// Counts an accepted socket until the guard is dropped.
    pub fn socket(self: &Rc<Self>, reporter: Reporter) -> OpenSocket {
        let gauge = self.gauge(reporter);
        gauge.set(Some(gauge.get().unwrap_or_default() + 1));
        OpenSocket { stats: self.clone(), reporter }
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

    /// Everything, for one scrape.
    pub fn report(&self, shard: usize) -> ShardStats {
        let by_labels = self.by_labels.borrow();
        let connections = by_labels.iter().map(|(labels, counters)| ConnectionCounts {
            labels: labels.clone(),
            opened: counters.opened.get(),
            received_bytes: counters.received_bytes.get(),
            sent_bytes: counters.sent_bytes.get(),
            closed: counters.closed.borrow().clone(),
        });
        let verdicts = self.verdicts.borrow();
        let verdicts = verdicts.iter().map(|((namespace, name, said), count)| VerdictCount {
            namespace: namespace.clone(),
            name: name.clone(),
            said: *said,
            count: *count,
        });
        let engine = &self.engine;
        ShardStats {
            verdicts: verdicts.collect(),
            dns: self.dns.borrow().iter().map(|(labels, counters)| counters.counts(labels)).collect(),
            shard,
            connections: connections.collect(),
            on_demand_dns: self
                .on_demand_dns
                .borrow()
                .iter()
                .map(|((source, host), count)| (source.clone(), host.clone(), *count))
                .collect(),
            sockets_open: [Reporter::Source, Reporter::Destination]
                .into_iter()
                .filter_map(|reporter| Some((reporter, self.gauge(reporter).get()?)))
                .collect(),
            crl_rejections: vec![
                (Reporter::Source, self.crl_rejections_source.get()),
                (Reporter::Destination, self.crl_rejections_destination.get()),
            ],
            engine: vec![
                (
                    "accept_pauses",
                    "Pauses of a listener for want of descriptors or memory",
                    engine.accept_pauses.get(),
                ),
                ("tls_handshakes", "TLS handshakes completed, both roles", engine.tls_handshakes.get()),
                (
                    "tls_handshake_failures",
                    "TLS handshakes failed, both roles",
                    engine.tls_handshake_failures.get(),
                ),
                ("pool_hits", "Connections carried by a tunnel that was up already", engine.pool_hits.get()),
                ("pool_dials", "Tunnels dialled", engine.pool_dials.get()),
                (
                    "tunnels_cut_off",
                    "Tunnels closed because the peer broke HTTP/2 or a bound",
                    engine.tunnels_cut_off.get(),
                ),
                (
                    "policy_closes",
                    "Live connections closed because the mesh no longer allows them",
                    engine.policy_closes.get(),
                ),
                (
                    "tunnels_retired",
                    "Tunnels that take no new streams since their own identity, roots or certificate changed",
                    engine.tunnels_retired.get(),
                ),
                (
                    "tunnels_revoked",
                    "Tunnels closed because a new revocation list names their peer",
                    engine.tunnels_revoked.get(),
                ),
                (
                    "second_tries",
                    "Further endpoints tried for connections whose first could not be reached",
                    engine.second_tries.get(),
                ),
                (
                    "ejections",
                    "Endpoints left out for a while after they could not be reached",
                    engine.ejections.get(),
                ),
                (
                    "proxy_refusals",
                    "Clients of the SOCKS5 and CONNECT listeners that were malformed, late or too many",
                    engine.proxy_refusals.get(),
                ),
                (
                    "dns_cache_hits",
                    "DNS queries answered by a reply that was remembered",
                    engine.dns_cache_hits.get(),
                ),
                (
                    "dns_retries",
                    "Further attempts at name servers that stayed silent",
                    engine.dns_retries.get(),
                ),
                (
                    "dns_strays",
                    "Datagrams of name servers that were no reply to what had been asked",
                    engine.dns_strays.get(),
                ),
                (
                    "dns_crowded",
                    "DNS queries refused because too many of the pod waited for name servers",
                    engine.dns_crowded.get(),
                ),
                ("dns_unsent", "DNS answers that the kernel did not take", engine.dns_unsent.get()),
                (
                    "access_lines_sampled_out",
                    "Access-log lines of connections that ended well, left out by RINGWAY_ACCESS_LOG_SAMPLING",
                    engine.access_lines_sampled_out.get(),
                ),
            ],
        }
    }
}

/// See `Stats::socket`.
pub struct OpenSocket {
    stats: Rc<Stats>,
    reporter: Reporter,
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        let gauge = self.stats.gauge(self.reporter);
        gauge.set(gauge.get().map(|open| open.saturating_sub(1)));
    }
}
