//! The mesh that most tests use: client on node 1, server on node 2, both enrolled; a stranger outside the
//! mesh.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringway::demo::cluster::{Cluster, ClusterPlan};
use ringway::demo::mesh_file::{FileService, FileWorkload};
use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;

use crate::sockets::listeners;

pub const VIP: &str = "10.77.200.1";
pub const VIP6: &str = "fd77:0:0:200::1";
pub const SERVICE_PORT: u16 = 80;
/// What the service's port leads to at the server.
pub const APP_PORT: u16 = 8080;
/// Bound of one step of a test; generous, since machines that run tests may be slow.
pub const STEP: Duration = Duration::from_secs(10);

static TURN: Mutex<()> = Mutex::new(());

/// The right to have a world.
pub struct Turn(#[expect(dead_code, reason = "held until it is dropped")] MutexGuard<'static, ()>);

impl Turn {
    pub fn take() -> Self {
        Self(TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One mesh for one test. Worlds take turns: tests look at times and at the whole machine's CPU.
pub struct World {
    pub cluster: Cluster,
    pub client: Pod,
    pub server: Pod,
    pub stranger: Pod,
    _turn: Turn,
}

impl World {
    /// Everything up and ready.
    pub fn start() -> Self {
        Self::start_with(&[], |_| {})
    }

    /// With variables for the proxies, and a chance to add pods, services and policies before they start.
    pub fn start_with(environment: &[(&str, &str)], prepare: impl FnOnce(&mut Self)) -> Self {
        let mut world = Self::build(environment);
        prepare(&mut world);
        world.cluster.start().expect("both proxies start and get ready");
        world
    }

    /// With a pod `gateway` on node 2 that speaks HBONE by itself: no CNI, no proxy of ours.
    pub fn start_with_gateway() -> (Self, Pod) {
        let mut gateway = None;
        let world = Self::start_with(&[], |world| {
            let pod = world.cluster.plain_pod(2, "gateway").expect("the gateway's pod");
            world.cluster.mesh.add(&pod, true);
            gateway = Some(pod);
        });
        (world, gateway.expect("it was made before the proxies"))
    }

    /// Pods and agents, no proxies yet.
    pub fn build(environment: &[(&str, &str)]) -> Self {
        let turn = Turn::take();
        // Idle tunnels go soon, so that each test can see that nothing is left.
        let mut variables = vec![("POOL_UNUSED_RELEASE_TIMEOUT".to_owned(), "2s".to_owned())];
        variables.extend(owned(environment));
        let plan = ClusterPlan { kind: "rwe2e", nodes: 2, binary: binary(), environment: variables };
        let mut cluster = Cluster::build(plan).expect("network namespaces for the test");
        let client = cluster.mesh_pod(1, "client").expect("the client's pod");
        let server = cluster.mesh_pod(2, "server").expect("the server's pod");
        let stranger = cluster.plain_pod(2, "stranger").expect("the stranger's pod");
        let web = FileService::new("web", &[VIP, VIP6], &[(SERVICE_PORT, APP_PORT)]);
        let workload = cluster.mesh.workload("server").expect("the server's workload");
        workload.serves.push((web.hostname(), SERVICE_PORT, APP_PORT));
        cluster.mesh.services.push(web);
        Self { cluster, client, server, stranger, _turn: turn }
    }

    pub fn near(&self) -> &NodeProxy {
        self.cluster.proxy(1).expect("the proxy of node 1")
    }

    pub fn far(&self) -> &NodeProxy {
        self.cluster.proxy(2).expect("the proxy of node 2")
    }

    /// Another proxy takes node 1 over, which sees this as /etc/resolv.conf. The sockets of the killed one outlive it a
    /// little, and what comes to them is lost, so their end is waited for.
    pub fn take_over_with_resolv_conf(&mut self, text: &str, extra: &[(&str, &str)]) {
        let through = with_resolv_conf(&self.cluster, text);
        let through: Vec<_> = through.iter().map(String::as_str).collect();
        let before = listeners(&self.client.space).len();
        let mut successor = self.cluster.start_successor(1, &through, extra).expect("a successor");
        successor.wait_ready(2 * STEP).expect("the successor gets ready");
        drop(self.cluster.take_over(1, successor));
        crate::eventually("only the successor listens", STEP, || {
            listeners(&self.client.space).len() == before
        });
    }

    /// Changes the mesh file and waits until both proxies show that they read it.
    pub fn change_policies(&mut self, policies: Vec<String>) {
        let count = policies.len();
        self.cluster.mesh.policies = policies;
        self.cluster.mesh.write().expect("writing the mesh file");
        for proxy in self.cluster.proxies() {
            crate::eventually("the new policies are in force", STEP, || {
                let dump = proxy.dump().expect("a dump");
                dump["policies"].as_array().map_or(0, Vec::len) == count
            });
        }
    }
}

/// A command through which a program sees this as /etc/resolv.conf.
pub(crate) fn with_resolv_conf(cluster: &Cluster, text: &str) -> Vec<String> {
    let file = cluster.directory().join("resolv.conf");
    std::fs::write(&file, text).expect("writing resolv.conf");
    let script = format!("mount --bind {} /etc/resolv.conf && exec \"$0\" \"$@\"", file.display());
    ["unshare", "--mount", "sh", "-c", &script].map(str::to_owned).to_vec()
}

/// What the proxies said last, where a test fails.
pub(crate) fn tell_last_words(cluster: &Cluster) {
    if std::thread::panicking() {
        for proxy in cluster.proxies() {
            eprintln!("---- a proxy's last words\n{}", proxy.last_words());
        }
    }
}

/// Variables as a cluster's plan takes them.
pub(crate) fn owned(variables: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
}

impl Drop for World {
    fn drop(&mut self) {
        tell_last_words(&self.cluster);
    }
}

pub fn service() -> SocketAddr {
    SocketAddr::new(VIP.parse::<IpAddr>().expect("an address"), SERVICE_PORT)
}

pub fn service6() -> SocketAddr {
    SocketAddr::new(VIP6.parse::<IpAddr>().expect("an address"), SERVICE_PORT)
}

/// A connection from a pod, with bounds on its reads and writes.
#[track_caller]
pub fn dial(from: &Pod, to: SocketAddr) -> TcpStream {
    try_dial(from, to).unwrap_or_else(|error| panic!("{} cannot connect to {to}: {error}", from.name))
}

pub fn try_dial(from: &Pod, to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = from.space.connect(to, STEP)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Says `word` to an echo and hears it, then its end; where it called from.
#[track_caller]
pub fn talk(from: &Pod, to: SocketAddr, word: &str) -> SocketAddr {
    let mut stream = dial(from, to);
    stream.write_all(word.as_bytes()).expect("saying it");
    stream.shutdown(Shutdown::Write).expect("an end");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("an answer");
    assert_eq!(heard, word, "{to}");
    stream.local_addr().expect("an address")
}

/// A workload of another network without an address: `gateway` leads there.
pub fn beyond(gateway: &Pod, serves: Vec<(String, u16, u16)>) -> FileWorkload {
    FileWorkload {
        name: "horizon".to_owned(),
        service_account: "horizon".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        node: 9,
        addresses: Vec::new(),
        hbone: true,
        serves,
        extra: vec![
            "network: remote".to_owned(),
            format!("networkGateway: {{destination: \"remote/{}\", hboneMtlsPort: 15008}}", gateway.v4),
        ],
    }
}

/// The proxy under test: RINGWAY_BIN, else the `ringway` beside this test in the target directory.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("RINGWAY_BIN") {
        return path.into();
    }
    let here = std::env::current_exe().expect("this test's own file");
    let directory = here.ancestors().nth(2).expect("target directory");
    let path = directory.join("ringway");
    assert!(path.is_file(), "{} isn't built: cargo build --bin ringway", path.display());
    path
}
