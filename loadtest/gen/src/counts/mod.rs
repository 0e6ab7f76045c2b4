//! Counts that are the same on any machine, however busy: system calls, allocations, bytes held. Each has a bound, and
//! above it this fails: the guard of a continuous build, where times say nothing.

mod bounds;
mod perf;

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::compare::arm::{Arm, Mode, Programs, Proxies, Stage};
use crate::compare::process::Usage;
use crate::compare::scenario::{SETTLE, Scenario, Size, end, outcome_of};
use crate::compare::{prepare, print, progress};
use crate::load::outcome::Outcome;
use bounds::BOUNDS;
use perf::{Counted, Probes};

/// Held connections are opened and closed once; that many that what grows in steps doesn't show.
const HELD: u16 = 2_000;
/// 400 tunnels, fewer than a proxy keeps idle for one peer (500).
const COLD_SOURCES: usize = 2;
/// Enough for all of them, so that they are the same number on any machine.
const COLD_SECONDS: f64 = 20.0;
/// The allocator gives unused pages back within a second or two.
const GIVE_BACK: Duration = Duration::from_secs(4);
/// How long nothing moves while connections are held.
const IDLE_SECONDS: f64 = 3.0;

#[derive(Debug, clap::Args)]
pub struct Counts {
    /// The product's binary.
    #[arg(long, env = "RINGWAY_BIN")]
    ringway: PathBuf,
    /// How long each scenario runs.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep logs of the proxies here.
    #[arg(long)]
    logs: Option<PathBuf>,
}

/// One figure beside the most that it may be.
#[derive(Debug, Serialize)]
struct Row {
    scenario: String,
    figure: &'static str,
    value: f64,
    bound: f64,
}

type Figures = Vec<(&'static str, f64)>;

impl Counts {
    pub fn run(self) -> Result<()> {
        prepare(Mode::Cost.load_cpu())?;
        let scratch = tempfile::Builder::new().prefix("ringway-gen-").tempdir()?;
        // perf knows the program by its file, and the copies that others run are none of its business.
        let copy = scratch.path().join("counted");
        std::fs::copy(&self.ringway, &copy).with_context(|| format!("{}", self.ringway.display()))?;
        let probes = Probes::place(&copy, &scratch.path().join("perf"))?;
        let programs = Programs {
            generator: std::env::current_exe()?,
            ringway: Some(copy),
            mode: Mode::Cost,
            directory: self.logs.clone().unwrap_or_else(|| scratch.path().to_owned()),
            // Bounds are for any machine, and pacing changes how many bytes a call finds.
            congestion: Some("reno".to_owned()),
        };
        let stage = Stage::set(Arm::Ringway, &programs).context("setting up")?;
        let mut rows = Vec::new();
        for scenario in measured() {
            let begun = Instant::now();
            let name = scenario.name();
            let seconds = if scenario == Scenario::Cold { COLD_SECONDS } else { self.seconds };
            let size = Size { seconds, held: HELD, give_back: GIVE_BACK, sources: COLD_SOURCES };
            let figures =
                figures(scenario, &stage, &programs, &probes, size).with_context(|| name.clone())?;
            progress(&name, begun);
            for (figure, value) in figures {
                let known = BOUNDS.iter().find(|bound| (bound.0, bound.1) == (scenario, figure));
                let (_, _, bound) = *known.with_context(|| format!("{name} has no bound for {figure}"))?;
                rows.push(Row { scenario: name.clone(), figure, value, bound });
            }
        }
        ensure!(rows.len() == BOUNDS.len(), "{} figures for {} bounds", rows.len(), BOUNDS.len());
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&rows)?;
            std::fs::write(path, text).with_context(|| format!("{}", path.display()))?;
        }
        print(&markdown(&rows));
        let over = over(&rows);
        ensure!(over.is_empty(), "more than may be (loadtest/gen/src/counts/bounds.rs):\n{over}");
        Ok(())
    }
}

/// The scenarios with a bound, each once.
fn measured() -> Vec<Scenario> {
    let mut scenarios: Vec<Scenario> = BOUNDS.iter().map(|bound| bound.0).collect();
    scenarios.dedup();
    scenarios
}

