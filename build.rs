//! Compiles proto/ (pure Rust: no protoc needed) and tells the program which build it is.

use std::env;
use std::error::Error;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    version_facts();
    println!("cargo::rerun-if-changed=proto");
    let names = ["authorization", "ca", "discovery", "profile", "workload", "zds"];
    let files = names.map(|name| format!("proto/{name}.proto"));
    let files = protox::compile(files, ["proto"])?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(files)?;
    Ok(())
}

/// VERSION and GIT_REVISION of the environment go first: an image is built without a repository.
fn version_facts() {
    for name in ["VERSION", "GIT_REVISION"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // Changes with each commit and checkout. A path that does not exist would rebuild every time.
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"])
        .filter(|log| std::fs::exists(log).is_ok_and(|is| is))
    {
        println!("cargo::rerun-if-changed={log}");
    } else {
        println!("cargo::rerun-if-changed=build.rs");
    }
    let changed = output("git", &["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|text| !text.is_empty());
    let dirty = if changed { "-dirty" } else { "" };
    let head = output("git", &["rev-parse", "HEAD"]).map(|head| format!("{head}{dirty}"));
    let revision = env::var("GIT_REVISION").ok().or(head).unwrap_or_else(|| "unknown".to_owned());
    let version = env::var("VERSION").unwrap_or_else(|_| revision.clone());
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let rust = output(&rustc, &["--version"]).and_then(|text| text.split(' ').nth(1).map(str::to_owned));
    for (name, value) in [
        ("VERSION", version),
        ("REVISION", revision),
        ("RUST", rust.unwrap_or_else(|| "unknown".to_owned())),
        ("PROFILE", env::var("PROFILE").unwrap_or_default()),
        ("STATUS", if changed { "Modified" } else { "Clean" }.to_owned()),
    ] {
        println!("cargo::rustc-env=RINGWAY_BUILD_{name}={value}");
    }
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
