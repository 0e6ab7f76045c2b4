//! Two nodes with a pod each: the near one's proxy gets its mesh from the stand-in, the far one's from a file, so
//! that a measurement is of one proxy.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ringway_standin::generate::pod;
use ringway_standin::heard::Kind;
use ringway_standin::mesh::{ADDRESS, AUTHORIZATION, Change, Item};
use ringway_standin::{NAME, Plan, Standin};

use crate::compare::agent::Agent;
use crate::compare::arm::{SERVER_PORT, mesh_file};
use crate::compare::interrupted;
use crate::compare::process::{Launch, Process};
use crate::netns::Namespace;
use crate::topology::{SERVER, Side, Topology, namespace_path};

/// Of the near node on the link between the nodes; the stand-in is there.
const STANDIN: Ipv4Addr = Ipv4Addr::new(10, 81, 0, 1);
const STANDIN_PORT: u16 = 15_012;
/// It stands for a machine of its own: what is measured goes first.
const STANDIN_NICE: i32 = 19;
const READINESS_PORT: u16 = 15_021;
const ADMIN_PORT: u16 = 15_000;
const STEP: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

pub struct Stage {
    pub standin: Standin,
    pub topology: Topology,
    generator: PathBuf,
    ringway: PathBuf,
    directory: PathBuf,
    _server: Process,
    _far: Proxy,
}

/// A node's proxy and its CNI agent.
pub struct Proxy {
    pub process: Process,
    _agent: Agent,
}

impl Stage {
    /// Everything but the near proxy. `unused` is a range of addresses that refuse connections.
    pub fn set(ringway: &Path, directory: &Path, unused: &str) -> Result<Self> {
        let topology = Topology::build("control", true)?;
        topology.refuse(Side::Client, unused)?;
        let generator = std::env::current_exe()?;
        let server = Launch {
            namespace: &topology.pod(Side::Server),
            cpu: None,
            program: &generator,
            arguments: vec!["serve".into(), "--port".into(), SERVER_PORT.to_string()],
            environment: vec![],
        }
        .logged(&directory.join("server.log"))?;
        let mesh = directory.join("mesh.yaml");
        std::fs::write(&mesh, mesh_file())?;
        let environment = vec![("LOCAL_XDS_PATH", text(&mesh)), ("XDS_ADDRESS", String::new())];
        let far = proxy(&topology, Side::Server, ringway, directory, environment)?;
        let node = namespace_path(&topology.node(Side::Client));
        let standin = Standin::start(Plan {
            bind: Box::new(move |at| Namespace::open(&node)?.within(|| TcpListener::bind(at))?),
            nice: STANDIN_NICE,
            ..Plan::at(SocketAddr::from((STANDIN, STANDIN_PORT)))
        });
        std::fs::write(directory.join("root.pem"), standin.root_pem())?;
        let (ringway, directory) = (ringway.to_owned(), directory.to_owned());
        Ok(Self { standin, topology, generator, ringway, directory, _server: server, _far: far })
    }

    /// Starts the near proxy and waits until it acknowledged both types and is ready; and how long that took.
    pub fn start(&self, within: Duration) -> Result<(Proxy, Duration)> {
        let acks = |type_url| self.standin.kinds(type_url, Kind::Ack);
        let before = [acks(ADDRESS), acks(AUTHORIZATION)];
        let begun = Instant::now();
        let address = format!("https://{STANDIN}:{STANDIN_PORT}");
        let environment = vec![
            ("XDS_ADDRESS", address),
            ("ALT_XDS_HOSTNAME", NAME.to_owned()),
            ("XDS_ROOT_CA", text(&self.directory.join("root.pem"))),
        ];
        let mut proxy = proxy(&self.topology, Side::Client, &self.ringway, &self.directory, environment)?;
        self.wait(&mut proxy, within, "it acknowledged both types", || {
            acks(ADDRESS) > before[0] && acks(AUTHORIZATION) > before[1]
        })?;
        let synced = begun.elapsed();
        self.wait(&mut proxy, STEP, "it is ready", || {
            self.get(READINESS_PORT, "/healthz/ready").is_ok_and(|(status, _)| status == 200)
        })?;
        Ok((proxy, synced))
    }

