//! The mesh from a local file, as a `Source`: changes become snapshots, and this node's workloads become the
//! identities to hold certificates for.

use std::path::PathBuf;

use serde_json::{Value, json};
use tracing::{error, warn};

use crate::base::text::Text;
use crate::control::files::{self, FileError, LocalConfig, Watch};
use crate::control::publish::{Source, StaticConfig, Update};
use crate::mesh::delta::{Change, apply};
use crate::mesh::identity::Identity;
use crate::mesh::service::ServiceKey;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::{Protocol, Workload};
use crate::wire::dump;

/// LOCAL_XDS_PATH (a file, watched) or LOCAL_XDS (its text, fixed).
pub struct LocalSource {
    from: From,
    /// Whose workloads are local; all, where it isn't set.
    local_node: Option<Text>,
}

enum From {
    File { path: PathBuf, watch: Box<Watch> },
    Text { text: String, read: bool },
}

impl LocalSource {
    pub fn file(path: PathBuf, local_node: Option<Text>) -> Self {
        let watch = Box::new(Watch::new(path.clone()));
        Self { from: From::File { path, watch }, local_node }
    }

    pub fn text(text: String, local_node: Option<Text>) -> Self {
        Self { from: From::Text { text, read: false }, local_node }
    }

    fn changes(&mut self) -> Option<Result<Vec<Change>, FileError>> {
        match &mut self.from {
            From::File { watch, .. } => {
                let changes = watch.poll();
                if let Some(Ok(_)) = &changes {
                    warn_of(watch.config());
                }
                changes
            }
            From::Text { read: true, .. } => None,
            From::Text { text, read } => {
                *read = true;
                Some(files::parse(text).map(|config| {
                    warn_of(&config);
                    files::changes(&LocalConfig::default(), &config)
                }))
            }
        }
    }
}

impl Source for LocalSource {
    fn poll(&mut self, current: &Snapshot) -> Option<Result<Update, String>> {
        let changes = match self.changes()? {
            Ok(changes) => changes,
            Err(error) => return Some(Err(error.to_string())),
        };
        let node = self.local_node.as_deref();
        let local = changes.iter().filter_map(|change| local_change(change, node)).collect();
        Some(Ok(Update { snapshot: apply(current, changes, node), local }))
    }

    fn static_config(&self) -> Option<StaticConfig> {
        Some(match &self.from {
            From::File { path, .. } => {
                let path = path.clone();
                Box::new(move || {
                    let mut watch = Watch::new(path.clone());
                    if let Some(Err(error)) = watch.poll() {
                        error!("the local file can't be shown in the dump: {error}");
                    }
                    shown(watch.config())
                })
            }
            From::Text { text, .. } => {
                let config = files::parse(text).unwrap_or_default();
                Box::new(move || shown(&config))
            }
        })
    }
}

fn warn_of(config: &LocalConfig) {
    for problem in &config.problems {
        warn!("a match of a policy can't be read, it denies: {problem}");
    }
}

/// What a change says about this node's identities.
fn local_change(change: &Change, node: Option<&str>) -> Option<(Text, Option<Identity>)> {
    match change {
        Change::Workload(workload) => {
            Some((workload.uid.clone(), needs_certificate(workload, node).then(|| workload.identity())))
        }
        Change::RemoveWorkload(uid) | Change::RemoveAddress(uid) => Some((uid.clone(), None)),
        Change::Service { .. }
        | Change::RemoveService(_)
        | Change::Policy { .. }
        | Change::RemovePolicy(_) => None,
    }
}

fn needs_certificate(workload: &Workload, node: Option<&str>) -> bool {
    let local = node.is_none_or(|node| node.is_empty() || *workload.node == *node);
    local && (workload.native_tunnel || workload.protocol == Protocol::Hbone)
}

/// The three lists of `staticConfig`.
fn shown(config: &LocalConfig) -> Value {
    // A snapshot of the file alone knows which endpoints each service has.
    let alone = apply(&Snapshot::default(), files::changes(&LocalConfig::default(), config), None);
    let services = config
        .services
        .iter()
        .map(|(key, (service, _)): (&ServiceKey, _)| dump::service(service, alone.endpoints(key)));
    json!({
        "workloads": config.workloads.values().map(|workload| dump::workload(workload)).collect::<Value>(),
        "services": services.collect::<Value>(),
        "policies": config.policies.values().map(|policy| dump::policy(policy)).collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
workloads:
- uid: u1
  name: web-1
  namespace: shop
  serviceAccount: seller
  trustDomain: cluster.local
  workloadIps: [\"10.0.0.1\"]
  protocol: HBONE
  node: here
  services: {}
- uid: u2
  name: plain
  namespace: shop
  serviceAccount: plain
  trustDomain: cluster.local
  workloadIps: [\"10.0.0.2\"]
  node: here
  services: {}
- uid: u3
  name: far
  namespace: shop
  serviceAccount: far
  trustDomain: cluster.local
  workloadIps: [\"10.0.0.3\"]
  protocol: HBONE
  node: there
  services: {}
";

    fn wanted(update: &Update) -> Vec<(&str, bool)> {
        let mut wanted: Vec<_> =
            update.local.iter().map(|(uid, identity)| (&**uid, identity.is_some())).collect();
        wanted.sort_unstable();
        wanted
    }

    #[test]
    fn only_local_meshed_workloads_get_certificates() {
        let mut source = LocalSource::text(TEXT.into(), Some("here".into()));
        let update = source.poll(&Snapshot::default()).unwrap().unwrap();
        assert_eq!(wanted(&update), [("u1", true), ("u2", false), ("u3", false)]);
        assert_eq!(update.snapshot.workload_count(), 3);
        assert!(source.poll(&update.snapshot).is_none(), "text doesn't change");
        let mut everywhere = LocalSource::text(TEXT.into(), None);
        let update = everywhere.poll(&Snapshot::default()).unwrap().unwrap();
        assert_eq!(wanted(&update), [("u1", true), ("u2", false), ("u3", true)]);
    }

    #[test]
    fn a_file_that_changes_is_followed_and_the_dump_reads_it_anew() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), TEXT).unwrap();
        let mut source = LocalSource::file(file.path().into(), Some("here".into()));
        let update = source.poll(&Snapshot::default()).unwrap().unwrap();
        let show = source.static_config().unwrap();
        assert_eq!(show()["workloads"].as_array().unwrap().len(), 3);
        std::fs::write(file.path(), "workloads: []\n").unwrap();
        let after = source.poll(&update.snapshot).unwrap().unwrap();
        assert_eq!(wanted(&after), [("u1", false), ("u2", false), ("u3", false)]);
        assert_eq!(show()["workloads"].as_array().unwrap().len(), 0);
        std::fs::write(file.path(), "workloads: [nonsense").unwrap();
        let error = source.poll(&after.snapshot).unwrap().err().unwrap();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        assert_eq!(show()["services"], serde_json::json!([]));
    }
}
