//! Resources of type Address, and of them the services: decoded by prost, then checked field by field (reference
//! section 4.6). Where ztunnel cuts a port down to 16 bits, or takes a key that no removal could name again, the
//! resource is refused (deploy/docs/decisions/control-plane-values.md).

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use prost::Message as _;

use super::fields::{Fields, Schema};
use super::workload::Forms;
use super::{Refusal, shown};
use crate::base::text::Text;
use crate::mesh::service::{
    HealthPolicy, IpFamilies, LoadBalancer, LoadBalancerMode, NetworkCidr, NetworkIp, Scope, Service,
    ServiceKey, Visibility,
};
use crate::mesh::workload::{GatewayAddress, GatewayDestination, PortPair, Shared, Workload};
use crate::wire::pb::workload as pb;

/// What one resource of type Address sets.
#[derive(Clone, PartialEq, Debug)]
pub enum Address {
    Workload(Workload),
    Service(Service),
}

/// Reads one resource. What repeats across a mesh is shared through `memory`.
pub fn address(value: &[u8], memory: &mut Memory) -> Result<Address, Refusal> {
    let mut reader = Reader { memory };
    let mut fields = Fields::of(&ADDRESS, value);
    if let (Some(Ok(field)), None) = (fields.next(), fields.next())
        && field.number == 1
    {
        return reader.workload(field.bytes()?).map(Address::Workload);
    }
    match pb::Address::decode(value)?.r#type.ok_or(Refusal::UnknownAddressType)? {
        pb::address::Type::Service(form) => reader.service(form).map(Address::Service),
        // In several pieces, which prost has joined.
        pb::address::Type::Workload(form) => reader.workload(&form.encode_to_vec()).map(Address::Workload),
    }
}

/// What was read before and makes the next resource cheaper. Owned by the thread that reads, and kept from one
/// response to the next.
#[derive(Default)]
pub struct Memory {
    pub shared: Shared,
    pub(super) forms: Forms,
}

static ADDRESS: Schema = Schema { message: "Address", fields: &[(1, "workload"), (2, "service")] };

pub(super) struct Reader<'a> {
    pub memory: &'a mut Memory,
}

impl Reader<'_> {
    fn service(&mut self, form: pb::Service) -> Result<Service, Refusal> {
        let name = format!("{}/{}", form.namespace, form.hostname);
        let key = self.service_key("hostname", &form.namespace, &form.hostname, &name)?;
        let (mut vips, mut cidr_vips) = (Vec::new(), Vec::new());
        for form in &form.addresses {
            let ip = ip("addresses", &form.address)?;
            let network = self.text(&form.network);
            match form.length {
                Some(length) if length != full_length(ip) => {
                    let cidr = range("addresses", ip, length)?;
                    cidr_vips.push(NetworkCidr { network, cidr });
                }
                Some(_) | None => vips.push(NetworkIp { network, ip }),
            }
        }
        let mut weighted_waypoints = Vec::with_capacity(form.weighted_waypoints.len());
        for form in form.weighted_waypoints {
            let destination = Some(form.destination.unwrap_or_default());
            let gateway = self.gateway("weighted_waypoints", destination)?;
            weighted_waypoints.extend(gateway.map(|gateway| (gateway, form.weight)));
        }
        Ok(Service {
            key,
            name: self.text(&form.name),
            vips,
            cidr_vips,
            ports: ports("ports", &form.ports)?,
            subject_alt_names: form.subject_alt_names.iter().map(|name| self.text(name)).collect(),
            waypoint: self.gateway("waypoint", form.waypoint)?,
            weighted_waypoints,
            load_balancer: form.load_balancing.map(load_balancer).transpose()?,
            ip_families: ip_families(form.ip_families)?,
            canonical: form.canonical,
            visibility: match pb::service::Visibility::try_from(form.visibility) {
                Ok(pb::service::Visibility::Namespace) => Visibility::Namespace,
                Ok(pb::service::Visibility::Public) | Err(_) => Visibility::Public,
            },
        })
    }

    /// `name` is how a removal names the service, so it must lead back to both parts.
    pub(super) fn service_key(
        &mut self,
        field: &'static str,
        namespace: &str,
        hostname: &str,
        name: &str,
    ) -> Result<ServiceKey, Refusal> {
        if hostname.is_empty() || hostname.contains('/') || namespace.contains('/') {
            return Err(Refusal::ServiceName { field, name: shown(name) });
        }
        Ok(ServiceKey { namespace: self.text(namespace), hostname: self.text(hostname) })
    }

    pub(super) fn gateway(
        &mut self,
        field: &'static str,
        form: Option<pb::GatewayAddress>,
    ) -> Result<Option<Arc<GatewayAddress>>, Refusal> {
        use pb::gateway_address::Destination;
        let Some(form) = form else { return Ok(None) };
        let destination = match form.destination {
            Some(Destination::Hostname(to)) => GatewayDestination::Hostname(ServiceKey {
                namespace: self.text(&to.namespace),
                hostname: self.text(&to.hostname),
            }),
            Some(Destination::Address(to)) => {
                GatewayDestination::Address { network: self.text(&to.network), ip: ip(field, &to.address)? }
            }
            None => return Err(Refusal::GatewayWithoutAddress { field }),
        };
        let hbone_mtls_port = port(field, form.hbone_mtls_port)?;
        Ok(Some(Arc::new(GatewayAddress { destination, hbone_mtls_port })))
    }

    pub(super) fn text(&mut self, text: &str) -> Text {
        self.memory.shared.texts.intern(text)
    }

    pub(super) fn text_or(&mut self, text: &str, unsaid: &str) -> Text {
        self.memory.shared.texts.intern(if text.is_empty() { unsaid } else { text })
    }
}

