//! From figures of rounds to ratios: medians of per-round ratios to the base arm, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::arm::Arm;
use super::scenario::{Figures, Scenario};

/// One arm, one scenario, one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub scenario: String,
    pub arm: &'static str,
    pub round: u32,
    pub figures: Figures,
}

/// A figure of an arm beside the base's.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub scenario: String,
    pub figure: String,
    pub arm: &'static str,
    pub base: &'static str,
    pub base_median: f64,
    pub arm_median: f64,
    /// Median, least and greatest of the rounds' ratios; none where the base's figure is zero.
    pub median: Option<f64>,
    pub least: Option<f64>,
    pub greatest: Option<f64>,
    pub rounds: usize,
    /// Whether the goals are meant for this pair: the product beside the yardstick.
    pub judged: bool,
}

/// All ratios to `base`, in the order of scenarios, arms and figures.
pub fn ratios(samples: &[Sample], scenarios: &[Scenario], arms: &[Arm], base: Arm) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for scenario in scenarios.iter().map(|scenario| scenario.name()) {
        for arm in arms.iter().filter(|arm| **arm != base) {
            let of = |arm: Arm| rounds_of(samples, &scenario, arm);
            let (base_rounds, arm_rounds) = (of(base), of(*arm));
            let names = base_rounds.values().next().into_iter().flat_map(|figures| figures.keys());
            ratios.extend(names.map(|name| {
                let pairs = pairs_of(&base_rounds, &arm_rounds, name);
                let quotients =
                    sorted(pairs.iter().filter(|(base, _)| *base > 0.0).map(|(base, arm)| arm / base));
                Ratio {
                    scenario: scenario.clone(),
                    figure: name.clone(),
                    arm: arm.name(),
                    base: base.name(),
                    base_median: median(&sorted(pairs.iter().map(|pair| pair.0))).unwrap_or(0.0),
                    arm_median: median(&sorted(pairs.iter().map(|pair| pair.1))).unwrap_or(0.0),
                    median: median(&quotients),
                    least: quotients.first().copied(),
                    greatest: quotients.last().copied(),
                    rounds: pairs.len(),
                    judged: base == Arm::H2tokio && matches!(arm, Arm::Ringway | Arm::RingwayEpoll),
                }
            }));
        }
    }
    ratios
}

/// What company on their tunnel does to small requests, within one arm: no other arm is needed to read it.
#[derive(Clone, Debug, Serialize)]
pub struct Fairness {
    pub scenario: String,
    pub arm: &'static str,
    pub alone_p99_us: f64,
    /// None where no round had an answer beside the others.
    pub beside_p99_us: Option<f64>,
    /// Median, least and greatest of the rounds' own ratios.
    pub ratio: Option<[f64; 3]>,
    /// Requests, and readers beside them, without an answer, of all rounds.
    pub unanswered: f64,
    /// What the product is to reach.
    pub goal: Option<f64>,
}

/// How much slower a request may be beside an elephant that leaves CPU time to spare; and beside readers that stalled,
/// which should not matter at all: what is left for noise. At full speed the elephants take the CPU that the load
/// itself needs, so that even without proxies there is no such bound.
const FAIR: [(Scenario, Option<f64>); 3] =
    [(Scenario::ElephantMice, None), (Scenario::PacedElephant, Some(2.0)), (Scenario::SlowReader, Some(1.2))];

/// The arms' fairness, as far as its scenarios were run.
pub fn fairness(samples: &[Sample], arms: &[Arm]) -> Vec<Fairness> {
    let mut rows = Vec::new();
    for (scenario, goal) in FAIR {
        for arm in arms {
            let rounds = rounds_of(samples, &scenario.name(), *arm);
            let all = |name: &str| sorted(rounds.values().filter_map(|figures| figures.get(name).copied()));
            let Some(alone_p99_us) = median(&all("alone_p99_us")) else { continue };
            let ratios = all("p99_to_alone");
            let ratio = match (median(&ratios), ratios.first(), ratios.last()) {
                (Some(median), Some(least), Some(greatest)) => Some([median, *least, *greatest]),
                _ => None,
            };
            rows.push(Fairness {
                scenario: scenario.name(),
                arm: arm.name(),
                alone_p99_us,
                beside_p99_us: ratio.and_then(|_| median(&all("p99_us"))),
                ratio,
                unanswered: all("unanswered").iter().sum(),
                goal,
            });
        }
    }
    rows
}

