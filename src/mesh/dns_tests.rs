//! The reference's look-up matrix (section 18.4), row by row, and look-ups against a slow reference.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::mesh::delta::Change;
use crate::mesh::fixture::{mesh, pod, with};
use crate::mesh::service::{NetworkIp, Visibility};
use crate::mesh::workload::Workload;

const NETWORK: &str = "nw1";

fn names() -> Names {
    Names::new("cluster.local", Some("preferred-ns"), true)
}

/// `vips`: `network/ip`.
fn service(namespace: &str, host: &str, vips: &[&str]) -> Service {
    let vip = |text: &&str| {
        let (network, ip) = text.split_once('/').unwrap();
        NetworkIp { network: network.into(), ip: ip.parse().unwrap() }
    };
    Service { vips: vips.iter().map(vip).collect(), ..Service::plain(namespace, host, host) }
}

fn near(namespace: &str, host: &str, ips: &[&str]) -> Service {
    let vips: Vec<_> = ips.iter().map(|ip| format!("{NETWORK}/{ip}")).collect();
    service(namespace, host, &vips.iter().map(String::as_str).collect::<Vec<_>>())
}

fn endpoint(name: &str, ips: &[&str], of: &[&str]) -> Workload {
    with(pod(name, ips), |common| {
        common.network = NETWORK.into();
        common.services = of.iter().map(|key| (key.parse().unwrap(), Vec::new())).collect();
    })
}

fn world() -> Snapshot {
    let headless = "ns1/headless.ns1.svc.cluster.local";
    let six_only = "ns1/headless-ipv6.ns1.svc.cluster.local";
    let outside = "ns1/headless.example.com";
    let hidden = |service| Service { visibility: Visibility::Namespace, ..service };
    let canonical = |service| Service { canonical: true, ..service };
    let families = |service, families| Service { ip_families: Some(families), ..service };
    let services = [
        near("ns1", "www.google.com", &["1.1.1.1"]),
        near("ns1", "productpage.ns1.svc.cluster.local", &["9.9.9.9"]),
        near("ns2", "example.ns2.svc.cluster.local", &["10.10.10.10"]),
        hidden(near("ns2", "nslocal.ns2.svc.cluster.local", &["10.10.10.11"])),
        hidden(near("ns1", "nslocalsame.ns1.svc.cluster.local", &["10.10.10.12"])),
        near(
            "ns2",
            "details.ns2.svc.cluster.remote",
            &["11.11.11.11", "12.12.12.12", "13.13.13.13", "14.14.14.14"],
        ),
        near("ns1", "dual.localhost", &["2.2.2.2", "2001:db8::ff00:42:8329"]),
        near("ns1", "ipv4.localhost", &["2.2.2.2"]),
        near("ns1", "ipv6.localhost", &["2001:db8::ff00:42:8329"]),
        near("ns1", "*.wildcard", &["5.5.5.5"]),
        near("ns1", "*.b.wildcard", &["6.6.6.6"]),
        near("ns1", "*.svc.mesh.company.net", &["10.1.2.3"]),
        service("ns1", "nw2-only.ns1.svc.cluster.local", &["nw2/22.22.22.22"]),
        service("ns1", "both-networks.ns1.svc.cluster.local", &["nw1/21.21.21.21", "nw2/22.22.22.22"]),
        service("ns1", "headless.ns1.svc.cluster.local", &[]),
        families(service("ns1", "headless-ipv6.ns1.svc.cluster.local", &[]), IpFamilies::Ipv6),
        families(near("ns1", "only4.ns1.svc.cluster.local", &["7.7.7.7", "fd00::7"]), IpFamilies::Ipv4),
        service("ns1", "headless.example.com", &[]),
        service("ns1", "headless-no-endpoints.example.com", &[]),
        service("ns1", "nobody.ns1.svc.cluster.local", &[]),
        near("ns2", "preferred.io", &["10.10.10.211"]),
        near("preferred-ns", "preferred.io", &["10.10.10.210"]),
        near("ns1", "everywhere.io", &["10.10.10.112"]),
        near("ns2", "everywhere.io", &["10.10.10.111"]),
        near("preferred-ns", "everywhere.io", &["10.10.10.110"]),
        near("ns2", "canonical.svc", &["10.10.10.221"]),
        canonical(near("ns3", "canonical.svc", &["10.10.10.220"])),
        near("ns1", "canonical.with.local", &["10.10.10.222"]),
        canonical(near("ns2", "canonical.with.local", &["10.10.10.223"])),
    ];
    let workloads = [
        endpoint("headless0", &["30.30.30.30", "2001:db8::30"], &[headless, six_only, outside]),
        endpoint("headless1", &["31.31.31.31"], &[headless, outside]),
        endpoint("headless2", &["2001:db8::33"], &[headless, six_only]),
    ];
    mesh(services.into_iter().map(Change::from).chain(workloads.into_iter().map(Change::from)))
}

