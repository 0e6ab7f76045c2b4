//! SOCKS5 as its server hears it (RFC 1928, reference section 9): the greeting, the request, the replies. Without
//! authentication, CONNECT only.

use std::net::SocketAddr;

use crate::wire::destination::{Destination, NoDestination};

/// The longest message: a request for a name of 255 bytes.
pub const MESSAGE_BYTES: usize = 262;
/// The answer to a greeting that offers to go without authentication.
pub const NO_AUTHENTICATION: [u8; 2] = [VERSION, 0];

const VERSION: u8 = 5;
const CONNECT: u8 = 1;

/// REP of RFC 1928 section 6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

impl Reply {
    /// The bound address stays unsaid: it is on another node.
    pub fn bytes(self) -> [u8; 10] {
        let code = match self {
            Self::Succeeded => 0,
            Self::GeneralFailure => 1,
            Self::NotAllowed => 2,
            Self::NetworkUnreachable => 3,
            Self::HostUnreachable => 4,
            Self::ConnectionRefused => 5,
            Self::CommandNotSupported => 7,
            Self::AddressTypeNotSupported => 8,
        };
        [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// Why a client isn't understood.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    #[error("version {0} is not SOCKS5")]
    Version(u8),
    #[error("no authentication method is offered")]
    NoMethods,
    #[error("none of the authentication methods offered is \"none\"")]
    NoAcceptableMethod,
    #[error("command {0} is not CONNECT")]
    Command(u8),
    #[error("address type {0} is not known")]
    AddressType(u8),
    #[error(transparent)]
    Destination(#[from] NoDestination),
}

impl Malformed {
    /// What the client is told before the connection ends.
    pub fn answer(&self) -> Vec<u8> {
        match self {
            // RFC 1928 section 3: no acceptable methods.
            Self::NoMethods | Self::NoAcceptableMethod => vec![VERSION, 0xff],
            Self::AddressType(_) => Reply::AddressTypeNotSupported.bytes().into(),
            // The reference's code for everything that is out of form.
            Self::Version(_) | Self::Command(_) | Self::Destination(_) => {
                Reply::CommandNotSupported.bytes().into()
            }
        }
    }
}

/// The greeting and its length; `None` until it is whole.
pub fn greeting(said: &[u8]) -> Result<Option<((), usize)>, Malformed> {
    let Some((&version, rest)) = said.split_first() else { return Ok(None) };
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    let Some((&count, rest)) = rest.split_first() else { return Ok(None) };
    if count == 0 {
        return Err(Malformed::NoMethods);
    }
    let Some(methods) = rest.get(..usize::from(count)) else { return Ok(None) };
    if !methods.contains(&0) {
        return Err(Malformed::NoAcceptableMethod);
    }
    Ok(Some(((), 2 + usize::from(count))))
}

/// The request and its length; `None` until it is whole. What can be refused is refused at its first byte.
pub fn request(said: &[u8]) -> Result<Option<(Destination, usize)>, Malformed> {
    let byte = |place: usize| said.get(place).copied();
    if let Some(version) = byte(0).filter(|version| *version != VERSION) {
        return Err(Malformed::Version(version));
    }
    if let Some(command) = byte(1).filter(|command| *command != CONNECT) {
        return Err(Malformed::Command(command));
    }
    let Some(kind) = byte(3) else { return Ok(None) };
    let (start, length) = match kind {
        1 => (4, 4),
        4 => (4, 16),
        3 => match byte(4) {
            Some(length) => (5, usize::from(length)),
            None => return Ok(None),
        },
        other => return Err(Malformed::AddressType(other)),
    };
    let end = start + length + 2;
    let Some((host, [high, low])) = said.get(start..end).and_then(|part| part.split_last_chunk::<2>()) else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([*high, *low]);
    let destination = match (kind, <[u8; 4]>::try_from(host), <[u8; 16]>::try_from(host)) {
        (1, Ok(v4), _) => Destination::at(SocketAddr::new(v4.into(), port)),
        (4, _, Ok(v6)) => Destination::at(SocketAddr::new(v6.into(), port)),
        _ => match std::str::from_utf8(host) {
            Ok(name) => Destination::named(name, port),
            Err(_) => Err(NoDestination::Name(String::from_utf8_lossy(host).into_owned())),
        },
    };
    Ok(Some((destination?, end)))
}

/// What the fuzzer runs: any bytes as either message, and every beginning of them.
#[doc(hidden)]
pub fn fuzz_socks5(data: &[u8]) {
    fn steady<T: PartialEq + std::fmt::Debug>(
        data: &[u8],
        parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, Malformed>,
    ) {
        let whole = parse(data);
        if let Ok(Some((_, length))) = &whole {
            assert!((1..=MESSAGE_BYTES).contains(length) && *length <= data.len(), "{length} bytes");
            assert_eq!(parse(data.get(..*length).unwrap_or_default()), whole, "the rest plays a part");
        }
        assert!(data.len() < MESSAGE_BYTES || !matches!(whole, Ok(None)), "never decided: {data:?}");
        for end in 0..data.len().min(MESSAGE_BYTES) {
            match parse(data.get(..end).unwrap_or_default()) {
                Ok(None) => {}
                decided => assert_eq!(decided, whole, "what came later changed the mind"),
            }
        }
    }
    steady(data, greeting);
    steady(data, request);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;

    fn asked(parts: &[&[u8]]) -> Result<Option<(Destination, usize)>, Malformed> {
        request(&parts.concat())
    }

    #[test]
    fn a_greeting_must_offer_to_go_without_authentication() {
        assert_eq!(greeting(&[5, 1, 0]), Ok(Some(((), 3))));
        assert_eq!(greeting(&[5, 3, 2, 1, 0, 5, 1]), Ok(Some(((), 5))), "what follows is the request");
        for part in [&[][..], &[5], &[5, 2], &[5, 2, 0]] {
            assert_eq!(greeting(part), Ok(None));
        }
        assert_eq!(greeting(&[4, 1]), Err(Malformed::Version(4)));
        assert_eq!(greeting(&[5, 0]), Err(Malformed::NoMethods));
        assert_eq!(greeting(&[5, 1, 2]), Err(Malformed::NoAcceptableMethod));
        assert_eq!(Malformed::NoAcceptableMethod.answer(), [5, 0xff]);
    }

    #[test]
    fn all_three_kinds_of_addresses_are_read_and_what_follows_is_left() {
        let four = asked(&[&[5, 1, 0, 1, 10, 0, 0, 1, 0, 80], b"GET"]).unwrap().unwrap();
        assert_eq!((four.0.to_string().as_str(), four.1), ("10.0.0.1:80", 10));
        let six = Ipv6Addr::from(0xfd00 << 112 | 1).octets();
        let six = asked(&[&[5, 1, 0, 4], &six, &[1, 187], b"hello"]).unwrap().unwrap();
        assert_eq!((six.0.to_string().as_str(), six.1), ("[fd00::1]:443", 22));
        let name = asked(&[&[5, 1, 0, 3, 7], b"Web.svc", &[0, 80, 22]]).unwrap().unwrap();
        assert_eq!((name.0.to_string().as_str(), name.1), ("web.svc:80", 14));
        let address = asked(&[&[5, 1, 0, 3, 8], b"10.0.0.1", &[0, 80]]).unwrap().unwrap().0;
        assert_eq!(address, Destination::Address("10.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn everything_else_is_refused_with_the_code_for_it() {
        for (said, code) in [
            (&[4, 1, 0, 80][..], 7),
            (&[5, 2], 7),
            (&[5, 3], 7),
            (&[5, 1, 0, 2], 8),
            (&[5, 1, 0, 1, 10, 0, 0, 1, 0, 0], 7),
            (&[5, 1, 0, 1, 0, 0, 0, 0, 0, 80], 7),
            (&[5, 1, 0, 3, 0, 0, 80], 7),
            (&[5, 1, 0, 3, 2, 0xff, 0xfe, 0, 80], 7),
            (&[5, 1, 0, 3, 3, b'a', b' ', b'b', 0, 80], 7),
        ] {
            let error = request(said).expect_err("a refusal");
            assert_eq!(error.answer(), [5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{error}");
        }
        assert_eq!(Reply::Succeeded.bytes(), [5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn fuzz_socks5_survives_any_bytes(
            head in prop::sample::select(vec![vec![], vec![5], vec![5, 1], vec![5, 1, 0, 1], vec![5, 1, 0, 3, 9]]),
            data in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            fuzz_socks5(&[head, data].concat());
        }
    }
}
