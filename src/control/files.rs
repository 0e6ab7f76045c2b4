//! The mesh from a local file (LOCAL_XDS_PATH, LOCAL_XDS; reference section 3): parse, compare, watch. The file is
//! YAML or JSON. A file that can't be read as a whole changes nothing; a match of a policy that can't be read denies.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::fault::Problem;
use crate::base::limits::LOCAL_CONFIG_BYTES;
use crate::base::text::Text;
use crate::control::file_schema;
use crate::mesh::delta::Change;
use crate::mesh::policy::Policy;
use crate::mesh::service::{Endpoint, Service, ServiceKey};
use crate::mesh::workload::Workload;

/// What a local file says.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LocalConfig {
    /// By uid.
    pub workloads: BTreeMap<Text, Arc<Workload>>,
    /// By `namespace/name`.
    pub policies: BTreeMap<Text, Arc<Policy>>,
    /// With the endpoints that the file gives beside those its workloads name.
    pub services: BTreeMap<ServiceKey, (Arc<Service>, Vec<Endpoint>)>,
    /// Matches of policies that could not be read, and deny for it.
    pub problems: Vec<Problem>,
}

/// Why a file can't be used. The operator's to mend; reading again helps only once the file is another.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{}: the file is empty; the mesh stays as it was", .0.display())]
    Blank(PathBuf),
    #[error("{}: larger than {LOCAL_CONFIG_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    #[error("{}: {error}", path.display())]
    In { path: PathBuf, error: Box<FileError> },
    /// Not YAML, or not of the schema; the text says which field and where.
    #[error("{0}")]
    Schema(String),
    #[error(transparent)]
    Value(#[from] Problem),
    #[error("{what} {name:?} is there twice")]
    Twice { what: &'static str, name: Text },
}

/// Reads the text of a file.
pub fn parse(text: &str) -> Result<LocalConfig, FileError> {
    file_schema::read(text)
}

/// What has to change for `old` to become `new`: removals first, then what is new or different.
pub fn changes(old: &LocalConfig, new: &LocalConfig) -> Vec<Change> {
    fn gone<'a, K: Ord, V>(old: &'a BTreeMap<K, V>, new: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
        old.keys().filter(|key| !new.contains_key(*key))
    }
    fn fresh<'a, K: Ord, V: PartialEq>(
        old: &'a BTreeMap<K, V>,
        new: &'a BTreeMap<K, V>,
    ) -> impl Iterator<Item = (&'a K, &'a V)> {
        new.iter().filter(|(key, value)| old.get(*key) != Some(*value))
    }
    let removed = gone(&old.workloads, &new.workloads)
        .map(|uid| Change::RemoveWorkload(uid.clone()))
        .chain(gone(&old.services, &new.services).map(|key| Change::RemoveService(key.clone())))
        .chain(gone(&old.policies, &new.policies).map(|key| Change::RemovePolicy(key.clone())));
    let policies = fresh(&old.policies, &new.policies)
        .map(|(key, policy)| Change::Policy { key: key.clone(), policy: policy.clone() });
    let workloads =
        fresh(&old.workloads, &new.workloads).map(|(_, workload)| Change::Workload(workload.clone()));
    let services = fresh(&old.services, &new.services).map(|(_, (service, endpoints))| Change::Service {
        service: service.clone(),
        endpoints: endpoints.clone(),
    });
    removed.chain(policies).chain(workloads).chain(services).collect()
}

/// A file that is looked at again and again. Nothing here waits: the caller polls, once a second or so.
pub struct Watch {
    path: PathBuf,
    seen: Option<Stamp>,
    /// Hash of the text that was last read.
    text: Option<u64>,
    /// A file may change twice within one tick of its file system's clock, so each new stamp is read once more.
    settled: bool,
    /// Whether the file ever made sense.
    understood: bool,
    config: LocalConfig,
    hasher: foldhash::fast::FixedState,
}

/// What tells one file from another without reading it. Kubernetes swaps a symbolic link further up: then the real
/// path and the inode are others.
#[derive(PartialEq, Eq)]
pub(in crate::control) enum Stamp {
    Missing(std::io::ErrorKind),
    There { real_path: PathBuf, device: u64, inode: u64, size: u64, modified: (i64, i64) },
}

