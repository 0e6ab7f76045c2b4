//! What is compared, and how each is brought up on a topology.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::agent::Agent;
use super::envoy;
use super::process::{Launch, Process, Usage};
use crate::authority::Cipher;
use crate::topology::{SERVER, Side, Topology, namespace_path};

const READY_DEADLINE: Duration = Duration::from_secs(20);
pub const SERVER_PORT: u16 = 8080;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Arm {
    /// No rules, no proxies.
    Direct,
    /// Two plain TCP relays.
    Hop2,
    /// The HBONE pair of tokio, tokio-rustls and h2.
    H2tokio,
    /// The same again: its ratios to the first show the noise.
    Control,
    /// The yardstick with the cipher that Envoys choose: what the cipher alone is worth.
    H2tokioAes128,
    /// HBONE by the real Envoy.
    Envoy,
    /// The product, on io_uring.
    Ringway,
    /// The product, on epoll.
    RingwayEpoll,
}

impl Arm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Hop2 => "hop2",
            Self::H2tokio => "h2tokio",
            Self::Control => "control",
            Self::H2tokioAes128 => "h2tokio-aes128",
            Self::Envoy => "envoy",
            Self::Ringway => "ringway",
            Self::RingwayEpoll => "ringway-epoll",
        }
    }

    /// How its work differs from the base's, where it isn't the same.
    pub fn differs(self) -> Option<&'static str> {
        match self {
            Self::Envoy => Some(
                "TLS_AES_128_GCM_SHA256, as Envoy can't be told a cipher of TLS 1.3 (h2tokio-aes128 shows what that \
                 is worth), frames of 16 KiB, one worker; it lives in the pod's namespace",
            ),
            Self::H2tokioAes128 => Some("TLS_AES_128_GCM_SHA256"),
            Self::Direct
            | Self::Hop2
            | Self::H2tokio
            | Self::Control
            | Self::Ringway
            | Self::RingwayEpoll => None,
        }
    }

    pub fn is_captured(self) -> bool {
        self != Self::Direct
    }

    pub fn is_encrypted(self) -> bool {
        !matches!(self, Self::Direct | Self::Hop2)
    }
}

/// Where programs run: in cost mode the proxies have CPU 0 for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    Cost,
    Free,
}

impl Mode {
    pub fn proxy_cpu(self) -> Option<usize> {
        (self == Self::Cost).then_some(0)
    }

    pub fn load_cpu(self) -> Option<usize> {
        (self == Self::Cost).then_some(1)
    }
}

pub struct Programs {
    pub generator: PathBuf,
    pub ringway: Option<PathBuf>,
    pub mode: Mode,
    /// Logs, sockets and certificates of this run.
    pub directory: PathBuf,
    /// The congestion control of every connection; without it the machine's.
    pub congestion: Option<String>,
}

/// An arm's namespaces and load server, kept for the whole run; proxies come and go.
pub struct Stage {
    pub arm: Arm,
    pub topology: Topology,
    pub server: Process,
    directory: PathBuf,
}

/// The proxies of a stage.
pub struct Proxies {
    processes: Vec<Process>,
    _agents: Vec<Agent>,
}

impl Stage {
    pub fn set(arm: Arm, programs: &Programs) -> Result<Self> {
        let directory = programs.directory.join(arm.name());
        std::fs::create_dir_all(&directory)?;
        let topology = Topology::build(&format!("{}", arm as u8), arm.is_captured())?;
        if let Some(name) = &programs.congestion {
            topology.control_congestion(name)?;
        }
        let server = Launch {
            namespace: &topology.pod(Side::Server),
            cpu: programs.mode.load_cpu(),
            program: &programs.generator,
            arguments: vec!["serve".into(), "--port".into(), SERVER_PORT.to_string()],
            environment: vec![],
        }
        .logged(&directory.join("server.log"))?;
        Ok(Self { arm, topology, server, directory })
    }

    /// Starts the proxies and waits until a request gets through.
    pub fn start(&self, programs: &Programs) -> Result<Proxies> {
        let mut proxies = Proxies { processes: vec![], _agents: vec![] };
        for side in [Side::Client, Side::Server] {
            match self.arm {
                Arm::Direct => {}
                Arm::Hop2 => {
                    proxies.processes.push(self.yardstick("hop2", Cipher::Aes256Gcm, side, programs)?)
                }
                Arm::H2tokio | Arm::Control => {
                    proxies.processes.push(self.yardstick("h2tokio", Cipher::Aes256Gcm, side, programs)?);
                }
                Arm::H2tokioAes128 => {
                    proxies.processes.push(self.yardstick("h2tokio", Cipher::Aes128Gcm, side, programs)?);
                }
                Arm::Envoy => proxies.processes.push(self.envoy(side, programs)?),
                Arm::Ringway => self.ringway(side, "io_uring", programs, &mut proxies)?,
                Arm::RingwayEpoll => self.ringway(side, "epoll", programs, &mut proxies)?,
            }
        }
        self.wait_until_through(programs, &mut proxies)?;
        self.check_handshakes(1)?;
        Ok(proxies)
    }

    /// Fails unless all handshakes so far, so many at least, chose what the comparison is about. The yardstick checks
    /// each of its own by itself.
    pub fn check_handshakes(&self, least: u64) -> Result<()> {
        if self.arm == Arm::Envoy { envoy::check_handshakes(&self.directory, least) } else { Ok(()) }
    }

