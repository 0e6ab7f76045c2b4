//! Workloads, services and policies as `/config_dump` shows them (reference sections 17.4 to 17.6). Keys come out
//! sorted; which are always there and which only when they say something is the reference's.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::base::text::Text;
use crate::mesh::policy::{Action, Match, Policy, PolicyScope, StringMatch};
use crate::mesh::service::{
    HealthPolicy, IpFamilies, LoadBalancer, LoadBalancerMode, Scope, Service, Visibility,
};
use crate::mesh::snapshot::{Serving, Snapshot};
use crate::mesh::workload::{
    GatewayAddress, GatewayDestination, Health, NetworkMode, PortPair, Protocol, TunnelProtocol, Workload,
};

/// One workload.
pub fn workload(workload: &Workload) -> Value {
    let mut shown = Shown::default();
    shown.put("workloadIps", json!(workload.addresses));
    shown.put(
        "protocol",
        match workload.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Hbone => "HBONE",
        },
    );
    shown.put(
        "networkMode",
        match workload.network_mode {
            NetworkMode::Standard => "Standard",
            NetworkMode::HostNetwork => "HostNetwork",
        },
    );
    shown.put("name", &*workload.name);
    shown.put("namespace", &*workload.namespace);
    shown.put("status", health(workload.status));
    shown.put("clusterId", &*workload.cluster_id);
    shown.put("capacity", workload.capacity);
    for (key, text) in [
        ("uid", &workload.uid),
        ("trustDomain", &workload.trust_domain),
        ("serviceAccount", &workload.service_account),
        ("network", &workload.network),
        ("workloadName", &workload.workload_name),
        ("workloadType", &workload.workload_type),
        ("canonicalName", &workload.canonical_name),
        ("canonicalRevision", &workload.canonical_revision),
        ("hostname", &workload.hostname),
        ("node", &workload.node),
    ] {
        shown.put_if(!text.is_empty(), key, || json!(text));
    }
    shown.put_some("waypoint", workload.waypoint.as_deref().map(gateway));
    shown.put_some("networkGateway", workload.network_gateway.as_deref().map(gateway));
    shown.put_if(workload.native_tunnel, "nativeTunnel", || json!(true));
    let tunnel = workload.application_tunnel.map(|tunnel| {
        let protocol = match tunnel.protocol {
            TunnelProtocol::None => "NONE",
            TunnelProtocol::Proxy => "PROXY",
        };
        json!({"protocol": protocol, "port": tunnel.port})
    });
    shown.put_some("applicationTunnel", tunnel);
    let policies = &workload.authorization_policies;
    shown.put_if(!policies.is_empty(), "authorizationPolicies", || json!(policies));
    let place = &workload.locality;
    shown.put_if(
        *place != Default::default(),
        "locality",
        || json!({"region": place.region, "zone": place.zone, "subzone": place.subzone}),
    );
    let services = &workload.services;
    shown.put_if(!services.is_empty(), "services", || {
        services.iter().map(|(key, _)| Value::from(key.to_string())).collect()
    });
    shown.finish()
}

/// One service with its endpoints.
pub fn service<'a>(service: &Service, endpoints: impl IntoIterator<Item = Serving<'a>>) -> Value {
    let mut shown = Shown::default();
    shown.put("name", &*service.name);
    shown.put("namespace", &*service.key.namespace);
    shown.put("hostname", &*service.key.hostname);
    shown.put(
        "vips",
        service.vips.iter().map(|vip| format!("{}/{}", vip.network, vip.ip)).collect::<Vec<_>>(),
    );
    shown.put("ports", ports(&service.ports));
    shown.put("endpoints", by_uid(endpoints));
    shown.put("subjectAltNames", json!(service.subject_alt_names));
    shown.put("canonical", service.canonical);
    shown.put(
        "visibility",
        match service.visibility {
            Visibility::Public => "Public",
            Visibility::Namespace => "Namespace",
        },
    );
    let ranges = &service.cidr_vips;
    shown.put_if(!ranges.is_empty(), "cidrVips", || {
        ranges.iter().map(|vip| json!({"network": vip.network, "cidr": vip.cidr})).collect()
    });
    shown.put_some("waypoint", service.waypoint.as_deref().map(gateway));
    let weighted = &service.weighted_waypoints;
    shown.put_if(!weighted.is_empty(), "weightedWaypoints", || {
        let one =
            |(to, weight): &(Arc<GatewayAddress>, u32)| json!({"destination": gateway(to), "weight": weight});
        weighted.iter().map(one).collect()
    });
    shown.put_some("loadBalancer", service.load_balancer.as_ref().map(load_balancer));
    let families = service.ip_families.map(|families| match families {
        IpFamilies::Dual => "Dual",
        IpFamilies::Ipv4 => "IPv4",
        IpFamilies::Ipv6 => "IPv6",
    });
    shown.put_some("ipFamilies", families);
    shown.finish()
}

