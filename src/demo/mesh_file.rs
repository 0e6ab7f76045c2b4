//! The mesh as a local file (LOCAL_XDS_PATH): written whole and swapped in, as an editor or a ConfigMap does
//! it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::topology::Pod;

/// What the proxies are told about the mesh. Change it and `write` it again while they run.
pub struct MeshFile {
    path: PathBuf,
    pub workloads: Vec<FileWorkload>,
    pub services: Vec<FileService>,
    /// Policies in YAML's flow style, e.g. `{name: a, namespace: default, scope: Namespace, ..}`.
    pub policies: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct FileWorkload {
    pub name: String,
    pub service_account: String,
    pub trust_domain: String,
    pub node: u8,
    pub addresses: Vec<String>,
    pub hbone: bool,
    /// Service hostname and port pairs that the workload serves.
    pub serves: Vec<(String, u16, u16)>,
    /// Further keys in flow style, each a whole `key: value`.
    pub extra: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct FileService {
    pub name: String,
    /// Each an address, or network/address where the network has a name.
    pub addresses: Vec<String>,
    pub ports: Vec<(u16, u16)>,
    /// Further keys in flow style, each a whole `key: value`.
    pub extra: Vec<String>,
}

impl MeshFile {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), workloads: Vec::new(), services: Vec::new(), policies: Vec::new() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes a pod up as a workload; `hbone` where a proxy serves it. Its service account is named as the
    /// pod.
    pub fn add(&mut self, pod: &Pod, hbone: bool) -> &mut FileWorkload {
        let addresses = vec![pod.v4.to_string(), pod.v6.to_string()];
        let (name, node) = (pod.name.clone(), pod.node);
        let at = self.workloads.len();
        self.workloads.push(FileWorkload {
            service_account: name.clone(),
            name,
            trust_domain: "cluster.local".to_owned(),
            node,
            addresses,
            hbone,
            serves: Vec::new(),
            extra: Vec::new(),
        });
        #[expect(clippy::indexing_slicing, reason = "pushed in the line above")]
        &mut self.workloads[at]
    }

    pub fn workload(&mut self, name: &str) -> Result<&mut FileWorkload> {
        self.workloads
            .iter_mut()
            .find(|known| known.name == name)
            .with_context(|| format!("no workload {name}"))
    }

    pub fn write(&self) -> Result<()> {
        let beside = self.path.with_extension("new");
        std::fs::write(&beside, self.render()?).with_context(|| format!("writing {}", beside.display()))?;
        std::fs::rename(&beside, &self.path).with_context(|| format!("swapping {}", self.path.display()))
    }

    fn render(&self) -> Result<String> {
        let mut text = String::from("workloads:\n");
        for workload in &self.workloads {
            workload.render(&mut text)?;
        }
        text.push_str("services:\n");
        for service in &self.services {
            service.render(&mut text)?;
        }
        if self.services.is_empty() {
            text.push_str("  []\n");
        }
        text.push_str("policies:\n");
        for policy in &self.policies {
            writeln!(text, "- {policy}")?;
        }
        if self.policies.is_empty() {
            text.push_str("  []\n");
        }
        Ok(text)
    }
}

impl FileWorkload {
    pub fn uid(&self) -> String {
        format!("Kubernetes//Pod/default/{}", self.name)
    }

    pub fn identity(&self) -> String {
        format!("spiffe://{}/ns/default/sa/{}", self.trust_domain, self.service_account)
    }

