//! Types of records: the two that carry addresses, and the names of all that the reference's library names.

use std::net::IpAddr;

pub const A: u16 = 1;
pub const AAAA: u16 = 28;
pub const IXFR: u16 = 251;
pub const AXFR: u16 = 252;
pub const ANY: u16 = 255;

/// A or AAAA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(kind: u16) -> Option<Self> {
        match kind {
            A => Some(Self::V4),
            AAAA => Some(Self::V6),
            _ => None,
        }
    }

    pub fn kind(self) -> u16 {
        match self {
            Self::V4 => A,
            Self::V6 => AAAA,
        }
    }

    pub fn has(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == (self == Self::V4)
    }
}

/// The type in lower case, as `request_query_type` has it. Askers choose the number, so the rest share one name.
pub fn kind_name(kind: u16) -> &'static str {
    match kind {
        A => "a",
        2 => "ns",
        5 => "cname",
        6 => "soa",
        10 => "null",
        12 => "ptr",
        13 => "hinfo",
        15 => "mx",
        16 => "txt",
        24 => "sig",
        25 => "key",
        AAAA => "aaaa",
        33 => "srv",
        35 => "naptr",
        37 => "cert",
        39 => "dname",
        41 => "opt",
        43 => "ds",
        44 => "sshfp",
        46 => "rrsig",
        47 => "nsec",
        48 => "dnskey",
        50 => "nsec3",
        51 => "nsec3param",
        52 => "tlsa",
        53 => "smimea",
        59 => "cds",
        60 => "cdnskey",
        61 => "openpgpkey",
        62 => "csync",
        64 => "svcb",
        65 => "https",
        250 => "tsig",
        IXFR => "ixfr",
        AXFR => "axfr",
        ANY => "any",
        257 => "caa",
        65_305 => "aname",
        0 => "zero",
        _ => "unknown",
    }
}
