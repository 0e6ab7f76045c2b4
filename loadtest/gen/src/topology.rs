//! Two nodes and a pod on each, as four network namespaces joined by veth pairs and routing; a captured pod has
//! the in-pod rules of istio-cni (without DNS capture). Removed on drop, and at the next start if that never ran.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

const PREFIX: &str = "rwl-";
/// Addresses beyond the first of each pod, for scenarios that need a fresh identity pair each time.
pub const EXTRA_SERVER_ADDRESSES: u8 = 200;
pub const EXTRA_CLIENT_ADDRESSES: u8 = 8;

pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 81, 1, 10);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 81, 2, 10);

/// Which side of the path: each has a node and a pod on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::Client => CLIENT,
            Self::Server => SERVER,
        }
    }

    pub fn node(self) -> &'static str {
        match self {
            Self::Client => "node1",
            Self::Server => "node2",
        }
    }

    /// All addresses of the pod, the main one first.
    pub fn addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        let extra = match self {
            Self::Client => EXTRA_CLIENT_ADDRESSES,
            Self::Server => EXTRA_SERVER_ADDRESSES,
        };
        let [a, b, c, first] = self.address().octets();
        (0..=extra).map(move |step| Ipv4Addr::new(a, b, c, first.saturating_add(step)))
    }
}

/// Its namespaces: both pods and both nodes.
const SUFFIXES: [&str; 4] = ["c", "s", "n1", "n2"];

pub struct Topology {
    name: String,
}

impl Topology {
    /// `label` tells several topologies of one process apart.
    pub fn build(label: &str, captured: bool) -> Result<Self> {
        let topology = Self { name: format!("{PREFIX}{}-{label}", std::process::id()) };
        for suffix in SUFFIXES {
            ip(&["netns", "add", &topology.namespace(suffix)])?;
            topology.batch(suffix, &["link set lo up".into()])?;
            topology.tune(suffix)?;
        }
        topology.link("n1", "peer", "10.81.0.1/24", "n2", "peer", "10.81.0.2/24")?;
        topology.link("n1", "pod", "10.81.1.1/24", "c", "eth0", &format!("{CLIENT}/24"))?;
        topology.link("n2", "pod", "10.81.2.1/24", "s", "eth0", &format!("{SERVER}/24"))?;
        topology.batch("n1", &["route add 10.81.2.0/24 via 10.81.0.2".into()])?;
        topology.batch("n2", &["route add 10.81.1.0/24 via 10.81.0.1".into()])?;
        topology.batch("c", &["route add default via 10.81.1.1".into()])?;
        topology.batch("s", &["route add default via 10.81.2.1".into()])?;
        for side in [Side::Client, Side::Server] {
            topology.lead_to_pod(side)?;
            let extra: Vec<String> =
                side.addresses().skip(1).map(|address| format!("addr add {address}/24 dev eth0")).collect();
            topology.batch(pod_suffix(side), &extra)?;
            if captured {
                topology.capture(side)?;
            }
        }
        Ok(topology)
    }

    /// Chooses the congestion control of all connections; without this it is the machine's.
    pub fn control_congestion(&self, name: &str) -> Result<()> {
        for suffix in SUFFIXES {
            self.run_in(suffix, &["sysctl", "-qw", &format!("net.ipv4.tcp_congestion_control={name}")], "")?;
        }
        Ok(())
    }

    pub fn pod(&self, side: Side) -> String {
        self.namespace(pod_suffix(side))
    }

    pub fn node(&self, side: Side) -> String {
        self.namespace(node_suffix(side))
    }

    /// The node finds all addresses of its pod by the main one. Each would be a neighbour by itself otherwise, and a
    /// machine, all its namespaces together, has room for 1,024.
    fn lead_to_pod(&self, side: Side) -> Result<()> {
        let pod = side.address();
        let [a, b, c, _] = pod.octets();
        let halves = [0, 128].map(|half| format!("route add {a}.{b}.{c}.{half}/25 via {pod}"));
        self.batch(node_suffix(side), &[&[format!("route add {pod}/32 dev pod")][..], &halves].concat())
    }

