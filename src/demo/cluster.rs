//! A whole small mesh: namespaces, CNI agents, the mesh file, a shared certificate authority and one proxy a
//! node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::agent::{Agent, AgentPod};
use super::mesh_file::MeshFile;
use super::node::{NodePlan, NodeProxy};
use super::space::Space;
use super::topology::{Pod, Topology};

/// How long a proxy may take until it is ready; generous, as machines that run tests may be slow.
pub const READY_BOUND: Duration = Duration::from_secs(20);

pub struct ClusterPlan {
    /// Names the namespaces and the directory.
    pub kind: &'static str,
    pub nodes: u8,
    /// The proxy's binary.
    pub binary: PathBuf,
    /// Variables for the proxies, beside those that every cluster has; these win.
    pub environment: Vec<(String, String)>,
}

/// A control plane that serves the cluster's nodes.
pub struct ControlPlane {
    pub address: SocketAddr,
    /// The name in its certificate.
    pub name: &'static str,
    pub root: PathBuf,
    /// The token of node N's proxy, the pod ztunnel-N of istio-system, is in the file `{tokens}N`.
    pub tokens: String,
}

/// Dropping it ends the proxies, then the agents, then the namespaces.
pub struct Cluster {
    proxies: Vec<(u8, NodeProxy)>,
    agents: Vec<(u8, Agent)>,
    pub topology: Topology,
    pub mesh: MeshFile,
    /// Set before `start`, the proxies get mesh and certificates from there; else from the mesh file and an authority
    /// of their own.
    pub control_plane: Option<ControlPlane>,
    /// Variables for the proxy of one node, which win over the plan's. Set before `start`.
    pub node_environment: Vec<(u8, String, String)>,
    /// A command that `start` and `start_in_place` start the binary through, empty for none.
    pub through: Vec<String>,
    plan: ClusterPlan,
    started: u32,
    directory: Directory,
}

impl Cluster {
    /// Namespaces and agents; no pods yet, no proxies yet.
    pub fn build(plan: ClusterPlan) -> Result<Self> {
        let topology = Topology::build(plan.kind, plan.nodes)?;
        let directory = Directory::create(topology.prefix())?;
        let mut agents = Vec::new();
        for node in &topology.nodes {
            let path = directory.0.join(format!("{}.sock", node.name));
            agents.push((node.number, Agent::listen(&path)?));
        }
        let mesh = MeshFile::new(&directory.0.join("mesh.yaml"));
        Ok(Self {
            proxies: Vec::new(),
            agents,
            topology,
            mesh,
            control_plane: None,
            node_environment: Vec::new(),
            through: Vec::new(),
            plan,
            started: 0,
            directory,
        })
    }

    /// A pod of the mesh: in the mesh file, captured, and in its agent's snapshots. Before `start`.
    pub fn mesh_pod(&mut self, node: u8, name: &str) -> Result<Pod> {
        let pod = self.topology.add_pod(node, name)?;
        self.mesh.add(&pod, true);
        if self.captures_names() { pod.capture_with_names() } else { pod.capture() }?;
        self.agent(node)?.know(agent_pod(&pod)?);
        Ok(pod)
    }

    /// Whether the plan turns the DNS proxy on.
    fn captures_names(&self) -> bool {
        let on = |(name, value): &(String, String)| name == "ISTIO_META_DNS_CAPTURE" && value == "true";
        self.plan.environment.iter().any(on)
    }

    /// A pod that no proxy serves; the mesh doesn't know it.
    pub fn plain_pod(&mut self, node: u8, name: &str) -> Result<Pod> {
        self.topology.add_pod(node, name)
    }

    /// Writes the mesh file, starts a proxy on each node and waits until all are ready.
    pub fn start(&mut self) -> Result<()> {
        self.mesh.write()?;
        let nodes: Vec<_> =
            self.topology.nodes.iter().map(|node| (node.number, node.space.clone())).collect();
        for (number, space) in nodes {
            let proxy = self.start_at_home(number, &space)?;
            self.proxies.push((number, proxy));
        }
        for (_, proxy) in &mut self.proxies {
            proxy.wait_ready(READY_BOUND)?;
        }
        Ok(())
    }

    /// Starts one more proxy of a node beside the one that runs, as an upgrade does. It has a namespace of
    /// its own, as each pod of a DaemonSet has, so that both can serve their admin ports. The caller owns it.
    pub fn start_successor(
        &mut self,
        node: u8,
        through: &[&str],
        extra: &[(&str, &str)],
    ) -> Result<NodeProxy> {
        let count = self.started.saturating_add(1);
        let space = self.topology.proxy_space(count)?;
        if self.control_plane.is_some() {
            self.topology.connect_proxy(&space, count)?;
        }
        self.start_proxy(node, &space, through, extra)
    }

    /// In the node's own namespace.
    fn start_at_home(&mut self, node: u8, space: &Space) -> Result<NodeProxy> {
        let through = self.through.clone();
        let through: Vec<_> = through.iter().map(String::as_str).collect();
        self.start_proxy(node, space, &through, &[])
    }

    fn start_proxy(
        &mut self,
        node: u8,
        space: &Space,
        through: &[&str],
        extra: &[(&str, &str)],
    ) -> Result<NodeProxy> {
        self.started = self.started.saturating_add(1);
        let log = self.directory.0.join(format!("node{node}-{}", self.started));
        let environment = self.environment(node, extra)?;
        NodeProxy::start(NodePlan { binary: &self.plan.binary, through, space, environment, log })
    }

