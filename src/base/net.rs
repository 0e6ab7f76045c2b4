//! Addresses by the role they play, so that two of them can't be swapped by accident.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Where the application wanted to go, as the kernel recorded it before capture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Captured(pub SocketAddr);

/// What is dialled next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Upstream(pub SocketAddr);

/// Who called: the far end of an accepted connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source(pub SocketAddr);

macro_rules! role {
    ($($name:ident),*) => {$(
        impl $name {
            /// The address with a v4-mapped IPv6 form turned into plain IPv4.
            pub fn new(addr: SocketAddr) -> Self {
                Self(canonical(addr))
            }

            pub fn ip(&self) -> IpAddr {
                self.0.ip()
            }

            pub fn port(&self) -> u16 {
                self.0.port()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

role!(Captured, Upstream, Source);

/// Dual-stack sockets report IPv4 peers as `::ffff:a.b.c.d`; everything above the socket speaks plain IPv4.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_become_ipv4_and_others_stay() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(Source::new(mapped).to_string(), "10.0.0.1:80");
        let six: SocketAddr = "[fd00::1]:80".parse().unwrap();
        assert_eq!(Source::new(six).to_string(), "[fd00::1]:80");
    }
}
