//! A comparison's ratios as bar charts: plain SVG, in the colours of the reader's scheme, so that a run's JSON can be
//! drawn at any time.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Drawn where nobody names arms, as far as the run had them.
const ARMS: [&str; 2] = ["ringway", "envoy"];
/// Bars end here, in multiples of the base; their number tells how far they would go.
const LONGEST: f64 = 2.0;

const WIDTH: u32 = 760;
const LABEL_WIDTH: u32 = 270;
const BARS_WIDTH: u32 = 380;
const HEAD_HEIGHT: u32 = 84;
const BAR_HEIGHT: u32 = 13;
const BAR_STEP: u32 = 17;
const ROW_GAP: u32 = 11;

#[derive(Debug, clap::Args)]
pub struct Plot {
    /// What `compare --json` wrote.
    file: PathBuf,
    /// Where the charts go.
    #[arg(long, default_value = ".")]
    to: PathBuf,
    /// The arms to draw, instead of ringway and envoy.
    #[arg(long, value_delimiter = ',')]
    arms: Vec<String>,
}

/// What a chart needs of a report.
#[derive(Deserialize)]
struct Report {
    kernel: String,
    congestion: String,
    cpus: usize,
    rounds: u32,
    ratios: Vec<Ratio>,
}

#[derive(Deserialize)]
struct Ratio {
    scenario: String,
    figure: String,
    arm: String,
    base: String,
    median: Option<f64>,
    least: Option<f64>,
    greatest: Option<f64>,
}

struct Chart {
    file: &'static str,
    title: &'static str,
    /// Label, scenario, figure.
    rows: &'static [(&'static str, &'static str, &'static str)],
}

const CHARTS: [Chart; 2] = [
    Chart {
        file: "cost.svg",
        title: "CPU of both proxies",
        rows: &[
            ("per GB, one upload", "up1", "cpu_s_per_gb"),
            ("per GB, one download", "down1", "cpu_s_per_gb"),
            ("per GB, eight uploads", "up8", "cpu_s_per_gb"),
            ("per request, one connection", "rr1", "cpu_us_per_operation"),
            ("per request, 16 connections", "rr1k_16", "cpu_us_per_operation"),
            ("per request, 64 connections", "rr1k_64", "cpu_us_per_operation"),
            ("per new connection, warm tunnel", "crr", "cpu_us_per_operation"),
            ("per new connection, cold handshake", "cold", "cpu_us_per_operation"),
        ],
    },
    Chart {
        file: "latency-memory.svg",
        title: "Latency, and memory of both proxies",
        rows: &[
            ("a lone request, median", "rr1", "p50_us"),
            ("a lone request, 99th percentile", "rr1", "p99_us"),
            ("16 connections, 99th percentile", "rr1k_16", "p99_us"),
            ("beside a bulk stream, median", "elephant_mice", "p50_us"),
            ("beside a bulk stream, 99th percentile", "elephant_mice", "p99_us"),
            ("memory of an idle connection", "idle", "held_bytes_per_connection"),
            ("memory kept after 2,000 connections", "used_then_idle", "kept_bytes"),
            ("memory held for readers who stop", "slow_reader", "memory_grown_bytes"),
        ],
    },
];

impl Plot {
    pub fn run(self) -> Result<()> {
        let text = std::fs::read_to_string(&self.file).with_context(|| format!("{}", self.file.display()))?;
        let drawn = draw(&text, &self.to, &self.arms)?;
        ensure!(drawn > 0, "{} has no figure for a chart of these arms", self.file.display());
        Ok(())
    }
}

/// Writes every chart for which the report has figures; how many those are.
pub fn draw(report: &str, directory: &Path, arms: &[String]) -> Result<usize> {
    let report: Report = serde_json::from_str(report).context("no report of a comparison")?;
    let arms: Vec<&str> =
        if arms.is_empty() { ARMS.to_vec() } else { arms.iter().map(String::as_str).collect() };
    std::fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let mut drawn = 0;
    for chart in &CHARTS {
        if let Some(svg) = chart.svg(&report, &arms) {
            let path = directory.join(chart.file);
            std::fs::write(&path, svg).with_context(|| format!("{}", path.display()))?;
            drawn += 1;
        }
    }
    Ok(drawn)
}

/// One bar: how long, from where to where rounds went, and whose.
struct Bar<'a> {
    arm: &'a str,
    /// Its place among the arms, for its colour.
    place: usize,
    median: f64,
    least: f64,
    greatest: f64,
}

