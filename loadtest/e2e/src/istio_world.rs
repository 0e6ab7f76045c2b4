//! The mesh of `world`, told by a real istiod: its objects are Kubernetes objects, its certificates istiod's.

use std::net::{Ipv4Addr, SocketAddr};

use ringway::demo::cluster::{Cluster, ClusterPlan, ControlPlane};
use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;
use ringway::tls::cert::Authority;

use crate::istiod::{ISTIOD_NAME, Istiod, IstiodPlan};
use crate::world::{APP_PORT, SERVICE_PORT, Turn, VIP, binary, owned, tell_last_words, with_resolv_conf};

/// Where istiod listens, on the bridge between the nodes.
const ISTIOD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);

/// Client on node 1, server on node 2, both enrolled, `web` before the server; a stranger outside the mesh on node 2.
pub struct IstioWorld {
    pub cluster: Cluster,
    pub client: Pod,
    pub server: Pod,
    pub stranger: Pod,
    pub istiod: Istiod,
    _turn: Turn,
}

impl IstioWorld {
    /// Everything up and ready.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut world = Self::build(arguments, environment);
        world.cluster.start().expect("both proxies start and get ready");
        world
    }

    /// istiod, pods and agents, no proxies yet. `arguments` are istiod's, `environment` the proxies'.
    pub fn build(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::build_with(arguments, &[], environment)
    }

    /// As `build`, with istio's own settings for istiod.
    pub fn build_with(arguments: &[&str], settings: &[(&str, &str)], environment: &[(&str, &str)]) -> Self {
        let turn = Turn::take();
        let mut variables = vec![("POOL_UNUSED_RELEASE_TIMEOUT".to_owned(), "2s".to_owned())];
        variables.extend(owned(environment));
        let plan = ClusterPlan { kind: "rwistio", nodes: 2, binary: binary(), environment: variables };
        let mut cluster = Cluster::build(plan).expect("network namespaces for the test");
        cluster
            .topology
            .wire
            .ip_batch(&format!("addr add {ISTIOD}/24 dev bridge\n"))
            .expect("istiod's address");
        let client = cluster.mesh_pod(1, "client").expect("the client's pod");
        let server = cluster.mesh_pod(2, "server").expect("the server's pod");
        let stranger = cluster.plain_pod(2, "stranger").expect("the stranger's pod");
        let mut objects: Vec<_> =
            cluster.topology.nodes.iter().map(|node| ztunnel(node.number, node.v4)).collect();
        objects.extend([pod(&client), pod(&server), web("server", VIP)]);
        share_authority(&cluster);
        let istiod = Istiod::start(&IstiodPlan {
            space: &cluster.topology.wire,
            directory: cluster.directory(),
            listen: SocketAddr::from((ISTIOD, 15_012)),
            objects: &objects.join("---\n"),
            arguments,
            environment: settings,
        });
        let tokens = istiod.token_file("ztunnel-").to_string_lossy().into_owned();
        cluster.control_plane = Some(ControlPlane {
            address: istiod.address(),
            name: ISTIOD_NAME,
            root: istiod.root_file(),
            tokens,
        });
        Self { cluster, client, server, stranger, istiod, _turn: turn }
    }

    /// The proxies that start from now on see this as /etc/resolv.conf.
    pub fn set_resolv_conf(&mut self, text: &str) {
        self.cluster.through = with_resolv_conf(&self.cluster, text);
    }

    pub fn near(&self) -> &NodeProxy {
        self.cluster.proxy(1).expect("the proxy of node 1")
    }

    pub fn far(&self) -> &NodeProxy {
        self.cluster.proxy(2).expect("the proxy of node 2")
    }
}

impl Drop for IstioWorld {
    fn drop(&mut self) {
        tell_last_words(&self.cluster);
    }
}

/// istiod signs with the cluster's own authority, so that peers of tests can have papers of it too.
fn share_authority(cluster: &Cluster) {
    Authority::open(&cluster.authority(), "cluster.local").expect("an authority");
    let text =
        std::fs::read_to_string(cluster.authority().join("authority.pem")).expect("the authority's file");
    let (key, root) =
        text.split_at(text.find("-----BEGIN CERTIFICATE").expect("a certificate after the key"));
    let directory = cluster.directory().join("istiod/ca");
    std::fs::create_dir_all(&directory).expect("a directory for istiod's authority");
    for (name, text) in [("ca-key.pem", key), ("root-cert.pem", root), ("ca-cert.pem", root)] {
        std::fs::write(directory.join(name), text).expect("writing istiod's authority");
    }
}

/// A node's proxy as a pod: istiod gives it a token, and certificates for the pods of its node.
fn ztunnel(node: u8, address: Ipv4Addr) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: ztunnel-{node}, namespace: istio-system}}\n\
         spec: {{nodeName: node{node}, serviceAccountName: ztunnel}}\n\
         status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
    )
}

/// A ready pod of the mesh with a service account and a label `app` of its name.
pub fn pod(pod: &Pod) -> String {
    let (name, node, v4, v6) = (&pod.name, pod.node, pod.v4, pod.v6);
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: default\n  labels: {{app: {name}}}\n  \
         annotations: {{ambient.istio.io/redirection: enabled}}\n\
         spec: {{nodeName: node{node}, serviceAccountName: {name}}}\n\
         status:\n  phase: Running\n  podIP: {v4}\n  podIPs: [{{ip: {v4}}}, {{ip: \"{v6}\"}}]\n  \
         conditions: [{{type: Ready, status: \"True\"}}]\n"
    )
}

/// The service `web` in front of the pods with this label.
pub fn web(app: &str, vip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\n\
         spec:\n  clusterIP: {vip}\n  clusterIPs: [{vip}]\n  selector: {{app: {app}}}\n  \
         ports: [{{name: tcp, port: {SERVICE_PORT}, targetPort: {APP_PORT}}}]\n"
    )
}

/// Denies calls of a service account of the default namespace at the pods with this label.
pub fn deny(app: &str, account: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
         metadata: {{name: no-{account}, namespace: default}}\nspec:\n  action: DENY\n  \
         selector: {{matchLabels: {{app: {app}}}}}\n  \
         rules: [{{from: [{{source: {{principals: [cluster.local/ns/default/sa/{account}]}}}}]}}]\n"
    )
}

/// Objects with the pods' addresses put in: `$NAME` and, IPv6, `$NAME6`.
pub fn filled(yaml: &str, pods: &[&Pod]) -> String {
    let mut text = yaml.to_owned();
    for pod in pods {
        text = text.replace(&format!("${}6", pod.name), &pod.v6.to_string());
        text = text.replace(&format!("${}", pod.name), &pod.v4.to_string());
    }
    assert!(!text.contains('$'), "a place wasn't filled: {text}");
    text
}
