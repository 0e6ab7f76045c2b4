//! The scenarios of design/measuring.md that need no control plane: what load, and which figures come of it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::arm::{Programs, Proxies, SERVER_PORT, Stage};
use super::process::{Process, Usage};
use crate::load::outcome::{Latency, Outcome};
use crate::topology::{CLIENT, SERVER, Side};

const LOAD_DEADLINE: Duration = Duration::from_secs(60);
pub const SETTLE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Scenario {
    /// Bulk up, one stream.
    Up1,
    /// Bulk down, one stream.
    Down1,
    /// Bulk up, eight streams.
    Up8,
    /// A lone request of 1 KiB and its response, again and again.
    Rr1,
    /// 1 KiB each way on 16 connections.
    #[value(name = "rr1k_16")]
    Rr1k16,
    /// 1 KiB each way on 64 connections.
    #[value(name = "rr1k_64")]
    Rr1k64,
    /// A new connection for each request, on a warm tunnel.
    Crr,
    /// A new tunnel for each request: mutual TLS each time.
    Cold,
    /// Connections held.
    Idle,
    /// Connections used all at once, then closed: what memory stays.
    UsedThenIdle,
    /// Requests beside downloads that nobody reads, on one tunnel.
    SlowReader,
    /// Requests beside an upload and a download at full speed, on one tunnel.
    ElephantMice,
    /// Requests beside an upload that leaves every CPU time to spare, on one tunnel.
    PacedElephant,
}

/// How much of each.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub seconds: f64,
    pub held: u16,
    /// Memory is given back by timers: how long after a burst it is measured.
    pub give_back: Duration,
    /// Addresses of the client that cold tunnels come from: each meets every address of the server.
    pub sources: usize,
}

/// Who else is on the tunnel of the small requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    None,
    Whole,
}

/// One arm's figures of one round.
pub type Figures = BTreeMap<String, f64>;

impl Scenario {
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn arguments(self, size: Size, company: Company) -> Vec<String> {
        let (held, seconds) = (size.held.to_string(), size.seconds.to_string());
        let specific: &[&str] = match self {
            Self::Up1 => &["bulk", "--way", "up"],
            Self::Down1 => &["bulk", "--way", "down"],
            Self::Up8 => &["bulk", "--way", "up", "--connections", "8"],
            Self::Rr1 => &["rr"],
            Self::Rr1k16 => &["rr", "--connections", "16"],
            Self::Rr1k64 => &["rr", "--connections", "64"],
            Self::Crr => &["crr", "--connections", "4", "--request-bytes", "64", "--response-bytes", "64"],
            Self::Cold => &["cold", "--request-bytes", "64", "--response-bytes", "64"],
            Self::Idle => {
                &["hold", "--connections", &held, "--request-bytes", "64", "--response-bytes", "64"]
            }
            Self::UsedThenIdle => &[
                "hold",
                "--connections",
                &held,
                "--exchanges",
                "4",
                "--request-bytes",
                "1024",
                "--response-bytes",
                "1024",
            ],
            Self::SlowReader if company == Company::None => &["mix", "--connections", "4", "--rate", "100"],
            Self::SlowReader => &["mix", "--unread", "8", "--connections", "4", "--rate", "100"],
            Self::ElephantMice | Self::PacedElephant if company == Company::None => {
                &["mix", "--connections", "4", "--rate", "50"]
            }
            // 20 MB a second.
            Self::PacedElephant => {
                &["mix", "--uploads", "1", "--pace", "2e7", "--connections", "4", "--rate", "50"]
            }
            Self::ElephantMice => {
                &["mix", "--uploads", "1", "--downloads", "1", "--connections", "4", "--rate", "50"]
            }
        };
        let mut arguments: Vec<String> = specific.iter().map(ToString::to_string).collect();
        arguments.extend(["--to".into(), format!("{SERVER}:{SERVER_PORT}"), "--gate".into()]);
        arguments.extend(["--seconds".into(), seconds]);
        if self == Self::Cold {
            arguments.extend(["--from".into(), listed(Side::Client, 0, size.sources)]);
            arguments.extend(["--others".into(), listed(Side::Server, 1, usize::MAX)]);
        }
        arguments
    }