    /// Kills the node's proxy, if one runs, and starts another one in its place, which may not be ready for long.
    pub fn start_in_place(&mut self, node: u8) -> Result<()> {
        self.proxies.retain(|(number, _)| *number != node);
        let space = self.topology.node(node)?.space.clone();
        let proxy = self.start_at_home(node, &space)?;
        self.replace(node, proxy);
        Ok(())
    }

    /// Makes a proxy that the caller started the one of its node; gives the one before it.
    pub fn take_over(&mut self, node: u8, successor: NodeProxy) -> Option<NodeProxy> {
        let before = self.proxies.iter().position(|(number, _)| *number == node);
        let before = before.map(|index| self.proxies.remove(index).1);
        self.replace(node, successor);
        before
    }

    /// Takes leave of a proxy that was replaced: it is killed if it still runs, and so is a namespace of its own.
    pub fn bury(&self, old: NodeProxy) {
        let space = old.space().clone();
        drop(old);
        self.topology.remove_proxy_space(&space);
    }

    pub fn proxy(&self, node: u8) -> Result<&NodeProxy> {
        let found = self.proxies.iter().find(|(number, _)| *number == node).map(|(_, proxy)| proxy);
        found.with_context(|| format!("no proxy runs on node {node}"))
    }

    pub fn proxy_mut(&mut self, node: u8) -> Result<&mut NodeProxy> {
        let found = self.proxies.iter_mut().find(|(number, _)| *number == node).map(|(_, proxy)| proxy);
        found.with_context(|| format!("no proxy runs on node {node}"))
    }

    /// They stay in the order of their nodes.
    fn replace(&mut self, node: u8, proxy: NodeProxy) {
        let at = self.proxies.partition_point(|(number, _)| *number < node);
        self.proxies.insert(at, (node, proxy));
    }

    pub fn proxies(&self) -> impl Iterator<Item = &NodeProxy> {
        self.proxies.iter().map(|(_, proxy)| proxy)
    }

    pub fn agent(&self, node: u8) -> Result<&Agent> {
        let found = self.agents.iter().find(|(number, _)| *number == node).map(|(_, agent)| agent);
        found.with_context(|| format!("no agent on node {node}"))
    }

    /// Ends the node's agent; gives its socket's path, where another may come up.
    pub fn stop_agent(&mut self, node: u8) -> Result<PathBuf> {
        let index = self.agents.iter().position(|(number, _)| *number == node);
        let (_, agent) = self.agents.remove(index.with_context(|| format!("no agent on node {node}"))?);
        Ok(agent.path().to_owned())
    }

    pub fn set_agent(&mut self, node: u8, agent: Agent) {
        self.agents.push((node, agent));
    }

    /// Where the embedded certificate authority keeps its root.
    pub fn authority(&self) -> PathBuf {
        self.directory.0.join("ca")
    }

    pub fn directory(&self) -> &Path {
        &self.directory.0
    }

    fn environment(&self, node: u8, extra: &[(&str, &str)]) -> Result<Vec<(String, String)>> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut all: Vec<(String, String)> = vec![
            ("NODE_NAME".to_owned(), format!("node{node}")),
            ("CLUSTER_ID".to_owned(), "Kubernetes".to_owned()),
            ("INPOD_UDS".to_owned(), text(self.agent(node)?.path())),
            ("LOG_FORMAT".to_owned(), "json".to_owned()),
            // Names are captured only in clusters that ask for it.
            ("ISTIO_META_DNS_CAPTURE".to_owned(), "false".to_owned()),
        ];
        let sources = match &self.control_plane {
            None => vec![
                ("LOCAL_XDS_PATH", text(self.mesh.path())),
                ("FAKE_CA", "true".to_owned()),
                ("RINGWAY_CA_DIR", text(&self.authority())),
                ("XDS_ADDRESS", String::new()),
                ("CA_ADDRESS", String::new()),
            ],
            Some(plane) => vec![
                ("XDS_ADDRESS", plane.address.to_string()),
                ("CA_ADDRESS", plane.address.to_string()),
                ("XDS_ROOT_CA", text(&plane.root)),
                ("CA_ROOT_CA", text(&plane.root)),
                ("ALT_XDS_HOSTNAME", plane.name.to_owned()),
                ("ALT_CA_HOSTNAME", plane.name.to_owned()),
                ("AUTH_TOKEN", format!("{}{node}", plane.tokens)),
                ("POD_NAME", format!("ztunnel-{node}")),
                ("POD_NAMESPACE", "istio-system".to_owned()),
                ("SERVICE_ACCOUNT", "ztunnel".to_owned()),
                ("INSTANCE_IP", self.topology.node(node)?.v4.to_string()),
            ],
        };
        all.extend(sources.into_iter().map(|(name, value)| (name.to_owned(), value)));
        all.extend(self.plan.environment.iter().cloned());
        let of_node = self.node_environment.iter().filter(|(of, _, _)| *of == node);
        all.extend(of_node.map(|(_, name, value)| (name.clone(), value.clone())));
        all.extend(extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Ok(all)
    }
}

/// The pod as its node's CNI agent announces it.
pub fn agent_pod(pod: &Pod) -> Result<AgentPod> {
    Ok(AgentPod {
        uid: format!("uid-{}", pod.name),
        name: pod.name.clone(),
        namespace: "default".to_owned(),
        service_account: pod.name.clone(),
        netns: pod.space.open()?,
    })
}

/// A directory that is gone when the cluster is.
struct Directory(PathBuf);

impl Directory {
    fn create(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(name);
        // What a dead process of the same number left.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("ca")).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if std::env::var_os("RINGWAY_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
