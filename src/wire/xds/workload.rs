//! Workloads. What a pod has for itself is taken straight from the wire. The rest, which repeats from pod to pod of a
//! deployment, is looked up by its bytes, and decoded by prost and checked only where they are new: so most of a push
//! is compared rather than decoded (benches/load.rs has the figures).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use prost::Message as _;

use super::Refusal;
use super::address::{Reader, ip, port, ports};
use super::fields::{Field, Fields, Malformed, Schema};
use crate::base::limits::WORKLOAD_FORMS;
use crate::mesh::service::ServiceKey;
use crate::mesh::workload::{
    ApplicationTunnel, Common, Health, Locality, NetworkMode, PortPair, Protocol, TunnelProtocol, Workload,
};
use crate::wire::pb::workload as pb;

static WORKLOAD: Schema = Schema {
    message: "Workload",
    fields: &[
        (1, "name"),
        (2, "namespace"),
        (3, "addresses"),
        (4, "network"),
        (5, "tunnel_protocol"),
        (6, "trust_domain"),
        (7, "service_account"),
        (8, "waypoint"),
        (9, "node"),
        (10, "canonical_name"),
        (11, "canonical_revision"),
        (12, "workload_type"),
        (13, "workload_name"),
        (14, "native_tunnel"),
        (16, "authorization_policies"),
        (17, "status"),
        (18, "cluster_id"),
        (19, "network_gateway"),
        (20, "uid"),
        (21, "hostname"),
        (22, "services"),
        (23, "application_tunnel"),
        (24, "locality"),
        (25, "network_mode"),
        (27, "capacity"),
    ],
};
static CAPACITY: Schema = Schema { message: "UInt32Value", fields: &[(1, "value")] };

/// The bytes from which common parts were read. Only a memory: what is missing is read again.
#[derive(Default)]
pub(super) struct Forms {
    known: HashMap<Box<[u8]>, Weak<Common>, foldhash::fast::RandomState>,
    sweep_at: usize,
    /// The bytes at hand: fields of one message may stand in any order.
    form: Vec<u8>,
}

impl Forms {
    fn find(&self) -> Option<Arc<Common>> {
        self.known.get(self.form.as_slice())?.upgrade()
    }

    fn remember(&mut self, common: &Arc<Common>) {
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, common| common.strong_count() > 0);
            if self.known.len() >= WORKLOAD_FORMS {
                self.known.clear();
            }
            self.sweep_at = (self.known.len() * 2).clamp(1024, WORKLOAD_FORMS);
        }
        self.known.insert(self.form.as_slice().into(), Arc::downgrade(common));
    }
}

impl Reader<'_> {
    pub(super) fn workload(&mut self, message: &[u8]) -> Result<Workload, Refusal> {
        let [mut uid, mut name, mut node] = [""; 3];
        let [mut mode, mut tunnel, mut status, mut native_tunnel] = [0, 0, 0, 0];
        let (mut addresses, mut capacity) = (Vec::with_capacity(1), None);
        self.memory.forms.form.clear();
        for field in Fields::of(&WORKLOAD, message) {
            let field = field?;
            match field.number {
                1 => name = field.text()?,
                3 => addresses.push(ip("addresses", field.bytes()?)?),
                5 => tunnel = field.word()?,
                9 => node = field.text()?,
                14 => native_tunnel = field.word()?,
                17 => status = field.word()?,
                20 => uid = field.text()?,
                25 => mode = field.word()?,
                27 => capacity = Some(number_in(&field, capacity.unwrap_or_default())?),
                2 | 4 | 6..=8 | 10..=13 | 16 | 18..=19 | 21..=24 => {
                    self.memory.forms.form.extend_from_slice(field.raw);
                }
                _ => {}
            }
        }
        if uid.is_empty() {
            return Err(Refusal::Empty { field: "uid" });
        }
        addresses.shrink_to_fit();
        Ok(Workload {
            uid: uid.into(),
            name: name.into(),
            addresses,
            node: self.text(node),
            network_mode: network_mode(mode)?,
            protocol: protocol(tunnel)?,
            native_tunnel: native_tunnel != 0,
            status: health(status)?,
            capacity: capacity.unwrap_or(1),
            common: self.common()?,
        })
    }

    /// The common part that the form at hand says.
    fn common(&mut self) -> Result<Arc<Common>, Refusal> {
        if let Some(known) = self.memory.forms.find() {
            return Ok(known);
        }
        let form = pb::Workload::decode(self.memory.forms.form.as_slice())?;
        let common = Common {
            namespace: self.text(&form.namespace),
            network: self.text(&form.network),
            trust_domain: self.text_or(&form.trust_domain, "cluster.local"),
            service_account: self.text_or(&form.service_account, "default"),
            waypoint: self.gateway("waypoint", form.waypoint)?,
            network_gateway: self.gateway("network_gateway", form.network_gateway)?,
            workload_name: self.text(&form.workload_name),
            workload_type: self.text(workload_type(form.workload_type)),
            canonical_name: self.text(&form.canonical_name),
            canonical_revision: self.text(&form.canonical_revision),
            hostname: self.text(&form.hostname),
            application_tunnel: form.application_tunnel.map(application_tunnel).transpose()?,
            authorization_policies: form.authorization_policies.iter().map(|name| self.text(name)).collect(),
            cluster_id: self.text_or(&form.cluster_id, "Kubernetes"),
            locality: self.locality(&form.locality.unwrap_or_default()),
            services: self.services(&form.services)?,
        };
        let common = self.memory.shared.commons.share(common);
        self.memory.forms.remember(&common);
        Ok(common)
    }

    fn locality(&mut self, form: &pb::Locality) -> Locality {
        Locality {
            region: self.text(&form.region),
            zone: self.text(&form.zone),
            subzone: self.text(&form.subzone),
        }
    }

    fn services(
        &mut self,
        forms: &BTreeMap<String, pb::PortList>,
    ) -> Result<Vec<(ServiceKey, Vec<PortPair>)>, Refusal> {
        let mut services = Vec::with_capacity(forms.len());
        for (name, list) in forms {
            let (namespace, hostname) = name.split_once('/').unwrap_or_default();
            services.push((
                self.service_key("services", namespace, hostname, name)?,
                ports("services", &list.ports)?,
            ));
        }
        Ok(services)
    }
}

