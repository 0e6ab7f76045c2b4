//! The mesh from a local file or inline text (LOCAL_XDS_PATH, LOCAL_XDS): a source that needs no cluster.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use tracing::{info, warn};

use crate::base::text::Text;
use crate::control::files::{LocalConfig, Problem, Watch, changes, parse};
use crate::control::publish::{Source, StaticConfig, Update};
use crate::mesh::delta::{Change, apply};
use crate::mesh::identity::Identity;
use crate::mesh::service::Endpoint;
use crate::mesh::snapshot::{Serving, Snapshot};
use crate::mesh::workload::{Protocol, Workload};
use crate::wire::dump;

/// Follows a file, or gives inline text once.
pub struct LocalSource {
    origin: Origin,
    node: Option<String>,
    /// Identities of this node's workloads, by uid.
    local: HashMap<Text, Identity>,
}

enum Origin {
    File { watch: Box<Watch>, path: PathBuf },
    Inline { text: String, given: bool },
}

impl LocalSource {
    pub fn file(path: PathBuf, node: Option<String>) -> Self {
        let watch = Box::new(Watch::new(path.clone()));
        Self { origin: Origin::File { watch, path }, node, local: HashMap::new() }
    }

    pub fn inline(text: String, node: Option<String>) -> Self {
        Self { origin: Origin::Inline { text, given: false }, node, local: HashMap::new() }
    }

    fn news(&mut self) -> Option<Result<Vec<Change>, String>> {
        match &mut self.origin {
            Origin::File { watch, .. } => {
                let news = watch.poll()?;
                if news.is_ok() {
                    tell(watch.config());
                }
                Some(news.map_err(|error| error.to_string()))
            }
            Origin::Inline { given: true, .. } => None,
            Origin::Inline { text, given } => {
                *given = true;
                Some(match parse(text) {
                    Ok(config) => {
                        tell(&config);
                        Ok(changes(&LocalConfig::default(), &config))
                    }
                    Err(error) => Err(format!("LOCAL_XDS: {error}")),
                })
            }
        }
    }

    /// Which of the changes are about workloads of this node that need a certificate.
    fn follow_local(&mut self, news: &[Change]) -> Vec<(Text, Option<Identity>)> {
        let mut told = Vec::new();
        for change in news {
            match change {
                Change::Workload(workload) => {
                    let wanted = self.is_local(workload).then(|| workload.identity());
                    let before = match &wanted {
                        Some(identity) => self.local.insert(workload.uid.clone(), identity.clone()),
                        None => self.local.remove(&workload.uid),
                    };
                    if before != wanted {
                        told.push((workload.uid.clone(), wanted));
                    }
                }
                Change::RemoveWorkload(uid) | Change::RemoveAddress(uid) => {
                    if self.local.remove(uid).is_some() {
                        told.push((uid.clone(), None));
                    }
                }
                Change::Service { .. }
                | Change::RemoveService(_)
                | Change::Policy { .. }
                | Change::RemovePolicy(_) => {}
            }
        }
        told
    }

    fn is_local(&self, workload: &Workload) -> bool {
        let here = self.node.as_deref().is_some_and(|node| node == &*workload.node);
        here && (workload.protocol == Protocol::Hbone || workload.native_tunnel)
    }
}

fn tell(config: &LocalConfig) {
    info!(
        target: "ztunnel::state",
        num_workloads = config.workloads.len(),
        num_policies = config.policies.len(),
        "local config initialized",
    );
    for Problem { at, value, wanted } in &config.problems {
        warn!(target: "ztunnel::state", "local config: {at}: {value:?} is not {wanted}; what rests on it fails closed");
    }
}

/// An endpoint as the file gives it, whether its workload is known or not.
fn serving(endpoint: &Endpoint) -> Serving<'_> {
    Serving {
        uid: &endpoint.workload_uid,
        workload: None,
        ports: &endpoint.ports,
        status: endpoint.status,
    }
}

impl Source for LocalSource {
    fn poll(&mut self, current: &Snapshot) -> Option<Result<Update, String>> {
        let news = match self.news()? {
            Ok(news) => news,
            Err(error) => return Some(Err(error)),
        };
        let local = self.follow_local(&news);
        let mut snapshot = apply(current, news, self.node.as_deref());
        snapshot.synced = true;
        Some(Ok(Update { snapshot, local }))
    }

    fn static_config(&self) -> Option<StaticConfig> {
        let read: Arc<dyn Fn() -> Option<String> + Send + Sync> = match &self.origin {
            Origin::File { path, .. } => {
                let path = path.clone();
                Arc::new(move || std::fs::read_to_string(&path).ok())
            }
            Origin::Inline { text, .. } => {
                let text = text.clone();
                Arc::new(move || Some(text.clone()))
            }
        };
        Some(Box::new(move || {
            let config = read().and_then(|text| parse(&text).ok()).unwrap_or_default();
            serde_json::json!({
                "workloads": config.workloads.values().map(|workload| dump::workload(workload)).collect::<Vec<_>>(),
                "policies": config.policies.values().map(|policy| dump::policy(policy)).collect::<Vec<_>>(),
                "services": config.services.values()
                    .map(|(service, endpoints)| dump::service(service, endpoints.iter().map(serving)))
                    .collect::<Vec<_>>(),
            })
        }))
    }
}
