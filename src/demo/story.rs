//! What `ringway demo` does, step by step: each step claims something, does it with real programs, and shows
//! what was seen.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cluster::{Cluster, ClusterPlan};
use super::http::{Curl, HttpServer};
use super::measure;
use super::mesh_file::{FileService, deny};
use super::report::Report;
use super::space::require_root_and;
use super::topology::Pod;
use super::wire_tap::WireTap;

const VIP: &str = "10.77.200.1";
const VIP6: &str = "fd77:0:0:200::1";
const SERVICE_PORT: u16 = 80;
const HTTP_PORT: u16 = 8080;
const MEASURE_PORT: u16 = 9000;
/// Said through the mesh: nobody between the nodes may read it.
const SECRET: &str = "the-cat-is-in-the-bag";
/// Said without the mesh: proves that the tap would have read the other.
const OPEN: &str = "the-cat-is-in-the-street";
const POLICY_BOUND: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Stay up after the checks until Ctrl-C.
    pub hold: bool,
    /// The proxy's binary; this program itself where none is given.
    pub binary: Option<PathBuf>,
}

/// Runs the demo; whether every check passed.
pub fn run(options: &Options) -> Result<bool> {
    require_root_and(&["ip", "iptables-restore", "ip6tables-restore", "curl"])?;
    let interrupted = watch_for_interrupt()?;
    let mut story = Story::set_up(options, interrupted)?;
    let steps =
        [Story::talk, Story::keep_secret, Story::show_identities, Story::change_policy, Story::measure];
    for step in steps {
        story.stop_if_interrupted()?;
        step(&mut story)?;
    }
    let passed = story.report.finish();
    if options.hold {
        story.hold();
    }
    Ok(passed)
}

struct Story {
    report: Report,
    tap: WireTap,
    cluster: Cluster,
    client: Pod,
    server: Pod,
    stranger: Pod,
    http: HttpServer,
    interrupted: Arc<AtomicBool>,
}

