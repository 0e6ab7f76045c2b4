//! Nodes and pods of a small cluster as network namespaces, with v4 and v6 addresses.
//! Pods hang on their node by a routed veth pair, as most CNI plugins do it; the nodes meet on a bridge in a
//! namespace of its own (`wire`), where a tap sees all that passes between nodes. Traffic never leaves the
//! namespaces. Dropping the topology removes everything; leftovers of dead processes go at the next start.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use super::rules;
use super::space::{Space, ip, require_root_and, sweep};

static BUILT: AtomicU32 = AtomicU32::new(0);

/// A small cluster. Nodes are numbered from 1.
pub struct Topology {
    prefix: String,
    pub wire: Space,
    pub nodes: Vec<Node>,
}

pub struct Node {
    pub number: u8,
    pub name: String,
    pub space: Space,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    pods: u8,
}

/// A pod: its own namespace on a node. Whether it is part of the mesh is up to rules and the CNI agent.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    pub node: u8,
    pub space: Space,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Topology {
    /// `kind` names the namespaces: `{kind}-{pid}-{n}-{name}`.
    pub fn build(kind: &str, nodes: u8) -> Result<Self> {
        require_root_and(&["ip", "iptables-restore", "ip6tables-restore"])?;
        sweep(kind);
        let count = BUILT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{kind}-{}-{count}", std::process::id());
        let wire = Space::create(&format!("{prefix}-wire"))?;
        let mut topology = Self { prefix, wire, nodes: Vec::new() };
        topology.wire.ip_batch("link add bridge type bridge forward_delay 0\nlink set bridge up\n")?;
        for number in 1..=nodes {
            topology.add_node(number)?;
        }
        topology.connect_nodes()?;
        Ok(topology)
    }

    fn add_node(&mut self, number: u8) -> Result<()> {
        let name = format!("node{number}");
        let space = Space::create(&format!("{}-{name}", self.prefix))?;
        let (v4, v6) = (Ipv4Addr::new(10, 77, 0, number), v6(0, number));
        self.nodes.push(Node { number, name: name.clone(), space: space.clone(), v4, v6, pods: 0 });
        forward(&space)?;
        let wire = self.wire.name();
        ip(&["link", "add", "wire", "netns", space.name(), "type", "veth", "peer", &name, "netns", wire])?;
        self.wire.ip_batch(&format!("link set {name} master bridge up\n"))?;
        space.ip_batch(&format!(
            "link set wire up\naddr add {v4}/24 dev wire\naddr add {v6}/112 dev wire nodad\n"
        ))
    }

    fn connect_nodes(&self) -> Result<()> {
        for node in &self.nodes {
            let mut routes = String::new();
            for other in self.nodes.iter().filter(|other| other.number != node.number) {
                let number = other.number;
                writeln!(routes, "route add 10.77.{number}.0/24 via {}", other.v4)?;
                writeln!(routes, "route add fd77:0:0:{number:x}::/64 via {}", other.v6)?;
            }
            node.space.ip_batch(&routes)?;
        }
        Ok(())
    }

    pub fn node(&self, number: u8) -> Result<&Node> {
        self.nodes.iter().find(|node| node.number == number).with_context(|| format!("no node {number}"))
    }

    /// A new pod without rules: nothing is captured yet.
    pub fn add_pod(&mut self, number: u8, name: &str) -> Result<Pod> {
        let node = self.nodes.iter_mut().find(|node| node.number == number);
        let node = node.with_context(|| format!("no node {number}"))?;
        node.pods = node.pods.checked_add(1).context("too many pods on the node")?;
        let host = node.pods.checked_add(9).context("too many pods on the node")?;
        let (v4, v6) = (Ipv4Addr::new(10, 77, number, host), v6(number, host));
        let space = Space::create(&format!("{}-{name}", self.prefix))?;
        let pod = Pod { name: name.to_owned(), node: number, space, v4, v6 };
        attach(&node.space, &pod)?;
        Ok(pod)
    }

    /// Removes the pod's namespace, as a container runtime does when the pod is gone.
    pub fn remove_pod(&self, pod: &Pod) -> Result<()> {
        // The kernel takes a namespace down at its leisure; the link must be gone when this returns.
        self.node(pod.node)?.space.ip_batch(&format!("link del {}\n", link_of(pod)))?;
        pod.space.delete();
        Ok(())
    }

    /// The same pod in a new namespace, as after a sandbox was made anew.
    pub fn remake_pod(&self, pod: &Pod) -> Result<()> {
        self.remove_pod(pod)?;
        Space::create(pod.space.name())?;
        attach(&self.node(pod.node)?.space, pod)
    }

    /// A namespace for one more proxy, without a network.
    pub fn proxy_space(&self, count: u32) -> Result<Space> {
        Space::create(&format!("{}-proxy{count}", self.prefix))
    }

    /// Puts such a namespace on the wire, where control planes are reached.
    pub fn connect_proxy(&self, space: &Space, count: u32) -> Result<()> {
        let (link, wire) = (format!("proxy{count}"), self.wire.name());
        ip(&["link", "add", "wire", "netns", space.name(), "type", "veth", "peer", &link, "netns", wire])?;
        self.wire.ip_batch(&format!("link set {link} master bridge up\n"))?;
        // Behind the nodes and what tests put beside them; used again after a hundred.
        let host = count.checked_rem(100).unwrap_or(0).saturating_add(128);
        space.ip_batch(&format!("link set wire up\naddr add 10.77.0.{host}/24 dev wire\n"))
    }

    /// Takes a namespace away that `proxy_space` made, if this is one.
    pub fn remove_proxy_space(&self, space: &Space) {
        if space.name().starts_with(&format!("{}-proxy", self.prefix)) {
            space.delete();
        }
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Pod {
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.v4, port))
    }

    pub fn at6(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.v6, port))
    }

    /// Programs the CNI agent's in-pod rules: from here on the pod is captured, and closed until a proxy
    /// listens.
    pub fn capture(&self) -> Result<()> {
        rules::program(&self.space, rules::Dns::Off)
    }

    /// The same with the rules for DNS: queries are captured too.
    pub fn capture_with_names(&self) -> Result<()> {
        rules::program(&self.space, rules::Dns::On)
    }

    pub fn release(&self) -> Result<()> {
        rules::remove(&self.space, rules::Dns::Off)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
}

