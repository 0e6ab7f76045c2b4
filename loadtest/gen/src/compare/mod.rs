//! The comparison: arms on topologies of their own, rounds in alternating order, one report.

pub mod agent;
pub mod arm;
mod envoy;
pub mod process;
pub mod scenario;
mod table;
mod wire;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use crate::plot;
use crate::topology::{Side, namespace_path, remove_leftovers};
use arm::{Arm, Mode, Programs, SERVER_PORT, Stage};
use scenario::{Scenario, Size};
use table::{Fairness, Ratio, Sample};
use wire::Tap;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// One of each kind of load.
const SMOKE: [Scenario; 7] = [
    Scenario::Up1,
    Scenario::Down1,
    Scenario::Rr1k16,
    Scenario::Crr,
    Scenario::Cold,
    Scenario::Idle,
    Scenario::ElephantMice,
];

/// Descriptors that each process may have: thousands of held connections, two for each in a proxy.
const DESCRIPTORS: u64 = 65_536;

#[derive(Debug, clap::Args)]
pub struct Compare {
    /// What to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "h2tokio,control,ringway")]
    arms: Vec<Arm>,
    /// The arm that ratios are to; without it h2tokio, or else the first.
    #[arg(long, value_enum)]
    base: Option<Arm>,
    /// Without it, all.
    #[arg(long, value_enum, value_delimiter = ',')]
    scenarios: Vec<Scenario>,
    #[arg(long, value_enum, default_value = "cost")]
    mode: Mode,
    /// The product's binary.
    #[arg(long, env = "RINGWAY_BIN")]
    ringway: Option<PathBuf>,
    #[arg(long)]
    rounds: Option<u32>,
    /// How long each scenario measures.
    #[arg(long)]
    seconds: Option<f64>,
    /// Connections held in the idle scenarios.
    #[arg(long)]
    held: Option<u16>,
    /// The congestion control of all connections, e.g. reno; without it the machine's.
    #[arg(long)]
    congestion: Option<String>,
    /// Two rounds of a second and a half.
    #[arg(long)]
    quick: bool,
    /// One short round of a few scenarios: checks that everything works and arrives, measures nothing.
    #[arg(long)]
    smoke: bool,
    #[arg(long)]
    json: Option<PathBuf>,
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Draw the ratios into this directory, as `plot` does from the JSON.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Keep logs of the proxies here.
    #[arg(long)]
    logs: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    mode: String,
    kernel: String,
    congestion: String,
    cpus: usize,
    /// Its name, and those of its instructions that the costs depend on.
    cpu: String,
    rounds: u32,
    seconds: f64,
    held: u16,
    ratios: Vec<Ratio>,
    fairness: Vec<Fairness>,
    samples: Vec<Sample>,
    failures: Vec<String>,
}

