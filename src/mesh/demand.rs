//! On-demand mode: which names a decision needs that the snapshot doesn't hold. Asked again after each answer, since a
//! service that has come may name a waypoint. Names are the control plane's: `NETWORK/IP` or `NAMESPACE/HOSTNAME`.

use std::net::IpAddr;

use crate::base::text::Text;
use crate::mesh::authority::Authority;
use crate::mesh::inbound::InboundRequest;
use crate::mesh::route::Request;
use crate::mesh::snapshot::{Found, Snapshot};
use crate::mesh::workload::{GatewayAddress, GatewayDestination};

/// What an outbound connection's way needs.
pub fn outbound(request: &Request<'_>) -> Vec<Text> {
    let Request { snapshot, source, .. } = *request;
    let ip = request.target.ip();
    let mut missing = Vec::new();
    let on = |network: &str| snapshot.lookup(network, ip, Some(&source.namespace));
    let found = on(request.network);
    if found.is_none() {
        missing.push(address(request.network, ip));
    }
    // The decision looks on both networks.
    if *source.network != *request.network && on(&source.network).is_none() {
        missing.push(address(&source.network, ip));
    }
    match found {
        Some(Found::Service(service)) => {
            let weighted = service.weighted_waypoints.iter().map(|(waypoint, _)| waypoint);
            for waypoint in weighted.chain(&service.waypoint) {
                gateway(snapshot, waypoint, &mut missing);
            }
        }
        Some(Found::Workload(workload)) => {
            if let Some(waypoint) = &workload.waypoint {
                gateway(snapshot, waypoint, &mut missing);
            }
        }
        None => {}
    }
    missing
}

/// What an inbound request's authority needs.
pub fn inbound(request: &InboundRequest<'_>) -> Vec<Text> {
    let InboundRequest { snapshot, local, .. } = *request;
    match Authority::parse(request.authority) {
        Ok(Authority::Address(asked)) => {
            let own = local.addresses.contains(&asked.ip());
            let known = own || snapshot.lookup(request.network, asked.ip(), None).is_some();
            if known { Vec::new() } else { vec![address(request.network, asked.ip())] }
        }
        Ok(Authority::Host { name, .. }) => {
            let own = local.services.iter().map(|(key, _)| key).filter(|key| *key.hostname == *name);
            own.filter(|key| snapshot.service(key).is_none()).map(|key| key.to_string().into()).collect()
        }
        Err(_) => Vec::new(),
    }
}

fn gateway(snapshot: &Snapshot, gateway: &GatewayAddress, missing: &mut Vec<Text>) {
    match &gateway.destination {
        GatewayDestination::Address { network, ip } => {
            if snapshot.lookup(network, *ip, None).is_none() {
                add(missing, address(network, *ip));
            }
        }
        GatewayDestination::Hostname(key) => {
            if snapshot.service(key).is_none() && snapshot.workload_by_host(key).is_none() {
                add(missing, key.to_string().into());
            }
        }
    }
}

/// The control plane's name for whatever has an address.
pub fn address(network: &str, ip: IpAddr) -> Text {
    format!("{network}/{ip}").into()
}

fn add(missing: &mut Vec<Text>, name: Text) {
    if !missing.contains(&name) {
        missing.push(name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::net::Captured;
    use crate::mesh::fixture::{mesh, pod};
    use crate::mesh::seen::View;
    use crate::mesh::service::{NetworkIp, Service, ServiceKey};
    use crate::mesh::workload::Workload;

    fn key(hostname: &str) -> ServiceKey {
        ServiceKey { namespace: "default".into(), hostname: hostname.into() }
    }

    fn web() -> Service {
        let vip = NetworkIp { network: "".into(), ip: "10.1.0.1".parse().unwrap() };
        let destination = GatewayDestination::Hostname(key("wp"));
        let waypoint = Arc::new(GatewayAddress { destination, hbone_mtls_port: 15008 });
        Service { vips: vec![vip], waypoint: Some(waypoint), ..Service::plain("default", "web", "web") }
    }

    fn needs(snapshot: &Snapshot, network: &str, to: &str) -> Vec<String> {
        let source = pod("client", &["10.0.0.1"]);
        let target = Captured(to.parse().unwrap());
        let caller = "10.0.0.1".parse().unwrap();
        let view = View::default();
        let request = Request { snapshot, network, source: &source, caller, target, ipv6: true, view };
        outbound(&request).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_address_then_its_waypoint_then_nothing() {
        assert_eq!(needs(&mesh([]), "", "10.1.0.1:80"), ["/10.1.0.1"]);
        assert_eq!(needs(&mesh([]), "far", "[fd00::1]:80"), ["far/fd00::1", "/fd00::1"]);
        assert_eq!(needs(&mesh([web().into()]), "", "10.1.0.1:80"), ["default/wp"]);
        let waypoint = Service::plain("default", "wp", "wp");
        assert_eq!(needs(&mesh([web().into(), waypoint.into()]), "", "10.1.0.1:80"), [""; 0]);
        assert_eq!(needs(&mesh([pod("a", &["10.0.0.9"]).into()]), "", "10.0.0.9:80"), [""; 0]);
    }

    #[test]
    fn an_authority_needs_what_the_pod_serves_by_that_name() {
        let mut local = pod("server", &["10.0.0.2"]);
        local.services = vec![(key("web"), Vec::new())];
        let asks = |snapshot: &Snapshot, local: &Workload, authority| -> Vec<String> {
            let connection_dst = "10.0.0.2".parse().unwrap();
            let request = InboundRequest {
                snapshot,
                network: "",
                local,
                connection_dst,
                authority,
                illegal_ports: &[],
            };
            inbound(&request).iter().map(ToString::to_string).collect()
        };
        assert_eq!(asks(&mesh([]), &local, "web:80"), ["default/web"]);
        assert_eq!(asks(&mesh([web().into()]), &local, "web:80"), [""; 0]);
        assert_eq!(asks(&mesh([]), &local, "other:80"), [""; 0]);
        assert_eq!(asks(&mesh([]), &local, "10.0.0.2:80"), [""; 0]);
        assert_eq!(asks(&mesh([]), &local, "10.1.0.1:80"), ["/10.1.0.1"]);
        assert_eq!(asks(&mesh([]), &local, "junk"), [""; 0]);
    }
}