impl Drop for Topology {
    fn drop(&mut self) {
        let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
        let prefix = format!("{}-", self.prefix);
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&prefix) {
                Space::named(&name).delete();
            }
        }
    }
}

fn v6(node: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, node.into(), 0, 0, 0, host.into())
}

fn forward(space: &Space) -> Result<()> {
    space.set("net/ipv4/ip_forward", "1")?;
    space.set("net/ipv6/conf/all/forwarding", "1")?;
    loosen(space)
}

/// Reverse-path checks would drop replies on asymmetric legs; which default a machine has differs.
fn loosen(space: &Space) -> Result<()> {
    space.set("net/ipv4/conf/all/rp_filter", "0")?;
    space.set("net/ipv4/conf/default/rp_filter", "0")
}

/// The node's end of the pod's link.
fn link_of(pod: &Pod) -> String {
    let [.., host] = pod.v4.octets();
    format!("pod{host}")
}

fn attach(node: &Space, pod: &Pod) -> Result<()> {
    loosen(&pod.space)?;
    let (inside, link) = (pod.space.name(), &link_of(pod));
    ip(&["link", "add", "eth0", "netns", inside, "type", "veth", "peer", link, "netns", node.name()])?;
    let (v4, v6) = (pod.v4, pod.v6);
    node.ip_batch(&format!(
        "link set {link} up\naddr add 169.254.1.1/32 dev {link}\naddr add fe80::1/64 dev {link} nodad\n\
         route add {v4}/32 dev {link}\nroute add {v6}/128 dev {link}\n"
    ))?;
    pod.space.ip_batch(&format!(
        "link set eth0 up\naddr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
         route add default via 169.254.1.1 dev eth0 onlink\nroute add default via fe80::1 dev eth0\n"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use super::*;

    #[test]
    fn pods_of_two_nodes_reach_each_other_in_both_families_and_nothing_stays_behind() {
        let mut topology = Topology::build("rwunit", 2).expect("namespaces (root is needed)");
        let client = topology.add_pod(1, "client").unwrap();
        let server = topology.add_pod(2, "server").unwrap();
        for (to, from) in [(server.at(7000), client.at(0).ip()), (server.at6(7000), client.at6(0).ip())] {
            let listener = server.space.listen(to).unwrap();
            let mut near = client.space.connect(to, Duration::from_secs(5)).unwrap();
            let (mut far, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip(), from);
            near.write_all(b"over the wire").unwrap();
            let mut heard = [0; 13];
            far.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"over the wire");
        }
        topology.remake_pod(&server).unwrap();
        server.space.listen(server.at(7000)).unwrap();
        client.space.connect(server.at(7001), Duration::from_secs(5)).unwrap_err();
        let prefix = topology.prefix().to_owned();
        drop(topology);
        let left = std::fs::read_dir("/run/netns").unwrap().flatten();
        assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count(), 0);
    }
}