/// One scenario on fresh proxies.
fn figures(
    scenario: Scenario,
    stage: &Stage,
    programs: &Programs,
    probes: &Probes,
    size: Size,
) -> Result<Figures> {
    let proxies = stage.start(programs)?;
    std::thread::sleep(SETTLE);
    let (rest, descriptors) = (proxies.usage(), proxies.descriptors());
    let mut load = scenario.begin(stage, programs, size)?;
    let mut counter = probes.attach(&proxies.ids(), stage.directory())?;
    let mut figures = Figures::new();
    if scenario == Scenario::Idle {
        let idle = Duration::try_from_secs_f64(IDLE_SECONDS)?;
        std::thread::sleep(GIVE_BACK);
        figures.push(("bytes_per_idle_connection", grown(&proxies, rest) / f64::from(size.held)));
        counter.on()?;
        std::thread::sleep(idle);
        let counted = counter.off()?;
        figures.push(("system_calls_per_s", counted.system_calls as f64 / IDLE_SECONDS));
        figures.push(("allocations_per_s", counted.allocations as f64 / IDLE_SECONDS));
        figures.push(("rest_bytes", rest.anonymous_bytes as f64));
        load.proceed()?;
        let outcome = outcome_of(&mut load)?;
        scenario.check(&outcome, stage)?;
    } else {
        counter.on()?;
        load.proceed()?;
        let outcome = outcome_of(&mut load)?;
        let counted = counter.off()?;
        scenario.check(&outcome, stage)?;
        figures.extend(shares(scenario, &outcome, counted));
        if scenario == Scenario::Cold {
            std::thread::sleep(GIVE_BACK);
            // Each tunnel has a socket at either end.
            let tunnels = proxies.descriptors().saturating_sub(descriptors) as f64 / 2.0;
            let opened = outcome.operations as f64;
            ensure!((tunnels / opened - 1.0).abs() < 0.1, "{tunnels} tunnels are there of {opened} opened");
            figures.push(("bytes_per_idle_tunnel", grown(&proxies, rest) / tunnels));
        }
    }
    end(load)?;
    Ok(figures)
}

/// What was counted, by what was done.
fn shares(scenario: Scenario, outcome: &Outcome, counted: Counted) -> Figures {
    let (calls, allocations) = (counted.system_calls as f64, counted.allocations as f64);
    let (bytes, operations) = (outcome.bytes as f64, outcome.operations as f64);
    match scenario {
        Scenario::Up1 | Scenario::Down1 | Scenario::Up8 => vec![
            ("system_calls_per_gb", calls / (bytes / 1e9)),
            ("allocations_per_mb", allocations / (bytes / 1e6)),
        ],
        Scenario::Crr => vec![
            ("system_calls_per_connection", calls / operations),
            ("allocations_per_connection", allocations / operations),
        ],
        Scenario::Cold => vec![
            ("system_calls_per_tunnel", calls / operations),
            ("allocations_per_tunnel", allocations / operations),
        ],
        Scenario::Rr1
        | Scenario::Rr1k16
        | Scenario::Rr1k64
        | Scenario::Idle
        | Scenario::UsedThenIdle
        | Scenario::SlowReader
        | Scenario::ElephantMice
        | Scenario::PacedElephant => vec![
            ("system_calls_per_request", calls / operations),
            ("allocations_per_request", allocations / operations),
        ],
    }
}

/// Bytes by which both proxies are larger than at rest.
fn grown(proxies: &Proxies, rest: Usage) -> f64 {
    (proxies.usage() - rest).anonymous_bytes as f64
}

fn markdown(rows: &[Row]) -> String {
    let mut table = String::from("| scenario | figure | value | at most |\n|---|---|--:|--:|\n");
    for Row { scenario, figure, value, bound } in rows {
        // Writing to a String does not fail.
        let _ = writeln!(table, "| {scenario} | {figure} | {value:.3} | {bound} |");
    }
    table
}

/// A line for each figure above its bound.
fn over(rows: &[Row]) -> String {
    let line =
        |row: &Row| format!("{} {}: {:.3}, at most {}", row.scenario, row.figure, row.value, row.bound);
    // What is no number is no pass.
    let lines: Vec<String> =
        rows.iter().filter(|row| row.value.is_nan() || row.value > row.bound).map(line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_its_bound_or_no_number_is_told() {
        let row = |figure, value| Row { scenario: "up1".into(), figure, value, bound: 10.0 };
        let rows = [row("fine", 10.0), row("much", 10.5), row("nothing", f64::NAN)];
        assert_eq!(over(&rows), "up1 much: 10.500, at most 10\nup1 nothing: NaN, at most 10");
    }

    #[test]
    fn each_bound_stands_once_and_those_of_a_scenario_stand_together() {
        let scenarios = measured();
        for (place, scenario) in scenarios.iter().enumerate() {
            assert!(!scenarios[..place].contains(scenario), "{scenario:?} stands apart");
        }
        for (place, bound) in BOUNDS.iter().enumerate() {
            assert!(
                !BOUNDS[..place].iter().any(|other| (other.0, other.1) == (bound.0, bound.1)),
                "{bound:?}"
            );
        }
    }
}
