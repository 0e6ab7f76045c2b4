//! The operators' page about metrics is made of the families, and the families are what a page shows: neither can tell
//! of what the other doesn't.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::connections::COMMON;
use super::family::{Family, Kind};
use super::tests::whole_page;
use super::{connections, names, ours, reference};

fn references() -> Vec<Family> {
    let mut all = reference::BEFORE_CONNECTIONS.to_vec();
    all.extend(connections::FAMILIES);
    all.extend(names::FAMILIES);
    all.extend(reference::AFTER_CONNECTIONS);
    all
}

fn table(families: &[Family], to: &mut String) {
    to.push_str("| name | type | labels | meaning |\n|---|---|---|---|\n");
    for Family { name, kind, help, labels, .. } in families {
        let suffix = if *kind == Kind::Counter { "_total" } else { "" };
        let labels = match *labels {
            COMMON => "those of connections".to_owned(),
            "" => String::new(),
            some => some.split(' ').map(|label| format!("`{label}`")).collect::<Vec<_>>().join(" "),
        };
        let _ = writeln!(to, "| `{name}{suffix}` | {} | {labels} | {help} |", kind.as_str());
    }
}

#[test]
fn the_operators_page_has_every_family() {
    const MARK: &str = "<!-- made of the code from here on: UPDATE_DOCS=1 cargo test operators_page -->\n";
    let path = "deploy/docs/metrics.md";
    let page = std::fs::read_to_string(path).unwrap();
    let (before, _) = page.split_once(MARK).unwrap();
    let mut wanted = format!("{before}{MARK}\n## The reference's\n\n");
    table(&references(), &mut wanted);
    wanted.push_str("\n## Ours\n\n");
    table(&ours::all(), &mut wanted);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, wanted).unwrap();
        return;
    }
    assert!(page == wanted, "deploy/docs/metrics.md is old: UPDATE_DOCS=1 cargo test operators_page");
}

/// `name="value"` of one sample's labels, names only.
fn label_names(labels: &str) -> Vec<&str> {
    let (mut names, mut rest) = (Vec::new(), labels);
    while let Some((name, after)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(','));
        let (mut end, mut quoted) = (after.len(), false);
        for (at, letter) in after.char_indices() {
            match letter {
                '"' if !quoted => {
                    end = at;
                    break;
                }
                _ => quoted = letter == '\\' && !quoted,
            }
        }
        rest = &after[(end + 1).min(after.len())..];
    }
    names
}

#[test]
fn a_page_shows_every_family_with_its_labels_and_no_other() {
    let all = [references(), ours::all()].concat();
    let page = whole_page();
    let shown: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let known: Vec<String> =
        all.iter().map(|family| format!("{} {}", family.name, family.kind.as_str())).collect();
    assert_eq!(shown, known, "every family, in the order of the tables");
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = match line.split_once('{') {
            Some((name, rest)) => (name, label_names(rest.rsplit_once('}').unwrap().0)),
            None => (line.split_once(' ').unwrap().0, Vec::new()),
        };
        let family = all.iter().find(|family| match family.kind {
            Kind::Counter => name.strip_suffix("_total") == Some(family.name),
            Kind::Gauge => name == family.name,
            Kind::Histogram => ["_sum", "_count", "_bucket"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(family.name)),
        });
        let family = family.unwrap_or_else(|| panic!("of no family: {line}"));
        let mut wanted: Vec<&str> = family.labels.split_whitespace().collect();
        if name.ends_with("_bucket") {
            wanted.insert(0, "le");
        }
        if family.labels == COMMON && !labels.contains(&"source_region") {
            wanted.truncate(wanted.len() - 4);
        }
        assert_eq!(labels, wanted, "{line}");
    }
}

#[test]
fn names_are_as_prometheus_wants_them() {
    let mut seen = BTreeSet::new();
    for Family { name, kind, help, unit, .. } in ours::all() {
        assert!(name.starts_with("ringway_") && seen.insert(name), "{name}");
        assert!(help.ends_with('.') && !help.contains('|'), "{name}: {help}");
        assert!(!name.ends_with("_total"), "{name}");
        assert!(unit.is_none_or(|unit| name.ends_with(unit)), "{name}");
        assert!(kind != Kind::Histogram || unit == Some("seconds"), "{name}");
    }
}
