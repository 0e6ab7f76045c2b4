//! Families of connections (reference section 15): the counters of all shards, one entry a label set.

use std::collections::HashMap;

use super::family::{Family, Page, counter, gauge, label};
use crate::bridge::report::{ConnectionCounts, ShardStats};
use crate::mesh::labels::{Flag, LabelSet, Labels, Party, Reporter};

/// Labels of connections in the reference's order (section 15.2); the last four are absent where no side is known.
pub(super) const COMMON: &str = "reporter source_workload source_canonical_service source_canonical_revision \
    source_workload_namespace source_principal source_app source_version source_cluster destination_service \
    destination_service_namespace destination_service_name destination_workload destination_canonical_service \
    destination_canonical_revision destination_workload_namespace destination_principal destination_app \
    destination_version destination_cluster request_protocol response_flags connection_security_policy \
    source_region source_zone destination_region destination_zone";

const OPENED: Family =
    counter("istio_tcp_connections_opened", COMMON, "The total number of TCP connections opened.");
const CLOSED: Family =
    counter("istio_tcp_connections_closed", COMMON, "The total number of TCP connections closed.");
const RECEIVED: Family = counter(
    "istio_tcp_received_bytes",
    COMMON,
    "The size of total bytes received during request in case of a TCP connection.",
);
const SENT: Family = counter(
    "istio_tcp_sent_bytes",
    COMMON,
    "The size of total bytes sent during response in case of a TCP connection.",
);
const ON_DEMAND_DNS: Family = counter(
    "istio_on_demand_dns",
    "source_workload source_canonical_service source_canonical_revision source_workload_namespace source_principal \
     source_app source_version source_cluster hostname",
    "The total number of requests that used on-demand DNS (unstable).",
);
const FAILED: Family = counter(
    "istio_tcp_connections_failed",
    COMMON,
    "The total number of TCP connections that failed to establish (unstable).",
);
const SOCKETS: Family =
    gauge("istio_tcp_sockets_open", "reporter", "The current number of open TCP sockets (unstable).");
const REVOKED: Family = counter(
    "istio_crl_policy_rejections",
    "reporter",
    "The total number of connections rejected due to CRL certificate revocation (unstable).",
);
const UNTRACKED: Family = counter(
    "istio_crl_untracked_connections",
    "reporter",
    "The total number of connections not tracked for CRL enforcement (unstable).",
);

#[cfg(test)]
pub(super) const FAMILIES: [Family; 9] =
    [OPENED, CLOSED, RECEIVED, SENT, ON_DEMAND_DNS, FAILED, SOCKETS, REVOKED, UNTRACKED];

pub(super) fn families(page: &mut Page<'_>, stats: &[ShardStats]) {
    let sums: Vec<(Rendered, ConnectionCounts)> =
        sum(stats).into_iter().map(|counts| (Rendered::of(&counts.labels), counts)).collect();
    plain(page, &OPENED, &sums, |counts| counts.opened);
    by_flag(page, &CLOSED, &sums, |_| true);
    plain(page, &RECEIVED, &sums, |counts| counts.received_bytes);
    plain(page, &SENT, &sums, |counts| counts.sent_bytes);
    on_demand_dns(page, stats);
    by_flag(page, &FAILED, &sums, |flag| flag != Flag::None);
    by_reporter(page, &SOCKETS, stats, |shard| &shard.sockets_open);
    by_reporter(page, &REVOKED, stats, |shard| &shard.crl_rejections);
    // Every tunnel is tracked here, so it stays 0 wherever the other one is there.
    page.family(&UNTRACKED);
    for reporter in [Reporter::Source, Reporter::Destination] {
        if stats.iter().flat_map(|shard| &shard.crl_rejections).any(|(of, _)| *of == reporter) {
            page.sample(&[reporter.as_str()], 0);
        }
    }
}

fn plain(
    page: &mut Page<'_>,
    family: &Family,
    sums: &[(Rendered, ConnectionCounts)],
    value: fn(&ConnectionCounts) -> u64,
) {
    page.family(family);
    for (labels, counts) in sums {
        labels.write(page, Flag::None, value(counts));
    }
}

fn by_flag(
    page: &mut Page<'_>,
    family: &Family,
    sums: &[(Rendered, ConnectionCounts)],
    wanted: fn(Flag) -> bool,
) {
    page.family(family);
    for (labels, counts) in sums {
        for (flag, value) in Flag::ALL.into_iter().zip(counts.closed) {
            if value > 0 && wanted(flag) {
                labels.write(page, flag, value);
            }
        }
    }
}