impl Chart {
    /// None where the report has nothing for it.
    fn svg(&self, report: &Report, arms: &[&str]) -> Option<String> {
        let rows: Vec<(&str, Vec<Bar<'_>>)> = self
            .rows
            .iter()
            .map(|(label, scenario, figure)| (*label, bars(report, arms, scenario, figure)))
            .filter(|(_, bars)| !bars.is_empty())
            .collect();
        if rows.is_empty() {
            return None;
        }
        let base = report.ratios.first().map_or("", |ratio| ratio.base.as_str());
        let shown: Vec<(usize, &str)> = arms
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, arm)| rows.iter().any(|(_, bars)| bars.iter().any(|bar| bar.arm == *arm)))
            .collect();
        let lines: u32 = rows.iter().map(|(_, bars)| height(bars)).sum();
        let bottom = HEAD_HEIGHT + lines;
        let mut svg = head(self.title, base, report, &rows, bottom + 30);
        legend(&mut svg, &shown);
        grid(&mut svg, bottom, base);
        let mut top = HEAD_HEIGHT;
        for (label, bars) in &rows {
            row(&mut svg, label, bars, top);
            top += height(bars);
        }
        svg.push_str("</svg>\n");
        Some(svg)
    }
}

fn bars<'a>(report: &Report, arms: &[&'a str], scenario: &str, figure: &str) -> Vec<Bar<'a>> {
    let bar = |(place, arm): (usize, &&'a str)| {
        let of = |ratio: &&Ratio| ratio.scenario == scenario && ratio.figure == figure && ratio.arm == **arm;
        let ratio = report.ratios.iter().find(of)?;
        let (median, least, greatest) = (ratio.median?, ratio.least?, ratio.greatest?);
        Some(Bar { arm, place, median, least, greatest })
    };
    arms.iter().enumerate().filter_map(bar).collect()
}