/// The number in a UInt32Value; `before`: what an earlier part of the same message said.
fn number_in(field: &Field<'_>, before: u32) -> Result<u32, Malformed> {
    let mut value = before;
    for field in Fields::of(&CAPACITY, field.bytes()?) {
        let field = field?;
        if field.number == 1 {
            #[expect(clippy::cast_possible_truncation, reason = "as prost cuts a 32-bit number")]
            let number = field.number()? as u32;
            value = number;
        }
    }
    Ok(value)
}

fn network_mode(value: i32) -> Result<NetworkMode, Refusal> {
    match pb::NetworkMode::try_from(value) {
        Ok(pb::NetworkMode::Standard) => Ok(NetworkMode::Standard),
        Ok(pb::NetworkMode::HostNetwork) => Ok(NetworkMode::HostNetwork),
        Err(_) => Err(Refusal::UnknownEnum { field: "network_mode", value }),
    }
}

fn protocol(value: i32) -> Result<Protocol, Refusal> {
    let field = "tunnel_protocol";
    match pb::TunnelProtocol::try_from(value) {
        Ok(pb::TunnelProtocol::None) => Ok(Protocol::Tcp),
        Ok(pb::TunnelProtocol::Hbone) => Ok(Protocol::Hbone),
        Ok(pb::TunnelProtocol::LegacyIstioMtls) => Err(Refusal::LegacyTunnel { field }),
        Err(_) => Err(Refusal::UnknownEnum { field, value }),
    }
}

/// Telemetry only, so an unknown one is no reason to lose the workload.
fn workload_type(value: i32) -> &'static str {
    match pb::WorkloadType::try_from(value) {
        Ok(pb::WorkloadType::Cronjob) => "cronjob",
        Ok(pb::WorkloadType::Pod) => "pod",
        Ok(pb::WorkloadType::Job) => "job",
        Ok(pb::WorkloadType::Deployment) | Err(_) => "deployment",
    }
}

fn health(value: i32) -> Result<Health, Refusal> {
    match pb::WorkloadStatus::try_from(value) {
        Ok(pb::WorkloadStatus::Healthy) => Ok(Health::Healthy),
        Ok(pb::WorkloadStatus::Unhealthy) => Ok(Health::Unhealthy),
        Err(_) => Err(Refusal::UnknownEnum { field: "status", value }),
    }
}

fn application_tunnel(form: pb::ApplicationTunnel) -> Result<ApplicationTunnel, Refusal> {
    use pb::application_tunnel::Protocol;
    let protocol = match Protocol::try_from(form.protocol) {
        Ok(Protocol::None) => TunnelProtocol::None,
        Ok(Protocol::Proxy) => TunnelProtocol::Proxy,
        Err(_) => {
            return Err(Refusal::UnknownEnum { field: "application_tunnel.protocol", value: form.protocol });
        }
    };
    let port = port("application_tunnel.port", form.port)?;
    Ok(ApplicationTunnel { protocol, port: Some(port).filter(|port| *port > 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_forgotten_with_their_workloads_and_never_pile_up() {
        let mut forms = Forms::default();
        let mut remember = |number: usize, common: &Arc<Common>| {
            forms.form = number.to_be_bytes().to_vec();
            forms.remember(common);
            assert!(forms.find().is_some_and(|found| Arc::ptr_eq(&found, common)));
            forms.known.len()
        };
        for number in 0..10_000 {
            let left = remember(number, &Arc::new(Common::default()));
            assert!(left <= 1_024, "{left}");
        }
        let common = Arc::new(Common::default());
        let most = (0..300_000).map(|number| remember(number, &common)).max();
        assert_eq!(most, Some(WORKLOAD_FORMS));
    }
}