impl Compare {
    pub fn run(mut self) -> Result<()> {
        let mut seen = Vec::new();
        self.arms.retain(|arm| {
            !seen.contains(arm) && {
                seen.push(*arm);
                true
            }
        });
        if self.scenarios.is_empty() {
            let all = Scenario::value_variants();
            self.scenarios = if self.smoke { SMOKE.to_vec() } else { all.to_vec() };
        }
        let base = self.base.unwrap_or_else(|| self.default_base());
        ensure!(self.arms.contains(&base), "the base {} is not among the arms", base.name());
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        prepare(self.mode.load_cpu())?;
        let scratch = tempfile::Builder::new().prefix("ringway-gen-").tempdir()?;
        let programs = Programs {
            generator: std::env::current_exe()?,
            ringway: self.ringway.clone(),
            mode: self.mode,
            directory: self.logs.clone().unwrap_or_else(|| scratch.path().to_owned()),
            congestion: self.congestion.clone(),
        };
        let (rounds, size) = self.size();
        let mut stages = Vec::new();
        for arm in &self.arms {
            stages.push(Stage::set(*arm, &programs).with_context(|| format!("setting up {}", arm.name()))?);
        }
        for stage in &stages {
            check_wire(stage, &programs)
                .with_context(|| format!("checking the wire of {}", stage.arm.name()))?;
        }
        let (samples, failures) = self.rounds(&stages, &programs, rounds, size)?;
        let ratios = table::ratios(&samples, &self.scenarios, &self.arms, base);
        let fairness = table::fairness(&samples, &self.arms);
        let report = Report {
            mode: self.mode.to_possible_value().map_or_else(String::new, |mode| mode.get_name().to_owned()),
            kernel: sysctl("kernel/osrelease"),
            congestion: self.congestion.clone().unwrap_or_else(|| sysctl("net/ipv4/tcp_congestion_control")),
            cpus,
            cpu: cpu(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            rounds,
            seconds: size.seconds,
            held: size.held,
            ratios,
            fairness,
            samples,
            failures,
        };
        self.write(&report)?;
        ensure!(report.failures.is_empty(), "failed:\n{}", report.failures.join("\n"));
        Ok(())
    }

    /// All samples, and what failed: an arm that fails a scenario must not hide the others.
    fn rounds(
        &self,
        stages: &[Stage],
        programs: &Programs,
        rounds: u32,
        size: Size,
    ) -> Result<(Vec<Sample>, Vec<String>)> {
        let (mut samples, mut failures) = (Vec::new(), Vec::new());
        for scenario in &self.scenarios {
            for round in 0..rounds {
                let mut order: Vec<&Stage> = stages.iter().collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for stage in order {
                    let begun = Instant::now();
                    let what = format!("{} of {}, round {round}", scenario.name(), stage.arm.name());
                    let outcome = scenario.run(stage, programs, size);
                    ensure!(!interrupted(), "interrupted");
                    match outcome {
                        Ok(figures) => {
                            progress(&format!("{what}: {}", brief(&figures)), begun);
                            let scenario = scenario.name();
                            samples.push(Sample { scenario, arm: stage.arm.name(), round, figures });
                        }
                        Err(fault) => {
                            progress(&format!("{what}: FAILED: {fault:#}"), begun);
                            failures.push(format!("{what}: {fault:#}"));
                        }
                    }
                }
            }
        }
        Ok((samples, failures))
    }

    fn size(&self) -> (u32, Size) {
        let (rounds, seconds, held, give_back_s) = match (self.smoke, self.quick) {
            (true, _) => (1, 1.0, 200, 3),
            (false, true) => (2, 1.5, 2_000, 6),
            (false, false) => (4, 4.0, 2_000, 20),
        };
        let size = Size {
            seconds: self.seconds.unwrap_or(seconds),
            held: self.held.unwrap_or(held),
            give_back: Duration::from_secs(give_back_s),
            sources: usize::MAX,
        };
        (self.rounds.unwrap_or(rounds).clamp(1, 100), size)
    }

    fn default_base(&self) -> Arm {
        let yardstick = self.arms.iter().find(|arm| **arm == Arm::H2tokio);
        *yardstick.or(self.arms.first()).unwrap_or(&Arm::H2tokio)
    }

    /// What the table must not be read without: on what, how an arm differs, and what it could not do.
    fn remarks(&self, report: &Report) -> String {
        let differences = self.arms.iter().filter_map(|arm| Some((arm.name(), arm.differs()?)));
        let Report { kernel, congestion, cpus, cpu, rounds, seconds, mode, .. } = report;
        let mut remarks = vec![format!(
            "- {cpus} CPUs, {cpu}; Linux {kernel}, TCP by {congestion}; mode {mode}, {rounds} rounds of {seconds} s a \
             scenario"
        )];
        remarks.extend(differences.map(|(arm, difference)| format!("- {arm}: {difference}")));
        remarks.extend(report.failures.iter().map(|failure| format!("- FAILED: {failure}")));
        format!("\n{}\n", remarks.join("\n"))
    }

    fn write(&self, report: &Report) -> Result<()> {
        let mut table = table::markdown(&report.ratios);
        table += &table::fairness_markdown(&report.fairness);
        table += &self.remarks(report);
        let json = serde_json::to_string_pretty(report)?;
        if let Some(path) = &self.json {
            std::fs::write(path, &json).with_context(|| format!("{}", path.display()))?;
        }
        if let Some(directory) = &self.plot {
            // Arms or scenarios without a place in a chart were asked for: no failure.
            let _charts = plot::draw(&json, directory, &[])?;
        }
        if let Some(path) = &self.markdown {
            std::fs::write(path, &table).with_context(|| format!("{}", path.display()))?;
        }
        print(&table);
        Ok(())
    }
}

/// Whether someone wants us to end: every loop looks, so that namespaces and processes go with us.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// What both measuring commands need: root, no leftovers, descriptors, a word of being interrupted; perhaps a CPU for
/// all that this process starts without a place of its own.
pub fn prepare(load_cpu: Option<usize>) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "root is needed: namespaces and in-pod rules");
    remove_leftovers()?;
    let hard = getrlimit(Resource::Nofile).maximum;
    let soft = hard.map_or(DESCRIPTORS, |hard| hard.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: hard })
        .context("raising the limit of descriptors")?;
    if let Some(cpu) = load_cpu {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        ensure!(cpus > cpu, "cost mode needs two CPUs, here is {cpus}; use --mode free");
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set)?;
    }
    std::thread::Builder::new().name("signals".into()).spawn(|| {
        // Without this thread an interrupt ends us at once; leftovers then go at the next start.
        let _ = wait_for_signal();
        INTERRUPTED.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

/// A setting of the kernel, by its path below /proc/sys; empty where there is none.
pub fn sysctl(key: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/{key}")).unwrap_or_default().trim().to_owned()
}

/// The processor's name and what of its instructions matters for record protection and copies.
fn cpu(cpuinfo: &str) -> String {
    const TELLING: [&str; 6] = ["aes", "vaes", "pclmulqdq", "vpclmulqdq", "avx2", "avx512f"];
    let value = |name: &str| {
        let line = cpuinfo.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let flags = value("flags");
    let has = |telling: &&str| flags.split(' ').any(|flag| flag == *telling);
    let told: Vec<&str> = TELLING.into_iter().filter(has).collect();
    format!("{} ({})", value("model name"), told.join(" "))
}

fn wait_for_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}

/// What crosses between the nodes must be ciphertext for an encrypted arm, and plain for the others.
fn check_wire(stage: &Stage, programs: &Programs) -> Result<()> {
    let proxies = stage.start(programs)?;
    let tap = Tap::start(&namespace_path(&stage.topology.node(Side::Client)))?;
    let to = format!("{}:{SERVER_PORT}", crate::topology::SERVER);
    let arguments = ["rr", "--to", &to, "--seconds", "0.2", "--rate", "100"].map(str::to_owned);
    let mut load = stage.load(&arguments, programs)?;
    load.line(Duration::from_secs(20))?;
    let seen = tap.finish()?;
    drop(proxies);
    ensure!(seen.packets > 0, "no packet was seen: {seen:?}");
    if stage.arm.is_encrypted() {
        ensure!(seen.markers == 0, "plaintext crossed between the nodes: {seen:?}");
        ensure!(seen.hbone_records > 0, "no TLS record crossed on the HBONE port: {seen:?}");
    } else {
        ensure!(seen.markers > 0, "the marker was not seen in the clear: {seen:?}");
    }
    Ok(())
}

fn brief(figures: &scenario::Figures) -> String {
    let kept = figures.iter().map(|(name, value)| format!("{name}={value:.4}"));
    kept.collect::<Vec<_>>().join(" ")
}

#[expect(clippy::print_stderr, reason = "progress of a command-line tool")]
pub fn progress(what: &str, begun: Instant) {
    eprintln!("[{:5.1} s] {what}", begun.elapsed().as_secs_f64());
}

#[expect(clippy::print_stdout, reason = "the result of a command-line tool")]
pub fn print(table: &str) {
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_told_with_whole_words_of_its_flags() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu aes avx2 vaesx\n";
        assert_eq!(cpu(cpuinfo), "Some CPU @ 3 GHz (aes avx2)");
        assert_eq!(cpu(""), " ()");
    }
}