    /// From now on the node answers connections to these addresses itself, by refusing them.
    pub fn refuse(&self, side: Side, range: &str) -> Result<()> {
        self.batch(node_suffix(side), &[format!("route add local {range} dev lo")])
    }

    fn namespace(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.name)
    }

    fn link(
        &self,
        left: &str,
        left_device: &str,
        left_address: &str,
        right: &str,
        right_device: &str,
        right_address: &str,
    ) -> Result<()> {
        let (left_namespace, right_namespace) = (self.namespace(left), self.namespace(right));
        ip(&[
            "link",
            "add",
            left_device,
            "netns",
            &left_namespace,
            "type",
            "veth",
            "peer",
            "name",
            right_device,
            "netns",
            &right_namespace,
        ])?;
        for (suffix, device, address) in
            [(left, left_device, left_address), (right, right_device, right_address)]
        {
            self.batch(
                suffix,
                &[format!("addr add {address} dev {device}"), format!("link set {device} up")],
            )?;
        }
        Ok(())
    }

    /// Routing on; ports enough, and reusable soon enough, for tens of thousands of connections a minute.
    fn tune(&self, suffix: &str) -> Result<()> {
        let settings = "for key in ip_forward=1 conf/all/rp_filter=0 conf/default/rp_filter=0 tcp_tw_reuse=1; do \
             echo ${key#*=} >/proc/sys/net/ipv4/${key%=*}; done; \
             echo 16384 65535 >/proc/sys/net/ipv4/ip_local_port_range; \
             echo 4096 >/proc/sys/net/core/somaxconn";
        self.run_in(suffix, &["sh", "-ec", settings], "")
    }

    fn capture(&self, side: Side) -> Result<()> {
        let suffix = pod_suffix(side);
        self.batch(
            suffix,
            &[
                "route replace local 0.0.0.0/0 dev lo table 100".into(),
                "rule add fwmark 0x111/0xfff pref 32764 lookup 100".into(),
            ],
        )?;
        self.run_in(suffix, &["iptables-restore", "--noflush"], RULES)
    }

    fn run_in(&self, suffix: &str, command: &[&str], input: &str) -> Result<()> {
        run(Command::new("ip").args(["netns", "exec", &self.namespace(suffix)]).args(command), input)
    }

    fn batch(&self, suffix: &str, lines: &[String]) -> Result<()> {
        let mut command = Command::new("ip");
        run(command.args(["-n", &self.namespace(suffix), "-batch", "-"]), &lines.join("\n"))
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        for suffix in SUFFIXES {
            // Best effort: what stays is removed by the next start.
            let _ = ip(&["netns", "del", &self.namespace(suffix)]);
        }
    }
}

/// The file that stands for a namespace.
pub fn namespace_path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Removes namespaces of earlier runs whose process is gone.
pub fn remove_leftovers() -> Result<()> {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return Ok(()) };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(owner) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if owner.parse::<u32>().is_ok() && !Path::new("/proc").join(owner).exists() {
            ip(&["netns", "del", &name])?;
        }
    }
    Ok(())
}

fn node_suffix(side: Side) -> &'static str {
    match side {
        Side::Client => "n1",
        Side::Server => "n2",
    }
}

fn pod_suffix(side: Side) -> &'static str {
    match side {
        Side::Client => "c",
        Side::Server => "s",
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    run(Command::new("ip").args(arguments), "")
}

fn run(command: &mut Command, input: &str) -> Result<()> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    if let Some(mut stdin) = child.stdin.take()
        && !input.is_empty()
    {
        stdin.write_all(input.as_bytes())?;
        stdin.write_all(b"\n")?;
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed ({}): {}", output.status, said.trim());
    Ok(())
}

/// What istio-cni writes into a pod, in its order. 0x539 is the proxy's mark, 0x111 the connection's.
const RULES: &str = "\
*mangle
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
*nat
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -s 169.254.7.127 -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -d 169.254.7.127 -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
";
