//! The metrics server (port 15020): sums what the shards counted, adds the control side's own, and writes
//! OpenMetrics text. Names, help, order of families and of labels are the reference's (sections 15, 17.2); ours are
//! named `ringway_*` and come after.

mod names;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::{HeaderMap, StatusCode};

use crate::base::limits;
use crate::bridge::identities::{Identities, Standing};
use crate::bridge::lines::LineSink;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::Order;
use crate::bridge::published::Published;
use crate::bridge::report::{ConnectionCounts, Said, ShardStats};
use crate::control::control::Facts;
use crate::control::http::{self, Answering, Handler, Question, Reply};
use crate::control::recorder::{Kind, Registry, Sample};
use crate::control::shards;
use crate::mesh::labels::{Flag, LabelSet, Labels, Party, Reporter};

/// Answers scrapes.
pub struct MetricsServer {
    pub shards: Vec<Mailbox<Order>>,
    pub registry: Registry,
    pub facts: Facts,
    pub identities: Arc<Identities>,
    pub published: Arc<Published>,
    pub lines: LineSink,
}

impl Handler for MetricsServer {
    fn answer(&self, question: Question) -> Answering<'_> {
        Box::pin(async move {
            if !matches!(question.uri.path(), "/metrics" | "/stats/prometheus") {
                return http::empty(StatusCode::NOT_FOUND);
            }
            let stats = shards::ask(&self.shards, Order::Scrape).await;
            reply(&question.headers, self.render(&stats))
        })
    }
}

impl MetricsServer {
    fn render(&self, stats: &[ShardStats]) -> String {
        let mut page = Page::default();
        process(&mut page);
        page.family("istio_build", "Istio component build info.", Kind::Gauge, None);
        page.sample("", &[("component", "ztunnel"), ("tag", &self.facts.istio_version)], 1.0);
        let samples = self.registry.samples();
        for known in FACADE_FIRST {
            page.facade(known, &samples);
        }
        connections(&mut page, stats);
        revocations(&mut page, stats);
        names::families(&mut page, stats);
        for known in FACADE_LAST {
            page.facade(known, &samples);
        }
        self.ours(&mut page, stats);
        page.finish()
    }

    fn ours(&self, page: &mut Page, stats: &[ShardStats]) {
        page.family(
            "ringway_event_loop",
            "The event loop of the shards, and why it is not io_uring.",
            Kind::Gauge,
            None,
        );
        let (kind, cause) = (&self.facts.event_loop, &self.facts.event_loop_cause);
        page.sample("", &[("kind", kind), ("cause", cause)], 1.0);
        page.family(
            "ringway_log_lines_dropped",
            "Log lines that the writer could not take.",
            Kind::Counter,
            None,
        );
        page.sample("_total", &[], count(self.lines.dropped()));
        page.family("ringway_shards", "Shards that this process has.", Kind::Gauge, None);
        page.sample("", &[], count_of(self.shards.len()));
        page.family(
            "ringway_shards_answering",
            "Shards that answered this scrape in time.",
            Kind::Gauge,
            None,
        );
        page.sample("", &[], count_of(stats.len()));
        let help = "When a certificate in use ends, in seconds since 1970.";
        page.family("ringway_certificate_expiry_timestamp_seconds", help, Kind::Gauge, Some("seconds"));
        for (identity, known) in self.identities.all() {
            if let Standing::Available(credential) = known.standing {
                let ends = credential.not_after().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                page.sample("", &[("identity", &identity.to_string())], ends.as_secs_f64());
            }
        }
        verdicts(page, stats);
        let help = "Policies that could not be understood whole: what is not understood denies.";
        page.family("ringway_policies_unreadable", help, Kind::Gauge, None);
        let snapshot = self.published.load();
        for key in snapshot.unreadable_policies().take(limits::VERDICT_SETS) {
            page.sample("", &[("policy", key)], 1.0);
        }
        let mut engine: Vec<(&str, &str, usize, u64)> = Vec::new();
        for shard in stats {
            engine.extend(shard.engine.iter().map(|(name, help, value)| (*name, *help, shard.shard, *value)));
        }
        engine.sort_unstable();
        for (name, help, shard, value) in engine {
            page.family(&format!("ringway_{name}"), help, Kind::Counter, None);
            page.sample("_total", &[("shard", &shard.to_string())], count(value));
        }
    }
}