/// The same as Markdown; nothing where there is none.
pub fn fairness_markdown(rows: &[Fairness]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = String::from(
        "\n| scenario | arm | p99 alone, µs | p99 beside, µs | ratio | spread | unanswered | goal |\n\
         |---|---|--:|--:|---|---|--:|---|\n",
    );
    for row in rows {
        let beside = row.beside_p99_us.map_or_else(|| "none".into(), short);
        let (ratio, spread) = row.ratio.map_or_else(
            || ("-".into(), String::new()),
            |[median, least, greatest]| (format!("x{median:.2}"), format!("{least:.2}-{greatest:.2}")),
        );
        let judged = row.goal.filter(|_| row.arm.starts_with(Arm::Ringway.name()));
        let goal = judged.map_or_else(String::new, |goal| {
            let met = row.unanswered == 0.0 && row.ratio.is_some_and(|[median, ..]| median <= goal);
            format!("{goal} {}", if met { "met" } else { "missed" })
        });
        // Writing to a String does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {beside} | {ratio} | {spread} | {} | {goal} |",
            row.scenario,
            row.arm,
            short(row.alone_p99_us),
            short(row.unanswered),
        );
    }
    table
}

/// What the product is to reach, as ratios to the yardstick (design/measuring.md); lower is better in all.
const GOALS: [(&str, &str, f64); 10] = [
    ("up1", "cpu_s_per_gb", 0.60),
    ("down1", "cpu_s_per_gb", 0.60),
    ("up8", "cpu_s_per_gb", 0.60),
    ("rr1", "p50_us", 0.9),
    ("rr1", "p99_us", 0.9),
    ("rr1k_16", "cpu_us_per_operation", 0.45),
    ("rr1k_64", "cpu_us_per_operation", 0.45),
    ("crr", "cpu_us_per_operation", 0.45),
    ("idle", "held_bytes_per_connection", 0.4),
    ("used_then_idle", "kept_bytes", 0.15),
];

/// Figures that tell how a measurement went, not how an arm did, and those of the table of fairness.
const CONTEXT: [&str; 8] = [
    "load_cpu_share",
    "proxy_cpu_share",
    "held_bytes",
    "idle_cpu_ms_per_s",
    "alone_p50_us",
    "alone_p99_us",
    "p50_to_alone",
    "p99_to_alone",
];

/// The ratios as Markdown.
pub fn markdown(ratios: &[Ratio]) -> String {
    let mut table = String::from(
        "| scenario | figure | arm | base | arm | ratio | spread | goal |\n|---|---|---|--:|--:|--:|---|---|\n",
    );
    // The direct arm has no proxies, so none of their figures.
    let absent = |ratio: &Ratio| ratio.arm == Arm::Direct.name() && ratio.arm_median == 0.0;
    let shown =
        |ratio: &&Ratio| ratio.rounds > 0 && !CONTEXT.contains(&ratio.figure.as_str()) && !absent(ratio);
    for ratio in ratios.iter().filter(shown) {
        let quotient = ratio.median.map_or_else(|| "-".into(), |median| format!("x{median:.2}"));
        let spread = match (ratio.least, ratio.greatest) {
            (Some(least), Some(greatest)) => format!("{least:.2}-{greatest:.2}"),
            (None, _) | (_, None) => String::new(),
        };
        // Writing to a String does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {quotient} | {spread} | {} |",
            ratio.scenario,
            ratio.figure,
            ratio.arm,
            short(ratio.base_median),
            short(ratio.arm_median),
            goal(ratio),
        );
    }
    table
}

fn goal(ratio: &Ratio) -> String {
    if !ratio.judged {
        return String::new();
    }
    let known =
        GOALS.iter().find(|(scenario, figure, _)| *scenario == ratio.scenario && *figure == ratio.figure);
    match (known, ratio.median) {
        (Some((_, _, goal)), Some(median)) => {
            format!("{goal} {}", if median <= *goal { "met" } else { "missed" })
        }
        (None, _) | (_, None) => String::new(),
    }
}

