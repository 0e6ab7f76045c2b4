//! The mesh from a local file, as a `Source`.

use std::path::PathBuf;

use serde_json::{Value, json};
use tracing::{error, info, warn};

use crate::control::files::{self, FileError, LocalConfig, Watch};
use crate::control::publish::{Source, StaticConfig};
use crate::mesh::delta::{Change, apply};
use crate::mesh::service::ServiceKey;
use crate::mesh::snapshot::Snapshot;
use crate::wire::dump;

/// LOCAL_XDS_PATH (a file, watched) or LOCAL_XDS (its text, fixed).
pub struct LocalSource {
    from: From,
}

enum From {
    File { path: PathBuf, watch: Box<Watch> },
    Text { text: String, read: bool },
}

impl LocalSource {
    pub fn file(path: PathBuf) -> Self {
        let watch = Box::new(Watch::new(path.clone()));
        Self { from: From::File { path, watch } }
    }

    pub fn text(text: String) -> Self {
        Self { from: From::Text { text, read: false } }
    }

    /// Whether it can be read. For the start: later on a bad file leaves the mesh as it was.
    pub fn probe(&self) -> Result<(), FileError> {
        match &self.from {
            From::File { path, .. } => {
                Watch::new(path.clone()).poll().map_or(Ok(()), |read| read.map(|_| ()))
            }
            From::Text { text, .. } => files::parse(text).map(|_| ()),
        }
    }

    fn changes(&mut self) -> Option<Result<Vec<Change>, FileError>> {
        match &mut self.from {
            From::File { watch, .. } => {
                let changes = watch.poll();
                if let Some(Ok(_)) = &changes {
                    tell_of(watch.config());
                }
                changes
            }
            From::Text { read: true, .. } => None,
            From::Text { text, read } => {
                *read = true;
                Some(files::parse(text).map(|config| {
                    tell_of(&config);
                    files::changes(&LocalConfig::default(), &config)
                }))
            }
        }
    }
}

impl Source for LocalSource {
    fn poll(&mut self) -> Option<Result<Vec<Change>, String>> {
        Some(self.changes()?.map_err(|error| error.to_string()))
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

fn tell_of(config: &LocalConfig) {
    let (num_workloads, num_policies) = (config.workloads.len(), config.policies.len());
    info!(target: "ztunnel::state", num_workloads, num_policies, "local config initialized");
    for problem in &config.problems {
        warn!("a match of a policy can't be read, it denies: {problem}");
    }
    for (key, policy) in &config.policies {
        if let Some(remark) = policy.remark() {
            warn!("policy {key}: {remark}");
        }
    }
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
";

    #[test]
    fn text_is_read_once() {
        let mut source = LocalSource::text(TEXT.into());
        assert_eq!(source.poll().unwrap().unwrap().len(), 2);
        assert!(source.poll().is_none(), "text doesn't change");
    }

    #[test]
    fn a_file_that_changes_is_followed_and_the_dump_reads_it_anew() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), TEXT).unwrap();
        let mut source = LocalSource::file(file.path().into());
        assert_eq!(source.poll().unwrap().unwrap().len(), 2);
        let show = source.static_config().unwrap();
        assert_eq!(show()["workloads"].as_array().unwrap().len(), 2);
        std::fs::write(file.path(), "workloads: []\n").unwrap();
        let gone = source.poll().unwrap().unwrap();
        assert_eq!(gone, [Change::RemoveWorkload("u1".into()), Change::RemoveWorkload("u2".into())]);
        assert_eq!(show()["workloads"].as_array().unwrap().len(), 0);
        std::fs::write(file.path(), "workloads: [nonsense").unwrap();
        let error = source.poll().unwrap().err().unwrap();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        assert_eq!(show()["services"], serde_json::json!([]));
    }
}
