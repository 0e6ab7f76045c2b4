//! Workloads and services: every rule of reference section 4.6, and what was read encodes to what reads the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use prost::Message as _;

use super::super::{Address, Memory, address};
use super::{
    bytes_of, encode, full_service, full_workload, port_list, read_service, read_workload, to_address,
    to_host,
};
use crate::mesh::service::{IpFamilies, LoadBalancerMode, Scope, Visibility};
use crate::mesh::workload::{GatewayDestination, Health, NetworkMode, PortPair, Protocol};
use crate::wire::pb::workload as pb;

#[test]
fn everything_a_workload_says_is_read() {
    let read = read_workload(full_workload()).unwrap();
    let texts = [
        &read.uid,
        &read.name,
        &read.namespace,
        &read.network,
        &read.trust_domain,
        &read.service_account,
        &read.node,
        &read.workload_name,
        &read.workload_type,
        &read.canonical_name,
        &read.canonical_revision,
        &read.hostname,
        &read.cluster_id,
        &read.locality.region,
        &read.locality.zone,
        &read.locality.subzone,
    ];
    let wanted = [
        "c1//Pod/shop/web-1",
        "web-1",
        "shop",
        "west",
        "example.org",
        "seller",
        "node-1",
        "web",
        "cronjob",
        "web",
        "v1",
        "web.example.org",
        "c1",
        "r",
        "z",
        "s",
    ];
    assert!(texts.iter().map(|text| &***text).eq(wanted), "{texts:?}");
    assert_eq!(read.addresses[0].to_string(), "10.0.0.1");
    assert!(read.addresses[1].is_ipv6());
    assert_eq!((read.protocol, read.status), (Protocol::Hbone, Health::Unhealthy));
    assert_eq!((read.network_mode, read.native_tunnel), (NetworkMode::HostNetwork, true));
    assert!(matches!(&read.waypoint.as_ref().unwrap().destination,
        GatewayDestination::Address { ip, .. } if ip.to_string() == "10.0.0.9"));
    let gateway = read.network_gateway.as_ref().unwrap();
    assert_eq!(gateway.hbone_mtls_port, 15_009);
    assert!(matches!(&gateway.destination, GatewayDestination::Hostname(key)
        if key.to_string() == "istio-system/gateway.example.org"));
    assert_eq!(read.application_tunnel.unwrap().port, Some(15_088));
    assert!(read.authorization_policies.iter().map(|name| &**name).eq(["shop/b", "shop/a"]));
    assert_eq!(read.services[0].0.to_string(), "shop/all.shop.svc.cluster.local");
    let ports = [PortPair { service: 80, target: 0 }, PortPair { service: 443, target: 8443 }];
    assert_eq!(read.services[1].1, ports);
    assert_eq!(read.capacity, 0, "a workload may be told to take nothing");
}

#[test]
fn what_a_workload_leaves_unsaid_has_the_references_defaults() {
    let read = read_workload(pb::Workload { uid: "u".into(), ..Default::default() }).unwrap();
    let texts = [&read.trust_domain, &read.service_account, &read.cluster_id, &read.workload_type];
    assert!(texts.iter().map(|text| &***text).eq(["cluster.local", "default", "Kubernetes", "deployment"]));
    assert_eq!((read.capacity, read.application_tunnel), (1, None));
    assert_eq!((read.protocol, read.status), (Protocol::Tcp, Health::Healthy));
    let unknown = pb::Workload { uid: "u".into(), workload_type: 99, ..Default::default() };
    assert_eq!(&*read_workload(unknown).unwrap().workload_type, "deployment");
    let tunnel = pb::ApplicationTunnel { protocol: 1, port: 0 };
    let keeps = pb::Workload { application_tunnel: Some(tunnel), ..full_workload() };
    assert_eq!(read_workload(keeps).unwrap().application_tunnel.unwrap().port, None);
}

