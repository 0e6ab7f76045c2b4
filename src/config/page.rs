//! The documentation page of the configuration, generated from the table.

use std::fmt::Write;

use super::table::{Fallback, Kind, VARIABLES, Variable};

const HEAD: &str = "# Configuration\n\n\
    Everything is configured by environment variables, with the names, defaults and meanings of ztunnel; those\n\
    that begin with RINGWAY_ are ours. `ringway config show` prints each value with its origin, `ringway config\n\
    check` tells all errors at once (exit code 78). This page is generated: `ringway config show --markdown`.\n\n\
    Where a variable is unset, the file ./etc/istio/config/mesh (key `defaultConfig`, then PROXY_CONFIG on top)\n\
    may give `discoveryAddress`, `proxyAdminPort` (15000), `statsPort` (15020), `concurrency` and\n\
    `proxyMetadata`.\n\n\
    | variable | value | default | meaning |\n|---|---|---|---|\n";

pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    for Variable { name, kind, default, meaning } in VARIABLES {
        let kind = cell(&kind_in_words(*kind));
        let default = match default {
            Fallback::Is("") => "empty".to_owned(),
            Fallback::Is(value) => format!("`{value}`"),
            Fallback::Rule(rule) => cell(rule),
        };
        // Writing to a String can't fail.
        let _ = writeln!(page, "| `{name}` | {kind} | {default} | {} |", cell(meaning));
    }
    page
}

/// Shorter than in an error: the page has the examples in one place.
fn kind_in_words(kind: Kind) -> String {
    if kind == Kind::Duration {
        "duration".to_owned()
    } else if kind == Kind::Cpus {
        "CPU quantity".to_owned()
    } else if kind == Kind::Number(0, u64::MAX) {
        "whole number".to_owned()
    } else {
        kind.to_string()
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