/// What the mesh says: `None` is forwarded, else the alias and the sorted addresses.
fn told(names: &Names, snapshot: &Snapshot, namespace: &str, host: &str, ipv6: bool) -> Option<String> {
    let search = names.search(namespace);
    let asker = Asker { namespace, network: NETWORK, search: &search };
    let found = names.look_up(snapshot, asker, host)?;
    let mut addresses = Vec::new();
    names.addresses(snapshot, asker, found.service, ipv6, &mut addresses);
    let addresses: Vec<_> =
        addresses.iter().collect::<BTreeSet<_>>().iter().map(ToString::to_string).collect();
    let alias = found.alias.map(|alias| format!("{alias} ")).unwrap_or_default();
    Some(alias + &addresses.join(" "))
}

#[test]
fn every_row_of_the_references_matrix() {
    let (names, snapshot) = (names(), world());
    let rows: &[(&str, bool, Option<&str>)] = &[
        ("www.google.com", false, Some("1.1.1.1")),
        ("www.google.com.ns1.svc.cluster.local", false, Some("www.google.com 1.1.1.1")),
        ("www.bing.com", false, None),
        ("productpage.ns1.svc.cluster.local", false, Some("9.9.9.9")),
        ("productpage.ns1.svc", false, Some("9.9.9.9")),
        ("productpage.ns1", false, Some("9.9.9.9")),
        ("productpage", false, Some("9.9.9.9")),
        ("productpage.ns1.ns1.svc.cluster.local", false, Some("productpage.ns1 9.9.9.9")),
        ("productpage.ns1.ns1.svc.cluster.local", true, Some("productpage.ns1 ")),
        ("example.ns2", false, Some("10.10.10.10")),
        ("example.ns2.svc", false, Some("10.10.10.10")),
        ("example.ns2.svc.cluster.local", false, Some("10.10.10.10")),
        ("example", false, None),
        ("nslocal.ns2.svc.cluster.local", false, None),
        ("nslocal.ns2", false, None),
        ("nslocalsame.ns1.svc.cluster.local", false, Some("10.10.10.12")),
        ("details.ns2.svc.cluster.remote", false, Some("11.11.11.11 12.12.12.12 13.13.13.13 14.14.14.14")),
        ("details.ns2", false, None),
        ("dual.localhost", false, Some("2.2.2.2")),
        ("dual.localhost", true, Some("2001:db8::ff00:42:8329")),
        ("ipv6.localhost", false, Some("")),
        ("ipv4.localhost", true, Some("")),
        ("foo.wildcard", false, Some("5.5.5.5")),
        ("a.b.wildcard", false, Some("6.6.6.6")),
        ("b.wildcard", false, Some("5.5.5.5")),
        ("wildcard", false, None),
        ("foo.svc.mesh.company.net", false, Some("10.1.2.3")),
        ("foo.foons.svc.mesh.company.net", false, Some("10.1.2.3")),
        ("foo.svc.mesh.company.net.ns1.svc.cluster.local", false, Some("10.1.2.3")),
        ("nw2-only.ns1.svc.cluster.local", false, Some("")),
        ("both-networks.ns1.svc.cluster.local", false, Some("21.21.21.21")),
        ("headless.ns1.svc.cluster.local", false, Some("30.30.30.30 31.31.31.31")),
        ("headless.ns1.svc.cluster.local", true, Some("2001:db8::30 2001:db8::33")),
        ("headless-ipv6.ns1.svc.cluster.local", false, Some("")),
        ("headless-ipv6.ns1.svc.cluster.local", true, Some("2001:db8::30 2001:db8::33")),
        ("only4.ns1", false, Some("7.7.7.7")),
        ("only4.ns1", true, Some("")),
        ("nobody.ns1", false, Some("")),
        ("headless.pod0.ns1", false, None),
        ("headless.pod0.ns1.svc.cluster.local", false, None),
        ("headless.example.com", false, None),
        ("headless-no-endpoints.example.com", false, None),
        ("preferred.io", false, Some("10.10.10.210")),
        ("everywhere.io", false, Some("10.10.10.112")),
        ("canonical.svc", false, Some("10.10.10.220")),
        ("canonical.with.local", false, Some("10.10.10.222")),
        ("svc.cluster.local", false, None),
        ("", false, None),
    ];
    for (host, ipv6, expected) in rows {
        let found = told(&names, &snapshot, "ns1", host, *ipv6);
        assert_eq!(found.as_deref(), *expected, "{host} {}", if *ipv6 { "AAAA" } else { "A" });
    }
    assert_eq!(told(&names, &snapshot, "ns2", "nslocal", false).as_deref(), Some("10.10.10.11"));
    assert_eq!(told(&names, &snapshot, "ns2", "example", false).as_deref(), Some("10.10.10.10"));
}