/// One policy.
pub fn policy(policy: &Policy) -> Value {
    let scope = match policy.scope {
        PolicyScope::Global => "Global",
        PolicyScope::Namespace => "Namespace",
        PolicyScope::WorkloadSelector => "WorkloadSelector",
    };
    let action = match policy.action {
        Action::Allow => "Allow",
        Action::Deny => "Deny",
    };
    let clause = |matches: &Vec<Match>| matches.iter().map(one_match).collect::<Value>();
    let rule = |clauses: &Vec<Vec<Match>>| clauses.iter().map(clause).collect::<Value>();
    json!({
        "name": policy.name,
        "namespace": policy.namespace,
        "scope": scope,
        "action": action,
        "rules": policy.rules.iter().map(rule).collect::<Value>(),
        "dryRun": policy.dry_run,
    })
}

/// The endpoints whose service isn't known: `stagedServices`.
pub fn staged(snapshot: &Snapshot) -> Value {
    snapshot
        .staged()
        .map(|key| (key.to_string(), by_uid(snapshot.endpoints(key))))
        .collect::<Map<_, _>>()
        .into()
}

fn by_uid<'a>(endpoints: impl IntoIterator<Item = Serving<'a>>) -> Value {
    let one = |serving: Serving<'a>| {
        let shown = json!({
            "workloadUid": serving.uid,
            "port": ports(serving.ports),
            "status": health(serving.status),
        });
        (serving.uid.to_string(), shown)
    };
    endpoints.into_iter().map(one).collect::<Map<_, _>>().into()
}

fn ports(pairs: &[PortPair]) -> Value {
    pairs.iter().map(|pair| (pair.service.to_string(), pair.target.into())).collect::<Map<_, _>>().into()
}

fn health(status: Health) -> &'static str {
    match status {
        Health::Healthy => "Healthy",
        Health::Unhealthy => "Unhealthy",
    }
}

fn gateway(address: &GatewayAddress) -> Value {
    let destination = match &address.destination {
        GatewayDestination::Address { network, ip } => format!("{network}/{ip}"),
        GatewayDestination::Hostname(key) => key.to_string(),
    };
    json!({"destination": destination, "hboneMtlsPort": address.hbone_mtls_port})
}

fn load_balancer(balancer: &LoadBalancer) -> Value {
    let scope = |scope: &Scope| match scope {
        Scope::Region => "Region",
        Scope::Zone => "Zone",
        Scope::Subzone => "Subzone",
        Scope::Node => "Node",
        Scope::Cluster => "Cluster",
        Scope::Network => "Network",
    };
    let mode = match balancer.mode {
        LoadBalancerMode::Standard => "Standard",
        LoadBalancerMode::Strict => "Strict",
        LoadBalancerMode::Failover => "Failover",
        LoadBalancerMode::Passthrough => "Passthrough",
    };
    let health_policy = match balancer.health_policy {
        HealthPolicy::OnlyHealthy => "OnlyHealthy",
        HealthPolicy::AllowAll => "AllowAll",
    };
    let preferences: Vec<_> = balancer.routing_preferences.iter().map(scope).collect();
    json!({"routingPreferences": preferences, "mode": mode, "healthPolicy": health_policy})
}