/// What policies said about connections that came in, and what those on dry run would have said.
fn verdicts(page: &mut Page, stats: &[ShardStats]) {
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
        let (dry_run, word) = match said {
            Said::Denied => (false, "explicit"),
            Said::NoneAllowed => (false, "none_allowed"),
            Said::NotSynced => (false, "not_synced"),
            Said::WouldDeny => (true, "deny"),
            Said::WouldAllow => (true, "allow"),
            Said::WouldAllowNone => (true, "none_allowed"),
        };
        if dry_run {
            let help = "What policies on dry run would have said about connections that came in.";
            page.family("ringway_dry_run_verdicts", help, Kind::Counter, None);
            page.sample("_total", &[("policy", &policy), ("result", word)], count(sum));
        } else {
            let help = "Connections that policies denied, by the policy and why.";
            page.family("ringway_policy_denials", help, Kind::Counter, None);
            page.sample("_total", &[("policy", &policy), ("reason", word)], count(sum));
        }
    }
}

/// One family that the control side records through the `metrics` facade.
struct Known {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    unit: Option<&'static str>,
}

const fn known(name: &'static str, help: &'static str, kind: Kind, unit: Option<&'static str>) -> Known {
    Known { name, help, kind, unit }
}

/// In the order of the reference's page: these stand before the connections,
const FACADE_FIRST: &[Known] = &[
    known(
        "istio_xds_connection_terminations",
        "The total number of completed connections to xds server (unstable).",
        Kind::Counter,
        None,
    ),
    known("istio_xds_message", "Total number of messages received (unstable).", Kind::Counter, None),
    known(
        "istio_xds_message_bytes",
        "Total number of bytes received (unstable).",
        Kind::Counter,
        Some("bytes"),
    ),
];
/// and these after them.
const FACADE_LAST: &[Known] = &[
    known(
        "workload_manager_active_proxy_count",
        "The total number current workloads with active proxies (unstable).",
        Kind::Gauge,
        None,
    ),
    known(
        "workload_manager_pending_proxy_count",
        "The total number current workloads with pending proxies (unstable).",
        Kind::Gauge,
        None,
    ),
    known(
        "workload_manager_proxies_started",
        "The total number of proxies that were started (unstable).",
        Kind::Counter,
        None,
    ),
    known(
        "workload_manager_proxies_stopped",
        "The total number of proxies that were stopped (unstable).",
        Kind::Counter,
        None,
    ),
    known(
        "ringway_mesh_snapshots",
        "Snapshots of the mesh that were published; what came together is one.",
        Kind::Counter,
        None,
    ),
    known(
        "ringway_xds_resources_refused",
        "Resources of the control plane that could not be used.",
        Kind::Counter,
        None,
    ),
    known(
        "ringway_xds_lookups_refused",
        "Look-ups that were not asked because too many had no answer.",
        Kind::Counter,
        None,
    ),
    known(
        "ringway_orders_delayed",
        "Orders to shards that had to wait because a mailbox was full.",
        Kind::Counter,
        None,
    ),
    known("ringway_certificate_requests", "Certificates asked for, by what came of it.", Kind::Counter, None),
    known("ringway_crl_lists", "Revocation lists in force.", Kind::Gauge, None),
    known("ringway_crl_lists_expired", "Of these, lists whose nextUpdate is over.", Kind::Gauge, None),
    known(
        "ringway_crl_lists_unsigned",
        "Of these, lists that no root or intermediate of this node's certificates has signed.",
        Kind::Gauge,
        None,
    ),
    known(
        "ringway_crl_load_errors",
        "Times that the file of revocation lists could not be used.",
        Kind::Counter,
        None,
    ),
];

/// The text being written. A family's head appears with its first sample.
#[derive(Default)]
struct Page {
    text: String,
    name: String,
    head: Option<String>,
}

