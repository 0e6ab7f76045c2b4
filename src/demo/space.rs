//! A network namespace: made with `ip netns`, entered by short-lived threads, left clean. A process or a
//! socket belongs to the namespace of the thread that makes it; nothing else is needed to be "inside".

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const DIRECTORY: &str = "/run/netns";

/// A named network namespace. Clones name the same one; whoever made it deletes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    name: String,
}

impl Space {
    pub fn create(name: &str) -> Result<Self> {
        ip(&["netns", "add", name])?;
        let space = Self { name: name.to_owned() };
        space.ip_batch("link set lo up\n")?;
        Ok(space)
    }

    /// The namespace of that name, which somebody made already.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// The descriptor that the CNI agent passes on.
    pub fn open(&self) -> Result<OwnedFd> {
        let path = self.path();
        let file = std::fs::File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        Ok(file.into())
    }

    /// Runs `work` on a thread of its own inside the namespace.
    pub fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        let namespace = self.open()?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            match inside.join() {
                Ok(result) => result.map_err(|error: rustix::io::Errno| {
                    anyhow::anyhow!("entering network namespace {}: {error} (root is needed)", self.name)
                }),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        let program = command.get_program().to_os_string();
        self.enter(|| command.spawn())?.with_context(|| format!("starting {program:?}"))
    }

    /// Runs a program to its end and gives what it said, whatever its exit code.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        self.enter(|| command.output())?.with_context(|| format!("running {program}"))
    }

    pub fn connect(&self, to: SocketAddr, within: Duration) -> std::io::Result<TcpStream> {
        self.enter(|| TcpStream::connect_timeout(&to, within)).map_err(std::io::Error::other)?
    }

    pub fn listen(&self, on: SocketAddr) -> Result<TcpListener> {
        self.enter(|| TcpListener::bind(on))?.with_context(|| format!("listening on {on}"))
    }

    pub fn set(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{key}");
        self.enter(|| std::fs::write(&path, value))?.with_context(|| format!("setting {key}={value}"))
    }

    /// `ip` commands inside the namespace, one a line.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        feed("ip", &["-n", &self.name, "-force", "-batch", "-"], lines, None)
    }

    /// Runs a program inside that reads `input`.
    pub fn feed(&self, program: &str, arguments: &[&str], input: &str) -> Result<()> {
        feed(program, arguments, input, Some(self))
    }

    /// Ends the processes that are still inside and removes the namespace.
    pub fn delete(&self) {
        let Ok(output) = Command::new("ip").args(["netns", "pids", &self.name]).output() else { return };
        for pid in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid.filter(|pid| *pid != rustix::process::getpid()) {
                // It may have ended since it was listed.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // Nothing could be done about a failure here; the next start sweeps.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// Removes namespaces named `{kind}-{pid}-...` whose process is gone.
pub fn sweep(kind: &str) {
    let Ok(entries) = std::fs::read_dir(DIRECTORY) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-'));
        let owner = owner.and_then(|rest| rest.split('-').next()).filter(|pid| pid.parse::<u32>().is_ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            Space::named(&name).delete();
        }
    }
}

/// Says at once, and clearly, what is missing on this machine.
pub fn require_root_and(programs: &[&str]) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("this needs root: it makes network namespaces and iptables rules inside them");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in programs {
        if !std::env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
            bail!("`{program}` is not installed (deploy/test.sh and deploy/demo.sh install what is needed)");
        }
    }
    Ok(())
}

pub(super) fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("running ip (iproute2)")?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

pub(super) fn feed(program: &str, arguments: &[&str], input: &str, inside: Option<&Space>) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = match inside {
        Some(space) => space.spawn(&mut command)?,
        None => command.spawn().with_context(|| format!("starting {program}"))?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        std::io::Write::write_all(&mut stdin, input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}\ninput was:\n{input}", arguments.join(" "), said.trim());
    }
    Ok(())
}
