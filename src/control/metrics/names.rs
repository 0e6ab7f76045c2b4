//! Families of the DNS proxy (reference section 15.1).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::family::{Family, Page, counter, histogram};
use crate::bridge::report::{DNS_BUCKETS_S, DnsCounts, ShardStats};

const LABELS: &str = "request_query_type request_protocol source_canonical_service source_canonical_revision";

const REQUESTS: Family = counter("istio_dns_requests", LABELS, "Total number of DNS requests (unstable).");
const FORWARDED: Family = counter(
    "istio_dns_upstream_requests",
    LABELS,
    "Total number of DNS requests forwarded to upstream (unstable).",
);
const FAILED: Family = counter(
    "istio_dns_upstream_failures",
    LABELS,
    "Total number of DNS requests that failed to forward upstream (unstable).",
);
const DURATION: Family = histogram(
    "istio_dns_upstream_request_duration_seconds",
    LABELS,
    "Total time in seconds Istio takes to get DNS response from upstream (unstable).",
)
.in_unit("seconds");

#[cfg(test)]
pub(super) const FAMILIES: [Family; 4] = [REQUESTS, FORWARDED, FAILED, DURATION];

pub(super) fn families(page: &mut Page<'_>, stats: &[ShardStats]) {
    let sums = sum(stats);
    type Value = fn(&DnsCounts) -> u64;
    let counters: [(&Family, Value); 3] = [
        (&REQUESTS, |counts| counts.requests),
        (&FORWARDED, |counts| counts.forwarded),
        (&FAILED, |counts| counts.failed),
    ];
    for (family, value) in counters {
        page.family(family);
        for counts in sums.iter().filter(|counts| value(counts) > 0) {
            page.sample(&labels(counts), value(counts));
        }
    }
    page.family(&DURATION);
    for counts in sums.iter().filter(|counts| counts.forwarded > 0) {
        page.buckets(&labels(counts), &DNS_BUCKETS_S, &counts.durations, counts.duration_sum_s);
    }
}

fn labels(counts: &DnsCounts) -> [&str; 4] {
    let DnsCounts { labels, .. } = counts;
    [labels.kind, if labels.tcp { "tcp" } else { "udp" }, &labels.service, &labels.revision]
}

fn sum(stats: &[ShardStats]) -> Vec<DnsCounts> {
    let mut sums = BTreeMap::new();
    for counts in stats.iter().flat_map(|shard| &shard.dns) {
        match sums.entry(counts.labels.clone()) {
            Entry::Vacant(place) => drop(place.insert(counts.clone())),
            Entry::Occupied(mut known) => add(known.get_mut(), counts),
        }
    }
    sums.into_values().collect()
}

fn add(sum: &mut DnsCounts, counts: &DnsCounts) {
    sum.requests += counts.requests;
    sum.forwarded += counts.forwarded;
    sum.failed += counts.failed;
    sum.duration_sum_s += counts.duration_sum_s;
    for (sum, within) in sum.durations.iter_mut().zip(counts.durations) {
        *sum += within;
    }
}