#[test]
fn everything_a_service_says_is_read() {
    let read = read_service(full_service()).unwrap();
    assert_eq!((read.key.to_string().as_str(), &*read.name), ("shop/web.shop.svc.cluster.local", "web"));
    let vips: Vec<_> = read.vips.iter().map(|vip| format!("{}/{}", vip.network, vip.ip)).collect();
    assert_eq!(vips[..2], ["west/10.1.0.1", "west/10.1.0.2"]);
    assert_eq!((vips.len(), read.cidr_vips.len()), (3, 2));
    assert_eq!(read.cidr_vips[0].cidr.to_string(), "10.2.0.0/16");
    assert_eq!(read.cidr_vips[1].cidr.prefix_len(), 0);
    assert_eq!((read.target_port(80), read.target_port(443)), (Some(8080), Some(0)));
    let balancer = read.load_balancer.as_ref().unwrap();
    assert_eq!(balancer.mode, LoadBalancerMode::Failover);
    let preferences =
        [Scope::Network, Scope::Region, Scope::Zone, Scope::Subzone, Scope::Node, Scope::Cluster];
    assert_eq!(balancer.routing_preferences, preferences);
    assert!(read.accepts(Health::Unhealthy));
    assert_eq!((read.ip_families, read.visibility), (Some(IpFamilies::Dual), Visibility::Namespace));
    assert_eq!((read.weighted_waypoints[0].1, read.canonical), (7, true));
    let unknown = pb::Service { visibility: 9, ip_families: 0, load_balancing: None, ..full_service() };
    let read = read_service(unknown).unwrap();
    assert_eq!((read.visibility, read.ip_families, read.load_balancer), (Visibility::Public, None, None));
}

#[test]
fn what_is_wrong_with_a_workload_is_refused_by_field() {
    let says = |spoil: fn(&mut pb::Workload)| {
        let mut form = full_workload();
        spoil(&mut form);
        read_workload(form).unwrap_err().to_string()
    };
    let gateway = pb::GatewayAddress::default();
    assert_eq!(gateway.destination, None);
    for (said, wanted) in [
        (says(|form| form.uid.clear()), "uid: is empty"),
        (
            says(|form| form.addresses[1] = vec![1; 5].into()),
            "addresses: failed to parse address, had 5 bytes",
        ),
        (says(|form| form.tunnel_protocol = 7), "tunnel_protocol: unknown enum: 7"),
        (
            says(|form| form.tunnel_protocol = 2),
            "tunnel_protocol: unknown enum: unsupported tunnel protocol: legacy istio mtls",
        ),
        (says(|form| form.status = -1), "status: unknown enum: -1"),
        (says(|form| form.network_mode = 2), "network_mode: unknown enum: 2"),
        (
            says(|form| form.waypoint = Some(pb::GatewayAddress::default())),
            "waypoint: nonempty gateway address is missing address",
        ),
        (
            says(|form| form.network_gateway = Some(to_address("", &[], 1))),
            "network_gateway: failed to parse address, had 0 bytes",
        ),
        (says(|form| form.waypoint = Some(to_host("a", "b", 65_536))), "waypoint: 65536 is not a port"),
        (
            says(|form| drop(form.services.insert("nowhere".into(), port_list(&[])))),
            "services: failed to parse namespaced hostname: nowhere",
        ),
        (
            says(|form| drop(form.services.insert("a/b".into(), port_list(&[(80, 70_000)])))),
            "services: 70000 is not a port",
        ),
        (
            says(|form| form.application_tunnel = Some(pb::ApplicationTunnel { protocol: 2, port: 0 })),
            "application_tunnel.protocol: unknown enum: 2",
        ),
        (
            says(|form| form.application_tunnel = Some(pb::ApplicationTunnel { protocol: 1, port: 1 << 16 })),
            "application_tunnel.port: 65536 is not a port",
        ),
    ] {
        assert_eq!(said, wanted);
    }
}