impl Stamp {
    pub(in crate::control) fn of(path: &Path) -> Self {
        let stat = || {
            let meta = std::fs::metadata(path)?;
            Ok(Self::There {
                real_path: path.canonicalize()?,
                device: meta.dev(),
                inode: meta.ino(),
                size: meta.size(),
                modified: (meta.mtime(), meta.mtime_nsec()),
            })
        };
        stat().unwrap_or_else(|error: std::io::Error| Self::Missing(error.kind()))
    }
}

impl Watch {
    /// Of a file that need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            seen: None,
            text: None,
            settled: false,
            understood: false,
            config: LocalConfig::default(),
            hasher: foldhash::fast::FixedState::default(),
        }
    }

    /// What the file said when it last made sense.
    pub fn config(&self) -> &LocalConfig {
        &self.config
    }

    /// The changes since the last poll; `None`: none. A bad file is told once and leaves everything as it was.
    /// The first poll always answers, and so does the first of a file that makes sense.
    pub fn poll(&mut self) -> Option<Result<Vec<Change>, FileError>> {
        let stamp = Stamp::of(&self.path);
        let same = self.seen.as_ref() == Some(&stamp);
        if same && self.settled {
            return None;
        }
        self.settled = same;
        self.seen = Some(stamp);
        let text = match read(&self.path) {
            Ok(text) => text,
            // Told when the stamp changed.
            Err(_) if same => return None,
            Err(error) => {
                self.text = None;
                return Some(Err(error));
            }
        };
        let hash = self.hasher.hash_one(&text);
        if self.text.replace(hash) == Some(hash) {
            return None;
        }
        // A writer that truncates first is seen in between; the mesh must not vanish for that.
        if self.understood && text.trim().is_empty() {
            return Some(Err(FileError::Blank(self.path.clone())));
        }
        match parse(&text) {
            Ok(config) => {
                let changes = changes(&self.config, &config);
                self.config = config;
                // The first file that makes sense is an answer even if it is empty: the mesh is known from then on.
                let first = !std::mem::replace(&mut self.understood, true);
                (first || !changes.is_empty()).then_some(Ok(changes))
            }
            Err(error) => Some(Err(FileError::In { path: self.path.clone(), error: Box::new(error) })),
        }
    }
}

fn read(path: &Path) -> Result<String, FileError> {
    let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
    let bytes = read_regular(path, LOCAL_CONFIG_BYTES).map_err(unreadable)?;
    let bytes = bytes.ok_or_else(|| FileError::TooLarge(path.to_owned()))?;
    let not_text = "stream did not contain valid UTF-8";
    String::from_utf8(bytes)
        .map_err(|_| unreadable(std::io::Error::new(std::io::ErrorKind::InvalidData, not_text)))
}