    /// Waits until every response was acknowledged.
    pub fn settle(&self, proxy: &mut Proxy, within: Duration) -> Result<()> {
        self.wait(proxy, within, "it acknowledged every response", || {
            let acks = self.standin.count(|heard| heard.kind == Kind::Ack || heard.kind == Kind::Stale);
            u64::try_from(acks).is_ok_and(|acks| acks >= self.standin.responses())
        })?;
        let nacks: Vec<String> = self
            .standin
            .heard()
            .into_iter()
            .filter_map(|heard| heard.request.error_detail)
            .map(|detail| detail.message)
            .collect();
        ensure!(nacks.is_empty(), "refused: {}", nacks.join("; "));
        Ok(())
    }

    /// Waits until `done`, while the proxy runs.
    pub fn wait(
        &self,
        proxy: &mut Proxy,
        within: Duration,
        what: &str,
        mut done: impl FnMut() -> bool,
    ) -> Result<()> {
        let end = Instant::now() + within;
        while !done() {
            ensure!(!interrupted(), "interrupted");
            if !proxy.process.is_running() || Instant::now() > end {
                bail!("not within {within:?}: {what}; the proxy's last words:\n{}", self.last_words());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// A load client in the client's pod, gated: it is ready, and measures once told to proceed.
    pub fn load(&self, arguments: &[&str]) -> Result<Process> {
        let to = format!("{SERVER}:{SERVER_PORT}");
        let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        arguments.extend(["--gate".into(), "--to".into(), to]);
        let mut load = Launch {
            namespace: &self.topology.pod(Side::Client),
            cpu: None,
            program: &self.generator,
            arguments,
            environment: vec![],
        }
        .piped(&self.directory.join("load.log"))?;
        let said = load.line(STEP)?;
        ensure!(said == "ready", "{said:?} instead of ready");
        Ok(load)
    }

    /// What the near proxy's mesh has: of each workload, its revision.
    pub fn revisions(&self) -> Result<std::collections::BTreeMap<String, String>> {
        let (status, body) = self.get(ADMIN_PORT, "/config_dump")?;
        ensure!(status == 200, "the dump's status is {status}");
        let dump: serde_json::Value = serde_json::from_str(&body)?;
        let workloads = dump.get("workloads").and_then(serde_json::Value::as_array);
        let workloads = workloads.context("no workloads in the dump")?;
        let field =
            |workload: &serde_json::Value, name: &str| workload[name].as_str().unwrap_or_default().to_owned();
        Ok(workloads.iter().map(|one| (field(one, "uid"), field(one, "canonicalRevision"))).collect())
    }

    fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        let node = Namespace::open(&namespace_path(&self.topology.node(Side::Client)))?;
        let mut stream = node.within(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)))??;
        stream.set_read_timeout(Some(STEP))?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
        Ok((status, body.to_owned()))
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.directory.join("node1.log")).unwrap_or_default();
        let mut last: Vec<&str> = log.lines().rev().take(8).collect();
        last.reverse();
        last.join("\n")
    }
}

/// The two pods.
pub fn base() -> Change {
    Change { put: [Side::Client, Side::Server].map(side_pod).into(), remove: vec![] }
}

fn side_pod(side: Side) -> Item {
    side_workload(side).into()
}

pub fn side_workload(side: Side) -> ringway::wire::pb::workload::Workload {
    pod(side.name(), "default", side.node(), &[side.address().into()])
}

fn proxy(
    topology: &Topology,
    side: Side,
    ringway: &Path,
    directory: &Path,
    sources: Vec<(&str, String)>,
) -> Result<Proxy> {
    let socket = directory.join(format!("{}.sock", side.node()));
    let agent = Agent::start(&socket, side, namespace_path(&topology.pod(side)))?;
    let mut environment = vec![
        ("FAKE_CA", "true".to_owned()),
        ("RINGWAY_CA_DIR", text(&directory.join("ca"))),
        ("CA_ADDRESS", String::new()),
        ("NODE_NAME", side.node().to_owned()),
        ("INSTANCE_IP", "10.81.0.1".to_owned()),
        ("INPOD_UDS", text(&socket)),
    ];
    environment.extend(sources);
    let process = Launch {
        namespace: &topology.node(side),
        cpu: None,
        program: ringway,
        arguments: vec!["proxy".into(), "ztunnel".into()],
        environment: environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
    .logged(&directory.join(format!("{}.log", side.node())))?;
    Ok(Proxy { process, _agent: agent })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
