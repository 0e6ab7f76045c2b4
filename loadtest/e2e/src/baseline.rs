//! What a proxy holds before a scenario, and that it holds no more afterwards: descriptors, connections,
//! memory.

use std::time::Duration;

use ringway::demo::cluster::Cluster;
use ringway::demo::node::NodeProxy;
use ringway::demo::topology::Pod;
use serde_json::Value;

use crate::sockets;
use crate::world::World;

/// Taken before the scenario, compared after it.
pub struct Baseline {
    proxies: Vec<Held>,
    sockets: Vec<(String, usize)>,
}

struct Held {
    descriptors: usize,
    resident_bytes: u64,
}

/// What one connection more may leave behind in pools and tables, per proxy.
const MEMORY_SLACK_BYTES: u64 = 24 * 1_024 * 1_024;
/// Pools release after 2 s here; the rest is for slow machines.
const SETTLE: Duration = Duration::from_secs(20);

impl Baseline {
    pub fn take(world: &World) -> Self {
        Self::of(&world.cluster, &[&world.client, &world.server])
    }

    pub fn of(cluster: &Cluster, pods: &[&Pod]) -> Self {
        let held = |proxy: &NodeProxy| Held {
            descriptors: proxy.open_descriptors().expect("descriptors"),
            resident_bytes: proxy.resident_bytes().expect("memory"),
        };
        let count = |pod: &&Pod| (pod.name.clone(), sockets::connections(&pod.space).len());
        Self { proxies: cluster.proxies().map(held).collect(), sockets: pods.iter().map(count).collect() }
    }

    /// Waits until everything is back; panics with what isn't.
    #[track_caller]
    pub fn is_back(&self, world: &World) {
        self.is_back_in(&world.cluster, &[&world.client, &world.server]);
    }

    /// As `is_back`, with the pods that `of` was given.
    #[track_caller]
    pub fn is_back_in(&self, cluster: &Cluster, pods: &[&Pod]) {
        let until = std::time::Instant::now() + SETTLE;
        loop {
            let Some(last) = self.difference(cluster, pods) else { return };
            assert!(std::time::Instant::now() < until, "after {SETTLE:?}: {last}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn difference(&self, cluster: &Cluster, pods: &[&Pod]) -> Option<String> {
        for (number, (proxy, before)) in cluster.proxies().zip(&self.proxies).enumerate() {
            let live = live_connections(proxy);
            if live != 0 {
                return Some(format!("proxy {number} still lists {live} connections"));
            }
            let open = open_by_metrics(proxy);
            if open != 0.0 {
                return Some(format!("proxy {number}: opened - closed = {open}"));
            }
            let descriptors = proxy.open_descriptors().expect("descriptors");
            if descriptors > before.descriptors {
                return Some(format!(
                    "proxy {number} had {} descriptors, has {descriptors}",
                    before.descriptors
                ));
            }
            let resident = proxy.resident_bytes().expect("memory");
            if resident > before.resident_bytes + MEMORY_SLACK_BYTES {
                return Some(format!("proxy {number} had {} bytes, has {resident}", before.resident_bytes));
            }
        }
        for (pod, (name, before)) in pods.iter().zip(&self.sockets) {
            let now = sockets::connections(&pod.space);
            if now.len() > *before {
                return Some(format!("pod {name} had {before} sockets, has {now:?}"));
            }
        }
        None
    }
}

/// Connections that `/config_dump` lists.
pub fn live_connections(proxy: &NodeProxy) -> usize {
    let dump = proxy.dump().expect("a dump");
    let pods = dump["workloadState"].as_object().cloned().unwrap_or_default();
    let count = |pod: &Value, side: &str| pod["connections"][side].as_array().map_or(0, Vec::len);
    pods.values().map(|pod| count(pod, "inbound") + count(pod, "outbound")).sum()
}

/// opened_total - closed_total, which is the number of live connections at all times.
pub fn open_by_metrics(proxy: &NodeProxy) -> f64 {
    let metrics = proxy.metrics().expect("metrics");
    metrics.sum("istio_tcp_connections_opened_total", &[])
        - metrics.sum("istio_tcp_connections_closed_total", &[])
}
