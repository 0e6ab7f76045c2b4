//! What the demo prints: a line a check as it happens, and a table of who talked to whom. Colour only on a
//! terminal and where NO_COLOR isn't set.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Table, presets};
use serde_json::Value;

/// The demo's voice on standard output.
pub struct Report {
    colour: bool,
    failed: usize,
    passed: usize,
}

impl Report {
    /// Colour where a person looks and doesn't mind.
    pub fn to_terminal() -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: io::stdout().is_terminal() && !no_colour, failed: 0, passed: 0 }
    }

    pub fn heading(&self, text: &str) {
        self.line(&format!("\n{}", self.paint("1", text)));
    }

    pub fn note(&self, text: &str) {
        self.line(&format!("    {text}"));
    }

    /// One check: what was claimed, and what was seen.
    pub fn check(&mut self, passed: bool, claim: &str, seen: &str) {
        let mark = if passed { self.paint("32", "✔") } else { self.paint("31", "✘") };
        if passed {
            self.passed = self.passed.saturating_add(1);
        } else {
            self.failed = self.failed.saturating_add(1);
        }
        self.line(&format!("  {mark} {claim}\n      {}", self.paint("2", seen)));
    }

    /// Access-log lines as a table.
    pub fn conversations(&self, lines: &[Value]) {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_header(["node says", "from", "identity", "to", "identity", "sent/received", "end"]);
        for line in lines {
            let text = |key: &str| line.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
            let number = |key: &str| line.get(key).and_then(Value::as_u64).unwrap_or(0);
            let identity = |key: &str| text(key).trim_start_matches("spiffe://").to_owned();
            let to = match line.get("dst.service").and_then(Value::as_str) {
                Some(service) => service.trim_end_matches(".svc.cluster.local").to_owned(),
                None => text("dst.addr"),
            };
            table.add_row([
                text("direction"),
                named(&text("src.workload"), &text("src.addr")),
                identity("src.identity"),
                named(&text("dst.workload"), &to),
                identity("dst.identity"),
                format!("{} / {}", number("bytes_sent"), number("bytes_recv")),
                line.get("error").and_then(Value::as_str).unwrap_or("ok").to_owned(),
            ]);
        }
        self.line(&table.to_string());
    }

    /// The sum; whether everything passed.
    pub fn finish(&self) -> bool {
        let text = format!("{} checks passed, {} failed", self.passed, self.failed);
        let colour = if self.failed == 0 { "1;32" } else { "1;31" };
        self.line(&format!("\n{}", self.paint(colour, &text)));
        self.failed == 0
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn line(&self, text: &str) {
        // A reader that went away (`| head`) doesn't stop the demo from cleaning up.
        let _ = writeln!(io::stdout().lock(), "{text}");
    }
}

fn named(workload: &str, address: &str) -> String {
    if workload == "-" { address.to_owned() } else { format!("{workload} ({address})") }
}