impl Page {
    fn family(&mut self, name: &str, help: &str, kind: Kind, unit: Option<&str>) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.head(name, help, kind, unit);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str, unit: Option<&str>) {
        if self.name == name {
            return;
        }
        name.clone_into(&mut self.name);
        let mut head = format!("# HELP {name} {}\n# TYPE {name} {kind}\n", escaped(help));
        if let Some(unit) = unit {
            let _ = writeln!(head, "# UNIT {name} {unit}");
        }
        self.head = Some(head);
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let mut rendered = String::new();
        for (name, value) in labels {
            label(&mut rendered, name, value);
        }
        self.sample_with(suffix, &rendered, value);
    }

    fn sample_with(&mut self, suffix: &str, labels: &str, value: f64) {
        if let Some(head) = self.head.take() {
            self.text.push_str(&head);
        }
        let _ = if labels.is_empty() {
            writeln!(self.text, "{}{suffix} {value}", self.name)
        } else {
            writeln!(self.text, "{}{suffix}{{{labels}}} {value}", self.name)
        };
    }

    fn facade(&mut self, known: &Known, samples: &[Sample]) {
        self.family(known.name, known.help, known.kind, known.unit);
        let suffix = if known.kind == Kind::Counter { "_total" } else { "" };
        for sample in samples.iter().filter(|sample| sample.name == known.name && sample.kind == known.kind) {
            let labels: Vec<(&str, &str)> =
                sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            self.sample(suffix, &labels, sample.value);
        }
    }

    fn finish(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

fn process(page: &mut Page) {
    if let Ok(open) = crate::sys::proc::open_fds() {
        page.family("process_open_fds", "Number of open file descriptors", Kind::Gauge, None);
        page.sample("", &[], count_of(open));
    }
    page.family("process_max_fds", "Maximum number of file descriptors", Kind::Gauge, None);
    if let Some(limit) = crate::sys::proc::nofile() {
        page.sample("", &[], count(limit));
    }
}

/// The counters of all shards, one entry a label set.
fn connections(page: &mut Page, stats: &[ShardStats]) {
    let sums = sum(stats);
    let mut rendered: Vec<(Rendered, &ConnectionCounts)> =
        sums.iter().map(|counts| (Rendered::of(&counts.labels), counts)).collect();
    rendered.sort_by(|left, right| left.0.cmp(&right.0));
    type Value = fn(&ConnectionCounts) -> u64;
    let plain: [(&str, &str, Value); 3] = [
        ("istio_tcp_connections_opened", "The total number of TCP connections opened.", |counts| {
            counts.opened
        }),
        (
            "istio_tcp_received_bytes",
            "The size of total bytes received during request in case of a TCP connection.",
            |counts| counts.received_bytes,
        ),
        (
            "istio_tcp_sent_bytes",
            "The size of total bytes sent during response in case of a TCP connection.",
            |counts| counts.sent_bytes,
        ),
    ];
    let by_flag = |page: &mut Page, name: &str, help: &str, wanted: fn(Flag) -> bool| {
        page.family(name, help, Kind::Counter, None);
        for (labels, counts) in &rendered {
            for (flag, value) in counts.closed.iter().filter(|(flag, value)| wanted(*flag) && *value > 0) {
                page.sample_with("_total", &labels.with(*flag), count(*value));
            }
        }
    };
    for (at, (name, help, value)) in plain.into_iter().enumerate() {
        page.family(name, help, Kind::Counter, None);
        for (labels, counts) in &rendered {
            page.sample_with("_total", &labels.with(Flag::None), count(value(counts)));
        }
        if at == 0 {
            by_flag(
                page,
                "istio_tcp_connections_closed",
                "The total number of TCP connections closed.",
                |_| true,
            );
        }
    }
    on_demand_dns(page, stats);
    let help = "The total number of TCP connections that failed to establish (unstable).";
    by_flag(page, "istio_tcp_connections_failed", help, |flag| flag != Flag::None);
    page.family(
        "istio_tcp_sockets_open",
        "The current number of open TCP sockets (unstable).",
        Kind::Gauge,
        None,
    );
    for reporter in [Reporter::Source, Reporter::Destination] {
        let of = stats.iter().flat_map(|shard| &shard.sockets_open).filter(|(of, _)| *of == reporter);
        let (mut known, mut open) = (false, 0);
        for (_, sockets) in of {
            (known, open) = (true, open + sockets);
        }
        if known {
            page.sample("", &[("reporter", reporter.as_str())], count(open));
        }
    }
}

/// Requests for host names' addresses, of all shards together.
fn on_demand_dns(page: &mut Page, stats: &[ShardStats]) {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (source, host, times) in stats.iter().flat_map(|shard| &shard.on_demand_dns) {
        let mut labels = String::new();
        party(&mut labels, "source", source);
        label(&mut labels, "hostname", host);
        *sums.entry(labels).or_default() += times;
    }
    let help = "The total number of requests that used on-demand DNS (unstable).";
    page.family("istio_on_demand_dns", help, Kind::Counter, None);
    for (labels, times) in sums {
        page.sample_with("_total", &labels, count(times));
    }
}

/// Revoked peers. Every tunnel is tracked here, so the reference's second counter stays 0.
fn revocations(page: &mut Page, stats: &[ShardStats]) {
    let all = || stats.iter().flat_map(|shard| &shard.crl_rejections);
    let reporters = [Reporter::Source, Reporter::Destination];
    let known = || reporters.into_iter().filter(|reporter| all().any(|(of, _)| of == reporter));
    page.family(
        "istio_crl_policy_rejections",
        "The total number of connections rejected due to CRL certificate revocation (unstable).",
        Kind::Counter,
        None,
    );
    for reporter in known() {
        let sum = all().filter(|(of, _)| *of == reporter).map(|(_, rejections)| rejections).sum();
        page.sample("_total", &[("reporter", reporter.as_str())], count(sum));
    }
    page.family(
        "istio_crl_untracked_connections",
        "The total number of connections not tracked for CRL enforcement (unstable).",
        Kind::Counter,
        None,
    );
    for reporter in known() {
        page.sample("_total", &[("reporter", reporter.as_str())], 0.0);
    }
}

fn sum(stats: &[ShardStats]) -> Vec<ConnectionCounts> {
    let mut at: HashMap<LabelSet, usize, foldhash::fast::RandomState> = HashMap::default();
    let mut sums: Vec<ConnectionCounts> = Vec::new();
    for counts in stats.iter().flat_map(|shard| &shard.connections) {
        let next = sums.len();
        let place = *at.entry(counts.labels.clone()).or_insert(next);
        let Some(total) = sums.get_mut(place) else {
            sums.push(counts.clone());
            continue;
        };
        total.opened += counts.opened;
        total.received_bytes += counts.received_bytes;
        total.sent_bytes += counts.sent_bytes;
        for (flag, value) in &counts.closed {
            match total.closed.iter_mut().find(|(of, _)| of == flag) {
                Some((_, sum)) => *sum += value,
                None => total.closed.push((*flag, *value)),
            }
        }
    }
    sums
}

/// Labels as text, cut where `response_flags` goes in.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rendered {
    before: String,
    after: String,
}

