//! Addresses by the role they play, so that two of them can't be swapped by accident.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::base::text::Text;

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

/// An address with its port as text. IPv4, the usual case, goes without the machinery of formatting and with one
/// allocation: each connection through a tunnel needs one.
pub fn address_text(address: SocketAddr) -> Text {
    let SocketAddr::V4(v4) = address else { return address.to_string().into() };
    let mut text = Digits::default();
    let octets = v4.ip().octets();
    for (octet, after) in octets.into_iter().zip(*b"...:") {
        text.number(octet.into());
        text.push(after);
    }
    text.number(v4.port());
    text.bytes.get(..text.length).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default().into()
}

/// Room for `255.255.255.255:65535`.
#[derive(Default)]
struct Digits {
    bytes: [u8; 21],
    length: usize,
}

impl Digits {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    fn number(&mut self, number: u16) {
        for power in [10_000, 1_000, 100, 10, 1] {
            if number >= power || power == 1 {
                self.push(b'0' + (number / power % 10).to_le_bytes()[0]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_addresss_text_is_what_display_writes(ip in any::<IpAddr>(), port in any::<u16>()) {
            let address = SocketAddr::new(ip, port);
            prop_assert_eq!(&*address_text(address), address.to_string());
        }
    }

    #[test]
    fn mapped_addresses_become_ipv4_and_others_stay() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(Source::new(mapped).to_string(), "10.0.0.1:80");
        let six: SocketAddr = "[fd00::1]:80".parse().unwrap();
        assert_eq!(Source::new(six).to_string(), "[fd00::1]:80");
    }
}
