//! What name servers say: whether a message is the reply to a query, how long it may be kept, which addresses it has.
//! A reply is handed on as it came.

use std::net::IpAddr;

use super::{Cursor, HEADER_BYTES, Header, Question, Rcode, flag, kind, question_of, read_question};
use crate::base::limits::DNS_CACHED_MOST_S;

const SOA: u16 = 6;
const SIG: u16 = 24;
const TSIG: u16 = 250;

/// Whether a message answers this query, as it was sent: its id, its opcode, its question (in any letters, since some
/// servers change them). Servers that understand nothing leave the question out (RFC 1035 section 4.1.1), and so may
/// answers to updates (RFC 2136 section 3.8).
pub fn answers(message: &[u8], query: &[u8]) -> bool {
    let (Some(reply), Some(asked)) = (Header::read(message), Header::read(query)) else { return false };
    if !reply.is_response() || reply.id != asked.id || reply.opcode() != asked.opcode() {
        return false;
    }
    let Some(question) = question_of(query) else { return true };
    if reply.counts[0] == 0 {
        return asked.opcode() != 0 || matches!(reply.rcode(), Rcode::FormErr | Rcode::NotImp);
    }
    let wanted = query.get(HEADER_BYTES..question.end).unwrap_or_default();
    let told = message.get(HEADER_BYTES..question.end).unwrap_or_default();
    reply.counts[0] == 1 && told.eq_ignore_ascii_case(wanted)
}

/// How a reply may be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keeping {
    pub lifetime_s: u32,
    /// Where its times to live stand.
    pub ttls_at: Vec<usize>,
}

/// Whether and how long a reply may be kept: by the times to live of its answers (RFC 1035 section 3.2.1), or where
/// there are none by its SOA (RFC 2308 section 5). Failures, cut and signed replies are not kept.
pub fn keeping(message: &[u8]) -> Option<Keeping> {
    let header = Header::read(message)?;
    let (question, records) = (question_of(message)?, header.counts);
    if header.is_truncated() || header.opcode() != 0 || records[0] != 1 {
        return None;
    }
    let negative = match header.rcode() {
        Rcode::NoError => records[1] == 0,
        Rcode::NxDomain => true,
        Rcode::FormErr | Rcode::ServFail | Rcode::NotImp | Rcode::Refused | Rcode::Other(_) => return None,
    };
    let mut cursor = Cursor { message, at: question.end };
    let (mut lifetime, mut has_soa, mut ttls_at) = (DNS_CACHED_MOST_S, false, Vec::new());
    for (section, count) in records.iter().enumerate().skip(1) {
        for _ in 0..*count {
            let record = cursor.record()?;
            match record.kind {
                super::OPT => continue,
                SIG | TSIG => return None,
                _ => ttls_at.push(record.ttl_at),
            }
            // RFC 2181 section 8: the highest bit makes it 0.
            let ttl = if record.ttl > u32::MAX >> 1 { 0 } else { record.ttl };
            if section == 1 {
                lifetime = lifetime.min(ttl);
            }
            if section == 2 && record.kind == SOA && negative {
                let minimum = record.data.last_chunk().map(|bytes| u32::from_be_bytes(*bytes))?;
                lifetime = lifetime.min(ttl).min(minimum);
                has_soa = true;
            }
        }
    }
    let may = lifetime > 0 && (!negative || has_soa);
    may.then_some(Keeping { lifetime_s: lifetime, ttls_at })
}

/// Takes seconds off the times to live of a reply.
pub fn age(message: &mut [u8], ttls_at: &[usize], seconds: u32) {
    for at in ttls_at {
        let Some(place) = message.get_mut(*at..).and_then(|rest| rest.first_chunk_mut()) else { continue };
        *place = u32::from_be_bytes(*place).saturating_sub(seconds).to_be_bytes();
    }
}

/// The addresses among the answers, in their order.
pub fn addresses(message: &[u8]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let Some(header) = Header::read(message) else { return found };
    let Some(question) = question_of(message) else { return found };
    let mut cursor = Cursor { message, at: question.end };
    for _ in 0..header.counts[1] {
        let Some(record) = cursor.record() else { break };
        if record.class != super::CLASS_IN {
            continue;
        }
        let ip = match record.kind {
            kind::A => record.data.try_into().ok().map(|octets: [u8; 4]| IpAddr::from(octets)),
            kind::AAAA => record.data.try_into().ok().map(|octets: [u8; 16]| IpAddr::from(octets)),
            _ => None,
        };
        found.extend(ip);
    }
    found
}

/// Appends what is left of a reply that is too long for its asker: header and question, with TC.
pub fn cut(message: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let Some(header) = message.get(..HEADER_BYTES) else { return };
    out.extend_from_slice(header);
    let question = question_of(message).map(|Question { end, .. }| end);
    out.extend_from_slice(message.get(HEADER_BYTES..question.unwrap_or(HEADER_BYTES)).unwrap_or_default());
    let Some(written) = out.get_mut(start + 2..start + HEADER_BYTES) else { return };
    let flags = Header::read(message).map_or(0, |header| header.flags) | flag::TRUNCATED;
    let words = [flags, u16::from(question.is_some()), 0, 0, 0];
    for (place, word) in written.chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// Whether the rest of a transfer of a zone follows: it ends with the SOA that it began with (RFC 5936 section 2.2).
/// `None`: this message doesn't look like a part of one.
pub fn soas(message: &[u8]) -> Option<usize> {
    let header = Header::read(message)?;
    let mut cursor = Cursor { message, at: HEADER_BYTES };
    for _ in 0..header.counts[0] {
        read_question(&mut cursor)?;
    }
    let mut count = 0;
    for _ in 0..header.counts[1] {
        count += usize::from(cursor.record()?.kind == SOA);
    }
    (header.rcode() == Rcode::NoError && header.counts[1] > 0).then_some(count)
}
