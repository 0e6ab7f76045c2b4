//! From the mesh's types back to the wire, so that what was read can be read again.

use std::net::IpAddr;

use crate::mesh::policy::{Action, Match, Policy, PolicyScope, StringMatch};
use crate::mesh::service::{
    HealthPolicy, IpFamilies, LoadBalancerMode, NetworkIp, Scope, Service, Visibility,
};
use crate::mesh::workload::{
    GatewayAddress, GatewayDestination, Health, NetworkMode, PortPair, Protocol, TunnelProtocol, Workload,
};
use crate::wire::pb::{security, workload as pb};

fn ip_bytes(ip: IpAddr) -> bytes::Bytes {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec().into(),
        IpAddr::V6(ip) => ip.octets().to_vec().into(),
    }
}

fn ports(pairs: &[PortPair]) -> Vec<pb::Port> {
    let port =
        |pair: &PortPair| pb::Port { service_port: pair.service.into(), target_port: pair.target.into() };
    pairs.iter().map(port).collect()
}

fn gateway(gateway: &GatewayAddress) -> pb::GatewayAddress {
    let port = gateway.hbone_mtls_port.into();
    match &gateway.destination {
        GatewayDestination::Address { network, ip } => super::to_address(network, &ip_bytes(*ip), port),
        GatewayDestination::Hostname(key) => super::to_host(&key.namespace, &key.hostname, port),
    }
}

pub fn workload(of: &Workload) -> pb::Workload {
    pb::Workload {
        name: of.name.to_string(),
        namespace: of.namespace.to_string(),
        addresses: of.addresses.iter().map(|ip| ip_bytes(*ip)).collect(),
        network: of.network.to_string(),
        tunnel_protocol: match of.protocol {
            Protocol::Tcp => 0,
            Protocol::Hbone => 1,
        },
        trust_domain: of.trust_domain.to_string(),
        service_account: of.service_account.to_string(),
        waypoint: of.waypoint.as_deref().map(gateway),
        node: of.node.to_string(),
        canonical_name: of.canonical_name.to_string(),
        canonical_revision: of.canonical_revision.to_string(),
        workload_type: ["deployment", "cronjob", "pod", "job"]
            .iter()
            .position(|word| **word == *of.workload_type)
            .unwrap()
            .try_into()
            .unwrap(),
        workload_name: of.workload_name.to_string(),
        native_tunnel: of.native_tunnel,
        authorization_policies: of.authorization_policies.iter().map(ToString::to_string).collect(),
        status: match of.status {
            Health::Healthy => 0,
            Health::Unhealthy => 1,
        },
        cluster_id: of.cluster_id.to_string(),
        network_gateway: of.network_gateway.as_deref().map(gateway),
        uid: of.uid.to_string(),
        hostname: of.hostname.to_string(),
        services: of
            .services
            .iter()
            .map(|(key, pairs)| (key.to_string(), pb::PortList { ports: ports(pairs) }))
            .collect(),
        application_tunnel: of.application_tunnel.map(|tunnel| pb::ApplicationTunnel {
            protocol: match tunnel.protocol {
                TunnelProtocol::None => 0,
                TunnelProtocol::Proxy => 1,
            },
            port: tunnel.port.unwrap_or_default().into(),
        }),
        locality: Some(pb::Locality {
            region: of.locality.region.to_string(),
            zone: of.locality.zone.to_string(),
            subzone: of.locality.subzone.to_string(),
        }),
        network_mode: match of.network_mode {
            NetworkMode::Standard => 0,
            NetworkMode::HostNetwork => 1,
        },
        capacity: Some(of.capacity),
    }
}

