//! Families that are ours: named `ringway_*`, seconds and bytes as units, after the reference's on the page.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::Scrape;
use super::family::{Family, Kind, Page, counter, gauge};
use super::reference::recorded;
use crate::base::limits;
use crate::bridge::counts::{Engine, Holding, Known, TIMING_BUCKETS_NS, Timing, Timings};
use crate::bridge::identities::Standing;
use crate::bridge::report::{Said, ShardStats};
use crate::control::recorder::Sample;

const EVENT_LOOP: Family =
    gauge("ringway_event_loop", "kind cause", "The event loop of the shards, and why it is not io_uring.");
const AEAD: Family =
    gauge("ringway_aead", "library", "Whose AES-GCM protects records: the faster one of this machine.");
const LINES_DROPPED: Family =
    counter("ringway_log_lines_dropped", "", "Log lines that the writer could not take.");
const SHARDS: Family = gauge("ringway_shards", "", "Shards that this process has.");
const ANSWERING: Family = gauge("ringway_shards_answering", "", "Shards that answered this scrape in time.");
const SHARD_BUSY: Family =
    counter("ringway_shard_busy_seconds", "shard", "CPU time of a shard's thread.").in_unit("seconds");
const LONGEST_STALL: Family = gauge(
    "ringway_shard_longest_stall_seconds",
    "shard",
    "The most that a timer of a shard was late since the start, less the time for which its thread had no CPU.",
)
.in_unit("seconds");
const CPU_WAIT: Family = counter(
    "ringway_shard_cpu_wait_seconds",
    "shard",
    "How long a shard's thread could have run and had no CPU, since others had it.",
)
.in_unit("seconds");
const POD_SOCKETS: Family = gauge(
    "ringway_pod_sockets_open",
    "namespace pod",
    "Sockets accepted for a pod of this node, captured or at its own proxy ports, that are open.",
);
const PODS_WITHOUT_WORKLOAD: Family = gauge(
    "ringway_pods_without_workload",
    "",
    "Pods that the CNI agent named and the control plane has not told of: their connections fail.",
);
const WORKLOADS: Family = gauge("ringway_mesh_workloads", "", "Workloads of the mesh that are known.");
const EXPIRY: Family = gauge(
    "ringway_certificate_expiry_timestamp_seconds",
    "identity",
    "When a certificate in use ends, in seconds since 1970.",
)
.in_unit("seconds");
const DENIALS: Family = counter(
    "ringway_policy_denials",
    "policy reason",
    "Connections that policies denied, by the policy and why.",
);
const DRY_RUN: Family = counter(
    "ringway_dry_run_verdicts",
    "policy result",
    "What policies on dry run would have said about connections that came in.",
);
const UNREADABLE: Family = gauge(
    "ringway_policies_unreadable",
    "policy",
    "Policies that could not be understood whole: what is not understood denies.",
);

/// Recorded on the control side through the `metrics` facade.
const RECORDED: [Family; 9] = [
    counter(
        "ringway_mesh_snapshots",
        "",
        "Snapshots of the mesh that were published; what came together is one.",
    ),
    counter("ringway_xds_resources_refused", "", "Resources of the control plane that could not be used."),
    counter(
        "ringway_xds_lookups_refused",
        "",
        "Look-ups that were not asked because too many had no answer.",
    ),
    counter("ringway_orders_delayed", "", "Orders to shards that had to wait because a mailbox was full."),
    counter("ringway_certificate_requests", "outcome", "Certificates asked for, by what came of it."),
    gauge("ringway_crl_lists", "", "Revocation lists in force."),
    gauge("ringway_crl_lists_expired", "", "Of these, lists whose nextUpdate is over."),
    gauge(
        "ringway_crl_lists_unsigned",
        "",
        "Of these, lists that no root or intermediate of this node's certificates has signed.",
    ),
    counter("ringway_crl_load_errors", "", "Times that the file of revocation lists could not be used."),
];

#[cfg(test)]
const SINGLE: [Family; 15] = [
    EVENT_LOOP,
    AEAD,
    SHARDS,
    ANSWERING,
    SHARD_BUSY,
    LONGEST_STALL,
    CPU_WAIT,
    LINES_DROPPED,
    POD_SOCKETS,
    PODS_WITHOUT_WORKLOAD,
    WORKLOADS,
    EXPIRY,
    DENIALS,
    DRY_RUN,
    UNREADABLE,
];

/// In the order of the page.
#[cfg(test)]
pub(super) fn all() -> Vec<Family> {
    let mut all = RECORDED.to_vec();
    all.extend(SINGLE);
    all.extend(Holding::<()>::default().each().iter().map(|(known, ())| holding(known)));
    all.extend(Engine::<()>::default().each().iter().map(|(known, ())| engine(known)));
    all.extend(Timings::<()>::default().each().iter().map(|(known, ())| timing(known)));
    all.dedup_by_key(|family| family.name);
    all
}

pub(super) fn families(page: &mut Page<'_>, scrape: &Scrape, samples: &[Sample]) {
    RECORDED.iter().for_each(|family| recorded(page, family, samples));
    process(page, scrape);
    pods(page, scrape);
    mesh(page, scrape);
    verdicts(page, &scrape.stats);
    page.family(&UNREADABLE);
    for key in scrape.sources.published.load().unreadable_policies().take(limits::VERDICT_SETS) {
        page.sample(&[key], 1);
    }
    shards(page, &scrape.stats);
}