/// An address of 4 or 16 bytes.
pub(super) fn ip(field: &'static str, bytes: &[u8]) -> Result<IpAddr, Refusal> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        Ok(bytes.into())
    } else if let Ok(bytes) = <[u8; 16]>::try_from(bytes) {
        Ok(bytes.into())
    } else {
        Err(Refusal::AddressBytes { field, bytes: bytes.len() })
    }
}

pub(super) fn range(field: &'static str, ip: IpAddr, length: u32) -> Result<IpNet, Refusal> {
    let range = u8::try_from(length).ok().and_then(|bits| IpNet::new(ip, bits).ok());
    range.ok_or(Refusal::PrefixLength { field, length })
}

fn full_length(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

pub(super) fn port(field: &'static str, value: u32) -> Result<u16, Refusal> {
    u16::try_from(value).map_err(|_| Refusal::Port { field, value })
}

/// Sorted by service port; of several for one port the last counts.
pub(super) fn ports(field: &'static str, forms: &[pb::Port]) -> Result<Vec<PortPair>, Refusal> {
    let mut pairs = Vec::with_capacity(forms.len());
    for form in forms.iter().rev() {
        let service = port(field, form.service_port)?;
        pairs.push(PortPair { service, target: port(field, form.target_port)? });
    }
    pairs.sort_by_key(|pair| pair.service);
    pairs.dedup_by_key(|pair| pair.service);
    Ok(pairs)
}

fn load_balancer(form: pb::LoadBalancing) -> Result<LoadBalancer, Refusal> {
    use pb::load_balancing::{HealthPolicy as Healths, Mode};
    let unknown = |field, value| Refusal::UnknownEnum { field, value };
    let scopes = form.routing_preference.iter().map(|value| scope(*value));
    Ok(LoadBalancer {
        routing_preferences: scopes.collect::<Result<_, _>>()?,
        mode: match Mode::try_from(form.mode) {
            Ok(Mode::UnspecifiedMode) => LoadBalancerMode::Standard,
            Ok(Mode::Strict) => LoadBalancerMode::Strict,
            Ok(Mode::Failover) => LoadBalancerMode::Failover,
            Ok(Mode::Passthrough) => LoadBalancerMode::Passthrough,
            Err(_) => return Err(unknown("load_balancing.mode", form.mode)),
        },
        health_policy: match Healths::try_from(form.health_policy) {
            Ok(Healths::OnlyHealthy) => HealthPolicy::OnlyHealthy,
            Ok(Healths::AllowAll) => HealthPolicy::AllowAll,
            Err(_) => return Err(unknown("load_balancing.health_policy", form.health_policy)),
        },
    })
}

fn scope(value: i32) -> Result<Scope, Refusal> {
    use pb::load_balancing::Scope as Form;
    let field = "load_balancing.routing_preference";
    match Form::try_from(value) {
        Ok(Form::UnspecifiedScope) => Err(Refusal::UnspecifiedScope { field }),
        Ok(Form::Region) => Ok(Scope::Region),
        Ok(Form::Zone) => Ok(Scope::Zone),
        Ok(Form::Subzone) => Ok(Scope::Subzone),
        Ok(Form::Node) => Ok(Scope::Node),
        Ok(Form::Cluster) => Ok(Scope::Cluster),
        Ok(Form::Network) => Ok(Scope::Network),
        Err(_) => Err(Refusal::UnknownEnum { field, value }),
    }
}

fn ip_families(value: i32) -> Result<Option<IpFamilies>, Refusal> {
    match pb::IpFamilies::try_from(value) {
        Ok(pb::IpFamilies::Automatic) => Ok(None),
        Ok(pb::IpFamilies::Ipv4Only) => Ok(Some(IpFamilies::Ipv4)),
        Ok(pb::IpFamilies::Ipv6Only) => Ok(Some(IpFamilies::Ipv6)),
        Ok(pb::IpFamilies::Dual) => Ok(Some(IpFamilies::Dual)),
        Err(_) => Err(Refusal::UnknownEnum { field: "ip_families", value }),
    }
}