/// `unreadable` is ours and shown only where it is so: such a match denies.
fn one_match(of: &Match) -> Value {
    let mut shown = Shown::default();
    for (key, values) in [
        ("namespaces", &of.namespaces),
        ("notNamespaces", &of.not_namespaces),
        ("principals", &of.principals),
        ("notPrincipals", &of.not_principals),
    ] {
        shown.put_if(!values.is_empty(), key, || values.iter().map(string_match).collect());
    }
    for (key, accounts) in
        [("serviceAccounts", &of.service_accounts), ("notServiceAccounts", &of.not_service_accounts)]
    {
        shown.put_if(!accounts.is_empty(), key, || {
            accounts
                .iter()
                .map(|one| json!({"namespace": one.namespace, "serviceAccount": one.service_account}))
                .collect()
        });
    }
    for (key, ranges) in [
        ("sourceIps", &of.source_ips),
        ("notSourceIps", &of.not_source_ips),
        ("destinationIps", &of.destination_ips),
        ("notDestinationIps", &of.not_destination_ips),
    ] {
        shown.put_if(!ranges.is_empty(), key, || json!(ranges));
    }
    for (key, ports) in
        [("destinationPorts", &of.destination_ports), ("notDestinationPorts", &of.not_destination_ports)]
    {
        shown.put_if(!ports.is_empty(), key, || json!(ports));
    }
    shown.put_if(of.unreadable, "unreadable", || json!(true));
    shown.finish()
}

fn string_match(value: &StringMatch) -> Value {
    let one = |key: &str, text: &Text| json!({key: text});
    match value {
        StringMatch::Exact(text) => one("Exact", text),
        StringMatch::Prefix(text) => one("Prefix", text),
        StringMatch::Suffix(text) => one("Suffix", text),
        StringMatch::Presence => json!({"Presence": []}),
    }
}

/// An object in the making.
#[derive(Default)]
struct Shown(Map<String, Value>);

impl Shown {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn put_some(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }

    fn put_if(&mut self, says_something: bool, key: &str, value: impl FnOnce() -> Value) {
        if says_something {
            self.put(key, value());
        }
    }