    fn render(&self, text: &mut String) -> Result<()> {
        let name = &self.name;
        writeln!(text, "- uid: {}", self.uid())?;
        writeln!(text, "  name: {name}\n  namespace: default\n  serviceAccount: {}", self.service_account)?;
        writeln!(text, "  trustDomain: {}\n  node: node{}", self.trust_domain, self.node)?;
        writeln!(text, "  workloadName: {name}\n  workloadType: pod")?;
        writeln!(text, "  canonicalName: {name}\n  canonicalRevision: latest\n  clusterId: Kubernetes")?;
        writeln!(text, "  protocol: {}", if self.hbone { "HBONE" } else { "TCP" })?;
        let quoted: Vec<_> = self.addresses.iter().map(|address| format!("\"{address}\"")).collect();
        writeln!(text, "  workloadIps: [{}]", quoted.join(", "))?;
        let mut hosts: Vec<&str> = self.serves.iter().map(|(host, _, _)| host.as_str()).collect();
        hosts.dedup();
        writeln!(text, "  services:{}", if hosts.is_empty() { " {}" } else { "" })?;
        for host in hosts {
            writeln!(text, "    \"default/{host}\":")?;
            for (_, service, target) in self.serves.iter().filter(|(other, _, _)| other == host) {
                writeln!(text, "      {service}: {target}")?;
            }
        }
        for line in &self.extra {
            writeln!(text, "  {line}")?;
        }
        Ok(())
    }
}

impl FileService {
    pub fn new(name: &str, addresses: &[&str], ports: &[(u16, u16)]) -> Self {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        Self { name: name.to_owned(), addresses, ports: ports.to_vec(), extra: Vec::new() }
    }

    pub fn hostname(&self) -> String {
        format!("{}.default.svc.cluster.local", self.name)
    }

    fn render(&self, text: &mut String) -> Result<()> {
        writeln!(text, "- name: {}\n  namespace: default\n  hostname: {}", self.name, self.hostname())?;
        let vip = |address: &String| match address.contains('/') {
            true => format!("\"{address}\""),
            false => format!("\"/{address}\""),
        };
        let vips: Vec<_> = self.addresses.iter().map(vip).collect();
        writeln!(text, "  vips: [{}]\n  ports:", vips.join(", "))?;
        for (service, target) in &self.ports {
            writeln!(text, "    {service}: {target}")?;
        }
        for line in &self.extra {
            writeln!(text, "  {line}")?;
        }
        Ok(())
    }
}

/// A policy that applies to the whole namespace and denies this principal (without `spiffe://`).
pub fn deny(name: &str, principal: &str) -> String {
    namespace_policy(name, "Deny", &format!("{{principals: [{{Exact: \"{principal}\"}}]}}"))
}

/// A policy that applies to the whole namespace and allows only this principal.
pub fn allow(name: &str, principal: &str) -> String {
    namespace_policy(name, "Allow", &format!("{{principals: [{{Exact: \"{principal}\"}}]}}"))
}

/// A policy of one rule with one clause with this one match, in flow style.
pub fn namespace_policy(name: &str, action: &str, matching: &str) -> String {
    format!(
        "{{name: {name}, namespace: default, scope: Namespace, action: {action}, dryRun: false, \
         rules: [[[{matching}]]]}}"
    )
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::demo::space::Space;

    #[test]
    fn the_file_is_yaml_of_the_references_schema() {
        let pod = Pod {
            name: "web".to_owned(),
            node: 2,
            space: Space::named("none"),
            v4: Ipv4Addr::new(10, 77, 2, 10),
            v6: Ipv6Addr::LOCALHOST,
        };
        let mut file = MeshFile::new(Path::new("/nowhere"));
        file.add(&pod, true).serves.push(("web.default.svc.cluster.local".to_owned(), 80, 8080));
        file.services.push(FileService::new("web", &["10.77.200.1", "far/10.77.200.1"], &[(80, 8080)]));
        file.policies.push(deny("no-client", "cluster.local/ns/default/sa/client"));
        let value: serde_json::Value = serde_saphyr::from_str(&file.render().unwrap()).unwrap();
        let workload = &value["workloads"][0];
        assert_eq!(workload["workloadIps"], serde_json::json!(["10.77.2.10", "::1"]));
        assert_eq!(workload["services"]["default/web.default.svc.cluster.local"]["80"], 8080);
        assert_eq!(workload["protocol"], "HBONE");
        assert_eq!(value["services"][0]["vips"], serde_json::json!(["/10.77.200.1", "far/10.77.200.1"]));
        assert_eq!(
            value["policies"][0]["rules"][0][0][0]["principals"][0]["Exact"],
            "cluster.local/ns/default/sa/client"
        );
        let empty: serde_json::Value =
            serde_saphyr::from_str(&MeshFile::new(Path::new("/nowhere")).render().unwrap()).unwrap();
        assert_eq!(empty["policies"], serde_json::json!([]));
    }
}