#[test]
fn what_is_wrong_with_a_service_is_refused_by_field() {
    let says = |spoil: fn(&mut pb::Service)| {
        let mut form = full_service();
        spoil(&mut form);
        read_service(form).unwrap_err().to_string()
    };
    for (said, wanted) in [
        (says(|form| form.hostname.clear()), "hostname: failed to parse namespaced hostname: shop/"),
        (
            says(|form| form.namespace = "a/b".into()),
            "hostname: failed to parse namespaced hostname: a/b/web.shop.svc.cluster.local",
        ),
        (says(|form| form.addresses[0].address.clear()), "addresses: failed to parse address, had 0 bytes"),
        (
            says(|form| form.addresses[0].length = Some(33)),
            "addresses: a prefix of 33 bits is longer than the address",
        ),
        (says(|form| form.ports[0].service_port = 1 << 16), "ports: 65536 is not a port"),
        (
            says(|form| form.weighted_waypoints[0].destination = None),
            "weighted_waypoints: nonempty gateway address is missing address",
        ),
        (
            says(|form| form.load_balancing.as_mut().unwrap().routing_preference[2] = 0),
            "load_balancing.routing_preference: unknown enum: invalid target",
        ),
        (
            says(|form| form.load_balancing.as_mut().unwrap().routing_preference[2] = 7),
            "load_balancing.routing_preference: unknown enum: 7",
        ),
        (says(|form| form.load_balancing.as_mut().unwrap().mode = 4), "load_balancing.mode: unknown enum: 4"),
        (
            says(|form| form.load_balancing.as_mut().unwrap().health_policy = 2),
            "load_balancing.health_policy: unknown enum: 2",
        ),
        (says(|form| form.ip_families = 4), "ip_families: unknown enum: 4"),
    ] {
        assert_eq!(said, wanted);
    }
}

#[test]
fn what_is_no_address_is_refused() {
    let says = |bytes: &[u8]| address(bytes, &mut Memory::default()).unwrap_err().to_string();
    assert_eq!(says(&[]), "unknown address type");
    assert_eq!(says(&[0x1a, 0]), "unknown address type");
    let mut bytes = bytes_of(pb::address::Type::Workload(full_workload()));
    bytes.pop();
    assert!(says(&bytes).starts_with("decode: "), "{}", says(&bytes));
    // A namespace that is no text.
    let garbage = says(&[0x0a, 7, 0x12, 1, 0xff, 0xa2, 1, 1, b'u']);
    assert!(garbage.contains("Workload.namespace"), "{garbage}");
    let long =
        pb::Workload { services: BTreeMap::from([("x".repeat(5_000), port_list(&[]))]), ..full_workload() };
    assert!(read_workload(long).unwrap_err().to_string().len() < 400);
}

#[test]
fn of_two_targets_for_one_port_the_last_counts() {
    let form = pb::Service { ports: port_list(&[(80, 1), (90, 2), (80, 3)]).ports, ..full_service() };
    let read = read_service(form).unwrap();
    assert_eq!(read.ports, [PortPair { service: 80, target: 3 }, PortPair { service: 90, target: 2 }]);
}

#[test]
fn names_are_shared_across_a_mesh() {
    let mut memory = Memory::default();
    let bytes = bytes_of(pb::address::Type::Workload(full_workload()));
    let mut read = || match address(&bytes, &mut memory) {
        Ok(Address::Workload(workload)) => workload,
        other => panic!("{other:?}"),
    };
    let (one, two) = (read(), read());
    assert!(Arc::ptr_eq(&one.common, &two.common) && Arc::ptr_eq(&one.node, &two.node));
    let bytes = pb::Workload { waypoint: None, ..full_workload() };
    let bytes = bytes_of(pb::address::Type::Workload(bytes));
    let Ok(Address::Workload(other)) = address(&bytes, &mut memory) else { panic!("no workload") };
    assert!(!Arc::ptr_eq(&one.common, &other.common));
    assert!(Arc::ptr_eq(&one.services[0].0.hostname, &other.services[0].0.hostname));
}

#[test]
fn a_message_in_pieces_is_one() {
    let whole = full_workload();
    let first =
        pb::Workload { network: "east".into(), uid: "other".into(), capacity: Some(3), ..whole.clone() };
    let second =
        pb::Workload { addresses: vec![], authorization_policies: vec![], capacity: None, ..whole.clone() };
    let [first, second] = [first, second].map(|form| bytes_of(pb::address::Type::Workload(form)));
    let read = address(&[first, second].concat(), &mut Memory::default()).unwrap();
    let wanted = read_workload(pb::Workload { capacity: Some(3), ..whole }).unwrap();
    assert_eq!(read, Address::Workload(wanted));
}