    fn finish(self) -> Value {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::delta::{Change, apply};
    use crate::mesh::service::{NetworkCidr, NetworkIp, ServiceKey};
    use crate::mesh::workload::{ApplicationTunnel, Common, Locality};

    fn server() -> Workload {
        let text = |value: &str| value.into();
        let common = Common {
            namespace: text("default"),
            trust_domain: text("cluster.local"),
            service_account: text("server"),
            workload_name: text("server"),
            workload_type: text("pod"),
            canonical_name: text("server"),
            canonical_revision: text("v2"),
            cluster_id: text("Kubernetes"),
            locality: Locality { region: text("r1"), zone: text("z2"), subzone: text("") },
            services: vec![(web().key, vec![PortPair { service: 80, target: 8080 }])],
            ..Common::default()
        };
        Workload {
            addresses: vec!["10.99.2.10".parse().unwrap()],
            protocol: Protocol::Hbone,
            node: text("node2"),
            common: Arc::new(common),
            ..Workload::plain("Kubernetes//Pod/default/server", "default", "server")
        }
    }

    fn web() -> Service {
        Service {
            vips: vec![NetworkIp { network: "".into(), ip: "10.99.200.1".parse().unwrap() }],
            ports: vec![PortPair { service: 80, target: 8080 }],
            ..Service::plain("default", "web.default.svc.cluster.local", "web")
        }
    }

    /// The objects of the captured dump, as they stand there.
    #[test]
    fn plain_objects_read_as_the_captured_dump() {
        let sample = r#"{"canonicalName":"server","canonicalRevision":"v2","capacity":1,"clusterId":"Kubernetes",
            "locality":{"region":"r1","subzone":"","zone":"z2"},"name":"server","namespace":"default",
            "networkMode":"Standard","node":"node2","protocol":"HBONE","serviceAccount":"server",
            "services":["default/web.default.svc.cluster.local"],"status":"Healthy","trustDomain":"cluster.local",
            "uid":"Kubernetes//Pod/default/server","workloadIps":["10.99.2.10"],"workloadName":"server",
            "workloadType":"pod"}"#;
        let sample: Value = serde_json::from_str(sample).unwrap();
        assert_eq!(workload(&server()), sample);
        let sample = r#"{"canonical":false,"endpoints":{"Kubernetes//Pod/default/server":{"port":{"80":8080},
            "status":"Healthy","workloadUid":"Kubernetes//Pod/default/server"}},
            "hostname":"web.default.svc.cluster.local","name":"web","namespace":"default","ports":{"80":8080},
            "subjectAltNames":[],"vips":["/10.99.200.1"],"visibility":"Public"}"#;
        let sample: Value = serde_json::from_str(sample).unwrap();
        let only_workload = [Change::Workload(Arc::new(server()))];
        let snapshot = apply(&Snapshot::default(), only_workload, None);
        let key = web().key;
        assert_eq!(staged(&snapshot), json!({key.to_string(): sample["endpoints"]}));
        let both = [Change::Service { service: Arc::new(web()), endpoints: Vec::new() }];
        let snapshot = apply(&snapshot, both, None);
        assert_eq!(service(&web(), snapshot.endpoints(&key)), sample);
        assert_eq!(staged(&snapshot), json!({}));
    }

    #[test]
    fn policies_read_as_the_captured_dump() {
        let sample = r#"{"action":"Deny","dryRun":false,"name":"deny-range","namespace":"default","rules":[[[{
            "notNamespaces":[{"Prefix":"sys-"}],"sourceIps":["192.0.2.0/24"]}]]],"scope":"WorkloadSelector"}"#;
        let shown = policy(&Policy {
            name: "deny-range".into(),
            namespace: "default".into(),
            scope: PolicyScope::WorkloadSelector,
            action: Action::Deny,
            rules: vec![vec![vec![Match {
                not_namespaces: vec![StringMatch::Prefix("sys-".into())],
                source_ips: vec!["192.0.2.0/24".parse().unwrap()],
                ..Match::default()
            }]]],
            dry_run: false,
        });
        assert_eq!(shown, serde_json::from_str::<Value>(sample).unwrap());
    }

    #[test]
    fn optional_keys_come_only_with_something_to_say() {
        let key = ServiceKey { namespace: "ns".into(), hostname: "way".into() };
        let to = Arc::new(GatewayAddress {
            destination: GatewayDestination::Hostname(key),
            hbone_mtls_port: 15008,
        });
        let mut full = server();
        full.waypoint = Some(to.clone());
        full.application_tunnel = Some(ApplicationTunnel { protocol: TunnelProtocol::Proxy, port: None });
        full.native_tunnel = true;
        let shown = workload(&full);
        assert_eq!(shown["waypoint"], json!({"destination": "ns/way", "hboneMtlsPort": 15008}));
        assert_eq!(shown["applicationTunnel"], json!({"protocol": "PROXY", "port": null}));
        assert_eq!(shown["nativeTunnel"], json!(true));
        let bare = workload(&Workload::plain("", "", ""));
        let keys: Vec<_> = bare.as_object().unwrap().keys().map(String::as_str).collect();
        let always = [
            "capacity",
            "clusterId",
            "name",
            "namespace",
            "networkMode",
            "protocol",
            "status",
            "workloadIps",
        ];
        assert_eq!(keys, always);

        let mut full = web();
        full.cidr_vips = vec![NetworkCidr { network: "n".into(), cidr: "10.0.0.0/8".parse().unwrap() }];
        full.weighted_waypoints = vec![(to, 3)];
        full.ip_families = Some(IpFamilies::Ipv4);
        full.load_balancer = Some(LoadBalancer {
            routing_preferences: vec![Scope::Network, Scope::Zone],
            mode: LoadBalancerMode::Failover,
            health_policy: HealthPolicy::AllowAll,
        });
        let shown = service(&full, []);
        assert_eq!(shown["cidrVips"], json!([{"network": "n", "cidr": "10.0.0.0/8"}]));
        assert_eq!(shown["weightedWaypoints"][0]["weight"], json!(3));
        assert_eq!(shown["ipFamilies"], json!("IPv4"));
        let preferences = ["Network", "Zone"];
        let balancer =
            json!({"routingPreferences": preferences, "mode": "Failover", "healthPolicy": "AllowAll"});
        assert_eq!(shown["loadBalancer"], balancer);
    }
}