    /// The load client, warmed up: the next word to it begins what is measured.
    pub fn begin(self, stage: &Stage, programs: &Programs, size: Size) -> Result<Process> {
        self.begin_with(Company::Whole, stage, programs, size)
    }

    fn begin_with(self, company: Company, stage: &Stage, programs: &Programs, size: Size) -> Result<Process> {
        let mut load = stage.load(&self.arguments(size, company), programs)?;
        let said = load.line(LOAD_DEADLINE)?;
        ensure!(said == "ready", "{said:?} instead of ready");
        Ok(load)
    }

    /// What the small requests take where nothing else is on their tunnel; none for scenarios without company.
    fn alone(self, stage: &Stage, programs: &Programs, size: Size) -> Result<Option<Latency>> {
        if !matches!(self, Self::SlowReader | Self::ElephantMice | Self::PacedElephant) {
            return Ok(None);
        }
        let mut load = self.begin_with(Company::None, stage, programs, size)?;
        load.proceed()?;
        let outcome = outcome_of(&mut load)?;
        end(load)?;
        if let Some(first) = &outcome.first_error {
            anyhow::bail!("{} errors of requests alone, the first: {first}", outcome.errors);
        }
        ensure!(outcome.unanswered == 0, "{} requests alone had no answer", outcome.unanswered);
        Ok(Some(outcome.latency.context("no request was made alone")?))
    }

    /// Runs once on fresh proxies and checks that everything arrived.
    pub fn run(self, stage: &Stage, programs: &Programs, size: Size) -> Result<Figures> {
        let proxies = stage.start(programs)?;
        std::thread::sleep(SETTLE);
        let alone = self.alone(stage, programs, size)?;
        let rest = proxies.usage();
        let mut load = self.begin(stage, programs, size)?;
        let mut figures = Figures::new();
        if matches!(self, Self::Idle | Self::UsedThenIdle) {
            held(&mut figures, &proxies, rest, size);
        }
        let (before, server) = (proxies.usage(), stage.server.usage());
        let client = load.usage();
        load.proceed()?;
        let outcome = outcome_of(&mut load)?;
        let used = proxies.usage() - before;
        let load_used = (stage.server.usage() - server) + (load.usage() - client);
        end(load)?;
        self.check(&outcome, stage)?;
        self.figures(&mut figures, &outcome, used);
        if let Some(alone) = alone {
            beside(&mut figures, alone, outcome.latency);
        }
        if self == Self::SlowReader {
            let grown = (proxies.usage() - rest).anonymous_bytes;
            figures.insert("memory_grown_bytes".into(), grown as f64);
        }
        figures.insert("load_cpu_share".into(), load_used.cpu_seconds / outcome.seconds);
        figures.insert("proxy_cpu_share".into(), used.cpu_seconds / outcome.seconds);
        if self == Self::UsedThenIdle {
            std::thread::sleep(size.give_back);
            let kept = (proxies.usage() - rest).anonymous_bytes as f64;
            figures.insert("kept_bytes".into(), kept);
            figures.insert("kept_to_rest".into(), kept / rest.memory_bytes as f64);
        }
        // Cold means a handshake each.
        stage.check_handshakes(if self == Self::Cold { outcome.operations } else { 1 })?;
        drop(proxies);
        if self == Self::Crr && stage.arm.is_encrypted() {
            check_log(stage, outcome.operations)?;
        }
        Ok(figures)
    }

    /// Fails unless everything arrived, and the server saw the client's own address.
    pub fn check(self, outcome: &Outcome, stage: &Stage) -> Result<()> {
        let stalls_allowed = self == Self::SlowReader;
        if let (Some(first), false) = (&outcome.first_error, stalls_allowed) {
            anyhow::bail!("{} errors, the first: {first}", outcome.errors);
        }
        ensure!(outcome.unanswered == 0 || stalls_allowed, "{} requests had no answer", outcome.unanswered);
        ensure!(outcome.operations > 0 || stalls_allowed, "nothing was done");
        let bulk =
            matches!(self, Self::Up1 | Self::Down1 | Self::Up8 | Self::ElephantMice | Self::PacedElephant);
        ensure!(outcome.bytes > 0 || !bulk, "no bytes arrived");
        let seen = outcome.seen_as.as_deref().context("no connection was made")?;
        let ours = Side::Client.addresses().any(|address| address.to_string() == seen);
        ensure!(ours, "the server saw {seen} instead of {CLIENT} through {}", stage.arm.name());
        Ok(())
    }