#[test]
fn fields_that_nobody_knows_change_nothing() {
    let mut memory = Memory::default();
    let message = full_workload().encode_to_vec();
    let mut read = |extra: &[u8]| {
        // Field 26 is a vendor's extension.
        let message = [&message[..], &[0xd2, 0x01, 2], extra].concat();
        let mut bytes = vec![0x0a];
        prost::encoding::encode_varint(message.len() as u64, &mut bytes);
        bytes.extend(message);
        match address(&bytes, &mut memory) {
            Ok(Address::Workload(workload)) => workload,
            other => panic!("{other:?}"),
        }
    };
    let (one, two) = (read(&[0, 1]), read(&[2, 3]));
    assert_eq!((&one, &one), (&two, &read_workload(full_workload()).unwrap()));
    assert!(Arc::ptr_eq(&one.common, &two.common));
}

fn any_name() -> impl Strategy<Value = String> {
    "[a-z]{0,4}"
}

fn any_gateway() -> impl Strategy<Value = Option<pb::GatewayAddress>> {
    let address = (any_name(), any::<[u8; 4]>(), any::<u16>())
        .prop_map(|(network, ip, port)| to_address(&network, &ip, port.into()));
    let host = (any_name(), any_name(), any::<u16>())
        .prop_map(|(namespace, host, port)| to_host(&namespace, &host, port.into()));
    proptest::option::of(prop_oneof![address, host])
}

fn any_ports() -> impl Strategy<Value = Vec<pb::Port>> {
    let pair = (any::<u16>(), any::<u16>()).prop_map(|(one, two)| (one.into(), two.into()));
    proptest::collection::vec(pair, 0..4).prop_map(|pairs| port_list(&pairs).ports)
}

fn any_workload() -> impl Strategy<Value = pb::Workload> {
    let names = proptest::collection::vec(any_name(), 14);
    let words = (0..2_i32, 0..4_i32, 0..2_i32, 0..2_i32, any::<bool>(), proptest::option::of(any::<u32>()));
    let services = proptest::collection::btree_map("[a-z]{0,3}/[a-z]{1,3}", any_ports(), 0..3);
    let addresses = proptest::collection::vec(any::<[u8; 4]>(), 0..3);
    let tunnel = proptest::option::of((0..2_i32, any::<u16>()));
    (names, words, services, addresses, tunnel, any_gateway(), any_gateway()).prop_map(
        |(names, words, services, addresses, tunnel, waypoint, network_gateway)| {
            let mut names = names.into_iter();
            let mut name = || names.next().unwrap();
            pb::Workload {
                uid: format!("uid-{}", name()),
                name: name(),
                namespace: name(),
                network: name(),
                trust_domain: name(),
                service_account: name(),
                node: name(),
                canonical_name: name(),
                canonical_revision: name(),
                workload_name: name(),
                cluster_id: name(),
                hostname: name(),
                authorization_policies: vec![name()],
                locality: Some(pb::Locality { region: name(), ..Default::default() }),
                addresses: addresses.iter().map(|ip| ip.to_vec().into()).collect(),
                tunnel_protocol: words.0,
                workload_type: words.1,
                status: words.2,
                network_mode: words.3,
                native_tunnel: words.4,
                capacity: words.5,
                services: services.into_iter().map(|(key, ports)| (key, pb::PortList { ports })).collect(),
                application_tunnel: tunnel
                    .map(|(protocol, port)| pb::ApplicationTunnel { protocol, port: port.into() }),
                waypoint,
                network_gateway,
            }
        },
    )
}

