//! The house's layers, kept by a test: a module imports only from the layers above it in this table (house.md).
//! Fails with file, line and rule. Also keeps blocking and multi-threaded tools away from the shards.

use std::fs;
use std::path::{Path, PathBuf};

/// Each module with those it may import.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("mesh", &["base"]),
    ("wire", &["base", "mesh"]),
    ("sys", &["base"]),
    ("tls", &["base", "mesh", "sys"]),
    ("bridge", &["base", "mesh", "wire", "sys", "tls"]),
    ("shard", &["base", "mesh", "wire", "sys", "tls", "bridge"]),
    ("path", &["base", "mesh", "wire", "sys", "tls", "bridge", "shard"]),
    ("control", &["base", "mesh", "wire", "sys", "tls", "bridge"]),
];

/// What must not stand in a shard's code: it would block the core, or share what belongs to one thread.
const NOT_ON_A_SHARD: &[&str] =
    &["tokio::", "std::sync::Mutex", "std::sync::RwLock", "thread::sleep", "std::fs::", "std::process::"];

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Lines of a file up to its inline tests, which may do as they like.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim().to_owned()));
    lines.take_while(|(_, line)| line != "#[cfg(test)]").filter(|(_, line)| !line.starts_with("//")).collect()
}

fn is_test(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    path.components().any(|part| part.as_os_str() == "tests")
        || name.ends_with("_tests.rs")
        || name == "tests.rs"
        || name == "testing.rs"
}

/// Every broken rule, as `file:line: what`.
fn violations(root: &Path, rule: impl Fn(&str, &str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (module, _) in MAY_IMPORT {
        let mut files = Vec::new();
        sources(&root.join(module), &mut files);
        for file in files.iter().filter(|file| !is_test(file)) {
            for (line, text) in code(file) {
                found
                    .extend(rule(module, &text).map(|broken| format!("{}:{line}: {broken}", file.display())));
            }
        }
    }
    found
}

fn imports_upwards(module: &str, line: &str) -> Option<String> {
    let may = MAY_IMPORT.iter().find(|(name, _)| *name == module)?.1;
    line.match_indices("crate::").find_map(|(at, found)| {
        let rest = &line[at + found.len()..];
        let target = rest.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next()?;
        let known = MAY_IMPORT.iter().any(|(name, _)| *name == target)
            || ["app", "cli", "config", "demo"].contains(&target);
        (known && target != module && !may.contains(&target))
            .then(|| format!("{module} must not import {target} (it may: {may:?})"))
    })
}

/// Tests run in the package's directory. (Its path at build time may be that of another checkout with the same target
/// directory.)
#[test]
fn modules_import_only_from_layers_above_them() {
    let root = Path::new("src");
    let found = violations(root, imports_upwards);
    assert!(found.is_empty(), "layers are broken:\n{}", found.join("\n"));
}

#[test]
fn shards_neither_block_nor_share() {
    let root = Path::new("src");
    let found = violations(root, |module, line| {
        let bad = NOT_ON_A_SHARD.iter().find(|bad| line.contains(**bad))?;
        ["shard", "path"].contains(&module).then(|| format!("{bad} has no place on a shard"))
    });
    assert!(found.is_empty(), "blocking or shared tools on a shard:\n{}", found.join("\n"));
}

#[test]
fn files_stay_readable() {
    let root = Path::new("src");
    let mut files = Vec::new();
    sources(root, &mut files);
    let long: Vec<_> = files
        .iter()
        .map(|file| (file, fs::read_to_string(file).unwrap().lines().count()))
        .filter(|(_, lines)| *lines > 800)
        .collect();
    assert!(long.is_empty(), "files of more than 800 lines: {long:?}");
}

/// rustfmt wraps code at 110, but neither comments nor text.
#[test]
fn lines_stay_readable() {
    let root = Path::new(".");
    let mut files = Vec::new();
    for directory in ["src", "loadtest", "benches"] {
        sources(&root.join(directory), &mut files);
    }
    let mut long = Vec::new();
    for file in files.iter().filter(|file| !file.components().any(|part| part.as_os_str() == "target")) {
        let text = fs::read_to_string(file).unwrap();
        let lines = text.lines().enumerate().filter(|(_, line)| line.chars().count() > 120);
        long.extend(lines.map(|(index, _)| format!("{}:{}", file.display(), index + 1)));
    }
    assert!(long.is_empty(), "lines of more than 120 characters:\n{}", long.join("\n"));
}

#[test]
fn a_broken_rule_is_found() {
    assert!(imports_upwards("mesh", "use crate::sys::netns::Netns;").is_some());
    assert!(imports_upwards("control", "use crate::shard::Shard;").is_some());
    assert!(imports_upwards("path", "use crate::shard::Shard;").is_none());
    assert!(imports_upwards("shard", "let x = crate::path::serve;").is_some());
}