    /// A load client in the client's pod.
    pub fn load(&self, arguments: &[String], programs: &Programs) -> Result<Process> {
        Launch {
            namespace: &self.topology.pod(Side::Client),
            cpu: programs.mode.load_cpu(),
            program: &programs.generator,
            arguments: arguments.to_vec(),
            environment: vec![],
        }
        .piped(&self.directory.join("load.log"))
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn log(&self, side: Side) -> PathBuf {
        self.directory.join(format!("{}.log", side.node()))
    }

    /// Where the embedded authority of both nodes lives.
    fn authority(&self) -> PathBuf {
        self.directory.join("ca")
    }

    fn yardstick(&self, name: &str, cipher: Cipher, side: Side, programs: &Programs) -> Result<Process> {
        let arguments = [
            name,
            "--netns",
            &text(&namespace_path(&self.topology.pod(side))),
            "--authority",
            &text(&self.authority()),
            "--identity",
            &identity(side),
            "--peer-identity",
            &identity(side.other()),
            "--cipher",
            &cipher.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned()),
        ];
        Launch {
            namespace: &self.topology.node(side),
            cpu: programs.mode.proxy_cpu(),
            program: &programs.generator,
            arguments: arguments.map(str::to_owned).to_vec(),
            environment: vec![],
        }
        .logged(&self.log(side))
    }

    fn envoy(&self, side: Side, programs: &Programs) -> Result<Process> {
        envoy::start(&envoy::Node {
            side,
            namespace: &self.topology.pod(side),
            cpu: programs.mode.proxy_cpu(),
            directory: &self.directory,
            authority: &self.authority(),
            identity: &identity(side),
            peer_identity: &identity(side.other()),
            log: &self.log(side),
        })
    }

    fn ringway(
        &self,
        side: Side,
        event_loop: &str,
        programs: &Programs,
        proxies: &mut Proxies,
    ) -> Result<()> {
        let program = programs.ringway.as_deref().context("name the binary: --ringway or RINGWAY_BIN")?;
        let socket = self.directory.join(format!("{}.sock", side.node()));
        let agent = Agent::start(&socket, side, namespace_path(&self.topology.pod(side)))?;
        let mesh = self.directory.join("mesh.yaml");
        std::fs::write(&mesh, mesh_file())?;
        let environment = [
            ("LOCAL_XDS_PATH", text(&mesh)),
            ("FAKE_CA", "true".into()),
            ("RINGWAY_CA_DIR", text(&self.authority())),
            ("XDS_ADDRESS", String::new()),
            ("CA_ADDRESS", String::new()),
            ("NODE_NAME", side.node().into()),
            ("INPOD_UDS", text(&socket)),
            ("RINGWAY_EVENT_LOOP", event_loop.into()),
        ];
        let process = Launch {
            namespace: &self.topology.node(side),
            cpu: programs.mode.proxy_cpu(),
            program,
            arguments: vec!["proxy".into(), "ztunnel".into()],
            environment: environment.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        }
        .logged(&self.log(side))?;
        proxies.processes.push(process);
        proxies._agents.push(agent);
        Ok(())
    }

    /// The end of each node's log.
    fn last_words(&self) -> String {
        const LINES: usize = 8;
        let mut words = String::new();
        for side in [Side::Client, Side::Server] {
            let log = std::fs::read_to_string(self.log(side)).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(LINES).collect();
            for line in last.iter().rev() {
                words.push_str(&format!("  {}: {line}\n", side.node()));
            }
        }
        words
    }

    fn wait_until_through(&self, programs: &Programs, proxies: &mut Proxies) -> Result<()> {
        let end = Instant::now() + READY_DEADLINE;
        loop {
            if proxies.processes.iter_mut().any(|process| !process.is_running()) {
                bail!("a proxy of {} ended at once:\n{}", self.arm.name(), self.last_words());
            }
            let arguments = ["rr", "--to", &format!("{SERVER}:{SERVER_PORT}"), "--seconds", "0"];
            let mut probe = self.load(&arguments.map(str::to_owned), programs)?;
            if probe.line(READY_DEADLINE).is_ok() {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "no request gets through {}:\n{}",
                self.arm.name(),
                self.last_words()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Proxies {
    pub fn ids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::id).collect()
    }

    /// Open in all proxies together.
    pub fn descriptors(&self) -> usize {
        self.processes.iter().map(Process::descriptors).sum()
    }

    /// All proxies together.
    pub fn usage(&self) -> Usage {
        self.processes.iter().map(Process::usage).fold(Usage::default(), std::ops::Add::add)
    }
}

fn identity(side: Side) -> String {
    format!("spiffe://cluster.local/ns/default/sa/{}", side.name())
}

/// The mesh as a local file: the two pods with all their addresses.
pub fn mesh_file() -> String {
    let workload = |side: Side| {
        let addresses: Vec<String> = side.addresses().map(|address| format!("\"{address}\"")).collect();
        format!(
            "- uid: cluster1//v1/Pod/default/{name}\n  name: {name}\n  namespace: default\n  \
             serviceAccount: {name}\n  trustDomain: cluster.local\n  workloadName: {name}\n  \
             workloadType: deployment\n  canonicalName: {name}\n  canonicalRevision: v1\n  \
             clusterId: Kubernetes\n  node: {node}\n  protocol: HBONE\n  workloadIps: [{addresses}]\n  \
             services: {{}}\n",
            name = side.name(),
            node = side.node(),
            addresses = addresses.join(", "),
        )
    };
    format!("workloads:\n{}{}policies: []\nservices: []\n", workload(Side::Client), workload(Side::Server))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
