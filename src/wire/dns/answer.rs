//! Writing answers: addresses that the mesh knows, and errors. Owners are pointers to the question, so that an
//! answer with many addresses takes 16 or 28 bytes for each.

use std::net::IpAddr;

use super::{CLASS_IN, HEADER_BYTES, LABEL_BYTES, NAME_BYTES, OPT, Query, Rcode, flag, kind, question_of};
use crate::base::limits::{DNS_MESSAGE_BYTES, DNS_TTL_S};

const CNAME: u16 = 5;
/// A pointer to the question's name (RFC 1035 section 4.1.4).
const TO_QUESTION: u16 = 0xc000 | 12;
const OPT_BYTES: usize = 11;

/// What the mesh answers.
#[derive(Clone, Copy, Debug)]
pub struct Owned<'a> {
    /// The name that the asked one stands for, in lower case, where it is another: a CNAME leads there.
    pub alias: Option<&'a str>,
    /// All of the family that was asked for.
    pub addresses: &'a [IpAddr],
}

/// Appends the answer to a query; past `limit_bytes` records are left out and TC is set.
pub fn write(message: &[u8], query: &Query, owned: Owned<'_>, limit_bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let Some(question) = &query.question else { return write_error(message, Rcode::FormErr, out) };
    let kept = if query.edns.is_some() { OPT_BYTES } else { 0 };
    let room = limit_bytes.min(DNS_MESSAGE_BYTES).saturating_sub(kept);
    let asked = message.get(HEADER_BYTES..question.end).unwrap_or_default();
    let copied = query.header.flags & (flag::RECURSION_DESIRED | flag::CHECKING_DISABLED);
    let mut flags = flag::RESPONSE | flag::AUTHORITATIVE | flag::RECURSION_AVAILABLE | copied;
    out.extend([0; HEADER_BYTES]);
    out.extend_from_slice(asked);

    let mut answers: u16 = 0;
    let mut owner = Owner::of(asked, question.host.as_deref());
    let before = out.len();
    if let Some(target) = owned.alias.filter(|_| !owned.addresses.is_empty()) {
        owner.write(out, start);
        out.extend(CNAME.to_be_bytes());
        write_class_and_ttl(out);
        let length_at = out.len();
        out.extend([0, 0]);
        let target_at = out.len();
        write_host(target, out);
        let length = u16::try_from(out.len() - target_at).unwrap_or_default();
        if let Some(place) = out.get_mut(length_at..target_at) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        owner = Owner::At(pointer(target_at - start));
        answers += 1;
    }
    if out.len() - start > room {
        // A query may be longer than what its asker takes.
        out.truncate(before);
        answers = 0;
        flags |= flag::TRUNCATED;
    } else {
        for ip in owned.addresses {
            let size = owner.bytes() + 10 + if ip.is_ipv4() { 4 } else { 16 };
            if out.len() - start + size > room || answers == u16::MAX {
                flags |= flag::TRUNCATED;
                break;
            }
            owner.write(out, start);
            write_address(*ip, out);
            answers += 1;
        }
    }
    let edns = query.edns.map(|edns| {
        out.push(0);
        out.extend(OPT.to_be_bytes());
        out.extend(edns.payload_bytes.max(512).to_be_bytes());
        out.extend([0, edns.version, if edns.dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
    });
    write_header(out, start, query.header.id, flags, [1, answers, 0, u16::from(edns.is_some())]);
}

/// Appends an error in answer to a message, with its question where there is one; nothing where it has no header.
pub fn write_error(message: &[u8], rcode: Rcode, out: &mut Vec<u8>) {
    let Some(header) = super::Header::read(message) else { return };
    let start = out.len();
    out.extend([0; HEADER_BYTES]);
    let question = question_of(message);
    if let Some(question) = &question {
        out.extend_from_slice(message.get(HEADER_BYTES..question.end).unwrap_or_default());
    }
    let copied = header.flags & (flag::OPCODE | flag::RECURSION_DESIRED | flag::CHECKING_DISABLED);
    let flags = flag::RESPONSE | copied | rcode.bits();
    write_header(out, start, header.id, flags, [u16::from(question.is_some()), 0, 0, 0]);
}

/// Appends a host's name as labels; `false` (and nothing whole) where it can't be one.
pub(super) fn write_host(host: &str, out: &mut Vec<u8>) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.is_empty() || host.len() + 2 > NAME_BYTES {
        return false;
    }
    for label in host.split('.') {
        let fits =
            (1..=LABEL_BYTES).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic());
        let Some(length) = u8::try_from(label.len()).ok().filter(|_| fits) else { return false };
        out.push(length);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    true
}

/// The owner of the records that follow.
enum Owner<'a> {
    /// A pointer.
    At(u16),
    /// Asked for in other letters than it is answered by (lower case, as the reference): written once.
    Lower(&'a str, usize),
}

impl<'a> Owner<'a> {
    fn of(asked: &[u8], host: Option<&'a str>) -> Self {
        match host {
            Some(host) if asked.iter().any(u8::is_ascii_uppercase) => Self::Lower(host, host.len() + 2),
            _ => Self::At(TO_QUESTION),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::At(_) => 2,
            Self::Lower(_, bytes) => *bytes,
        }
    }

    fn write(&mut self, out: &mut Vec<u8>, start: usize) {
        match self {
            Self::At(pointer) => out.extend(pointer.to_be_bytes()),
            Self::Lower(host, _) => {
                let at = out.len() - start;
                write_host(host, out);
                *self = Self::At(pointer(at));
            }
        }
    }
}

fn pointer(at: usize) -> u16 {
    // Names that are pointed at follow the question, far below 16 KiB.
    u16::try_from(at).map_or(TO_QUESTION, |at| 0xc000 | at)
}

fn write_class_and_ttl(out: &mut Vec<u8>) {
    out.extend(CLASS_IN.to_be_bytes());
    out.extend(DNS_TTL_S.to_be_bytes());
}

fn write_address(ip: IpAddr, out: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => {
            out.extend(kind::A.to_be_bytes());
            write_class_and_ttl(out);
            out.extend([0, 4]);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.extend(kind::AAAA.to_be_bytes());
            write_class_and_ttl(out);
            out.extend([0, 16]);
            out.extend(ip.octets());
        }
    }
}

fn write_header(out: &mut [u8], start: usize, id: u16, flags: u16, counts: [u16; 4]) {
    let [questions, answers, authorities, additionals] = counts;
    let words = [id, flags, questions, answers, authorities, additionals];
    let places = out.get_mut(start..).unwrap_or_default().chunks_exact_mut(2);
    for (place, word) in places.zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}
