//! What a control plane's pushes cost the product: load, memory, churn, and traffic during a re-push, before the
//! stand-in for istiod. Ratios and differences within one run, as in the comparison of arms.

mod parts;
mod stage;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use ringway_standin::generate::Fleet;
use serde::Serialize;

use crate::compare::{prepare, print, progress, sysctl};
use parts::{Figures, PROBES, Size, median};
use stage::Stage;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU and memory of loading the mesh.
    Load,
    /// Updates at a fixed rate, and how soon they are effective.
    Churn,
    /// The largest gap of a 1 kHz echo while everything is pushed anew.
    Repush,
    /// As load, with ten times the workloads.
    Million,
}

#[derive(Debug, clap::Args)]
pub struct Control {
    /// Without it, all.
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// The product's binary.
    #[arg(long, env = "RINGWAY_BIN")]
    ringway: PathBuf,
    #[arg(long)]
    workloads: Option<u32>,
    #[arg(long)]
    services: Option<u32>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long)]
    updates_per_s: Option<u32>,
    /// How often load and re-push are measured; the median is told.
    #[arg(long)]
    rounds: Option<u32>,
    /// A small mesh for a few seconds: checks that all of it arrives and is in force, measures nothing.
    #[arg(long)]
    smoke: bool,
    #[arg(long)]
    json: Option<PathBuf>,
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Keep logs of the proxies here.
    #[arg(long)]
    logs: Option<PathBuf>,
}

/// One figure beside its goal: at most this.
#[derive(Serialize)]
struct Row {
    part: String,
    figure: &'static str,
    value: f64,
    goal: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    cpus: usize,
    workloads: u32,
    services: u32,
    rounds: u32,
    rows: Vec<Row>,
}

/// What issue 3 asks for.
const GOALS: [(Part, &str, f64); 7] = [
    (Part::Load, "load_cpu_to_decode_cpu", 4.0),
    (Part::Load, "bytes_per_workload", 900.0),
    (Part::Load, "peak_to_rest", 1.5),
    (Part::Churn, "effective_p99_ms", 50.0),
    (Part::Repush, "gap_more_ms", 5.0),
    (Part::Million, "bytes_per_workload", 900.0),
    (Part::Million, "peak_to_rest", 1.5),
];

impl Control {
    pub fn run(self) -> Result<()> {
        prepare(None)?;
        let scratch = tempfile::Builder::new().prefix("ringway-gen-").tempdir()?;
        let directory = self.logs.clone().unwrap_or_else(|| scratch.path().to_owned());
        std::fs::create_dir_all(&directory)?;
        let size = self.size();
        let rounds = self.rounds.unwrap_or(if self.smoke { 1 } else { 4 }).clamp(1, 100);
        let stage = Stage::set(&self.ringway, &directory, PROBES).context("setting up")?;
        let mut rows = Vec::new();
        for part in self.parts() {
            let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
            let begun = Instant::now();
            let figures = part.run(&stage, size, rounds).with_context(|| name.clone())?;
            progress(&format!("{name}: {}", brief(&figures)), begun);
            rows.extend(figures.into_iter().map(|(figure, value)| Row {
                part: name.clone(),
                figure,
                value,
                goal: part.goal(figure),
            }));
        }
        let report = Report {
            kernel: sysctl("kernel/osrelease"),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            workloads: size.fleet.workloads,
            services: size.fleet.services,
            rounds,
            rows,
        };
        if let Some(path) = &self.json {
            std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
        }
        let table = markdown(&report.rows, !self.smoke);
        if let Some(path) = &self.markdown {
            std::fs::write(path, &table)?;
        }
        print(&table);
        ensure!(!report.rows.is_empty(), "nothing was measured");
        Ok(())
    }

    fn parts(&self) -> Vec<Part> {
        match (self.parts.is_empty(), self.smoke) {
            (false, _) => self.parts.clone(),
            (true, true) => vec![Part::Load, Part::Churn, Part::Repush],
            (true, false) => Part::value_variants().to_vec(),
        }
    }

    fn size(&self) -> Size {
        let seconds = Duration::from_secs;
        let (workloads, services, updates) =
            if self.smoke { (2_000, 40, 200) } else { (100_000, 2_000, 1_000) };
        let fleet = Fleet {
            workloads: self.workloads.unwrap_or(workloads).max(1),
            services: self.services.unwrap_or(services).max(1),
            seed: self.seed,
        };
        let updates_per_s = self.updates_per_s.unwrap_or(updates).max(1);
        // Freed memory goes back to the system within ten seconds.
        let (rest, churn) = if self.smoke { (seconds(0), seconds(2)) } else { (seconds(12), seconds(10)) };
        let repush = if self.smoke { seconds(3) } else { seconds(6) };
        Size { fleet, rest, updates_per_s, churn, repush }
    }
}

impl Part {
    fn run(self, stage: &Stage, size: Size, rounds: u32) -> Result<Figures> {
        match self {
            Self::Load => {
                let all = (0..rounds).map(|_| parts::load(stage, size)).collect::<Result<Vec<_>>>()?;
                let names = all.first().into_iter().flat_map(Figures::keys);
                let of = |name: &&'static str| all.iter().filter_map(|one| one.get(name).copied()).collect();
                Ok(names.map(|name| (*name, median(of(name)))).collect())
            }
            Self::Churn => parts::churn(stage, size),
            Self::Repush => parts::repush(stage, size, rounds),
            Self::Million => {
                let Fleet { workloads, services, seed } = size.fleet;
                let fleet = Fleet { workloads: workloads * 10, services: services * 10, seed };
                parts::load(stage, Size { fleet, ..size })
            }
        }
    }

    fn goal(self, figure: &str) -> Option<f64> {
        let goal = GOALS.iter().find(|(part, name, _)| *part == self && *name == figure);
        goal.map(|(_, _, goal)| *goal)
    }
}

fn brief(figures: &Figures) -> String {
    figures.iter().map(|(name, value)| format!("{name}={value:.3}")).collect::<Vec<_>>().join(" ")
}

/// `judged`: a smoke run meets and misses nothing.
fn markdown(rows: &[Row], judged: bool) -> String {
    let mut table = String::from("| part | figure | value | goal |\n|---|---|--:|---|\n");
    for Row { part, figure, value, goal } in rows {
        let goal = match goal {
            Some(goal) if judged => {
                format!("{goal} {}", if value <= goal { "met" } else { "missed" })
            }
            Some(_) | None => String::new(),
        };
        table.push_str(&format!("| {part} | {figure} | {value:.3} | {goal} |\n"));
    }
    table
}
