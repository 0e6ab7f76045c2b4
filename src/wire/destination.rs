//! Where a client of the explicit proxies wants to go, as HTTP CONNECT (RFC 9110 section 9.3.6) or SOCKS5 (RFC 1928
//! section 4) says it: one valid form for both.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::base::net::canonical;
use crate::base::text::Text;
use crate::mesh::authority::Authority;

/// A value of this type can be called: the port isn't 0, and an address is that of one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    Address(SocketAddr),
    /// In lower case; letters, digits and `-._`. A final dot says that it is whole.
    Name {
        host: Text,
        port: u16,
    },
}

/// Why something can't be called.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoDestination {
    #[error("{0:?} is not HOST:PORT")]
    Form(String),
    #[error("{0:?} is no host name")]
    Name(String),
    #[error("port 0 can't be called")]
    Port,
    #[error("{0} is no host's address")]
    Ip(IpAddr),
}

impl Destination {
    /// `HOST:PORT`, an IPv6 address in brackets (the authority form of RFC 9112 section 3.2.3).
    pub fn parse(authority: &str) -> Result<Self, NoDestination> {
        match Authority::parse(authority) {
            Ok(Authority::Address(address)) => Self::at(address),
            Ok(Authority::Host { name, port }) => Self::named(name, port),
            Err(_) => Err(NoDestination::Form(authority.to_owned())),
        }
    }

    pub fn at(address: SocketAddr) -> Result<Self, NoDestination> {
        let address = canonical(address);
        let ip = address.ip();
        if address.port() == 0 {
            return Err(NoDestination::Port);
        }
        // The kernel takes a call of the unspecified address for one of the loopback.
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::from([255; 4]) {
            return Err(NoDestination::Ip(ip));
        }
        Ok(Self::Address(address))
    }

    /// A name that is an address in disguise comes out as the address.
    pub fn named(name: &str, port: u16) -> Result<Self, NoDestination> {
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Self::at(SocketAddr::new(ip, port));
        }
        let host = name.strip_suffix('.').unwrap_or(name);
        let is_label = |label: &str| {
            let fit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(fit)
        };
        // RFC 1035 section 2.3.4, as text without the final dot.
        if host.len() > 253 || !host.split('.').all(is_label) {
            return Err(NoDestination::Name(name.to_owned()));
        }
        if port == 0 {
            return Err(NoDestination::Port);
        }
        Ok(Self::Name { host: name.to_ascii_lowercase().into(), port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_and_names_are_told_apart_and_made_plain() {
        let parsed = |text| Destination::parse(text).unwrap().to_string();
        assert_eq!(parsed("10.0.0.1:80"), "10.0.0.1:80");
        assert_eq!(parsed("[::ffff:10.0.0.1]:80"), "10.0.0.1:80");
        assert_eq!(parsed("[fd00::1]:443"), "[fd00::1]:443");
        assert_eq!(parsed("Web.Default.SVC.:443"), "web.default.svc.:443");
        let disguised = Destination::named("fd00::1", 80).unwrap();
        assert_eq!(disguised, Destination::Address("[fd00::1]:80".parse().unwrap()));
    }

    #[test]
    fn what_is_nobodys_place_is_refused_with_its_reason() {
        let long = format!("{}a:80", "a.".repeat(127));
        for (wrong, why) in [
            ("web", "is not HOST:PORT"),
            ("web:", "is not HOST:PORT"),
            ("user@web:80", "is not HOST:PORT"),
            ("http://web:80", "is not HOST:PORT"),
            ("web:0", "port 0"),
            ("10.0.0.1:0", "port 0"),
            ("0.0.0.0:80", "no host's address"),
            ("[::]:80", "no host's address"),
            ("[::ffff:0.0.0.0]:80", "no host's address"),
            ("224.0.0.1:80", "no host's address"),
            ("255.255.255.255:80", "no host's address"),
            ("a..b:80", "no host name"),
            (".:80", "no host name"),
            ("*.b:80", "no host name"),
            (&long, "no host name"),
        ] {
            let error = Destination::parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_prints_back_to_the_same(text in "\\PC{0,40}|[a-zA-Z0-9.\\[\\]:_-]{1,24}:[0-9]{1,5}") {
            if let Ok(destination) = Destination::parse(&text) {
                prop_assert_eq!(Destination::parse(&destination.to_string()), Ok(destination));
            }
        }
    }
}
