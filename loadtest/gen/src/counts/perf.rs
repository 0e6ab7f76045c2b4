//! Counts of what processes do, exact and without slowing them by stops: system calls by the kernel's tracepoint,
//! allocations by probes on the allocator's functions. Both by `perf`, which is switched on for a window and off again.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};

/// Every system call of every thread, by the kernel's own tracepoint.
const SYSTEM_CALLS: &str = "raw_syscalls:sys_enter";
/// What asks jemalloc for memory; the program's C libraries use the system's allocator, which isn't counted.
const ALLOCATING: [(&str, &str); 5] = [
    ("malloc", "_rjem_malloc"),
    ("calloc", "_rjem_calloc"),
    ("realloc", "_rjem_realloc"),
    ("mallocx", "_rjem_mallocx"),
    ("rallocx", "_rjem_rallocx"),
];
/// Probes are the whole machine's: by the number in their group's name an orphaned one is known.
const GROUP_PREFIX: &str = "rwgen_";
/// For perf to do what it was told.
const DEADLINE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);

/// What was counted in one window, of all processes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub system_calls: u64,
    pub allocations: u64,
}

/// Probes on a program's allocator; removed on drop.
pub struct Probes {
    group: String,
}

impl Probes {
    /// `directory` is perf's to fill. Fails, and says why, where the kernel or perf can't count, or the program has no
    /// such functions.
    pub fn place(program: &Path, directory: &Path) -> Result<Self> {
        remove_orphans()?;
        let probes = Self { group: format!("{GROUP_PREFIX}{}", std::process::id()) };
        let mut command = Command::new("perf");
        // Where perf keeps its copy of the program, which else stays in the home directory.
        command.arg("--buildid-dir").arg(directory);
        command.args(["probe", "--quiet", "--exec"]).arg(program);
        for (name, function) in ALLOCATING {
            command.arg("--add").arg(format!("{}:{name}={function}", probes.group));
        }
        run(&mut command).with_context(|| format!("counting the allocations of {}", program.display()))?;
        Ok(probes)
    }

    /// Ready to count what these processes do; off until `Counter::on`.
    pub fn attach(&self, processes: &[u32], directory: &Path) -> Result<Counter> {
        let [orders, answers, result] =
            ["perf.orders", "perf.answers", "perf.result"].map(|name| directory.join(name));
        let files = [pipe(&orders)?, pipe(&answers)?];
        let ids: Vec<String> = processes.iter().map(ToString::to_string).collect();
        let child = Command::new("perf")
            .args(["stat", "--field-separator", ",", "--delay=-1", "--pid", &ids.join(",")])
            .args(["--event", SYSTEM_CALLS, "--event", &format!("{}:*", self.group)])
            .arg(format!("--control=fifo:{},{}", orders.display(), answers.display()))
            .arg("--output")
            .arg(&result)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting perf (Debian: linux-perf)")?;
        let [orders, answers] = files;
        Ok(Counter { child, orders, answers, result })
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        // Best effort: what stays is removed by the next `place`.
        let _ = remove(&self.group);
    }
}

/// One window of counting.
pub struct Counter {
    child: Child,
    orders: File,
    answers: File,
    result: PathBuf,
}

impl Counter {
    /// Counts from here on.
    pub fn on(&mut self) -> Result<()> {
        self.order("enable")
    }

    /// Counts no longer; what it came to.
    pub fn off(mut self) -> Result<Counted> {
        self.order("disable")?;
        self.signal(Signal::INT);
        let end = Instant::now() + DEADLINE;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < end, "perf doesn't end");
            std::thread::sleep(POLL);
        }
        let text = std::fs::read_to_string(&self.result).context("what perf counted")?;
        parse(&text).with_context(|| format!("perf said {:?}", text.trim()))
    }

    /// Returns when it is done.
    fn order(&mut self, order: &str) -> Result<()> {
        self.orders.write_all(format!("{order}\n").as_bytes())?;
        let (mut heard, mut piece) = (Vec::new(), [0; 64]);
        let end = Instant::now() + DEADLINE;
        loop {
            match self.answers.read(&mut piece) {
                Ok(length) => heard.extend_from_slice(piece.get(..length).unwrap_or(&[])),
                Err(fault) if fault.kind() == ErrorKind::WouldBlock => {}
                Err(fault) => return Err(fault.into()),
            }
            if heard.windows(4).any(|word| word == b"ack\n") {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("perf ended at once ({status}): may it count {SYSTEM_CALLS} here?");
            }
            ensure!(Instant::now() < end, "perf doesn't answer");
            std::thread::sleep(POLL);
        }
    }

    fn signal(&self, signal: Signal) {
        // The child is ours and not yet waited for, so the id is still its own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // No effect on one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sums perf's lines: count, unit, event, and what doesn't matter here. A count that is no number is a failure.
fn parse(text: &str) -> Result<Counted> {
    let mut counted = Counted { system_calls: 0, allocations: 0 };
    let mut seen = [0_usize; 2];
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut fields = line.split(',');
        let (Some(count), Some(event)) = (fields.next(), fields.nth(1)) else { continue };
        let count: u64 = count.parse().with_context(|| format!("{event} was not counted: {count:?}"))?;
        if event == SYSTEM_CALLS {
            counted.system_calls += count;
            seen[0] += 1;
        } else if event.starts_with(GROUP_PREFIX) {
            counted.allocations += count;
            seen[1] += 1;
        }
    }
    ensure!(seen == [1, ALLOCATING.len()], "{seen:?} counts instead of 1 and {}", ALLOCATING.len());
    Ok(counted)
}

/// A pipe with a name, open both ways: neither end waits for the other.
fn pipe(path: &Path) -> Result<File> {
    // One of an earlier window.
    let _ = std::fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
    Ok(File::options().read(true).write(true).custom_flags(flags).open(path)?)
}

fn remove_orphans() -> Result<()> {
    let listed = run(Command::new("perf").args(["probe", "--list"])).context("perf (Debian: linux-perf)")?;
    let mut groups: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.trim_start().split(':').next())
        .filter(|group| {
            let owner = group.strip_prefix(GROUP_PREFIX).and_then(|owner| owner.parse::<u32>().ok());
            owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists())
        })
        .collect();
    groups.dedup();
    groups.into_iter().try_for_each(remove)
}

fn remove(group: &str) -> Result<()> {
    run(Command::new("perf").args(["probe", "--quiet", "--del", &format!("{group}:*")])).map(drop)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed ({}): {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_and_one_that_perf_could_not_take_is_a_failure() {
        let line = |count: &str, event: &str| format!("{count},,{event},11857777,100.00,,\n");
        let mut text = String::from("# started on a day\n\n") + &line("128", SYSTEM_CALLS);
        for (place, (name, _)) in ALLOCATING.iter().enumerate() {
            text += &line(&(10 + place).to_string(), &format!("rwgen_7:{name}"));
        }
        let counted = Counted { system_calls: 128, allocations: 10 + 11 + 12 + 13 + 14 };
        assert_eq!(parse(&text).unwrap(), counted);
        let one_uncounted = text.replace("11,,", "<not counted>,,");
        assert!(parse(&one_uncounted).unwrap_err().to_string().contains("rwgen_7:calloc was not counted"));
        let without_system_calls = text.replace(SYSTEM_CALLS, "another");
        assert!(parse(&without_system_calls).is_err());
    }
}