fn height(bars: &[Bar<'_>]) -> u32 {
    u32::try_from(bars.len()).unwrap_or(0) * BAR_STEP + ROW_GAP
}

/// Everything before the first mark; the description says in words what the bars show.
fn head(title: &str, base: &str, report: &Report, rows: &[(&str, Vec<Bar<'_>>)], height: u32) -> String {
    let mut told = String::new();
    for (label, bars) in rows {
        for bar in bars {
            // Writing to a String does not fail.
            let _ = write!(told, "{label}, {}: {:.2}. ", bar.arm, bar.median);
        }
    }
    let Report { kernel, congestion, cpus, rounds, .. } = report;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"title told\">\n\
         <title id=\"title\">{title}, as multiples of {base}</title>\n<desc id=\"told\">{told}</desc>\n\
         <style>\n{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"16\" y=\"28\">{title}, as multiples of {base}: lower is better</text>\n\
         <text class=\"note\" x=\"16\" y=\"48\">median of {rounds} rounds, the thin line from the least to the \
         greatest; Linux {kernel}, TCP by {congestion}, {cpus} CPUs</text>\n",
        title = escaped(title),
        base = escaped(base),
        told = escaped(told.trim_end()),
        kernel = escaped(kernel),
        congestion = escaped(congestion),
    )
}

/// The reader's own scheme decides; a viewer that knows none shows the light one.
const STYLE: &str = "\
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.note, .axis { font-size: 11px; fill: #59636e }
/* So that a line behind a number leaves it legible. */
.value { font-size: 11px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
.paper { fill: #ffffff }
.grid { stroke: #d1d9e0 }
.base { stroke: #1f2328; stroke-dasharray: 4 3 }
.spread { stroke: #1f2328; stroke-width: 1.5 }
.arm0 { fill: #218bff } .arm1 { fill: #d4a72c } .arm2 { fill: #8c959f } .arm3 { fill: #2da44e }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.note, .axis { fill: #9198a1 }
.value { stroke: #0d1117 }
.paper { fill: #0d1117 }
.grid { stroke: #30363d }
.base, .spread { stroke: #e6edf3 }
.arm0 { fill: #388bfd } .arm1 { fill: #9e6a03 } .arm2 { fill: #6e7681 } .arm3 { fill: #238636 }
}
";

fn legend(svg: &mut String, shown: &[(usize, &str)]) {
    let mut left = LABEL_WIDTH;
    for (place, arm) in shown {
        let _ = writeln!(
            svg,
            "<rect class=\"arm{}\" x=\"{left}\" y=\"60\" width=\"12\" height=\"12\" rx=\"2\"/>\
             <text x=\"{}\" y=\"71\">{}</text>",
            place % 4,
            left + 18,
            escaped(arm),
        );
        left += 120;
    }
}

fn grid(svg: &mut String, bottom: u32, base: &str) {
    for quarter in 0..=8_u32 {
        let value = f64::from(quarter) * LONGEST / 8.0;
        let (x, top) = (along(value), HEAD_HEIGHT - 4);
        let class = if quarter == 4 { "base" } else { "grid" };
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{x:.1} {top}V{bottom}\"/>");
        if quarter % 2 == 0 {
            let name = if quarter == 4 { format!("{base} = 1") } else { value.to_string() };
            let y = bottom + 15;
            let name = escaped(&name);
            let _ = writeln!(
                svg,
                "<text class=\"axis\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{y}\">{name}</text>"
            );
        }
    }
}

fn row(svg: &mut String, label: &str, bars: &[Bar<'_>], top: u32) {
    let middle = top + (height(bars) - ROW_GAP) / 2 + 4;
    let _ = writeln!(
        svg,
        "<text text-anchor=\"end\" x=\"{}\" y=\"{middle}\">{}</text>",
        LABEL_WIDTH - 10,
        escaped(label),
    );
    for (bar, y) in bars.iter().zip((top..).step_by(BAR_STEP as usize)) {
        let (from, to) = (along(0.0), along(bar.median));
        let (low, high) = (along(bar.least), along(bar.greatest));
        let (width, centre) = (to - from, f64::from(y) + f64::from(BAR_HEIGHT) / 2.0);
        let _ = writeln!(
            svg,
            "<rect class=\"arm{}\" x=\"{from:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>\
             <path class=\"spread\" d=\"M{low:.1} {centre:.1}H{high:.1}\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{}\">{}{:.2}</text>",
            bar.place % 4,
            high.max(to) + 6.0,
            y + BAR_HEIGHT - 3,
            if bar.median > LONGEST { "\u{203a} " } else { "" },
            bar.median,
        );
    }
}

/// Where a ratio stands.
fn along(ratio: f64) -> f64 {
    f64::from(LABEL_WIDTH) + ratio.clamp(0.0, LONGEST) / LONGEST * f64::from(BARS_WIDTH)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ratios: &[(&str, &str, &str, f64)]) -> String {
        let ratios: Vec<_> = ratios
            .iter()
            .map(|(scenario, figure, arm, median)| {
                serde_json::json!({
                    "scenario": scenario, "figure": figure, "arm": arm, "base": "h2tokio",
                    "median": median, "least": median - 0.1, "greatest": median + 0.1,
                })
            })
            .collect();
        let report = serde_json::json!({
            "kernel": "6 & more", "congestion": "cubic", "cpus": 2, "rounds": 4, "ratios": ratios
        });
        report.to_string()
    }

    #[test]
    fn a_bar_is_as_long_as_its_ratio_and_told_in_words() {
        let directory = tempfile::tempdir().unwrap();
        let text = report(&[
            ("up1", "cpu_s_per_gb", "ringway", 0.5),
            ("up1", "cpu_s_per_gb", "envoy", 9.0),
            ("up1", "gb_per_s", "ringway", 1.4),
        ]);
        assert_eq!(draw(&text, directory.path(), &[]).unwrap(), 1);
        let svg = std::fs::read_to_string(directory.path().join("cost.svg")).unwrap();
        assert!(svg.contains("per GB, one upload, ringway: 0.50. per GB, one upload, envoy: 9.00."), "{svg}");
        // A quarter of the way, and no further than the end.
        assert!(svg.contains("class=\"arm0\" x=\"270.0\" y=\"84\" width=\"95.0\""), "{svg}");
        assert!(svg.contains("class=\"arm1\" x=\"270.0\" y=\"101\" width=\"380.0\""), "{svg}");
        assert!(svg.contains("Linux 6 &amp; more, TCP by cubic, 2 CPUs"), "{svg}");
        assert!(!directory.path().join("latency-memory.svg").exists());
    }

    #[test]
    fn a_report_without_figures_for_a_chart_draws_none() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(draw(&report(&[]), directory.path(), &[]).unwrap(), 0);
        let text = report(&[("up1", "cpu_s_per_gb", "ringway", 0.5)]);
        assert_eq!(draw(&text, directory.path(), &["hop2".into()]).unwrap(), 0);
        assert!(draw("{}", directory.path(), &[]).is_err());
    }
}
