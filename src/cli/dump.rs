//! `ringway dump`: what support needs, in one archive. Each part that can't be had is named in `errors.txt`; secrets
//! are left out.

use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::admin::Admin;
use super::archive::Archive;
use super::arguments::{ConfigCommand, DumpArguments, OutputFormat};
use super::table::at;
use super::{Console, config, exit, scrub};
use crate::base::version::BuildInfo;
use crate::config::{READINESS_PORT, STATS_PORT, Surroundings};
use crate::sys::ring;

/// Answers of the admin port.
const ANSWERS: &[(&str, &str)] = &[
    ("status.json", "/status"),
    ("connections.json", "/connections"),
    ("flows.ndjson", "/flows"),
    ("pods.json", "/pods"),
    ("services.json", "/services"),
    ("shards.json", "/shards"),
    ("certificates.json", "/certificates"),
];

/// Facts of the kernel, the container and the machine.
const KERNEL_FILES: &[&str] = &[
    "/proc/version",
    "/proc/loadavg",
    "/proc/self/status",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/net/ipv4/tcp_wmem",
    "/proc/sys/net/ipv4/tcp_migrate_req",
    "/proc/sys/fs/file-nr",
    "/proc/net/sockstat",
    "/proc/meminfo",
    "/proc/pressure/cpu",
    "/proc/pressure/memory",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/cpu.stat",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.current",
    "/etc/os-release",
];

/// Gathers and writes; exit code 2 where parts are missing.
pub fn main(
    asked: &DumpArguments,
    admin: &Admin,
    from: &Surroundings<'_>,
    console: &mut Console<'_>,
) -> Result<u8> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut gathering = Gathering { archive: Archive::new("ringway-dump", seconds), errors: Vec::new() };
    // Without it there is nothing to gather from.
    let mut dump = admin.get_json("/config_dump")?;
    scrub::headers(&mut dump);
    gathering.put("config_dump.json", Ok(serde_json::to_string_pretty(&dump)? + "\n"))?;
    for (name, path) in ANSWERS {
        gathering.put(name, admin.get(path))?;
    }
    gathering.put("logging.txt", admin.post("/logging"))?;
    let port = |key: &str, default| {
        at(&dump, key).rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(default)
    };
    let stats = admin.port(port("config/statsAddr/SocketAddr", STATS_PORT));
    let readiness = admin.port(port("config/readinessAddr/SocketAddr", READINESS_PORT));
    gathering.put("metrics.txt", stats.get("/metrics"))?;
    gathering.put("ready.txt", readiness.get("/healthz/ready"))?;
    gathering.put("version.txt", Ok(format!("{}\n", BuildInfo::new(None))))?;
    gathering.put("config.txt", Ok(configuration(from)))?;
    gathering.put("kernel.txt", Ok(kernel()))?;
    let errors = gathering.errors.join("\n");
    gathering.put("errors.txt", Ok(errors.clone()))?;
    let archive = gathering.archive.finish()?;
    let code = if errors.is_empty() { exit::OK } else { exit::PROBLEMS };
    if !errors.is_empty() {
        console.say(format_args!("some parts are missing:\n{errors}"));
    }
    if asked.output == Path::new("-") {
        return Ok(console.print_bytes(&archive, code));
    }
    std::fs::write(&asked.output, &archive).with_context(|| {
        format!("cannot write {} (-o FILE, or -o - for standard output)", asked.output.display())
    })?;
    console.say(format_args!("{} bytes are in {}", archive.len(), asked.output.display()));
    Ok(code)
}

struct Gathering {
    archive: Archive,
    errors: Vec<String>,
}

impl Gathering {
    fn put(&mut self, name: &str, content: Result<String>) -> Result<()> {
        match content {
            Ok(content) => self.archive.add(name, scrub::text(&content).as_bytes()),
            Err(error) => {
                self.errors.push(format!("{name}: {error:#}"));
                Ok(())
            }
        }
    }
}

/// `config show` and `config check`, of the environment that this command has: in its container the proxy's own.
fn configuration(from: &Surroundings<'_>) -> String {
    let mut bytes = Vec::new();
    let mut talk = Vec::new();
    let mut console = Console::new(&mut bytes, &mut talk, false);
    let output = OutputFormat::Table;
    config::main(&ConfigCommand::Show { output, markdown: false }, from, &mut console);
    config::main(&ConfigCommand::Check { output }, from, &mut console);
    bytes.extend_from_slice(&talk);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn kernel() -> String {
    let mut text = String::new();
    let ring =
        ring::probe().map_or_else(|refusal| refusal.to_string(), |()| "io_uring can be used".to_owned());
    let _ = writeln!(text, "{ring}\n");
    for path in KERNEL_FILES {
        let content = std::fs::read_to_string(path).unwrap_or_else(|error| format!("({error})"));
        let _ = writeln!(text, "==> {path}\n{}\n", content.trim_end());
    }
    text
}
