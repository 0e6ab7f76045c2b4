//! What `/etc/resolv.conf` says, for the DNS proxy and workloads known by host name (ztunnel-behaviour 2.4).
//! Lenient as the C library is: what isn't understood is skipped.

use std::net::IpAddr;

pub const FILE: &str = "/etc/resolv.conf";

/// The C library's own bounds.
const MOST_ATTEMPTS: usize = 5;
const MOST_TIMEOUT_S: u64 = 30;
const MOST_NDOTS: usize = 15;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolver {
    pub domain: Option<String>,
    pub search: Vec<String>,
    pub name_servers: Vec<IpAddr>,
    pub ndots: usize,
    pub timeout_s: u64,
    pub attempts: usize,
    pub edns0: bool,
}

impl Default for Resolver {
    fn default() -> Self {
        Self {
            domain: None,
            search: Vec::new(),
            name_servers: Vec::new(),
            ndots: 1,
            timeout_s: 5,
            attempts: 2,
            edns0: false,
        }
    }
}

impl Resolver {
    pub fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => resolver.name_servers.extend(words.next().and_then(address)),
                Some("domain") => resolver.domain = words.next().map(str::to_owned),
                Some("search") => resolver.search = words.map(str::to_owned).collect(),
                Some("options") => words.for_each(|option| resolver.option(option)),
                Some(_) | None => {}
            }
        }
        resolver
    }

    fn option(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        match name {
            "ndots" => set(&mut self.ndots, value, MOST_NDOTS),
            "timeout" => set(&mut self.timeout_s, value, MOST_TIMEOUT_S),
            "attempts" => set(&mut self.attempts, value, MOST_ATTEMPTS),
            "edns0" => self.edns0 = true,
            _ => {}
        }
    }
}

fn set<T: std::str::FromStr + Ord>(held: &mut T, value: &str, most: T) {
    if let Ok(value) = value.parse::<T>() {
        *held = value.min(most);
    }
}

/// Link-local servers carry a zone (`fe80::1%eth0`), which isn't kept.
fn address(word: &str) -> Option<IpAddr> {
    word.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_kubernetes() {
        let text = "# made by kubelet\nsearch default.svc.cluster.local svc.cluster.local\n\
                    nameserver 10.96.0.10\nnameserver fe80::1%eth0\nnameserver nonsense\n\
                    options ndots:5 timeout:2 attempts:99 edns0 trust-ad\n";
        let resolver = Resolver::parse(text);
        assert_eq!(
            resolver.name_servers,
            ["10.96.0.10", "fe80::1"].map(|text| text.parse::<IpAddr>().unwrap())
        );
        assert_eq!(resolver.search, ["default.svc.cluster.local", "svc.cluster.local"]);
        let rest = (resolver.ndots, resolver.timeout_s, resolver.attempts, resolver.edns0);
        assert_eq!(rest, (5, 2, MOST_ATTEMPTS, true));
    }

    #[test]
    fn nothing_gives_the_defaults() {
        assert_eq!(Resolver::parse("\n;\noptions ndots:x\n"), Resolver::default());
    }
}