fn any_service() -> impl Strategy<Value = pb::Service> {
    let names = (any_name(), any_name(), "[a-z]{1,4}");
    let address =
        (any_name(), any::<[u8; 4]>(), proptest::option::of(0..33_u32)).prop_map(|(network, ip, length)| {
            pb::NetworkAddress { network, address: ip.to_vec().into(), length }
        });
    let words = (0..4_i32, 0..3_i32, any::<bool>());
    let balancer = proptest::option::of((proptest::collection::vec(1..7_i32, 0..4), 0..4_i32, 0..2_i32));
    (
        names,
        proptest::collection::vec(address, 0..4),
        any_ports(),
        words,
        balancer,
        any_gateway(),
        any_gateway(),
    )
        .prop_map(|(names, addresses, ports, words, balancer, waypoint, weighted)| pb::Service {
            name: names.0,
            namespace: names.1,
            hostname: names.2,
            addresses,
            ports,
            subject_alt_names: vec!["a".into()],
            waypoint,
            load_balancing: balancer.map(|(routing_preference, mode, health_policy)| pb::LoadBalancing {
                routing_preference,
                mode,
                health_policy,
            }),
            ip_families: words.0,
            canonical: words.2,
            ingress_use_waypoint: false,
            weighted_waypoints: weighted
                .map(|destination| pb::WeightedWaypoint { destination: Some(destination), weight: 3 })
                .into_iter()
                .collect(),
            visibility: words.1,
        })
}

proptest! {
    #[test]
    fn a_workload_that_was_read_encodes_to_what_reads_the_same(form in any_workload()) {
        let read = read_workload(form.clone()).unwrap();
        let again = encode::workload(&read);
        prop_assert_eq!(&read_workload(again.clone()).unwrap(), &read);
        // Names that have no default, addresses and gateways are what was sent.
        prop_assert_eq!(again.authorization_policies, form.authorization_policies);
        prop_assert_eq!((again.waypoint, again.network_gateway), (form.waypoint, form.network_gateway));
        prop_assert_eq!((again.addresses, again.uid), (form.addresses, form.uid));
        prop_assert_eq!((again.node, again.hostname), (form.node, form.hostname));
        prop_assert_eq!((again.name, again.namespace), (form.name, form.namespace));
        prop_assert_eq!((again.tunnel_protocol, again.status), (form.tunnel_protocol, form.status));
        prop_assert_eq!((again.network_mode, again.native_tunnel), (form.network_mode, form.native_tunnel));
        prop_assert_eq!((again.workload_type, again.capacity), (form.workload_type, form.capacity.or(Some(1))));
        prop_assert_eq!((again.network, again.locality), (form.network, form.locality));
        prop_assert_eq!(again.services.keys().len(), form.services.keys().len());
    }

    #[test]
    fn what_is_remembered_reads_as_what_is_new(forms in proptest::collection::vec(any_workload(), 1..6), twice: bool) {
        let mut memory = Memory::default();
        for form in forms.iter().chain(forms.iter().filter(|_| twice)) {
            // Its neighbour in the deployment, as well.
            for uid in [form.uid.clone(), format!("{}-2", form.uid)] {
                let form = pb::Workload { uid, ..form.clone() };
                let bytes = bytes_of(pb::address::Type::Workload(form.clone()));
                let read = address(&bytes, &mut memory).unwrap();
                prop_assert_eq!(read, Address::Workload(read_workload(form).unwrap()));
            }
        }
    }

    #[test]
    fn a_service_that_was_read_encodes_to_what_reads_the_same(form in any_service()) {
        let read = read_service(form.clone()).unwrap();
        let again = encode::service(&read);
        prop_assert_eq!(&read_service(again.clone()).unwrap(), &read);
        prop_assert_eq!(again.load_balancing, form.load_balancing);
        prop_assert_eq!(again.weighted_waypoints, form.weighted_waypoints);
        prop_assert_eq!(again.addresses.len(), form.addresses.len());
        prop_assert_eq!((again.waypoint, again.canonical), (form.waypoint, form.canonical));
    }

    #[test]
    fn an_address_cut_short_is_refused(form in any_workload(), cut in 1_usize..20) {
        let bytes = pb::Address { r#type: Some(pb::address::Type::Workload(form)) }.encode_to_vec();
        let kept = bytes.len().saturating_sub(cut);
        prop_assert!(address(&bytes[..kept], &mut Memory::default()).is_err());
    }
}