/// All of a regular file; nothing where it has more than `most` bytes.
pub(in crate::control) fn read_regular(path: &Path, most: u64) -> std::io::Result<Option<Vec<u8>>> {
    // Without waiting: a named pipe would hold the control thread until somebody writes to it.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if meta.len() > most {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let count = file.take(most + 1).read_to_end(&mut bytes)?;
    Ok(u64::try_from(count).is_ok_and(|count| count <= most).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::delta::apply;
    use crate::mesh::policy::{Match, StringMatch};
    use crate::mesh::snapshot::Snapshot;
    use crate::mesh::workload::{GatewayDestination, PortPair, Protocol};

    const SMALL: &str = r#"
workloads:
- uid: cluster1//v1/Pod/default/local
  name: local
  namespace: default
  serviceAccount: default
  workloadIps: ["127.0.0.1", "::1"]
  protocol: HBONE
  waypoint: {destination: "default/waypoint.example.com", hboneMtlsPort: 15008}
  networkGateway: {destination: "remote/10.0.0.9", hboneMtlsPort: 15009}
  applicationTunnel: {protocol: PROXY, port: 15088}
  locality: {region: r, zone: z, subzone: ""}
  services:
    default/example.com:
      80: 8080
      443: 8443
- uid: other
  namespace: default
  workloadIps: [127.0.0.2]
  services: {}
policies:
- name: deny-9999
  namespace: default
  scope: Namespace
  action: Deny
  dryRun: false
  rules:
  - - - destinationPorts: [9999]
        sourceIps: ["10.0.0.0/8", "192.0.2.1"]
        principals:
        - Exact: cluster.local/ns/default/sa/x
        - Presence: []
        serviceAccounts: [{namespace: default, serviceAccount: x, comment: ignored}]
services:
- name: example
  namespace: default
  hostname: example.com
  vips: [/127.10.0.1, "remote/127.10.0.2", "/fd00::1"]
  cidrVips: [{network: "", cidr: 10.5.0.0/16}]
  ports: {80: 8080, 443: 0}
  loadBalancer: {routingPreferences: [Network, Zone], mode: Failover, healthPolicy: AllowAll}
  ipFamilies: IPv4
  endpoints:
    other: {workloadUid: other, port: {80: 8081}, status: Unhealthy}
"#;

    #[test]
    fn everything_a_file_may_say_is_read() {
        let config = parse(SMALL).unwrap();
        assert!(config.problems.is_empty(), "{:?}", config.problems);
        let local = &config.workloads["cluster1//v1/Pod/default/local"];
        assert_eq!(local.protocol, Protocol::Hbone);
        assert_eq!(local.services[0].1[0], PortPair { service: 80, target: 8080 });
        let gateway = local.network_gateway.as_ref().unwrap();
        assert!(
            matches!(&gateway.destination, GatewayDestination::Address { network, .. } if **network == *"remote")
        );
        assert!(matches!(local.waypoint.as_ref().unwrap().destination, GatewayDestination::Hostname(_)));
        let other = &config.workloads["other"];
        assert_eq!((&*other.trust_domain, &*other.service_account, other.capacity), ("", "", 1));
        let entry = &config.policies["default/deny-9999"].rules[0][0][0];
        assert_eq!(entry.principals.len(), 2);
        assert_eq!(entry.principals[1], StringMatch::Presence);
        assert_eq!(entry.source_ips[1].prefix_len(), 32);
        let (service, endpoints) = &config.services[&"default/example.com".parse().unwrap()];
        assert_eq!(service.vips.len(), 3);
        assert_eq!(endpoints[0].ports, [PortPair { service: 80, target: 8081 }]);
        assert!(Arc::ptr_eq(&local.namespace, &other.namespace), "names aren't shared");
    }

    #[test]
    fn json_is_read_as_well_and_so_is_nothing() {
        let json = r#"{"services": [{"name": "a", "namespace": "n", "hostname": "h", "vips": ["/10.0.0.1"],
            "ports": {"80": 8080}}], "workloads": [{"uid": "u", "namespace": "n", "workloadIps": ["10.0.0.2"],
            "services": {"n/h": {"80": 1}}}], "policies": []}"#;
        let config = parse(json).unwrap();
        assert_eq!(config.workloads["u"].services[0].1[0].target, 1);
        for nothing in ["", "\n", "# a comment\n", "{}"] {
            assert_eq!(parse(nothing).unwrap(), LocalConfig::default(), "{nothing:?}");
        }
    }

    #[test]
    fn errors_name_the_field_and_the_place() {
        let workload =
            |extra: &str| format!("workloads:\n- uid: u\n  namespace: n\n  workloadIps: [10.0.0.1]\n{extra}");
        for (text, parts) in [
            (workload(""), &["services"][..]),
            (workload("  services: {}\n  wayPoint: null\n"), &["wayPoint", "line 6"]),
            (workload("  services: {}\n  protocol: HTTP\n"), &["HTTP", "line 6"]),
            (
                workload("  services: {h: {80: 80}}\n"),
                &["workloads[0].services", "\"h\"", "NAMESPACE/HOSTNAME"],
            ),
            (workload("  services: {n/h: {80: 70000}}\n"), &["line 5"]),
            (
                workload("  services: {}\n  waypoint: {destination: x, hboneMtlsPort: 1}\n"),
                &["workloads[0].waypoint"],
            ),
            (
                workload("  services: {}\n- {uid: u, namespace: n, workloadIps: [], services: {}}\n"),
                &["twice", "\"u\""],
            ),
            ("workload: []\n".into(), &["workload", "line 1"]),
            (
                "policies: [{name: a, namespace: b, scope: Global, action: Deny, rules: []}]\n".into(),
                &["dryRun"],
            ),
            (
                "services: [{name: a, namespace: b, hostname: c, ports: {}, vips: [10.0.0.1]}]".into(),
                &["services[0].vips", "10.0.0.1"],
            ),
            ("workloads: [".into(), &["line"]),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error:?} lacks one of {parts:?}");
        }
    }

    #[test]
    fn a_match_that_cannot_be_read_is_named_and_denies() {
        let policy = |entry: &str| {
            format!(
                "policies: [{{name: a, namespace: b, scope: Global, action: Deny, dryRun: false, \
                 rules: [[[{entry}]]]}}]"
            )
        };
        for (entry, part) in [
            ("{sourceIp: [10.0.0.0/8]}", "sourceIp"),
            ("{sourceIps: [10.0.0.0/33]}", "10.0.0.0/33"),
            ("{destinationPorts: [80000]}", "80000"),
            ("{destinationPorts: 80}", "a list"),
            ("{principals: [{Regex: x}]}", "Regex"),
            ("{principals: [x]}", "\"x\""),
            ("{serviceAccounts: [{namespace: x}]}", "serviceAccount"),
        ] {
            let config = parse(&policy(entry)).unwrap();
            assert!(config.policies["b/a"].rules[0][0][0].unreadable, "{entry}");
            let problem = config.problems[0].to_string();
            assert!(
                problem.contains(part) && problem.contains("policies[0] b/a rules[0][0][0]"),
                "{problem}"
            );
        }
        let empty = parse(&policy("{}")).unwrap();
        assert_eq!(empty.policies["b/a"].rules[0][0][0], Match::default());
    }

    #[test]
    fn only_what_differs_is_a_change_and_the_changes_lead_there() {
        let old = parse(SMALL).unwrap();
        assert_eq!(changes(&old, &parse(SMALL).unwrap()), []);
        let new = parse(&SMALL.replace("127.0.0.2", "127.0.0.3").replace("deny-9999", "other")).unwrap();
        let steps = changes(&old, &new);
        assert!(matches!(
            steps.as_slice(),
            [Change::RemovePolicy(_), Change::Policy { .. }, Change::Workload(_)]
        ));
        let first = apply(&Snapshot::default(), changes(&LocalConfig::default(), &old), None);
        let second = apply(&first, steps, None);
        assert!(second.workload_at("", "127.0.0.2".parse().unwrap()).is_none());
        assert!(second.workload_at("", "127.0.0.3".parse().unwrap()).is_some());
        let gone = apply(&second, changes(&new, &LocalConfig::default()), None);
        assert_eq!((gone.workloads().count(), gone.services().count(), gone.policies().count()), (0, 0, 0));
    }

    #[test]
    fn a_watch_tells_changes_once_and_keeps_the_old_state_over_a_bad_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let mut watch = Watch::new(&path);
        assert!(matches!(watch.poll(), Some(Err(FileError::Unreadable { .. }))));
        assert!(watch.poll().is_none() && watch.poll().is_none());
        std::fs::write(&path, SMALL).unwrap();
        assert_eq!(watch.poll().unwrap().unwrap().len(), 4);
        assert!(watch.poll().is_none() && watch.poll().is_none());
        std::fs::write(&path, "workloads: [{}]").unwrap();
        let error = watch.poll().unwrap().unwrap_err().to_string();
        assert!(error.contains("config.yaml"), "{error}");
        assert!(watch.poll().is_none() && watch.poll().is_none());
        assert_eq!(watch.config().workloads.len(), 2);
        std::fs::write(&path, SMALL.replace("HBONE", "TCP")).unwrap();
        assert_eq!(watch.poll().unwrap().unwrap().len(), 1);
    }

    #[test]
    fn a_swapped_link_is_noticed_as_kubernetes_swaps_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (folder, text) in [("one", SMALL), ("two", "{}")] {
            std::fs::create_dir(at(folder)).unwrap();
            std::fs::write(at(folder).join("config.yaml"), text).unwrap();
        }
        std::os::unix::fs::symlink("one", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/config.yaml", at("config.yaml")).unwrap();
        let mut watch = Watch::new(at("config.yaml"));
        assert_eq!(watch.poll().unwrap().unwrap().len(), 4);
        std::os::unix::fs::symlink("two", at("..tmp")).unwrap();
        std::fs::rename(at("..tmp"), at("..data")).unwrap();
        assert_eq!(watch.poll().unwrap().unwrap().len(), 4);
        assert!(watch.config().workloads.is_empty());
    }
}
