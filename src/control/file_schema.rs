//! The schema of the local file as serde sees it, and the step from there to the mesh's own types. Private to
//! `control::files`. Unknown keys are refused everywhere; in a match of a policy they make that match unreadable,
//! which denies (the reference skips such a match).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use crate::base::fault::Problem;
use crate::base::text::{Interner, Text};
use crate::control::file_match;
use crate::control::files::{FileError, LocalConfig};
use crate::mesh::policy::{Action, Policy, PolicyScope};
use crate::mesh::service::{
    Endpoint, HealthPolicy, IpFamilies, LoadBalancer, LoadBalancerMode, NetworkCidr, NetworkIp, Scope,
    Service, ServiceKey, Visibility,
};
use crate::mesh::workload::{
    ApplicationTunnel, Common, GatewayAddress, GatewayDestination, Health, Locality, NetworkMode, PortPair,
    Protocol, Shared, TunnelProtocol, Workload,
};

/// Reads a file's text.
pub(super) fn read(text: &str) -> Result<LocalConfig, FileError> {
    // The file is the operator's own and bounded in size; the parser's budgets would stop a large mesh.
    let options = serde_saphyr::options! { budget: None };
    let form: Option<FileForm> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| FileError::Schema(error.without_snippet().to_string()))?;
    form.unwrap_or_default().into_config()
}