fn by_reporter(
    page: &mut Page<'_>,
    family: &Family,
    stats: &[ShardStats],
    values: fn(&ShardStats) -> &Vec<(Reporter, u64)>,
) {
    page.family(family);
    for reporter in [Reporter::Source, Reporter::Destination] {
        let of = stats.iter().flat_map(values).filter(|(of, _)| *of == reporter).map(|(_, value)| *value);
        if let Some(sum) = of.reduce(|sum, value| sum + value) {
            page.sample(&[reporter.as_str()], sum);
        }
    }
}

/// Requests for host names' addresses, of all shards together.
fn on_demand_dns(page: &mut Page<'_>, stats: &[ShardStats]) {
    let mut sums = std::collections::BTreeMap::<String, u64>::new();
    for (source, host, times) in stats.iter().flat_map(|shard| &shard.on_demand_dns) {
        let mut labels = String::new();
        party(&mut labels, &SOURCE, source);
        label(&mut labels, "hostname", host);
        *sums.entry(labels).or_default() += times;
    }
    page.family(&ON_DEMAND_DNS);
    for (labels, times) in sums {
        page.part("_total", &[&labels], times);
    }
}

/// The sums of all shards, in the order in which shards told them first. A set that was taken back counts nothing.
fn sum(stats: &[ShardStats]) -> Vec<ConnectionCounts> {
    let mut places = HashMap::<&LabelSet, usize, foldhash::fast::RandomState>::default();
    let mut sums: Vec<ConnectionCounts> = Vec::new();
    for counts in stats.iter().flat_map(|shard| &shard.connections).filter(|counts| counts.opened > 0) {
        let place = *places.entry(&counts.labels).or_insert(sums.len());
        match sums.get_mut(place) {
            None => sums.push(counts.clone()),
            Some(sum) => {
                sum.opened += counts.opened;
                sum.received_bytes += counts.received_bytes;
                sum.sent_bytes += counts.sent_bytes;
                for (sum, closed) in sum.closed.iter_mut().zip(counts.closed) {
                    *sum += closed;
                }
            }
        }
    }
    sums
}

/// A label set as text, before and behind its one label that varies.
struct Rendered {
    before: String,
    after: String,
}

impl Rendered {
    fn of(labels: &Labels) -> Self {
        let nobody = Party::default();
        let source = labels.source.as_ref().unwrap_or(&nobody);
        let destination = labels.destination.as_ref().unwrap_or(&nobody);
        let mut before = String::with_capacity(1024);
        label(&mut before, "reporter", labels.reporter.as_str());
        party(&mut before, &SOURCE, source);
        let service = labels.service.clone().unwrap_or_default();
        label(&mut before, "destination_service", &service.hostname);
        label(&mut before, "destination_service_namespace", &service.namespace);
        label(&mut before, "destination_service_name", &service.name);
        party(&mut before, &DESTINATION, destination);
        label(&mut before, "request_protocol", "tcp");
        before.push_str(",response_flags=\"");
        let mut after = String::with_capacity(192);
        label(&mut after, "connection_security_policy", labels.security.as_str());
        if labels.source.is_some() || labels.destination.is_some() {
            label(&mut after, "source_region", &source.region);
            label(&mut after, "source_zone", &source.zone);
            label(&mut after, "destination_region", &destination.region);
            label(&mut after, "destination_zone", &destination.zone);
        }
        Self { before, after }
    }

    fn write(&self, page: &mut Page<'_>, flag: Flag, value: u64) {
        page.part("_total", &[&self.before, flag.as_str(), "\",", &self.after], value);
    }
}

type PartyNames = [&'static str; 8];

const SOURCE: PartyNames = [
    "source_workload",
    "source_canonical_service",
    "source_canonical_revision",
    "source_workload_namespace",
    "source_principal",
    "source_app",
    "source_version",
    "source_cluster",
];

const DESTINATION: PartyNames = [
    "destination_workload",
    "destination_canonical_service",
    "destination_canonical_revision",
    "destination_workload_namespace",
    "destination_principal",
    "destination_app",
    "destination_version",
    "destination_cluster",
];

fn party(to: &mut String, names: &PartyNames, party: &Party) {
    let principal = party.principal.as_ref().map(ToString::to_string).unwrap_or_default();
    let values: [&str; 8] = [
        &party.workload,
        &party.canonical_service,
        &party.canonical_revision,
        &party.namespace,
        &principal,
        &party.app,
        &party.canonical_revision,
        &party.cluster,
    ];
    for (name, value) in names.iter().zip(values) {
        label(to, name, value);
    }
}