fn process(page: &mut Page<'_>, scrape: &Scrape) {
    let (facts, stats) = (&scrape.sources.facts, &scrape.stats);
    page.family(&EVENT_LOOP);
    page.sample(&[&facts.event_loop, &facts.event_loop_cause], 1);
    page.family(&AEAD);
    page.sample(&[&facts.aead], 1);
    page.family(&SHARDS);
    page.sample(&[], scrape.shards);
    page.family(&ANSWERING);
    page.sample(&[], stats.len());
    page.family(&SHARD_BUSY);
    for shard in stats {
        page.sample(&[&shard.shard.to_string()], shard.work.busy_s);
    }
    page.family(&LONGEST_STALL);
    for shard in stats {
        page.sample(&[&shard.shard.to_string()], shard.work.longest_stall_s);
    }
    page.family(&CPU_WAIT);
    for shard in stats {
        page.sample(&[&shard.shard.to_string()], shard.work.cpu_wait_s);
    }
    page.family(&LINES_DROPPED);
    page.sample(&[], scrape.sources.lines.dropped());
}

fn pods(page: &mut Page<'_>, scrape: &Scrape) {
    let mut sums = BTreeMap::<(&str, &str), u64>::new();
    for (namespace, pod, open) in scrape.stats.iter().flat_map(|shard| &shard.pod_sockets) {
        *sums.entry((namespace, pod)).or_default() += open;
    }
    page.family(&POD_SOCKETS);
    for ((namespace, pod), open) in sums.into_iter().take(limits::PODS_TOLD) {
        page.sample(&[namespace, pod], open);
    }
    let snapshot = scrape.sources.published.load();
    if let Some(board) = scrape.sources.board.as_ref().filter(|_| snapshot.synced) {
        let unknown = board.pods().into_iter().filter(|pod| {
            let info = &pod.info;
            snapshot.local_workload((&info.name, &info.namespace, &info.service_account)).is_none()
        });
        page.family(&PODS_WITHOUT_WORKLOAD);
        page.sample(&[], unknown.count());
    }
}

fn mesh(page: &mut Page<'_>, scrape: &Scrape) {
    page.family(&WORKLOADS);
    page.sample(&[], scrape.sources.published.load().workload_count());
    page.family(&EXPIRY);
    for (identity, known) in scrape.sources.identities.all() {
        if let Standing::Available(credential) = known.standing {
            let ends = credential.not_after().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            page.sample(&[&identity.to_string()], ends.as_secs());
        }
    }
}

/// What policies said about connections that came in, and what those on dry run would have said.
fn verdicts(page: &mut Page<'_>, stats: &[ShardStats]) {
    let mut sums: BTreeMap<(Said, String), u64> = BTreeMap::new();
    for verdict in stats.iter().flat_map(|shard| &shard.verdicts) {
        let policy = if verdict.name.is_empty() {
            String::new()
        } else {
            format!("{}/{}", verdict.namespace, verdict.name)
        };
        *sums.entry((verdict.said, policy)).or_default() += verdict.count;
    }
    for ((said, policy), sum) in sums {
        let (family, word) = match said {
            Said::Denied => (&DENIALS, "explicit"),
            Said::NoneAllowed => (&DENIALS, "none_allowed"),
            Said::NotSynced => (&DENIALS, "not_synced"),
            Said::WouldDeny => (&DRY_RUN, "deny"),
            Said::WouldAllow => (&DRY_RUN, "allow"),
            Said::WouldAllowNone => (&DRY_RUN, "none_allowed"),
        };
        page.family(family);
        page.sample(&[&policy, word], sum);
    }
}

/// What each shard holds and counts, shard by shard; what takes time, all together.
fn shards(page: &mut Page<'_>, stats: &[ShardStats]) {
    for (at, (known, ())) in Holding::<()>::default().each().into_iter().enumerate() {
        page.family(&holding(&known));
        for shard in stats {
            let value = shard.holding.each().get(at).map_or(0, |(_, value)| **value);
            let number = shard.shard.to_string();
            let values: Vec<_> = known.label.map(|(_, value)| value).into_iter().chain([&*number]).collect();
            page.sample(&values, value);
        }
    }
    for (at, (known, ())) in Engine::<()>::default().each().into_iter().enumerate() {
        page.family(&engine(&known));
        for shard in stats {
            let value = shard.engine.each().get(at).map_or(0, |(_, value)| **value);
            page.sample(&[&shard.shard.to_string()], value);
        }
    }
    let bounds = TIMING_BUCKETS_NS.map(seconds);
    for (at, (known, ())) in Timings::<()>::default().each().into_iter().enumerate() {
        let mut sum = Timing::default();
        for shard in stats {
            let all = shard.timings.each();
            let Some((_, timing)) = all.get(at) else { continue };
            sum.sum_ns = sum.sum_ns.saturating_add(timing.sum_ns);
            sum.buckets.iter_mut().zip(timing.buckets).for_each(|(sum, count)| *sum += count);
        }
        page.family(&timing(&known));
        let values: Vec<_> = known.label.map(|(_, value)| value).into_iter().collect();
        page.buckets(&values, &bounds, &sum.buckets, seconds(sum.sum_ns));
    }
}

fn holding(known: &Known) -> Family {
    let family = gauge(known.name, if known.label.is_some() { "side shard" } else { "shard" }, known.help);
    with_unit(family)
}

fn engine(known: &Known) -> Family {
    counter(known.name, "shard", known.help)
}

fn timing(known: &Known) -> Family {
    let labels = known.label.map_or("", |(name, _)| name);
    with_unit(Family { name: known.name, kind: Kind::Histogram, help: known.help, unit: None, labels })
}

fn with_unit(family: Family) -> Family {
    let unit = ["seconds", "bytes"].into_iter().find(|unit| family.name.ends_with(unit));
    Family { unit, ..family }
}

#[expect(clippy::cast_precision_loss, reason = "sums beyond 104 days lose nanoseconds")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
