//! The PROXY protocol header, version 2, that tells an application who calls through an application tunnel (reference
//! section 7.6; HAProxy's proxy-protocol.txt section 2.2). Written only: nobody sends us one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::base::limits::PROXY_IDENTITY_BYTES;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;
/// STREAM over each family.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
/// The caller's SPIFFE name: a type of the range for applications (0xE0 and above are experimental, these are free).
const IDENTITY: u8 = 0xd0;

/// An identity that no header holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an identity of {0} bytes is longer than a SPIFFE name may be")]
pub struct TooLong(pub usize);

/// A header for a caller at `source` that asked for `target`. Where only one of them is IPv4, it is written as the
/// IPv6 address that stands for it.
pub fn header(source: SocketAddr, target: SocketAddr, identity: Option<&str>) -> Result<Vec<u8>, TooLong> {
    let mut body = Vec::with_capacity(128);
    let family = match (source.ip(), target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            body.extend_from_slice(&source.octets());
            body.extend_from_slice(&target.octets());
            TCP4
        }
        (source, target) => {
            body.extend_from_slice(&six(source).octets());
            body.extend_from_slice(&six(target).octets());
            TCP6
        }
    };
    body.extend_from_slice(&source.port().to_be_bytes());
    body.extend_from_slice(&target.port().to_be_bytes());
    if let Some(identity) = identity {
        let length = length(identity).ok_or(TooLong(identity.len()))?;
        body.push(IDENTITY);
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(identity.as_bytes());
    }
    let mut header = SIGNATURE.to_vec();
    header.extend_from_slice(&[VERSION_AND_COMMAND, family]);
    // The identity is bounded far below what 16 bits count.
    header.extend_from_slice(&u16::try_from(body.len()).unwrap_or_default().to_be_bytes());
    header.append(&mut body);
    Ok(header)
}

fn length(identity: &str) -> Option<u16> {
    u16::try_from(identity.len()).ok().filter(|_| identity.len() <= PROXY_IDENTITY_BYTES)
}

fn six(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a header as a receiver would, by the specification.
    fn read(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr, Option<String>)> {
        let rest = bytes.strip_prefix(b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21")?;
        let (&family, rest) = rest.split_first()?;
        let (length, body) = rest.split_at(2);
        if usize::from(u16::from_be_bytes(length.try_into().ok()?)) != body.len() {
            return None;
        }
        let width = match family {
            0x11 => 4,
            0x21 => 16,
            _ => return None,
        };
        let ip = |bytes: &[u8]| match width {
            4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
            _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_canonical(),
        };
        let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
        let source = SocketAddr::new(ip(&body[..width]), port(2 * width));
        let target = SocketAddr::new(ip(&body[width..2 * width]), port(2 * width + 2));
        let identity = match &body[2 * width + 4..] {
            [] => None,
            [0xd0, high, low, text @ ..] if usize::from(u16::from_be_bytes([*high, *low])) == text.len() => {
                Some(String::from_utf8(text.to_vec()).ok()?)
            }
            _ => return None,
        };
        Some((source, target, identity))
    }

    #[test]
    fn a_header_is_these_bytes() {
        let header =
            header("10.0.0.1:1234".parse().unwrap(), "10.1.0.1:80".parse().unwrap(), Some("a")).unwrap();
        let told = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x10\
            \x0a\x00\x00\x01\x0a\x01\x00\x01\x04\xd2\x00\x50\xd0\x00\x01a";
        assert_eq!(header, told);
    }

    #[test]
    fn an_identity_has_a_bound() {
        let at = "10.0.0.1:1".parse().unwrap();
        let longest = "a".repeat(PROXY_IDENTITY_BYTES);
        assert_eq!(read(&header(at, at, Some(&longest)).unwrap()), Some((at, at, Some(longest.clone()))));
        assert_eq!(header(at, at, Some(&(longest + "a"))), Err(TooLong(PROXY_IDENTITY_BYTES + 1)));
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port))
    }

    proptest! {
        #[test]
        fn a_receiver_reads_what_was_written(
            source in address(),
            target in address(),
            identity in proptest::option::of("[ -~]{0,300}"),
        ) {
            let written = header(source, target, identity.as_deref()).unwrap();
            prop_assert_eq!(read(&written), Some((source, target, identity)));
        }
    }
}
