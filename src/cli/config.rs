//! `config show` and `config check`.

use serde::Serialize;

use super::arguments::{ConfigCommand, OutputFormat};
use super::table::{aligned, formatted};
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
        let row = |shown: &Shown| vec![shown.name.clone(), shown.value.clone(), shown.origin.to_string()];
        aligned(["VARIABLE", "VALUE", "ORIGIN"].map(str::to_owned).into(), config.shown.iter().map(row))
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
    match formatted(data, output, table) {
        Ok(text) => console.print(&text, code),
        Err(error) => super::failed(&error, console),
    }
}
