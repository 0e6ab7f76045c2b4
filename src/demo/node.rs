//! One node's proxy as a process in the node's namespace, and what can be seen of it from outside: readiness,
//! metrics, dump, log lines, descriptors, memory, CPU time.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::space::Space;
use crate::control::ask::ask;

pub const ADMIN_PORT: u16 = 15000;
pub const METRICS_PORT: u16 = 15020;
pub const READY_PORT: u16 = 15021;

/// How a proxy is started.
pub struct NodePlan<'a> {
    pub binary: &'a Path,
    /// A command that the binary is started through (`prlimit --nofile=64`), empty for none.
    pub through: &'a [&'a str],
    pub space: &'a Space,
    pub environment: Vec<(String, String)>,
    /// Standard output goes to `{log}.out`, standard error to `{log}.err`.
    pub log: PathBuf,
}

/// A running proxy. Dropping it kills it.
pub struct NodeProxy {
    child: Child,
    space: Space,
    log: PathBuf,
}

impl NodeProxy {
    /// Starts `ringway proxy ztunnel` with nothing in its environment but PATH and what the plan says.
    pub fn start(plan: NodePlan<'_>) -> Result<Self> {
        let create = |extension| {
            let path = plan.log.with_extension(extension);
            std::fs::File::create(&path).with_context(|| format!("creating {}", path.display()))
        };
        let mut words = plan.through.iter().copied();
        let mut command = match words.next() {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(words).arg(plan.binary);
                command
            }
            None => Command::new(plan.binary),
        };
        command.args(["proxy", "ztunnel"]).env_clear().envs(plan.environment);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Its own group: Ctrl-C in a terminal is for the program that watches over it.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(create("out")?).stderr(create("err")?);
        let child = plan.space.spawn(&mut command)?;
        Ok(Self { child, space: plan.space.clone(), log: plan.log })
    }

    /// The namespace that it was started in.
    pub fn space(&self) -> &Space {
        &self.space
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until readiness says so. A proxy that ended meanwhile is an error that shows its last words.
    pub fn wait_ready(&mut self, within: Duration) -> Result<Duration> {
        let started = Instant::now();
        let mut last = String::new();
        while started.elapsed() < within {
            if let Some(status) = self.child.try_wait()? {
                bail!("the proxy ended ({status}) before it was ready:\n{}", self.last_words());
            }
            match self.get(READY_PORT, "/healthz/ready") {
                Ok((200, _)) => return Ok(started.elapsed()),
                Ok((status, body)) => last = format!("{status} {}", body.trim()),
                Err(error) => last = format!("{error:#}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the proxy wasn't ready within {within:?} (last: {last}):\n{}", self.last_words())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no such pid")?;
        kill_process(pid, signal).context("signalling the proxy")
    }

    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("waiting for the proxy")
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            match self.try_wait()? {
                Some(status) => return Ok(status),
                None if Instant::now() > until => bail!("the proxy still runs after {within:?}"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// A GET to a port of the node's loopback: status and body.
    pub fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        self.request("GET", port, path)
    }

    pub fn request(&self, method: &str, port: u16, path: &str) -> Result<(u16, String)> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream =
            self.space.connect(to, Duration::from_secs(2)).with_context(|| format!("port {port}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(ask(stream, method, path, u64::MAX)?)
    }

    pub fn dump(&self) -> Result<Value> {
        let (status, body) = self.get(ADMIN_PORT, "/config_dump")?;
        if status != 200 {
            bail!("/config_dump answered {status}: {body}");
        }
        serde_json::from_str(&body).context("/config_dump is no JSON")
    }

    pub fn metrics(&self) -> Result<Metrics> {
        let (status, body) = self.get(METRICS_PORT, "/metrics")?;
        if status != 200 {
            bail!("/metrics answered {status}: {body}");
        }
        Ok(Metrics(body))
    }

    /// Everything said on standard output so far, one JSON object a line (LOG_FORMAT=json).
    pub fn log_lines(&self) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.log.with_extension("out"))?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The access log so far.
    pub fn access_lines(&self) -> Result<Vec<Value>> {
        let lines = self.log_lines()?;
        Ok(lines
            .into_iter()
            .filter(|line| line.get("scope").is_some_and(|scope| scope == "access"))
            .collect())
    }

    /// Standard output as it is.
    pub fn output_text(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.log.with_extension("out"))?)
    }

    /// The ends of both outputs, for a person who looks at a failure.
    pub fn last_words(&self) -> String {
        let mut words = String::new();
        for extension in ["out", "err"] {
            let text = std::fs::read(self.log.with_extension(extension)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().filter(|line| !line.contains("running with config")).collect();
            for line in lines.iter().skip(lines.len().saturating_sub(40)) {
                words.push_str(line);
                words.push('\n');
            }
        }
        words
    }

    pub fn open_descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Resident memory.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib.saturating_mul(1_024))
    }

    /// CPU time of all threads so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut total = 0_u64;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // A thread may end while we look.
            let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
            total = total.saturating_add(text.split(' ').next().unwrap_or_default().parse().unwrap_or(0));
        }
        Ok(Duration::from_nanos(total))
    }
}

impl Drop for NodeProxy {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the process ended by itself with code 0, no signal involved.
pub fn ended_well(status: ExitStatus) -> bool {
    status.code() == Some(0) && status.signal().is_none()
}

/// One scrape.
pub struct Metrics(pub String);

impl Metrics {
    /// The sum over all series of this name whose labels contain each of `labels` (`reporter="source"`).
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let series = self.0.lines().filter(|line| !line.starts_with('#'));
        let of_name =
            series.filter_map(|line| line.strip_prefix(name)).filter(|rest| rest.starts_with(['{', ' ']));
        let matching = of_name.filter(|rest| labels.iter().all(|label| rest.contains(label)));
        matching.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_count_only_the_series_that_were_meant() {
        let metrics = Metrics(
            "# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"2\"} 4\n\
             a_total_other{x=\"1\"} 9\nb 1\n"
                .to_owned(),
        );
        assert_eq!(metrics.sum("a_total", &["x=\"1\""]), 3.0);
        assert_eq!(metrics.sum("a_total", &[]), 7.0);
        assert_eq!(metrics.sum("b", &[]), 1.0);
    }
}
