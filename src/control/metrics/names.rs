//! The families of the DNS proxy (reference section 15.1): counters, and a histogram written as the reference's
//! encoder does it, sum and count before the buckets, `le` before the other labels.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::{Page, count, label};
use crate::bridge::report::{DNS_BUCKETS_S, DnsCounts, ShardStats};
use crate::control::recorder::Kind;

const DURATION: &str = "istio_dns_upstream_request_duration_seconds";

pub(super) fn families(page: &mut Page, stats: &[ShardStats]) {
    let sums = sum(stats);
    type Value = fn(&DnsCounts) -> u64;
    let counters: [(&str, &str, Value); 3] = [
        ("istio_dns_requests", "Total number of DNS requests (unstable).", |counts| counts.requests),
        (
            "istio_dns_upstream_requests",
            "Total number of DNS requests forwarded to upstream (unstable).",
            |counts| counts.forwarded,
        ),
        (
            "istio_dns_upstream_failures",
            "Total number of DNS requests that failed to forward upstream (unstable).",
            |counts| counts.failed,
        ),
    ];
    for (name, help, value) in counters {
        page.family(name, help, Kind::Counter, None);
        for counts in sums.iter().filter(|counts| value(counts) > 0) {
            page.sample_with("_total", &labels(counts), count(value(counts)));
        }
    }
    let help = "Total time in seconds Istio takes to get DNS response from upstream (unstable).";
    page.head(DURATION, help, "histogram", Some("seconds"));
    for counts in sums.iter().filter(|counts| counts.forwarded > 0) {
        histogram(page, counts);
    }
}

fn histogram(page: &mut Page, counts: &DnsCounts) {
    let labels = labels(counts);
    page.sample_with("_sum", &labels, counts.duration_sum_s);
    page.sample_with("_count", &labels, count(counts.durations.iter().sum()));
    let bounds = DNS_BUCKETS_S.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
    let mut below = 0;
    for (bound, within) in bounds.zip(counts.durations) {
        below += within;
        page.sample_with("_bucket", &format!("le=\"{bound}\",{labels}"), count(below));
    }
}

fn labels(counts: &DnsCounts) -> String {
    let mut text = String::new();
    label(&mut text, "request_query_type", counts.labels.kind);
    label(&mut text, "request_protocol", if counts.labels.tcp { "tcp" } else { "udp" });
    label(&mut text, "source_canonical_service", &counts.labels.service);
    label(&mut text, "source_canonical_revision", &counts.labels.revision);
    text
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