impl Story {
    fn set_up(options: &Options, interrupted: Arc<AtomicBool>) -> Result<Self> {
        let report = Report::to_terminal();
        report.heading("Two nodes, three pods, one service: each a network namespace of this machine");
        let binary = match &options.binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe().context("finding this program's own file")?,
        };
        let plan = ClusterPlan { kind: "rwdemo", nodes: 2, binary, environment: Vec::new() };
        let mut cluster = Cluster::build(plan)?;
        let client = cluster.mesh_pod(1, "client")?;
        let server = cluster.mesh_pod(2, "server")?;
        let stranger = cluster.plain_pod(1, "stranger")?;
        let web = FileService::new("web", &[VIP, VIP6], &[(SERVICE_PORT, HTTP_PORT)]);
        cluster.mesh.workload("server")?.serves.push((web.hostname(), SERVICE_PORT, HTTP_PORT));
        cluster.mesh.services.push(web);
        let tap = WireTap::start(&cluster.topology.wire, &[SECRET, OPEN])?;
        let http = HttpServer::start(&server, HTTP_PORT, cluster.directory())?;
        measure::serve(&server, MEASURE_PORT)?;
        report.note(&format!("node1  client   {}, {}   in the mesh", client.v4, client.v6));
        report.note(&format!("node1  stranger {}, {}   not in the mesh", stranger.v4, stranger.v6));
        report
            .note(&format!("node2  server   {}, {}   in the mesh, runs {}", server.v4, server.v6, http.name));
        report.note(&format!("service web {VIP}:{SERVICE_PORT} -> server:{HTTP_PORT}"));
        let started = Instant::now();
        cluster.start()?;
        let mut story = Self { report, tap, cluster, client, server, stranger, http, interrupted };
        let pids: Vec<_> = story.cluster.proxies().map(|proxy| proxy.pid().to_string()).collect();
        story.report.check(
            true,
            "both node proxies are ready, the CNI agents handed them the pods",
            &format!("processes {}, after {} ms", pids.join(" and "), started.elapsed().as_millis()),
        );
        Ok(story)
    }

    fn talk(&mut self) -> Result<()> {
        self.report.heading("A real HTTP client and server");
        let targets = [
            ("curl to the service", format!("http://{VIP}/"), self.client.v4.to_string()),
            (
                "curl to the pod",
                format!("http://{}:{HTTP_PORT}/", self.server.v4),
                self.client.v4.to_string(),
            ),
            ("curl to the service, IPv6", format!("http://[{VIP6}]/"), self.client.v6.to_string()),
        ];
        for (claim, url, expected) in targets {
            let curl = Curl::run(&self.client, &url, SECRET)?;
            let wanted = format!("you are {expected} and said {SECRET}");
            let seen = if curl.body.is_empty() { &curl.error } else { &curl.body };
            let claim = format!("{claim}: answered, and the server sees the client's own address");
            self.report.check(curl.body == wanted, &claim, &format!("{url} -> {seen}"));
        }
        let url = format!("http://{}:{HTTP_PORT}/", self.server.v4);
        let curl = Curl::run(&self.stranger, &url, OPEN)?;
        let seen = if curl.body.is_empty() { &curl.error } else { &curl.body };
        self.report.check(
            curl.exit_code == Some(0),
            "curl from outside the mesh: allowed as plaintext, as no policy asks for more",
            &format!("{url} -> {seen}"),
        );
        Ok(())
    }

    fn keep_secret(&mut self) -> Result<()> {
        self.report.heading("The wire between the nodes");
        // Frames may still be in the tap's buffer.
        let until = Instant::now() + Duration::from_secs(2);
        while self.tap.seen(OPEN) == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let sightings = self.tap.sightings();
        self.report.check(
            self.tap.seen(SECRET) == 0 && sightings.application_data > 0,
            "what the mesh carried was ciphertext",
            &format!(
                "{} segments on port 15008, {} begin a TLS record of data, {} hold the client's words",
                sightings.hbone_segments,
                sightings.application_data,
                self.tap.seen(SECRET),
            ),
        );
        self.report.check(
            self.tap.seen(OPEN) > 0,
            "the tap does read plaintext: the stranger's words were seen",
            &format!("{} segments hold them", self.tap.seen(OPEN)),
        );
        Ok(())
    }

    fn show_identities(&mut self) -> Result<()> {
        self.report.heading("Who talked to whom, as the access logs of the nodes tell it");
        let wanted = 3;
        let until = Instant::now() + Duration::from_secs(5);
        let mut lines = Vec::new();
        while Instant::now() < until {
            lines = self.cluster.proxy(1)?.access_lines()?;
            lines.extend(self.cluster.proxy(2)?.access_lines()?);
            if lines.iter().filter(|line| attested(line, "inbound")).count() >= wanted {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.report.conversations(&lines);
        for direction in ["outbound", "inbound"] {
            let count = lines.iter().filter(|line| attested(line, direction)).count();
            self.report.check(
                count >= wanted,
                &format!("{direction}: both ends are known by their certificates"),
                &format!("{count} connections from .../sa/client to .../sa/server"),
            );
        }
        let dump = self.cluster.proxy(1)?.dump()?;
        let certificates = dump.get("certificates").and_then(Value::as_array).map_or(0, Vec::len);
        self.report.check(
            certificates > 0,
            "/config_dump shows the certificates of node1",
            &format!("{certificates} identities"),
        );
        Ok(())
    }

    fn change_policy(&mut self) -> Result<()> {
        self.report.heading("A policy, changed while everything runs");
        let service = SocketAddr::new(VIP.parse()?, SERVICE_PORT);
        let mut held = self.client.space.connect(service, Duration::from_secs(5))?;
        held.set_read_timeout(Some(POLICY_BOUND))?;
        write!(held, "GET / HTTP/1.1\r\nhost: web\r\n\r\n")?;
        let mut bytes = [0; 4_096];
        let count = held.read(&mut bytes).context("an answer before the policy")?;
        anyhow::ensure!(count > 0, "the held connection ended before the policy");
        let policy = deny("no-client", "cluster.local/ns/default/sa/client");
        self.cluster.mesh.policies.push(policy);
        self.cluster.mesh.write()?;
        let written = Instant::now();
        let (closed, how) = match held.read(&mut bytes) {
            Ok(0) => (true, "end of stream".to_owned()),
            Ok(count) => (false, format!("{count} unexpected bytes")),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                (false, "still open".to_owned())
            }
            Err(error) => (true, error.to_string()),
        };
        let seen = format!("{how}, {} ms after the file was written", written.elapsed().as_millis());
        self.report.check(closed, "an open connection that the new policy denies is closed", &seen);
        let curl = Curl::run(&self.client, &format!("http://{VIP}/"), SECRET)?;
        let refused = curl.exit_code != Some(0);
        self.report.check(refused, "a new one is refused", if refused { &curl.error } else { &curl.body });
        let reasons = self.reasons("policy")?;
        let seen = if reasons.is_empty() { "nothing".to_owned() } else { reasons.join("; ") };
        self.report.check(!reasons.is_empty(), "the server's node says why", &seen);
        self.cluster.mesh.policies.clear();
        self.cluster.mesh.write()?;
        let healed = Instant::now();
        let mut works = false;
        while !works && healed.elapsed() < POLICY_BOUND {
            works = Curl::run(&self.client, &format!("http://{VIP}/"), SECRET)?.exit_code == Some(0);
        }
        let seen = format!("{} ms after the file was written", healed.elapsed().as_millis());
        self.report.check(works, "without the policy it works again", &seen);
        Ok(())
    }

    fn measure(&mut self) -> Result<()> {
        self.report
            .heading("How fast (one stream, everything on this one machine; loadtest/ compares properly)");
        let measured = measure::measure(&self.client, self.server.at(MEASURE_PORT))?;
        self.report.check(
            true,
            &format!("{:.2} Gbit/s through both proxies, every byte counted", measured.gigabits_per_second()),
            &format!("{} MiB in {:.1} s", measured.bytes >> 20, measured.took.as_secs_f64()),
        );
        self.report.check(
            true,
            &format!("{} µs for a request and its answer (median)", measured.median.as_micros()),
            &format!("99 of 100 within {} µs", measured.p99.as_micros()),
        );
        Ok(())
    }

    /// Errors in the access log of the server's node that hold a word; waits a little for the log.
    fn reasons(&self, word: &str) -> Result<Vec<String>> {
        let until = Instant::now() + Duration::from_secs(3);
        loop {
            let lines = self.cluster.proxy(2)?.access_lines()?;
            let errors = lines.iter().filter_map(|line| line.get("error").and_then(Value::as_str));
            let mut found: Vec<_> = errors.filter(|text| text.contains(word)).map(str::to_owned).collect();
            found.dedup();
            if !found.is_empty() || Instant::now() > until {
                return Ok(found);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn hold(&self) {
        let inside = |pod: &Pod| format!("ip netns exec {}", pod.space.name());
        let node = |number: u8| format!("ip netns exec {}-node{number}", self.cluster.topology.prefix());
        self.report.heading("Everything stays up until Ctrl-C. To try:");
        let mesh = self.cluster.mesh.path().display();
        let directory = self.cluster.directory().display();
        for line in [
            format!(
                "{} curl -s http://{VIP}/                  # through the mesh, to {}",
                inside(&self.client),
                self.http.name
            ),
            format!(
                "{} curl -s http://{}:{HTTP_PORT}/         # from outside it",
                inside(&self.stranger),
                self.server.v4
            ),
            format!("{} curl -s localhost:15000/config_dump    # what node1 knows", node(1)),
            format!("{} curl -s localhost:15020/metrics        # what node2 counted", node(2)),
            format!(
                "ip netns exec {} tcpdump -ni any -A       # the wire",
                self.cluster.topology.wire.name()
            ),
            format!("tail -f {directory}/node2-*.out           # node2's log"),
            format!("$EDITOR {mesh}                            # change the mesh"),
        ] {
            self.report.note(&line);
        }
        while !self.interrupted.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop_if_interrupted(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted; everything was cleaned up");
        }
        Ok(())
    }
}

fn attested(line: &Value, direction: &str) -> bool {
    let text = |key: &str| line.get(key).and_then(Value::as_str).unwrap_or_default();
    text("direction") == direction
        && text("src.identity").ends_with("/ns/default/sa/client")
        && text("dst.identity").ends_with("/ns/default/sa/server")
        && line.get("error").is_none()
}

/// Ctrl-C asks for an orderly end; the second one ends at once, and the next start cleans up.
fn watch_for_interrupt() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let flag = interrupted.clone();
    std::thread::spawn(move || {
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if flag.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    });
    Ok(interrupted)
}
