//! A process of ours in a namespace, perhaps pinned, and what the kernel says it used. Ends with us.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::{Add, Sub};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::interrupted;

/// How long a process may take to go after SIGTERM.
const TERM_DEADLINE: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(20);
/// The kernel's USER_HZ, fixed in its ABI.
const TICKS_PER_SECOND: f64 = 100.0;

pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Option<Receiver<String>>,
    complaints: PathBuf,
    what: String,
}

pub struct Launch<'a> {
    pub namespace: &'a str,
    pub cpu: Option<usize>,
    pub program: &'a Path,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Launch<'_> {
    /// Starts with output and errors into `log`.
    pub fn logged(self, log: &Path) -> Result<Process> {
        let file = File::create(log).with_context(|| format!("{}", log.display()))?;
        let errors = file.try_clone()?;
        self.start(|command| command.stdin(Stdio::null()).stdout(file).stderr(errors))
    }

    /// Starts with lines in and out, errors into `complaints`.
    pub fn piped(self, complaints: &Path) -> Result<Process> {
        let errors = File::create(complaints).with_context(|| format!("{}", complaints.display()))?;
        let mut process =
            self.start(|command| command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors))?;
        process.complaints = complaints.to_owned();
        process.input = process.child.stdin.take();
        let output = process.child.stdout.take().context("a piped child has an output")?;
        let (send, lines) = channel();
        std::thread::Builder::new().name("lines".into()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        })?;
        process.lines = Some(lines);
        Ok(process)
    }

    /// `ip netns exec`, `setpriv` and `taskset` each become what they start, so the child's id is the program's.
    fn start(self, wire: impl FnOnce(&mut Command) -> &mut Command) -> Result<Process> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL"]);
        if let Some(cpu) = self.cpu {
            command.args(["taskset", "-c", &cpu.to_string()]);
        }
        command.arg(self.program).args(&self.arguments).envs(self.environment);
        let what = format!("{} {}", self.program.display(), self.arguments.join(" "));
        let child = wire(&mut command).spawn().with_context(|| what.clone())?;
        Ok(Process { child, input: None, lines: None, complaints: PathBuf::new(), what })
    }
}

impl Process {
    /// The next line of output.
    pub fn line(&mut self, deadline: Duration) -> Result<String> {
        let lines = self.lines.as_ref().context("not piped")?;
        let end = Instant::now() + deadline;
        loop {
            ensure!(!interrupted(), "interrupted");
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout) => bail!("{}: no answer in {deadline:?}", self.what),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{}: ended early: {}", self.what, read(&self.complaints).trim())
                }
            }
        }
    }

    /// Lets a gated program go on.
    pub fn proceed(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("not piped")?;
        input.write_all(b"\n").with_context(|| self.what.clone())
    }

    /// Waits for the program to end by itself, successfully.
    pub fn finished(mut self, deadline: Duration) -> Result<()> {
        self.input = None;
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "{}: {status}", self.what);
                return Ok(());
            }
            ensure!(Instant::now() < end, "{}: still runs after {deadline:?}", self.what);
            std::thread::sleep(POLL);
        }
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn usage(&self) -> Usage {
        Usage::of(self.child.id())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// The most that was ever resident.
    pub fn peak_bytes(&self) -> u64 {
        field(&read(Path::new(&format!("/proc/{}/status", self.child.id()))), "VmHWM:") * 1_024
    }

    /// SIGTERM, then SIGKILL.
    fn stop(&mut self) {
        if !self.is_running() {
            return;
        }
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        // The child is ours and not yet waited for, so the id is still its own.
        let _ = kill_process(pid, Signal::TERM);
        let end = Instant::now() + TERM_DEADLINE;
        while self.is_running() && Instant::now() < end {
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a process used so far, and holds now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub wakeups: u64,
    /// Resident.
    pub memory_bytes: u64,
    /// Resident and no file's. What programs read of their own files comes and goes, so growth is told of this.
    pub anonymous_bytes: u64,
}

impl Usage {
    /// Threads' run time by the scheduler's own count. A thread that ended is only in the process's count,
    /// which is coarse: it wins where it says clearly more.
    fn of(pid: u32) -> Self {
        let (mut run_ns, mut wakeups) = (0_u64, 0);
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            run_ns += read(&task.path().join("schedstat")).split(' ').next().and_then(parse).unwrap_or(0);
            wakeups += field(&read(&task.path().join("status")), "voluntary_ctxt_switches:");
        }
        let exact = Duration::from_nanos(run_ns).as_secs_f64();
        let coarse = process_seconds(&read(Path::new(&format!("/proc/{pid}/stat"))));
        let cpu_seconds = if coarse > exact * 1.01 + 0.05 { coarse } else { exact };
        // Resident, not proportional: the load client shares the yardstick's program file, and its coming and
        // going must not show.
        let memory = read(Path::new(&format!("/proc/{pid}/smaps_rollup")));
        let bytes = |name| field(&memory, name) * 1_024;
        Self { cpu_seconds, wakeups, memory_bytes: bytes("Rss:"), anonymous_bytes: bytes("Anonymous:") }
    }
}

impl Add for Usage {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            wakeups: self.wakeups + other.wakeups,
            memory_bytes: self.memory_bytes + other.memory_bytes,
            anonymous_bytes: self.anonymous_bytes + other.anonymous_bytes,
        }
    }
}

/// What was used since; memory as far as it grew.
impl Sub for Usage {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self {
            cpu_seconds: (self.cpu_seconds - before.cpu_seconds).max(0.0),
            wakeups: self.wakeups.saturating_sub(before.wakeups),
            memory_bytes: self.memory_bytes.saturating_sub(before.memory_bytes),
            anonymous_bytes: self.anonymous_bytes.saturating_sub(before.anonymous_bytes),
        }
    }
}

/// User and system time, fields 14 and 15; the name in field 2 may hold spaces.
fn process_seconds(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name.split_ascii_whitespace().skip(11).take(2).filter_map(parse).sum();
    ticks as f64 / TICKS_PER_SECOND
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_ascii_whitespace().next()).and_then(parse).unwrap_or(0)
}

fn parse(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_usage_is_read() {
        let before = Usage::of(std::process::id());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let used = Usage::of(std::process::id()) - before;
        assert!(used.cpu_seconds > 0.005, "{used:?}");
        assert!(before.memory_bytes > before.anonymous_bytes, "{before:?}");
        assert!(before.anonymous_bytes > 10_000, "{before:?}");
    }

    #[test]
    fn a_name_with_spaces_and_brackets_is_read_over() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 3 0 1 2 3";
        assert!((process_seconds(stat) - 2.0).abs() < 1e-9);
    }
}
