//! A host name that a pod uses, as the mesh knows it: the service it means to that pod, and one address of it
//! (reference sections 10.2 and 10.3). Whole names and Kubernetes' short forms; not wildcards. Pure.

use std::net::IpAddr;

use crate::mesh::service::{IpFamilies, Service};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;

/// Who asks, and by what knowledge.
pub struct Asked<'a> {
    pub snapshot: &'a Snapshot,
    /// The network of this proxy.
    pub network: &'a str,
    pub source: &'a Workload,
    /// The cluster's DNS domain.
    pub domain: &'a str,
    pub ipv6: bool,
}

/// What the mesh says of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    At(IpAddr),
    /// Its name, but nobody behind it has an address that can be used.
    Nowhere,
    /// Not a name of the mesh.
    Not,
}

/// `host` in lower case, without its final dot.
pub fn find(asked: &Asked<'_>, host: &str, random: &mut fastrand::Rng) -> Known {
    // RFC 6761 section 6.3: never asked of a name server.
    if host == "localhost" || host.ends_with(".localhost") {
        return Known::At(IpAddr::from([127, 0, 0, 1]));
    }
    let namespace = &*asked.source.namespace;
    let usable = |service: &&std::sync::Arc<Service>| {
        let has_address = !service.vips.is_empty();
        // Both forms of a visible service; a name outside the cluster without an address is the name servers'.
        service.is_visible_to(Some(namespace)) && (has_address || is_in_cluster(&service.key.hostname, asked))
    };
    let names = candidates(host, namespace, asked.domain);
    let service =
        names.iter().find_map(|name| asked.snapshot.service_by_host(name, Some(namespace)).filter(usable));
    service.map_or(Known::Not, |service| address(asked, service, random))
}

/// The name itself, then its Kubernetes expansions.
fn candidates(host: &str, namespace: &str, domain: &str) -> Vec<String> {
    let mut names = vec![host.to_owned()];
    let labels = host.split('.').count();
    match labels {
        1 => names.push(format!("{host}.{namespace}.svc.{domain}")),
        2 => {
            names.push(format!("{host}.svc.{domain}"));
            names.push(format!("{host}.{namespace}.svc.{domain}"));
        }
        3 => {
            if host.ends_with(".svc") {
                names.push(format!("{host}.{domain}"));
            }
            names.push(format!("{host}.svc.{domain}"));
        }
        4 if host.ends_with(".svc") => names.push(format!("{host}.{domain}")),
        _ => {}
    }
    names
}

fn is_in_cluster(host: &str, asked: &Asked<'_>) -> bool {
    host.strip_suffix(asked.domain).is_some_and(|rest| rest.ends_with(".svc."))
}

/// One address: of the family that the pod itself has first, of IPv4 first where it has both.
fn address(asked: &Asked<'_>, service: &Service, random: &mut fastrand::Rng) -> Known {
    let has = |four: bool| asked.source.addresses.iter().any(|ip| ip.is_ipv4() == four);
    let rank = |ip: &IpAddr| (!has(ip.is_ipv4()), ip.is_ipv6());
    let allowed = |ip: &IpAddr| match service.ip_families {
        Some(IpFamilies::Ipv4) => ip.is_ipv4(),
        Some(IpFamilies::Ipv6) => ip.is_ipv6() && asked.ipv6,
        Some(IpFamilies::Dual) | None => ip.is_ipv4() || asked.ipv6,
    };
    if !service.vips.is_empty() {
        let here = service.vips.iter().filter(|vip| *vip.network == *asked.network).map(|vip| vip.ip);
        return here.filter(allowed).min_by_key(rank).map_or(Known::Nowhere, Known::At);
    }
    let endpoints = asked.snapshot.endpoints(&service.key).filter_map(|serving| serving.workload);
    let addresses: Vec<_> = endpoints
        .filter_map(|workload| workload.own_addresses().iter().copied().filter(allowed).min_by_key(rank))
        .collect();
    random.choice(addresses).map_or(Known::Nowhere, Known::At)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::fixture::{self, pod, service, serving};
    use crate::mesh::service::Visibility;

    fn look(mesh: &Snapshot, source: &Workload, host: &str) -> Known {
        let asked = Asked { snapshot: mesh, network: "", source, domain: "cluster.local", ipv6: true };
        find(&asked, host, &mut fastrand::Rng::with_seed(7))
    }

    fn mesh() -> Snapshot {
        let hidden = Service { visibility: Visibility::Namespace, ..service("hidden", &["10.9.0.2"], &[]) };
        let external = Service {
            vips: service("x", &["240.0.0.1"], &[]).vips,
            ..Service::plain("default", "api.example.com", "api")
        };
        let nameless = Service::plain("default", "void.example.com", "void");
        fixture::mesh([
            serving(pod("a", &["10.0.0.5", "fd00::5"]), "headless", &[]).into(),
            serving(pod("b", &["10.0.0.6"]), "headless", &[]).into(),
            service("web", &["fd77::1", "10.9.0.1"], &[]).into(),
            service("headless", &[], &[]).into(),
            service("empty", &[], &[]).into(),
            hidden.into(),
            external.into(),
            nameless.into(),
        ])
    }

    #[test]
    fn names_mean_services_as_their_caller_sees_them() {
        let mesh = mesh();
        let near = pod("client", &["10.0.0.1", "fd00::1"]);
        let far = fixture::with(near.clone(), |common| common.namespace = "other".into());
        let web = Known::At("10.9.0.1".parse().unwrap());
        for host in ["web", "web.default", "web.default.svc", "web.default.svc.cluster.local"] {
            assert_eq!(look(&mesh, &near, host), web, "{host}");
        }
        assert_eq!(look(&mesh, &far, "web"), Known::Not);
        assert_eq!(look(&mesh, &far, "web.default"), web);
        assert_eq!(look(&mesh, &near, "hidden"), Known::At("10.9.0.2".parse().unwrap()));
        assert_eq!(look(&mesh, &far, "hidden.default"), Known::Not);
        assert_eq!(look(&mesh, &near, "api.example.com"), Known::At("240.0.0.1".parse().unwrap()));
        for unknown in ["void.example.com", "example.com", "nobody", "default.svc.cluster.local", ""] {
            assert_eq!(look(&mesh, &near, unknown), Known::Not, "{unknown}");
        }
        assert_eq!(look(&mesh, &near, "localhost"), Known::At("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_headless_service_is_one_of_its_endpoints_and_an_empty_one_is_nowhere() {
        let mesh = mesh();
        let client = pod("client", &["10.0.0.1"]);
        let Known::At(ip) = look(&mesh, &client, "headless") else { panic!("no endpoint") };
        assert!(["10.0.0.5", "10.0.0.6"].contains(&&*ip.to_string()), "{ip}");
        assert_eq!(look(&mesh, &client, "empty"), Known::Nowhere);
    }

    #[test]
    fn the_family_is_the_pods_own() {
        let six = pod("client", &["fd00::1"]);
        assert_eq!(look(&mesh(), &six, "web"), Known::At("fd77::1".parse().unwrap()));
        let Known::At(ip) = look(&mesh(), &six, "headless") else { panic!("no endpoint") };
        assert!(["fd00::5", "10.0.0.6"].contains(&&*ip.to_string()), "{ip}");
    }
}