impl Rendered {
    fn of(labels: &Labels) -> Self {
        let mut before = String::with_capacity(900);
        label(&mut before, "reporter", labels.reporter.as_str());
        let nobody = Party::default();
        let source = labels.source.as_ref().unwrap_or(&nobody);
        let destination = labels.destination.as_ref().unwrap_or(&nobody);
        party(&mut before, "source", source);
        let service = labels.service.clone().unwrap_or_default();
        label(&mut before, "destination_service", &service.hostname);
        label(&mut before, "destination_service_namespace", &service.namespace);
        label(&mut before, "destination_service_name", &service.name);
        party(&mut before, "destination", destination);
        label(&mut before, "request_protocol", "tcp");
        let mut after = String::new();
        label(&mut after, "connection_security_policy", labels.security.as_str());
        if labels.source.is_some() || labels.destination.is_some() {
            label(&mut after, "source_region", &source.region);
            label(&mut after, "source_zone", &source.zone);
            label(&mut after, "destination_region", &destination.region);
            label(&mut after, "destination_zone", &destination.zone);
        }
        Self { before, after }
    }

    fn with(&self, flag: Flag) -> String {
        format!("{},response_flags=\"{}\",{}", self.before, flag.as_str(), self.after)
    }
}

fn party(to: &mut String, side: &str, party: &Party) {
    let principal = party.principal.as_ref().map(ToString::to_string).unwrap_or_default();
    for (name, value) in [
        ("workload", &*party.workload),
        ("canonical_service", &party.canonical_service),
        ("canonical_revision", &party.canonical_revision),
        ("workload_namespace", &party.namespace),
        ("principal", &principal),
        ("app", &party.app),
        ("version", &party.canonical_revision),
        ("cluster", &party.cluster),
    ] {
        label(to, &format!("{side}_{name}"), value);
    }
}

/// `name="value"`, after a comma where it isn't the first; nothing is `unknown`.
fn label(to: &mut String, name: &str, value: &str) {
    let comma = if to.is_empty() { "" } else { "," };
    let value = if value.is_empty() { "unknown" } else { value };
    let _ = write!(to, "{comma}{name}=\"{}\"", escaped(value));
}

/// OpenMetrics escaping of label values and help texts.
fn escaped(value: &str) -> std::borrow::Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return value.into();
    }
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a counter beyond 2^53 loses its last digits on the page only"
)]
fn count(value: u64) -> f64 {
    value as f64
}

fn count_of(value: usize) -> f64 {
    count(u64::try_from(value).unwrap_or(u64::MAX))
}

/// The type that the scraper asked for; the body is the same.
fn reply(headers: &HeaderMap, body: String) -> Reply {
    const OPEN_METRICS: &str = "application/openmetrics-text";
    let asked = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let asked = asked
        .flat_map(|value| value.split(','))
        // Not trimmed, as in the reference: a blank after the comma keeps the answer plain.
        .any(|element| element.split(';').next().is_some_and(|kind| kind.eq_ignore_ascii_case(OPEN_METRICS)));
    let kind = if asked {
        "application/openmetrics-text;charset=utf-8;version=1.0.0"
    } else {
        "text/plain; charset=utf-8"
    };
    http::with_header(http::plain(StatusCode::OK, body), CONTENT_TYPE.as_str(), kind)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