#[test]
fn without_ipv6_nobody_is_told_an_ipv6_address() {
    let names = Names::new("cluster.local", None, false);
    for host in ["dual.localhost", "headless.ns1.svc.cluster.local"] {
        assert_eq!(told(&names, &world(), "ns1", host, true).as_deref(), Some(""), "{host}");
    }
}

/// Field report E5.
#[test]
fn another_cluster_domain_expands_names_to_itself() {
    let names = Names::new("corp.local.", None, true);
    let snapshot = mesh([
        near("ns1", "web.ns1.svc.corp.local", &["9.9.9.9"]).into(),
        service("ns1", "headless.ns1.svc.corp.local", &[]).into(),
        endpoint("pod0", &["30.30.30.30"], &["ns1/headless.ns1.svc.corp.local"]).into(),
    ]);
    for host in ["web", "web.ns1", "web.ns1.svc", "web.ns1.svc.corp.local"] {
        assert_eq!(told(&names, &snapshot, "ns1", host, false).as_deref(), Some("9.9.9.9"), "{host}");
    }
    assert_eq!(told(&names, &snapshot, "ns1", "headless", false).as_deref(), Some("30.30.30.30"));
    assert_eq!(told(&names, &snapshot, "ns1", "web.ns1.svc.cluster.local", false), None);
}

/// Field reports E10 and E15: the most specific name wins, and an endpoint's own name stays its own.
#[test]
fn wildcards_give_way_to_what_is_more_specific() {
    let snapshot = mesh([
        near("ns1", "*.example.com", &["1.0.0.1"]).into(),
        near("ns1", "*.specific.example.com", &["1.0.0.2"]).into(),
        near("ns1", "one.specific.example.com", &["1.0.0.3"]).into(),
        near("ns2", "*", &["1.0.0.4"]).into(),
    ]);
    let told = |host| told(&names(), &snapshot, "ns1", host, false);
    assert_eq!(told("one.specific.example.com").as_deref(), Some("1.0.0.3"));
    assert_eq!(told("two.specific.example.com").as_deref(), Some("1.0.0.2"));
    assert_eq!(told("a.b.specific.example.com").as_deref(), Some("1.0.0.2"));
    assert_eq!(told("specific.example.com").as_deref(), Some("1.0.0.1"));
    assert_eq!(told("example.com"), None);
}

/// All names that a name may stand for, spelt out.
fn candidates(namespace: &str, host: &str) -> Vec<(String, bool)> {
    let expanded = |name: &str| {
        let labels: Vec<_> = name.split('.').collect();
        let mut all = vec![name.to_owned()];
        match labels.len() {
            1 => all.push(format!("{name}.{namespace}.svc.d.o")),
            2 => all.extend([format!("{name}.svc.d.o"), format!("{name}.{namespace}.svc.d.o")]),
            3 => {
                if labels[2] == "svc" {
                    all.push(format!("{name}.d.o"));
                }
                all.push(format!("{name}.svc.d.o"));
            }
            4 if labels[3] == "svc" => all.push(format!("{name}.d.o")),
            _ => {}
        }
        all
    };
    let mut all: Vec<_> = expanded(host).into_iter().map(|name| (name, false)).collect();
    for domain in [format!(".{namespace}.svc.d.o"), ".svc.d.o".to_owned(), ".d.o".to_owned()] {
        if let Some(stripped) = host.strip_suffix(&domain).filter(|stripped| !stripped.is_empty()) {
            all.extend(expanded(stripped).into_iter().map(|name| (name, true)));
        }
    }
    let with_wildcards = |(name, stripped): (String, bool)| {
        let labels: Vec<_> = name.split('.').collect();
        let wild = (1..labels.len()).map(|from| (format!("*.{}", labels[from..].join(".")), false));
        std::iter::once((name.clone(), stripped)).chain(wild.collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    all.into_iter().flat_map(with_wildcards).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_look_up_finds_what_trying_every_name_in_turn_would(
        hosts in proptest::collection::vec("(\\*\\.)?(a|b|svc)(\\.(a|b|svc|d\\.o)){0,4}", 0..12),
        asked in "(a|b|svc)(\\.(a|b|svc|d\\.o)){0,5}",
    ) {
        let names = Names::new("d.o", None, true);
        let services = hosts.iter().map(|host| near("a", host, &["1.0.0.1"]).into());
        let snapshot = mesh(services);
        let search = names.search("a");
        let asker = Asker { namespace: "a", network: NETWORK, search: &search };
        let found = names.look_up(&snapshot, asker, &asked);
        let expected = candidates("a", &asked).into_iter().find(|(name, _)| hosts.contains(name));
        let told = found.map(|found| (found.service.key.hostname.to_string(), found.alias.is_some()));
        prop_assert_eq!(told, expected);
    }
}
