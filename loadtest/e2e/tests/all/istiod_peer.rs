//! The real istiod that other tests stand on: it starts, takes objects, and is the same after a restart.

use ringway::demo::topology::Topology;
use ringway_e2e::eventually;
use ringway_e2e::istiod::{Istiod, IstiodPlan};
use ringway_e2e::world::STEP;
use serde_json::json;

const ZTUNNEL: &str = "apiVersion: v1
kind: Pod
metadata: {name: ztunnel-1, namespace: istio-system}
spec: {nodeName: node1, serviceAccountName: ztunnel}
status: {phase: Running, podIP: 10.77.0.1, podIPs: [{ip: 10.77.0.1}]}
";
const SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: web, namespace: demo}
spec: {clusterIP: 10.77.200.1, clusterIPs: [10.77.200.1], ports: [{port: 80}]}
";

#[test]
fn a_real_istiod_starts_takes_objects_and_keeps_them_over_a_restart() {
    let topology = Topology::build("rwistiod", 1).unwrap();
    let node = topology.node(1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut istiod = Istiod::start(&IstiodPlan {
        space: &node.space,
        directory: directory.path(),
        listen: (node.v4, 15_012).into(),
        objects: ZTUNNEL,
        arguments: &[],
        environment: &[],
    });
    let pod = json!(["Kubernetes//Pod/istio-system/ztunnel-1"]);
    assert_eq!(istiod.state()["workloads"], pod);
    istiod.apply(SERVICE);
    let web = json!(["demo/web.demo.svc.cluster.local"]);
    eventually("the service is known", STEP, || istiod.state()["services"] == web);
    node.space.connect(istiod.address(), STEP).unwrap();
    assert_eq!(istiod.connections(), json!([]));
    let papers = [istiod.root_file(), istiod.token_file("ztunnel-1")];
    let before = papers.each_ref().map(|file| std::fs::read(file).unwrap());

    istiod.stop();
    assert!(node.space.connect(istiod.address(), STEP).is_err(), "stopped, yet it listens");
    istiod.restart();
    assert_eq!(papers.each_ref().map(|file| std::fs::read(file).unwrap()), before);
    assert_eq!((istiod.state()["workloads"].clone(), istiod.state()["services"].clone()), (pod, web));
    istiod.delete("Service", "demo", "web");
    eventually("the service is gone", STEP, || istiod.state()["services"] == json!([]));
}
