//! Which names the mesh answers for, and with what (reference section 10.2, 10.3). A look-up costs a hash for each
//! label of the name and of the few names it may stand for, however many services there are.

use std::net::IpAddr;
use std::sync::Arc;

use crate::base::text::Text;
use crate::mesh::service::{IpFamilies, Service};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;

/// What is the same for all who ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// `CLUSTER_DOMAIN`.
    pub domain: Text,
    /// `.svc.{domain}`.
    suffix: Text,
    /// `PREFERED_SERVICE_NAMESPACE`.
    preferred_namespace: Option<Text>,
    /// `IPV6_ENABLED`: without it nobody is told an IPv6 address.
    ipv6: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    pub namespace: &'a str,
    pub network: &'a str,
    /// Domains that the asker's resolver appends, in lower case without final dots.
    pub search: &'a [Text],
}

impl<'a> Asker<'a> {
    pub fn of(workload: &'a Workload, search: &'a [Text]) -> Self {
        Self { namespace: &workload.namespace, network: &workload.network, search }
    }
}

/// A name that the mesh answers for.
#[derive(Clone, Copy, Debug)]
pub struct Owned<'q, 's> {
    pub service: &'s Arc<Service>,
    /// What the asked name is without a search domain, where that is how it was found.
    pub alias: Option<&'q str>,
}

impl Names {
    pub fn new(domain: &str, preferred_namespace: Option<&str>, ipv6: bool) -> Self {
        let domain = domain.trim_matches('.').to_ascii_lowercase();
        Self {
            suffix: format!(".svc.{domain}").into(),
            domain: domain.into(),
            preferred_namespace: preferred_namespace.map(Into::into),
            ipv6,
        }
    }

    /// What Kubernetes writes into the pods' resolv.conf (in this order).
    pub fn search(&self, namespace: &str) -> Vec<Text> {
        let domain = &self.domain;
        vec![format!("{namespace}.svc.{domain}").into(), format!("svc.{domain}").into(), domain.clone()]
    }

    /// The service that a host name stands for; `None`: the mesh has no say in it.
    /// `host` is in lower case and without its final dot.
    pub fn look_up<'q, 's>(
        &self,
        snapshot: &'s Snapshot,
        asker: Asker<'_>,
        host: &'q str,
    ) -> Option<Owned<'q, 's>> {
        let mut scratch = String::with_capacity(host.len() + self.suffix.len() + asker.namespace.len() + 2);
        if let Some(found) = self.with_expansions(snapshot, asker, host, &mut scratch) {
            return Some(Owned { service: found.service, alias: None });
        }
        for domain in asker.search {
            let Some(stripped) = without(host, domain) else { continue };
            if let Some(found) = self.with_expansions(snapshot, asker, stripped, &mut scratch) {
                return Some(Owned { service: found.service, alias: (!found.wildcard).then_some(stripped) });
            }
        }
        None
    }

    /// Appends the addresses of one family that the asker is told, in no order. None is an answer too.
    pub fn addresses(
        &self,
        snapshot: &Snapshot,
        asker: Asker<'_>,
        service: &Service,
        ipv6: bool,
        out: &mut Vec<IpAddr>,
    ) {
        let wanted = |ip: &IpAddr| ip.is_ipv6() == ipv6;
        let suppressed = match service.ip_families {
            Some(IpFamilies::Ipv4) => ipv6,
            Some(IpFamilies::Ipv6) => !ipv6,
            Some(IpFamilies::Dual) | None => false,
        };
        if suppressed || (ipv6 && !self.ipv6) {
            return;
        }
        if service.vips.is_empty() {
            let workloads = snapshot.endpoints(&service.key).filter_map(|serving| serving.workload);
            out.extend(workloads.filter_map(|workload| workload.addresses.iter().copied().find(wanted)));
        } else {
            let vips = service.vips.iter().filter(|vip| *vip.network == *asker.network);
            out.extend(vips.map(|vip| vip.ip).filter(wanted));
        }
    }

    /// The name itself, then what Kubernetes' short forms make of it.
    fn with_expansions<'s>(
        &self,
        snapshot: &'s Snapshot,
        asker: Asker<'_>,
        host: &str,
        scratch: &mut String,
    ) -> Option<Found<'s>> {
        let labels = host.split('.').count();
        let ends_in_svc = host.ends_with(".svc");
        let namespaced = [".", asker.namespace, &*self.suffix];
        let expansions: [Option<&[&str]>; 3] = match labels {
            1 => [Some(&[]), Some(&namespaced), None],
            2 => [Some(&[]), Some(&[&*self.suffix]), Some(&namespaced)],
            3 if ends_in_svc => [Some(&[]), Some(&[".", &*self.domain]), Some(&[&*self.suffix])],
            3 => [Some(&[]), Some(&[&*self.suffix]), None],
            4 if ends_in_svc => [Some(&[]), Some(&[".", &*self.domain]), None],
            _ => [Some(&[]), None, None],
        };
        expansions.into_iter().flatten().find_map(|added| {
            scratch.clear();
            scratch.push_str(host);
            added.iter().for_each(|part| scratch.push_str(part));
            self.exact_or_wildcard(snapshot, asker, scratch)
        })
    }

    fn exact_or_wildcard<'s>(
        &self,
        snapshot: &'s Snapshot,
        asker: Asker<'_>,
        host: &str,
    ) -> Option<Found<'s>> {
        if let Some(service) = self.eligible(snapshot, asker, host) {
            return Some(Found { service, wildcard: false });
        }
        if !snapshot.has_wildcard_hosts() {
            return None;
        }
        let mut name = String::with_capacity(host.len());
        let mut rest = host;
        while let Some((_, behind)) = rest.split_once('.') {
            name.clear();
            name.push_str("*.");
            name.push_str(behind);
            if let Some(service) = self.eligible(snapshot, asker, &name) {
                return Some(Found { service, wildcard: true });
            }
            rest = behind;
        }
        None
    }

    /// Of the services with this very host name: the asker's own, the canonical, the preferred, the first.
    fn eligible<'s>(&self, snapshot: &'s Snapshot, asker: Asker<'_>, host: &str) -> Option<&'s Arc<Service>> {
        let in_cluster = host.ends_with(&*self.suffix);
        let rank = |service: &Service| {
            let is_of =
                |namespace: Option<&str>| namespace.is_some_and(|name| *service.key.namespace == *name);
            (is_of(Some(asker.namespace)), service.canonical, is_of(self.preferred_namespace.as_deref()))
        };
        let mut best: Option<&Arc<Service>> = None;
        for service in snapshot.services_of_host(host) {
            let eligible =
                (in_cluster || !service.vips.is_empty()) && service.is_visible_to(Some(asker.namespace));
            if eligible && best.is_none_or(|known| rank(service) > rank(known)) {
                best = Some(service);
            }
        }
        best
    }
}

#[derive(Clone, Copy)]
struct Found<'s> {
    service: &'s Arc<Service>,
    wildcard: bool,
}

/// The name in front of a domain; none where that isn't its end, or all of it.
fn without<'q>(host: &'q str, domain: &str) -> Option<&'q str> {
    host.strip_suffix(domain)?.strip_suffix('.').filter(|stripped| !stripped.is_empty())
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
