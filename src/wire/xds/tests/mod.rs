//! Messages for the tests of all readers: right ones, and an encoder from the mesh's types back to the wire.

mod address;
mod authorization;
mod encode;
mod fuzz;

use prost::Message as _;

use super::{Address, Memory, Refusal};
use crate::wire::pb::{security, workload as pb};

/// A workload that says everything.
fn full_workload() -> pb::Workload {
    pb::Workload {
        name: "web-1".into(),
        namespace: "shop".into(),
        addresses: vec![vec![10, 0, 0, 1].into(), vec![0xfd; 16].into()],
        network: "west".into(),
        tunnel_protocol: pb::TunnelProtocol::Hbone.into(),
        trust_domain: "example.org".into(),
        service_account: "seller".into(),
        waypoint: Some(to_address("", &[10, 0, 0, 9], 15_008)),
        node: "node-1".into(),
        canonical_name: "web".into(),
        canonical_revision: "v1".into(),
        workload_type: pb::WorkloadType::Cronjob.into(),
        workload_name: "web".into(),
        native_tunnel: true,
        authorization_policies: vec!["shop/b".into(), "shop/a".into()],
        status: pb::WorkloadStatus::Unhealthy.into(),
        cluster_id: "c1".into(),
        network_gateway: Some(to_host("istio-system", "gateway.example.org", 15_009)),
        uid: "c1//Pod/shop/web-1".into(),
        hostname: "web.example.org".into(),
        services: [
            ("shop/web.shop.svc.cluster.local".to_owned(), port_list(&[(443, 8443), (80, 0)])),
            ("shop/all.shop.svc.cluster.local".to_owned(), port_list(&[])),
        ]
        .into(),
        application_tunnel: Some(pb::ApplicationTunnel {
            protocol: pb::application_tunnel::Protocol::Proxy.into(),
            port: 15_088,
        }),
        locality: Some(pb::Locality { region: "r".into(), zone: "z".into(), subzone: "s".into() }),
        network_mode: pb::NetworkMode::HostNetwork.into(),
        capacity: Some(0),
    }
}

/// A service that says everything that is read.
fn full_service() -> pb::Service {
    let address = |ip: &[u8], length| pb::NetworkAddress {
        network: "west".into(),
        address: ip.to_vec().into(),
        length,
    };
    pb::Service {
        name: "web".into(),
        namespace: "shop".into(),
        hostname: "web.shop.svc.cluster.local".into(),
        addresses: vec![
            address(&[10, 1, 0, 1], None),
            address(&[10, 1, 0, 2], Some(32)),
            address(&[10, 2, 0, 0], Some(16)),
            address(&[0xfd; 16], Some(128)),
            address(&[0xfd; 16], Some(0)),
        ],
        ports: port_list(&[(80, 8080), (443, 0)]).ports,
        subject_alt_names: vec!["spiffe://a/ns/b/sa/c".into()],
        waypoint: Some(to_host("shop", "waypoint.shop.svc.cluster.local", 15_008)),
        load_balancing: Some(pb::LoadBalancing {
            routing_preference: vec![6, 1, 2, 3, 4, 5],
            mode: pb::load_balancing::Mode::Failover.into(),
            health_policy: pb::load_balancing::HealthPolicy::AllowAll.into(),
        }),
        ip_families: pb::IpFamilies::Dual.into(),
        canonical: true,
        ingress_use_waypoint: false,
        weighted_waypoints: vec![pb::WeightedWaypoint {
            destination: Some(to_host("shop", "canary.shop.svc.cluster.local", 15_008)),
            weight: 7,
        }],
        visibility: pb::service::Visibility::Namespace.into(),
    }
}

fn to_address(network: &str, ip: &[u8], port: u32) -> pb::GatewayAddress {
    pb::GatewayAddress {
        destination: Some(pb::gateway_address::Destination::Address(pb::NetworkAddress {
            network: network.into(),
            address: ip.to_vec().into(),
            length: None,
        })),
        hbone_mtls_port: port,
    }
}

fn to_host(namespace: &str, hostname: &str, port: u32) -> pb::GatewayAddress {
    pb::GatewayAddress {
        destination: Some(pb::gateway_address::Destination::Hostname(pb::NamespacedHostname {
            namespace: namespace.into(),
            hostname: hostname.into(),
        })),
        hbone_mtls_port: port,
    }
}

fn port_list(pairs: &[(u32, u32)]) -> pb::PortList {
    let port = |&(service_port, target_port): &(u32, u32)| pb::Port { service_port, target_port };
    pb::PortList { ports: pairs.iter().map(port).collect() }
}

fn bytes_of(form: pb::address::Type) -> Vec<u8> {
    pb::Address { r#type: Some(form) }.encode_to_vec()
}

fn read_workload(form: pb::Workload) -> Result<crate::mesh::workload::Workload, Refusal> {
    match super::address(&bytes_of(pb::address::Type::Workload(form)), &mut Memory::default())? {
        Address::Workload(workload) => Ok(workload),
        Address::Service(service) => panic!("a workload became {service:?}"),
    }
}

fn read_service(form: pb::Service) -> Result<crate::mesh::service::Service, Refusal> {
    match super::address(&bytes_of(pb::address::Type::Service(form)), &mut Memory::default())? {
        Address::Service(service) => Ok(service),
        Address::Workload(workload) => panic!("a service became {workload:?}"),
    }
}

fn text(kind: security::string_match::MatchType) -> security::StringMatch {
    security::StringMatch { match_type: Some(kind) }
}

/// A match that says everything.
fn full_match() -> security::Match {
    use security::string_match::MatchType::{Exact, Prefix, Presence, Suffix};
    let ip = |address: &[u8], length| security::Address { address: address.to_vec().into(), length };
    let account =
        |name: &str| security::ServiceAccountMatch { namespace: "shop".into(), service_account: name.into() };
    security::Match {
        namespaces: vec![text(Exact("shop".into())), text(Presence(()))],
        not_namespaces: vec![text(Prefix("dev-".into()))],
        principals: vec![text(Suffix("/sa/seller".into()))],
        not_principals: vec![text(Exact("cluster.local/ns/shop/sa/guest".into()))],
        source_ips: vec![ip(&[10, 0, 0, 0], 8), ip(&[0xfd; 16], 128)],
        not_source_ips: vec![ip(&[10, 1, 0, 0], 16)],
        destination_ips: vec![ip(&[0, 0, 0, 0], 0)],
        not_destination_ips: vec![ip(&[10, 9, 9, 9], 32)],
        destination_ports: vec![80, 65_535],
        not_destination_ports: vec![0, 443],
        service_accounts: vec![account("seller")],
        not_service_accounts: vec![account("guest")],
    }
}

fn policy_of(entries: Vec<security::Match>) -> security::Authorization {
    security::Authorization {
        name: "p".into(),
        namespace: "shop".into(),
        scope: security::Scope::Namespace.into(),
        action: security::Action::Deny.into(),
        rules: vec![security::Rule { clauses: vec![security::Clause { matches: entries }] }],
        dry_run: true,
    }
}
