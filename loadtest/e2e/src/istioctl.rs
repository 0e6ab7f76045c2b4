//! The real istioctl, and as much of a Kubernetes API as it asks: loadtest/peer/istioctl. It finds a node's proxy by
//! the API and reaches its admin port by port-forward, as it does in a cluster.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ringway::demo::cluster::Cluster;
use ringway::demo::topology::Pod;
use serde_json::{Value, json};

use crate::istiod::built;

const START: Duration = Duration::from_secs(30);

/// An istioctl that has a cluster's API to ask; dropping it ends the API.
pub struct Istioctl {
    directory: PathBuf,
    program: PathBuf,
    api: Child,
}

impl Istioctl {
    /// The API knows the proxy of each node, `ztunnel-N` of istio-system, and these pods of the default namespace.
    #[track_caller]
    pub fn start(cluster: &Cluster, pods: &[&Pod]) -> Self {
        let built = built("ISTIOCTL_DIR", "istioctl_directory", "build_istioctl");
        let directory = cluster.directory().join("istioctl");
        std::fs::create_dir_all(&directory).expect("a directory for istioctl");
        let nodes = cluster.topology.nodes.iter();
        let proxies = nodes.map(|node| {
            let namespace = node.space.path().to_string_lossy().into_owned();
            kube_pod("istio-system", &format!("ztunnel-{}", node.number), "ztunnel", node.number, &namespace)
        });
        let plain = pods.iter().map(|pod| kube_pod("default", &pod.name, &pod.name, pod.node, ""));
        let objects: Value = proxies.chain(plain).chain([daemon_set()]).collect();
        let file = directory.join("objects.json");
        std::fs::write(&file, objects.to_string()).expect("writing the API's objects");
        let log = std::fs::File::create(directory.join("kube-api.log")).expect("a log for the API");
        let mut command = Command::new(built.join("kube-api"));
        command.arg("--objects").arg(&file).arg("--kubeconfig").arg(directory.join("kubeconfig"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let api = command.spawn().expect("starting the API");
        let istioctl = Self { program: built.join("istioctl"), directory, api };
        crate::eventually("the API is up", START, || istioctl.directory.join("kubeconfig").exists());
        istioctl
    }

    /// What it says; panics where it fails.
    #[track_caller]
    pub fn say(&self, words: &str) -> String {
        let output = self.run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "istioctl {words}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Its cells below these headings, row by row.
    #[track_caller]
    pub fn table(&self, words: &str, headings: &[&str]) -> Vec<Vec<String>> {
        rows(&self.say(words), headings)
    }

    #[track_caller]
    pub fn json(&self, words: &str) -> Value {
        let text = self.say(&format!("{words} -o json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("istioctl {words}: {error} in {text}"))
    }

    pub fn run(&self, words: &str) -> Output {
        let mut command = Command::new(&self.program);
        command.args(words.split(' ')).env_clear().stdin(Stdio::null());
        // It keeps what it learns of an API in its home.
        command.env("HOME", &self.directory).env("KUBECONFIG", self.directory.join("kubeconfig"));
        command.output().expect("running istioctl")
    }
}

impl Drop for Istioctl {
    fn drop(&mut self) {
        let _ = self.api.kill();
        let _ = self.api.wait();
    }
}

/// Columns begin where their headings do; a table ends with an empty line.
#[track_caller]
pub fn rows(text: &str, headings: &[&str]) -> Vec<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(headings[0]));
    let head = lines.next().unwrap_or_else(|| panic!("no heading {:?} in\n{text}", headings[0]));
    let mut starts = Vec::new();
    for heading in headings {
        let from = starts.last().copied().unwrap_or(0);
        let place =
            head[from..].find(heading).unwrap_or_else(|| panic!("no heading {heading:?} in {head:?}"));
        starts.push(from + place);
    }
    let found: Vec<_> = head.split_whitespace().collect();
    assert_eq!(found.join(" "), headings.join(" "), "other headings than expected");
    let cells = |line: &str| {
        let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
        let cell = |(start, end): (&usize, usize)| {
            let end = end.min(line.len());
            line.get((*start).min(end)..end).unwrap_or_default().trim().to_owned()
        };
        starts.iter().zip(ends).map(cell).collect()
    };
    lines.take_while(|line| !line.is_empty()).map(cells).collect()
}

fn kube_pod(namespace: &str, name: &str, app: &str, node: u8, network: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": app},
            "annotations": {"ringway.test/netns": network},
        },
        "spec": {"nodeName": format!("node{node}"), "containers": [{"name": app}]},
        "status": {"phase": "Running"},
    })
}

fn daemon_set() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "ztunnel", "namespace": "istio-system"},
        "spec": {"selector": {"matchLabels": {"app": "ztunnel"}}},
    })
}