pub fn service(of: &Service) -> pb::Service {
    let vip = |vip: &NetworkIp| pb::NetworkAddress {
        network: vip.network.to_string(),
        address: ip_bytes(vip.ip),
        length: None,
    };
    let ranges = of.cidr_vips.iter().map(|vip| pb::NetworkAddress {
        network: vip.network.to_string(),
        address: ip_bytes(vip.cidr.addr()),
        length: Some(vip.cidr.prefix_len().into()),
    });
    pb::Service {
        name: of.name.to_string(),
        namespace: of.key.namespace.to_string(),
        hostname: of.key.hostname.to_string(),
        addresses: of.vips.iter().map(vip).chain(ranges).collect(),
        ports: ports(&of.ports),
        subject_alt_names: of.subject_alt_names.iter().map(ToString::to_string).collect(),
        waypoint: of.waypoint.as_deref().map(gateway),
        load_balancing: of.load_balancer.as_ref().map(|balancer| pb::LoadBalancing {
            routing_preference: balancer
                .routing_preferences
                .iter()
                .map(|scope| scope_number(*scope))
                .collect(),
            mode: match balancer.mode {
                LoadBalancerMode::Standard => 0,
                LoadBalancerMode::Strict => 1,
                LoadBalancerMode::Failover => 2,
                LoadBalancerMode::Passthrough => 3,
            },
            health_policy: match balancer.health_policy {
                HealthPolicy::OnlyHealthy => 0,
                HealthPolicy::AllowAll => 1,
            },
        }),
        ip_families: match of.ip_families {
            None => 0,
            Some(IpFamilies::Ipv4) => 1,
            Some(IpFamilies::Ipv6) => 2,
            Some(IpFamilies::Dual) => 3,
        },
        canonical: of.canonical,
        ingress_use_waypoint: false,
        weighted_waypoints: of
            .weighted_waypoints
            .iter()
            .map(|(to, weight)| pb::WeightedWaypoint { destination: Some(gateway(to)), weight: *weight })
            .collect(),
        visibility: match of.visibility {
            Visibility::Public => 0,
            Visibility::Namespace => 1,
        },
    }
}

fn scope_number(scope: Scope) -> i32 {
    match scope {
        Scope::Region => 1,
        Scope::Zone => 2,
        Scope::Subzone => 3,
        Scope::Node => 4,
        Scope::Cluster => 5,
        Scope::Network => 6,
    }
}

pub fn policy(of: &Policy) -> security::Authorization {
    let clause = |matches: &Vec<Match>| security::Clause { matches: matches.iter().map(entry).collect() };
    let rule = |clauses: &Vec<Vec<Match>>| security::Rule { clauses: clauses.iter().map(clause).collect() };
    security::Authorization {
        name: of.name.to_string(),
        namespace: of.namespace.to_string(),
        scope: match of.scope {
            PolicyScope::Global => 0,
            PolicyScope::Namespace => 1,
            PolicyScope::WorkloadSelector => 2,
        },
        action: match of.action {
            Action::Allow => 0,
            Action::Deny => 1,
        },
        rules: of.rules.iter().map(rule).collect(),
        dry_run: of.dry_run,
    }
}

fn entry(of: &Match) -> security::Match {
    use security::string_match::MatchType;
    let texts = |list: &[StringMatch]| {
        list.iter()
            .map(|value| {
                super::text(match value {
                    StringMatch::Exact(text) => MatchType::Exact(text.to_string()),
                    StringMatch::Prefix(text) => MatchType::Prefix(text.to_string()),
                    StringMatch::Suffix(text) => MatchType::Suffix(text.to_string()),
                    StringMatch::Presence => MatchType::Presence(()),
                })
            })
            .collect()
    };
    let ranges = |list: &[ipnet::IpNet]| {
        list.iter()
            .map(|range| security::Address {
                address: ip_bytes(range.addr()),
                length: range.prefix_len().into(),
            })
            .collect()
    };
    let accounts = |list: &[crate::mesh::policy::ServiceAccountMatch]| {
        list.iter()
            .map(|account| security::ServiceAccountMatch {
                namespace: account.namespace.to_string(),
                service_account: account.service_account.to_string(),
            })
            .collect()
    };
    let ports = |list: &[u16]| list.iter().map(|port| u32::from(*port)).collect();
    security::Match {
        namespaces: texts(&of.namespaces),
        not_namespaces: texts(&of.not_namespaces),
        principals: texts(&of.principals),
        not_principals: texts(&of.not_principals),
        source_ips: ranges(&of.source_ips),
        not_source_ips: ranges(&of.not_source_ips),
        destination_ips: ranges(&of.destination_ips),
        not_destination_ips: ranges(&of.not_destination_ips),
        destination_ports: ports(&of.destination_ports),
        not_destination_ports: ports(&of.not_destination_ports),
        service_accounts: accounts(&of.service_accounts),
        not_service_accounts: accounts(&of.not_service_accounts),
    }
}
