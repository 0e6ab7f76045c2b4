//! Families of the reference that aren't about connections (section 15.1): the process, its threads, the build, the
//! control plane, the pods' proxies. Names, help and order are the reference's.

use super::Scrape;
use super::family::{Family, Page, counter, gauge};
use crate::control::recorder::Sample;
use crate::sys::proc;

const OPEN_FDS: Family = gauge("process_open_fds", "", "Number of open file descriptors");
const MAX_FDS: Family = gauge("process_max_fds", "", "Maximum number of file descriptors");

const WORKERS: Family = gauge("tokio_num_workers", "", "the number of worker threads used by the runtime");
const QUEUE: Family = gauge(
    "tokio_global_queue_depth",
    "",
    "the number of tasks currently scheduled in the runtime's global queue",
);
const TASKS: Family = gauge("tokio_num_alive_tasks", "", "the number of alive tasks in the runtime");
const BUSY: Family = counter(
    "tokio_worker_total_busy_duration_seconds",
    "worker",
    "the amount of time worker threads have been busy",
);
const PARKS: Family = counter(
    "tokio_worker_park_count",
    "worker",
    "the total number of times the given worker thread has parked",
);
const PARKS_AND_UNPARKS: Family = counter(
    "tokio_worker_park_unpark_count",
    "worker",
    "the total number of times the given worker thread has parked and unparked",
);

const BUILD: Family = gauge("istio_build", "component tag", "Istio component build info.");

/// Recorded on the control side through the `metrics` facade, before the connections on the page,
const XDS: [Family; 3] = [
    counter(
        "istio_xds_connection_terminations",
        "reason",
        "The total number of completed connections to xds server (unstable).",
    ),
    counter("istio_xds_message", "url", "Total number of messages received (unstable)."),
    counter("istio_xds_message_bytes", "url", "Total number of bytes received (unstable).").in_unit("bytes"),
];
/// and after them.
const PROXIES: [Family; 4] = [
    gauge(
        "workload_manager_active_proxy_count",
        "",
        "The total number current workloads with active proxies (unstable).",
    ),
    gauge(
        "workload_manager_pending_proxy_count",
        "",
        "The total number current workloads with pending proxies (unstable).",
    ),
    counter(
        "workload_manager_proxies_started",
        "",
        "The total number of proxies that were started (unstable).",
    ),
    counter(
        "workload_manager_proxies_stopped",
        "",
        "The total number of proxies that were stopped (unstable).",
    ),
];

#[cfg(test)]
pub(super) const BEFORE_CONNECTIONS: [Family; 12] =
    [OPEN_FDS, MAX_FDS, WORKERS, QUEUE, TASKS, BUSY, PARKS, PARKS_AND_UNPARKS, BUILD, XDS[0], XDS[1], XDS[2]];
#[cfg(test)]
pub(super) const AFTER_CONNECTIONS: [Family; 4] = PROXIES;

pub(super) fn before_connections(page: &mut Page<'_>, scrape: &Scrape, samples: &[Sample]) {
    process(page);
    runtime(page, scrape);
    page.family(&BUILD);
    let tag = &scrape.sources.facts.istio_version;
    page.sample(&["ztunnel", tag], 1);
    XDS.iter().for_each(|family| recorded(page, family, samples));
}

pub(super) fn after_connections(page: &mut Page<'_>, samples: &[Sample]) {
    PROXIES.iter().for_each(|family| recorded(page, family, samples));
}

/// The samples of one family that the control side records.
pub(super) fn recorded(page: &mut Page<'_>, family: &Family, samples: &[Sample]) {
    page.family(family);
    for sample in samples.iter().filter(|sample| sample.name == family.name) {
        let value = |name| {
            let of_name = sample.labels.iter().find(|(other, _)| other == name);
            of_name.map_or("", |(_, value)| value.as_str())
        };
        let values: Vec<_> = family.labels.split_whitespace().map(value).collect();
        page.sample(&values, sample.value);
    }
}

fn process(page: &mut Page<'_>) {
    if let Ok(open) = proc::open_fds() {
        page.family(&OPEN_FDS);
        page.sample(&[], open);
    }
    if let Some(limit) = proc::nofile() {
        page.family(&MAX_FDS);
        page.sample(&[], limit);
    }
}

/// The reference's workers are its data plane's threads; here those are the shards, which run on no tokio. Tasks are
/// those of the shards' pods, and of the control thread, which does; that one has the only global queue there is.
fn runtime(page: &mut Page<'_>, scrape: &Scrape) {
    page.family(&WORKERS);
    page.sample(&[], scrape.shards);
    page.family(&QUEUE);
    page.sample(&[], scrape.control.queued);
    page.family(&TASKS);
    page.sample(&[], scrape.control.tasks + scrape.stats.iter().map(|shard| shard.work.tasks).sum::<u64>());
    page.family(&BUSY);
    for shard in &scrape.stats {
        page.sample(&[&shard.shard.to_string()], shard.work.busy_s);
    }
    page.family(&PARKS);
    for shard in &scrape.stats {
        page.sample(&[&shard.shard.to_string()], shard.work.parks);
    }
    page.family(&PARKS_AND_UNPARKS);
    for shard in &scrape.stats {
        // Even: a worker that answers isn't parked.
        page.sample(&[&shard.shard.to_string()], shard.work.parks.saturating_mul(2));
    }
}
