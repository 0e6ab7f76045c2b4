//! The mesh of `world`, told by the stand-in for istiod, which does as it is told and misbehaves as it is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ringway::demo::cluster::{Cluster, ClusterPlan, ControlPlane};
use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;
use ringway::wire::pb::workload::{NetworkAddress, Port, PortList, Service, Workload};
use ringway_standin::{NAME, Plan, Standin, generate};

use crate::world::{APP_PORT, SERVICE_PORT, Turn, VIP, binary, owned, tell_last_words};

const STANDIN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
const WEB: &str = "web.default.svc.cluster.local";

/// Client on node 1, server on node 2, both enrolled, `web` before the server.
pub struct StandinWorld {
    pub cluster: Cluster,
    pub client: Pod,
    pub server: Pod,
    pub standin: Standin,
    _turn: Turn,
}

impl StandinWorld {
    /// The stand-in, pods and agents, no proxies yet. `environment` is the proxies'.
    pub fn build(environment: &[(&str, &str)]) -> Self {
        let turn = Turn::take();
        let environment = owned(environment).collect();
        let plan = ClusterPlan { kind: "rwstand", nodes: 2, binary: binary(), environment };
        let mut cluster = Cluster::build(plan).expect("network namespaces for the test");
        let wire = &cluster.topology.wire;
        wire.ip_batch(&format!("addr add {STANDIN}/24 dev bridge\n")).expect("the stand-in's address");
        let standin = Standin::start(Plan::within(wire, SocketAddr::from((STANDIN, 15_012))));
        let client = cluster.mesh_pod(1, "client").expect("the client's pod");
        let server = cluster.mesh_pod(2, "server").expect("the server's pod");
        standin.mesh().put([web()]);
        standin.mesh().put([workload(&client, false), workload(&server, true)]);
        let root = cluster.directory().join("standin-root.pem");
        std::fs::write(&root, standin.root_pem()).expect("writing the root");
        let tokens = cluster.directory().join("token-");
        for node in &cluster.topology.nodes {
            std::fs::write(format!("{}{}", tokens.display(), node.number), "a.token")
                .expect("writing a token");
        }
        let tokens = tokens.to_string_lossy().into_owned();
        cluster.control_plane = Some(ControlPlane { address: standin.address(), name: NAME, root, tokens });
        Self { cluster, client, server, standin, _turn: turn }
    }

    /// Everything up and ready.
    pub fn start(environment: &[(&str, &str)]) -> Self {
        let mut world = Self::build(environment);
        world.cluster.start().expect("both proxies start and get ready");
        world
    }

    pub fn near(&self) -> &NodeProxy {
        self.cluster.proxy(1).expect("the proxy of node 1")
    }

    pub fn far(&self) -> &NodeProxy {
        self.cluster.proxy(2).expect("the proxy of node 2")
    }
}

impl Drop for StandinWorld {
    fn drop(&mut self) {
        tell_last_words(&self.cluster);
    }
}

/// The pod as the control plane tells it.
pub fn workload(pod: &Pod, serves_web: bool) -> Workload {
    let addresses = [IpAddr::from(pod.v4), IpAddr::from(pod.v6)];
    let mut workload = generate::pod(&pod.name, "default", &format!("node{}", pod.node), &addresses);
    workload.service_account.clone_from(&pod.name);
    if serves_web {
        workload.services.insert(format!("default/{WEB}"), PortList { ports: ports() });
    }
    workload
}

pub fn web() -> Service {
    let vip: Ipv4Addr = VIP.parse().expect("an address");
    let address = NetworkAddress { address: vip.octets().to_vec().into(), ..NetworkAddress::default() };
    Service {
        name: "web".to_owned(),
        namespace: "default".to_owned(),
        hostname: WEB.to_owned(),
        addresses: vec![address],
        ports: ports(),
        ..Service::default()
    }
}

fn ports() -> Vec<Port> {
    vec![Port { service_port: SERVICE_PORT.into(), target_port: APP_PORT.into() }]
}