    fn figures(self, figures: &mut Figures, outcome: &Outcome, used: Usage) {
        let mut put = |name: &str, value: f64| {
            figures.insert(name.to_owned(), value);
        };
        let gigabytes = outcome.bytes as f64 / 1e9;
        let operations = outcome.operations as f64;
        match self {
            Self::Up1 | Self::Down1 | Self::Up8 => {
                put("cpu_s_per_gb", used.cpu_seconds / gigabytes);
                put("gb_per_s", gigabytes / outcome.seconds);
            }
            Self::Rr1 | Self::Rr1k16 | Self::Rr1k64 | Self::Crr | Self::Cold => {
                put("cpu_us_per_operation", used.cpu_seconds * 1e6 / operations);
                put("operations_per_s", operations / outcome.seconds);
                put("wakeups_per_operation", used.wakeups as f64 / operations);
            }
            Self::Idle | Self::UsedThenIdle => return,
            Self::SlowReader => {
                put("operations_per_s", operations / outcome.seconds);
                put("unanswered", outcome.unanswered as f64 + outcome.errors as f64);
            }
            Self::ElephantMice | Self::PacedElephant => {
                put("gb_per_s", gigabytes / outcome.seconds);
                put("cpu_s_per_gb", used.cpu_seconds / gigabytes);
            }
        }
        if let Some(latency) = outcome.latency {
            put("p50_us", latency.p50_us as f64);
            put("p99_us", latency.p99_us as f64);
        }
    }
}

/// What the client found; waits until it has.
pub fn outcome_of(load: &mut Process) -> Result<Outcome> {
    Ok(serde_json::from_str(&load.line(LOAD_DEADLINE)?)?)
}

/// Lets go of what the client holds.
pub fn end(mut load: Process) -> Result<()> {
    load.proceed()?;
    load.finished(LOAD_DEADLINE)
}

/// A proxy that writes no access log does less work than one that does. Lines may be dropped under load, but
/// not most of them.
fn check_log(stage: &Stage, operations: u64) -> Result<()> {
    for side in [Side::Client, Side::Server] {
        let path = stage.log(side);
        let log = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let lines = log.lines().filter(|line| line.contains("connection complete")).count() as u64;
        ensure!(2 * lines > operations, "{lines} access-log lines of the {} for {operations}", side.node());
    }
    Ok(())
}

/// Requests beside the others, as multiples of the same requests alone, of the same proxies: what company costs them.
fn beside(figures: &mut Figures, alone: Latency, beside: Option<Latency>) {
    let mut put = |name: &str, value: f64| {
        figures.insert(name.to_owned(), value);
    };
    put("alone_p50_us", alone.p50_us as f64);
    put("alone_p99_us", alone.p99_us as f64);
    // Where none was answered, `unanswered` tells it.
    if let Some(beside) = beside {
        put("p50_to_alone", beside.p50_us as f64 / alone.p50_us.max(1) as f64);
        put("p99_to_alone", beside.p99_us as f64 / alone.p99_us.max(1) as f64);
    }
}

/// Memory of held connections, and what they cost while nothing moves.
fn held(figures: &mut Figures, proxies: &Proxies, rest: Usage, size: Size) {
    std::thread::sleep(SETTLE);
    let holding = proxies.usage();
    let grown = (holding - rest).anonymous_bytes as f64;
    let mut put = |name: &str, value: f64| {
        figures.insert(name.to_owned(), value);
    };
    put("rest_bytes", rest.memory_bytes as f64);
    put("held_bytes", grown);
    put("held_bytes_per_connection", grown / f64::from(size.held));
    std::thread::sleep(Duration::try_from_secs_f64(size.seconds).unwrap_or(SETTLE));
    let idle = proxies.usage() - holding;
    put("idle_cpu_ms_per_s", idle.cpu_seconds * 1e3 / size.seconds);
    put("idle_wakeups_per_s", idle.wakeups as f64 / size.seconds);
}

fn listed(side: Side, skip: usize, most: usize) -> String {
    side.addresses().skip(skip).take(most).map(|address| address.to_string()).collect::<Vec<_>>().join(",")
}
