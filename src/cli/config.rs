//! `config show` and `config check`.

use serde::Serialize;

use super::arguments::{ConfigCommand, OutputFormat};
use super::{Console, exit, refused, runnable};
use crate::config::{Config, Shown, Surroundings, markdown};

pub fn main(command: &ConfigCommand, from: &Surroundings<'_>, console: &mut Console<'_>) -> u8 {
    match command {
        ConfigCommand::Show { markdown: true, .. } => console.print(&markdown(), exit::OK),
        ConfigCommand::Show { output, .. } => match Config::load(from) {
            Ok(config) => show(&config, *output, console),
            Err(errors) => refused(&errors, console),
        },
        ConfigCommand::Check { output } => check(from, *output, console),
    }
}

fn show(config: &Config, output: OutputFormat, console: &mut Console<'_>) -> u8 {
    let table = || {
        let row = |shown: &Shown| [shown.name.clone(), shown.value.clone(), shown.origin.to_string()];
        columns(["VARIABLE", "VALUE", "ORIGIN"], config.shown.iter().map(row))
    };
    print(&config.shown, output, table, exit::OK, console)
}

/// One thing that `check` found.
#[derive(Serialize)]
struct Finding {
    severity: &'static str,
    text: String,
}

fn check(from: &Surroundings<'_>, output: OutputFormat, console: &mut Console<'_>) -> u8 {
    let (severity, texts, code) = match runnable(from) {
        Ok(config) => {
            let texts = config.warnings;
            let code = if texts.is_empty() { exit::OK } else { exit::PROBLEMS };
            ("warning", texts, code)
        }
        Err(errors) => ("error", errors.iter().map(ToString::to_string).collect(), exit::CONFIGURATION),
    };
    console.say(match code {
        exit::OK => "the configuration is valid",
        exit::PROBLEMS => "the configuration is valid, but:",
        _ => "the configuration is not valid:",
    });
    let findings: Vec<_> = texts.into_iter().map(|text| Finding { severity, text }).collect();
    let lines =
        || findings.iter().map(|finding| format!("{}: {}\n", finding.severity, finding.text)).collect();
    print(&findings, output, lines, code, console)
}

fn print<T: Serialize>(
    data: &[T],
    output: OutputFormat,
    table: impl FnOnce() -> String,
    code: u8,
    console: &mut Console<'_>,
) -> u8 {
    let text = match output {
        OutputFormat::Table => Ok(table()),
        OutputFormat::Json => {
            serde_json::to_string_pretty(data).map(|text| text + "\n").map_err(anyhow::Error::from)
        }
        OutputFormat::Yaml => serde_saphyr::to_string(&data).map_err(anyhow::Error::from),
    };
    match text {
        Ok(text) => console.print(&text, code),
        Err(error) => super::failed(&error, console),
    }
}

/// Columns as kubectl prints them, the same on a terminal and in a pipe. A value stays on its line.
fn columns<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    const GAP: usize = 3;
    let one_line = |cell: String| cell.replace('\n', "\\n");
    let rows: Vec<[String; N]> =
        std::iter::once(heads.map(str::to_owned)).chain(rows.map(|row| row.map(one_line))).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<0$}", width + GAP));
        let line: String = cells.collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
