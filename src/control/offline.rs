//! The mesh as a dump of `/config_dump` tells it, of ours or of ztunnel's: for questions when no proxy is there to be
//! asked. What a dump doesn't tell: whether the mesh was complete when it was made; it is taken to be.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::control::file_schema;
use crate::control::files::{FileError, LocalConfig, changes};
use crate::control::why::{self, Sight, Unasked};
use crate::mesh::delta::apply;
use crate::mesh::identity::TrustDomains;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::why::Why;

/// Why a dump can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error("it isn't a dump of /config_dump: it has no {0:?}")]
    Lacks(&'static str),
    #[error("it can't be read: {0}")]
    Unreadable(#[from] FileError),
    #[error(transparent)]
    Unasked(#[from] Unasked),
}

/// What would become of a connection in the mesh of a dump; both ends as for `/why`.
pub fn explain(dump: &Value, from: &str, to: &str) -> Result<Why, DumpError> {
    let snapshot = mesh(dump)?;
    let config = dump.get("config");
    let of = |key: &str| config.and_then(|config| config.get(key));
    let names = of("trustDomains").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut names = names.iter().filter_map(Value::as_str);
    let domains =
        names.next().and_then(|own| TrustDomains::parse(own, &names.collect::<Vec<_>>().join(",")).ok());
    let sight = Sight {
        network: of("network").and_then(Value::as_str).unwrap_or_default(),
        ipv6: of("ipv6Enabled").and_then(Value::as_bool).unwrap_or(true),
        least_connections: of("leastConnections").and_then(Value::as_bool).unwrap_or(false),
        domains: &domains.unwrap_or_default(),
    };
    Ok(why::explain(&snapshot, &sight, from, to)?)
}

/// The snapshot. A dump's objects are those of a local file, but for this: a workload names its services only, and the
/// services tell the ports.
fn mesh(dump: &Value) -> Result<Snapshot, DumpError> {
    let list =
        |key: &'static str| dump.get(key).and_then(Value::as_array).cloned().ok_or(DumpError::Lacks(key));
    let (mut workloads, mut services, policies) = (list("workloads")?, list("services")?, list("policies")?);
    let mut serves: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    let mut note = |service: &str, endpoints: Option<&Value>| {
        for (uid, endpoint) in endpoints.and_then(Value::as_object).into_iter().flatten() {
            let ports = endpoint.get("port").cloned().unwrap_or_else(|| json!({}));
            serves.entry(uid.clone()).or_default().insert(service.to_owned(), ports);
        }
    };
    for service in &services {
        let name = |key| service.get(key).and_then(Value::as_str).unwrap_or_default();
        note(&format!("{}/{}", name("namespace"), name("hostname")), service.get("endpoints"));
    }
    for (service, endpoints) in dump.get("stagedServices").and_then(Value::as_object).into_iter().flatten() {
        note(service, Some(endpoints));
    }
    for workload in workloads.iter_mut().filter_map(Value::as_object_mut) {
        let uid = workload.get("uid").and_then(Value::as_str).unwrap_or_default();
        let services = serves.remove(uid).unwrap_or_default();
        workload.insert("services".to_owned(), services.into());
    }
    for service in services.iter_mut().filter_map(Value::as_object_mut) {
        // Those of workloads that are known are told with these.
        if let Some(endpoints) = service.get_mut("endpoints").and_then(Value::as_object_mut) {
            endpoints.retain(|uid, _| serves.contains_key(uid));
        }
    }
    let document = json!({"workloads": workloads, "services": services, "policies": policies});
    let config = file_schema::from_json(document)?;
    let mut snapshot = apply(&Snapshot::default(), changes(&LocalConfig::default(), &config), None);
    snapshot.synced = true;
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::dump::mesh as dumped;
    use crate::mesh::fixture::{mesh as made, pod, policy, service, serving};
    use crate::mesh::policy::{Action, Match, PolicyScope};

    fn dump() -> Value {
        let deny = Match { destination_ports: vec![9], ..Match::default() };
        let unreadable = Match { unreadable: true, ..Match::default() };
        let snapshot = made([
            pod("client", &["10.0.0.1"]).into(),
            serving(pod("server", &["10.0.0.2"]), "web", &[(80, 8080)]).into(),
            service("web", &["10.1.0.1"], &[(80, 8080)]).into(),
            policy("no-9", PolicyScope::Namespace, Action::Deny, vec![deny]).into(),
            policy("odd", PolicyScope::Global, Action::Allow, vec![unreadable]).into(),
        ]);
        let mut dump: Value = dumped(&snapshot).into();
        dump["config"] = json!({"network": "", "trustDomains": ["cluster.local", "old.local"]});
        dump
    }

    #[test]
    fn what_was_dumped_comes_back() {
        let dump = dump();
        let again: Value = dumped(&mesh(&dump).unwrap()).into();
        for key in ["workloads", "services", "policies", "stagedServices"] {
            assert_eq!(again[key], dump[key], "{key}");
        }
    }

    #[test]
    fn questions_are_answered_as_by_the_proxy() {
        let told = explain(&dump(), "default/client", "web.default.svc.cluster.local:80").unwrap();
        assert!(!told.is_allowed() && told.to_string().contains("10.0.0.2"), "{told}");
        let told = explain(&dump(), "10.0.0.1", "10.0.0.2:9").unwrap();
        assert!(told.to_string().contains("denied by default/no-9"), "{told}");
        let error = explain(&dump(), "default/nobody", "10.0.0.2:9").unwrap_err().to_string();
        assert!(error.contains("default/nobody"), "{error}");
        for (broken, named) in [(json!({}), "workloads"), (json!([]), "workloads")] {
            assert!(explain(&broken, "a/b", "c:1").unwrap_err().to_string().contains(named));
        }
        let mut broken = dump();
        broken["workloads"][0]["capacity"] = json!("many");
        assert!(explain(&broken, "a/b", "c:1").unwrap_err().to_string().contains("can't be read"));
    }
}