fn rounds_of<'a>(samples: &'a [Sample], scenario: &str, arm: Arm) -> BTreeMap<u32, &'a Figures> {
    let wanted = samples.iter().filter(|sample| sample.scenario == scenario && sample.arm == arm.name());
    wanted.map(|sample| (sample.round, &sample.figures)).collect()
}

fn pairs_of(base: &BTreeMap<u32, &Figures>, arm: &BTreeMap<u32, &Figures>, name: &str) -> Vec<(f64, f64)> {
    let pair = |(round, figures): (&u32, &&Figures)| Some((*figures.get(name)?, *arm.get(round)?.get(name)?));
    base.iter().filter_map(pair).collect()
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// Three or four digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e7 => format!("{:.1} M", value / 1e6),
        size if size >= 1e4 => format!("{:.1} k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(arm: Arm, round: u32, value: f64) -> Sample {
        let figures = Figures::from([("cpu_s_per_gb".to_owned(), value)]);
        Sample { scenario: Scenario::Up1.name(), arm: arm.name(), round, figures }
    }

    #[test]
    fn a_ratio_is_the_median_of_rounds_not_the_ratio_of_medians() {
        // A machine that slows down by half in round 2 does not change the ratio.
        let samples = [
            sample(Arm::H2tokio, 0, 2.0),
            sample(Arm::Ringway, 0, 1.0),
            sample(Arm::H2tokio, 1, 4.0),
            sample(Arm::Ringway, 1, 2.0),
            sample(Arm::H2tokio, 2, 2.0),
            sample(Arm::Ringway, 2, 1.8),
        ];
        let ratios = ratios(&samples, &[Scenario::Up1], &[Arm::H2tokio, Arm::Ringway], Arm::H2tokio);
        let [ratio] = &ratios[..] else { panic!("{ratios:?}") };
        assert_eq!((ratio.median, ratio.least, ratio.greatest), (Some(0.5), Some(0.5), Some(0.9)));
        assert!(
            markdown(&ratios)
                .contains("| up1 | cpu_s_per_gb | ringway | 2.00 | 1.80 | x0.50 | 0.50-0.90 | 0.6 met |")
        );
    }

    #[test]
    fn fairness_is_told_of_each_arm_by_itself_and_no_answer_is_no_pass() {
        let sample = |arm: Arm, round, figures: &[(&str, f64)]| Sample {
            scenario: Scenario::SlowReader.name(),
            arm: arm.name(),
            round,
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        };
        let fine = [("alone_p99_us", 200.0), ("p99_us", 220.0), ("p99_to_alone", 1.1), ("unanswered", 0.0)];
        let stalled = [("alone_p99_us", 400.0), ("unanswered", 4.0)];
        let samples = [
            sample(Arm::Ringway, 0, &fine),
            sample(Arm::H2tokio, 0, &stalled),
            sample(Arm::Ringway, 1, &fine),
            sample(Arm::H2tokio, 1, &stalled),
        ];
        let table = fairness_markdown(&fairness(&samples, &[Arm::H2tokio, Arm::Envoy, Arm::Ringway]));
        assert!(table.contains("| slow_reader | h2tokio | 400 | none | - |  | 8.00 |  |"), "{table}");
        assert!(
            table.contains("| slow_reader | ringway | 200 | 220 | x1.10 | 1.10-1.10 | 0 | 1.2 met |"),
            "{table}"
        );
        assert_eq!(table.lines().count(), 5, "{table}");
    }

    #[test]
    fn a_round_that_only_one_arm_finished_does_not_count() {
        let samples =
            [sample(Arm::H2tokio, 0, 0.0), sample(Arm::Ringway, 0, 1.0), sample(Arm::H2tokio, 1, 4.0)];
        let ratios = ratios(&samples, &[Scenario::Up1], &[Arm::H2tokio, Arm::Ringway], Arm::H2tokio);
        assert_eq!((ratios[0].rounds, ratios[0].median), (1, None));
    }
}
