//! The `:authority` of a CONNECT: where the caller wants to go, as text of a peer.

use std::fmt;
use std::net::SocketAddr;

use crate::base::limits::FLOW_ERROR_BYTES;
use crate::base::net::canonical;
use crate::base::text::beginning;

/// What a CONNECT asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Authority<'a> {
    Address(SocketAddr),
    /// A host name with its port; the name is non-empty and made of letters, digits and `-._*`.
    Host {
        name: &'a str,
        port: u16,
    },
}

/// Text that is neither an address nor a host name, each with a port; its beginning, since a peer may have written it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no valid authority pseudo header: {0}")]
pub struct NotAnAuthority(pub String);

impl<'a> Authority<'a> {
    /// Addresses come out canonical: a v4-mapped one means the IPv4 address (reference section 7.2).
    pub fn parse(text: &'a str) -> Result<Self, NotAnAuthority> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Address(canonical(address)));
        }
        let host = || {
            let (name, port) = text.rsplit_once(':')?;
            let fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
            let named = !name.is_empty() && name.len() <= 255 && name.bytes().all(fit);
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            if !named || !digits {
                return None;
            }
            port.parse().ok().map(|port| Self::Host { name, port })
        };
        host().ok_or_else(|| NotAnAuthority(beginning(text, FLOW_ERROR_BYTES).to_owned()))
    }
}

impl fmt::Display for Authority<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_and_hosts_are_told_apart() {
        let parsed = |text| Authority::parse(text).unwrap();
        assert_eq!(parsed("10.0.0.1:80"), Authority::Address("10.0.0.1:80".parse().unwrap()));
        assert_eq!(parsed("[fd00::1]:80"), Authority::Address("[fd00::1]:80".parse().unwrap()));
        assert_eq!(parsed("[::ffff:10.0.0.1]:80"), Authority::Address("10.0.0.1:80".parse().unwrap()));
        assert_eq!(parsed("web.ns.svc:443"), Authority::Host { name: "web.ns.svc", port: 443 });
    }

    #[test]
    fn everything_else_is_refused_with_the_text_in_the_message() {
        for wrong in [
            "",
            ":",
            ":80",
            "junk",
            "web:",
            "web:+80",
            "web:65536",
            "web:http",
            "a b:80",
            "user@web:80",
            "web/x:80",
            "[fd00::1]",
            "fd00::1:80:",
            "we\u{e9}b:80",
            "10.0.0.1",
            "web:80 ",
            "web:80\r\n",
        ] {
            let error = Authority::parse(wrong).expect_err(wrong);
            assert_eq!(error.to_string(), format!("no valid authority pseudo header: {wrong}"));
        }
    }

    proptest! {
        #[test]
        fn what_parses_prints_back_to_the_same(text in "\\PC{0,40}|[a-z0-9.\\[\\]:]{1,24}:[0-9]{1,5}") {
            if let Ok(authority) = Authority::parse(&text) {
                let printed = authority.to_string();
                prop_assert_eq!(Authority::parse(&printed).unwrap(), authority);
            }
        }
    }
}