/// The same of a document that is plain data already.
pub(super) fn from_json(document: serde_json::Value) -> Result<LocalConfig, FileError> {
    FileForm::deserialize(document).map_err(|error| FileError::Schema(error.to_string()))?.into_config()
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct FileForm {
    workloads: Vec<WorkloadForm>,
    policies: Vec<PolicyForm>,
    services: Vec<ServiceForm>,
}

impl FileForm {
    fn into_config(self) -> Result<LocalConfig, FileError> {
        let mut shared = Shared::default();
        let mut config = LocalConfig::default();
        for (number, form) in self.workloads.into_iter().enumerate() {
            let workload = form.into_workload(&format!("workloads[{number}]"), &mut shared)?;
            let name = workload.uid.clone();
            if config.workloads.insert(name.clone(), Arc::new(workload)).is_some() {
                return Err(FileError::Twice { what: "workload", name });
            }
        }
        for (number, form) in self.policies.into_iter().enumerate() {
            let policy = form.into_policy(number, &mut shared.texts, &mut config.problems);
            let name: Text = format!("{}/{}", policy.namespace, policy.name).into();
            if config.policies.insert(name.clone(), Arc::new(policy)).is_some() {
                return Err(FileError::Twice { what: "policy", name });
            }
        }
        for (number, form) in self.services.into_iter().enumerate() {
            let (service, endpoints) =
                form.into_service(&format!("services[{number}]"), &mut shared.texts)?;
            let key = service.key.clone();
            if config.services.insert(key.clone(), (Arc::new(service), endpoints)).is_some() {
                return Err(FileError::Twice { what: "service", name: key.to_string().into() });
            }
        }
        Ok(config)
    }
}

type Ports = BTreeMap<u16, u16>;

fn pairs(ports: &Ports) -> Vec<PortPair> {
    ports.iter().map(|(service, target)| PortPair { service: *service, target: *target }).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkloadForm {
    workload_ips: Vec<IpAddr>,
    waypoint: Option<GatewayForm>,
    network_gateway: Option<GatewayForm>,
    #[serde(default)]
    protocol: ProtocolForm,
    #[serde(default)]
    network_mode: NetworkModeForm,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    name: String,
    namespace: String,
    #[serde(default)]
    trust_domain: String,
    #[serde(default)]
    service_account: String,
    #[serde(default)]
    network: String,
    #[serde(default)]
    workload_name: String,
    #[serde(default)]
    workload_type: String,
    #[serde(default)]
    canonical_name: String,
    #[serde(default)]
    canonical_revision: String,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    node: String,
    #[serde(default)]
    native_tunnel: bool,
    application_tunnel: Option<TunnelForm>,
    #[serde(default)]
    authorization_policies: Vec<String>,
    #[serde(default)]
    status: HealthForm,
    #[serde(default)]
    cluster_id: String,
    locality: Option<LocalityForm>,
    services: BTreeMap<String, Ports>,
    #[serde(default = "one")]
    capacity: u32,
}

fn one() -> u32 {
    1
}

impl WorkloadForm {
    fn into_workload(self, at: &str, shared: &mut Shared) -> Result<Workload, Problem> {
        let interner = &mut shared.texts;
        let mut services = Vec::with_capacity(self.services.len());
        for (name, ports) in &self.services {
            services.push((service_key(&format!("{at}.services"), name, interner)?, pairs(ports)));
        }
        let locality = self.locality.unwrap_or_default();
        let common = Common {
            namespace: interner.intern(&self.namespace),
            network: interner.intern(&self.network),
            trust_domain: interner.intern(&self.trust_domain),
            service_account: interner.intern(&self.service_account),
            waypoint: gateway(&format!("{at}.waypoint"), self.waypoint, interner)?,
            network_gateway: gateway(&format!("{at}.networkGateway"), self.network_gateway, interner)?,
            workload_name: interner.intern(&self.workload_name),
            workload_type: interner.intern(&self.workload_type),
            canonical_name: interner.intern(&self.canonical_name),
            canonical_revision: interner.intern(&self.canonical_revision),
            hostname: interner.intern(&self.hostname),
            application_tunnel: self.application_tunnel.map(Into::into),
            authorization_policies: self
                .authorization_policies
                .iter()
                .map(|name| interner.intern(name))
                .collect(),
            cluster_id: interner.intern(&self.cluster_id),
            locality: Locality {
                region: interner.intern(&locality.region),
                zone: interner.intern(&locality.zone),
                subzone: interner.intern(&locality.subzone),
            },
            services,
        };
        Ok(Workload {
            uid: self.uid.into(),
            name: self.name.into(),
            addresses: self.workload_ips,
            node: interner.intern(&self.node),
            network_mode: match self.network_mode {
                NetworkModeForm::Standard => NetworkMode::Standard,
                NetworkModeForm::HostNetwork => NetworkMode::HostNetwork,
            },
            protocol: match self.protocol {
                ProtocolForm::Tcp => Protocol::Tcp,
                ProtocolForm::Hbone => Protocol::Hbone,
            },
            native_tunnel: self.native_tunnel,
            status: self.status.into(),
            capacity: self.capacity,
            common: shared.commons.share(common),
        })
    }
}

fn service_key(at: &str, name: &str, interner: &mut Interner) -> Result<ServiceKey, Problem> {
    let key: ServiceKey = name.parse().map_err(|_| Problem {
        at: at.to_owned(),
        value: format!("{name:?}"),
        wanted: "NAMESPACE/HOSTNAME",
    })?;
    Ok(ServiceKey { namespace: interner.intern(&key.namespace), hostname: interner.intern(&key.hostname) })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GatewayForm {
    destination: String,
    hbone_mtls_port: u16,
}

fn gateway(
    at: &str,
    form: Option<GatewayForm>,
    interner: &mut Interner,
) -> Result<Option<Arc<GatewayAddress>>, Problem> {
    let Some(form) = form else { return Ok(None) };
    let destination = match network_ip(&form.destination, interner) {
        Some(NetworkIp { network, ip }) => GatewayDestination::Address { network, ip },
        None => GatewayDestination::Hostname(service_key(
            &format!("{at}.destination"),
            &form.destination,
            interner,
        )?),
    };
    Ok(Some(Arc::new(GatewayAddress { destination, hbone_mtls_port: form.hbone_mtls_port })))
}

/// `network/IP`, the network may be empty.
fn network_ip(text: &str, interner: &mut Interner) -> Option<NetworkIp> {
    let (network, ip) = text.split_once('/')?;
    Some(NetworkIp { ip: ip.parse().ok()?, network: interner.intern(network) })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceForm {
    name: String,
    namespace: String,
    hostname: String,
    vips: Vec<String>,
    #[serde(default)]
    cidr_vips: Vec<RangeForm>,
    ports: Ports,
    #[serde(default)]
    endpoints: BTreeMap<String, EndpointForm>,
    #[serde(default)]
    subject_alt_names: Vec<String>,
    waypoint: Option<GatewayForm>,
    #[serde(default)]
    weighted_waypoints: Vec<WeightedForm>,
    load_balancer: Option<BalancerForm>,
    ip_families: Option<FamiliesForm>,
    #[serde(default)]
    canonical: bool,
    #[serde(default)]
    visibility: VisibilityForm,
}

impl ServiceForm {
    fn into_service(self, at: &str, interner: &mut Interner) -> Result<(Service, Vec<Endpoint>), Problem> {
        let problem = |field: &str, value: &str, wanted| Problem {
            at: format!("{at}.{field}"),
            value: format!("{value:?}"),
            wanted,
        };
        let mut vips = Vec::with_capacity(self.vips.len());
        for vip in &self.vips {
            vips.push(network_ip(vip, interner).ok_or_else(|| problem("vips", vip, "NETWORK/IP"))?);
        }
        let mut cidr_vips = Vec::with_capacity(self.cidr_vips.len());
        for vip in &self.cidr_vips {
            let cidr = vip.cidr.parse().map_err(|_| problem("cidrVips", &vip.cidr, "an address range"))?;
            cidr_vips.push(NetworkCidr { network: interner.intern(&vip.network), cidr });
        }
        let mut weighted_waypoints = Vec::with_capacity(self.weighted_waypoints.len());
        for entry in self.weighted_waypoints {
            let to = gateway(&format!("{at}.weightedWaypoints"), Some(entry.destination), interner)?;
            weighted_waypoints.extend(to.map(|to| (to, entry.weight)));
        }
        let service = Service {
            key: ServiceKey {
                namespace: interner.intern(&self.namespace),
                hostname: interner.intern(&self.hostname),
            },
            name: interner.intern(&self.name),
            vips,
            cidr_vips,
            ports: pairs(&self.ports),
            subject_alt_names: self.subject_alt_names.iter().map(|name| interner.intern(name)).collect(),
            waypoint: gateway(&format!("{at}.waypoint"), self.waypoint, interner)?,
            weighted_waypoints,
            load_balancer: self.load_balancer.map(Into::into),
            ip_families: self.ip_families.map(|families| match families {
                FamiliesForm::Dual => IpFamilies::Dual,
                FamiliesForm::IPv4 => IpFamilies::Ipv4,
                FamiliesForm::IPv6 => IpFamilies::Ipv6,
            }),
            canonical: self.canonical,
            visibility: match self.visibility {
                VisibilityForm::Public => Visibility::Public,
                VisibilityForm::Namespace => Visibility::Namespace,
            },
        };
        let endpoint = |form: &EndpointForm| Endpoint {
            workload_uid: interner.intern(&form.workload_uid),
            ports: pairs(&form.port),
            status: form.status.into(),
        };
        let endpoints = self.endpoints.values().map(endpoint).collect();
        Ok((service, endpoints))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeForm {
    network: String,
    cidr: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EndpointForm {
    workload_uid: String,
    port: Ports,
    #[serde(default)]
    status: HealthForm,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightedForm {
    destination: GatewayForm,
    weight: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BalancerForm {
    routing_preferences: Vec<ScopeForm>,
    mode: ModeForm,
    health_policy: HealthPolicyForm,
}

impl From<BalancerForm> for LoadBalancer {
    fn from(form: BalancerForm) -> Self {
        let scope = |scope: ScopeForm| match scope {
            ScopeForm::Region => Scope::Region,
            ScopeForm::Zone => Scope::Zone,
            ScopeForm::Subzone => Scope::Subzone,
            ScopeForm::Node => Scope::Node,
            ScopeForm::Cluster => Scope::Cluster,
            ScopeForm::Network => Scope::Network,
        };
        Self {
            routing_preferences: form.routing_preferences.into_iter().map(scope).collect(),
            mode: match form.mode {
                ModeForm::Standard => LoadBalancerMode::Standard,
                ModeForm::Strict => LoadBalancerMode::Strict,
                ModeForm::Failover => LoadBalancerMode::Failover,
                ModeForm::Passthrough => LoadBalancerMode::Passthrough,
            },
            health_policy: match form.health_policy {
                HealthPolicyForm::OnlyHealthy => HealthPolicy::OnlyHealthy,
                HealthPolicyForm::AllowAll => HealthPolicy::AllowAll,
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyForm {
    name: String,
    namespace: String,
    scope: PolicyScopeForm,
    action: ActionForm,
    rules: Vec<Vec<Vec<file_match::Form>>>,
    dry_run: bool,
}

impl PolicyForm {
    fn into_policy(self, number: usize, interner: &mut Interner, problems: &mut Vec<Problem>) -> Policy {
        let at = format!("policies[{number}] {}/{}", self.namespace, self.name);
        let mut rules = Vec::with_capacity(self.rules.len());
        for (rule, clauses) in self.rules.iter().enumerate() {
            let mut read = Vec::with_capacity(clauses.len());
            for (clause, matches) in clauses.iter().enumerate() {
                let one = |(entry, form): (usize, &file_match::Form)| {
                    file_match::read(
                        form,
                        &format!("{at} rules[{rule}][{clause}][{entry}]"),
                        interner,
                        problems,
                    )
                };
                read.push(matches.iter().enumerate().map(one).collect());
            }
            rules.push(read);
        }
        Policy {
            name: interner.intern(&self.name),
            namespace: interner.intern(&self.namespace),
            scope: match self.scope {
                PolicyScopeForm::Global => PolicyScope::Global,
                PolicyScopeForm::Namespace => PolicyScope::Namespace,
                PolicyScopeForm::WorkloadSelector => PolicyScope::WorkloadSelector,
            },
            action: match self.action {
                ActionForm::Allow => Action::Allow,
                ActionForm::Deny => Action::Deny,
            },
            rules,
            dry_run: self.dry_run,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TunnelForm {
    protocol: TunnelProtocolForm,
    port: Option<u16>,
}

impl From<TunnelForm> for ApplicationTunnel {
    fn from(form: TunnelForm) -> Self {
        Self {
            protocol: match form.protocol {
                TunnelProtocolForm::None => TunnelProtocol::None,
                TunnelProtocolForm::Proxy => TunnelProtocol::Proxy,
            },
            port: form.port.filter(|port| *port > 0),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct LocalityForm {
    region: String,
    zone: String,
    subzone: String,
}

/// Words of the file; a first one marked so is the default.
macro_rules! words {
    ($($name:ident { $first:ident $(= $spelt:literal)?, $($other:ident $(= $other_spelt:literal)?),* })*) => {$(
        #[derive(Deserialize, Default, Clone, Copy)]
        enum $name {
            #[default]
            $(#[serde(rename = $spelt)])?
            $first,
            $($(#[serde(rename = $other_spelt)])? $other,)*
        }
    )*};
}

words! {
    ProtocolForm { Tcp = "TCP", Hbone = "HBONE" }
    NetworkModeForm { Standard, HostNetwork }
    TunnelProtocolForm { None = "NONE", Proxy = "PROXY" }
    HealthForm { Healthy, Unhealthy }
    ScopeForm { Region, Zone, Subzone, Node, Cluster, Network }
    ModeForm { Standard, Strict, Failover, Passthrough }
    HealthPolicyForm { OnlyHealthy, AllowAll }
    FamiliesForm { Dual, IPv4, IPv6 }
    VisibilityForm { Public, Namespace }
    PolicyScopeForm { Global, Namespace, WorkloadSelector }
    ActionForm { Allow, Deny }
}

impl From<HealthForm> for Health {
    fn from(form: HealthForm) -> Self {
        match form {
            HealthForm::Healthy => Self::Healthy,
            HealthForm::Unhealthy => Self::Unhealthy,
        }
    }
}
