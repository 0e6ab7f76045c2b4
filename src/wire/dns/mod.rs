//! DNS messages (RFC 1035, EDNS: RFC 6891), as far as a proxy reads them: the question of a query, what a reply says
//! of itself, and answers with addresses. What is forwarded stays the bytes that came; only its id is exchanged.
//! Why not a library: deploy/docs/decisions/dns-codec.md.

pub mod answer;
mod kind;
#[cfg(test)]
mod oracle;
pub mod reply;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

pub use kind::{AAAA, ANY, AXFR, Family, IXFR, kind_name};

/// Length of the fixed part.
pub const HEADER_BYTES: usize = 12;
const CLASS_IN: u16 = 1;
const OPT: u16 = 41;
const NAME_BYTES: usize = 255;
const LABEL_BYTES: usize = 63;

/// Bits of the second word of the header (RFC 1035 section 4.1.1, RFC 4035 section 3.1.6).
pub mod flag {
    pub const RESPONSE: u16 = 1 << 15;
    pub const AUTHORITATIVE: u16 = 1 << 10;
    pub const TRUNCATED: u16 = 1 << 9;
    pub const RECURSION_DESIRED: u16 = 1 << 8;
    pub const RECURSION_AVAILABLE: u16 = 1 << 7;
    pub const AUTHENTIC: u16 = 1 << 5;
    pub const CHECKING_DISABLED: u16 = 1 << 4;
    pub const OPCODE: u16 = 0xf << 11;
}

/// RFC 1035 section 4.1.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rcode {
    NoError,
    FormErr,
    ServFail,
    NxDomain,
    NotImp,
    Refused,
    Other(u8),
}

impl Rcode {
    fn bits(self) -> u16 {
        match self {
            Self::NoError => 0,
            Self::FormErr => 1,
            Self::ServFail => 2,
            Self::NxDomain => 3,
            Self::NotImp => 4,
            Self::Refused => 5,
            Self::Other(bits) => bits.into(),
        }
    }
}

/// The fixed part of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub id: u16,
    pub flags: u16,
    /// Questions, answers, authorities, additionals.
    pub counts: [u16; 4],
}

impl Header {
    pub fn read(message: &[u8]) -> Option<Self> {
        let mut cursor = Cursor { message, at: 0 };
        let (id, flags) = (cursor.word()?, cursor.word()?);
        Some(Self { id, flags, counts: [cursor.word()?, cursor.word()?, cursor.word()?, cursor.word()?] })
    }

    pub fn is_response(&self) -> bool {
        self.flags & flag::RESPONSE != 0
    }

    pub fn is_truncated(&self) -> bool {
        self.flags & flag::TRUNCATED != 0
    }

    /// 0 is an ordinary query.
    pub fn opcode(&self) -> u16 {
        (self.flags & flag::OPCODE) >> 11
    }

    pub fn rcode(&self) -> Rcode {
        match self.flags & 0xf {
            0 => Rcode::NoError,
            1 => Rcode::FormErr,
            2 => Rcode::ServFail,
            3 => Rcode::NxDomain,
            4 => Rcode::NotImp,
            5 => Rcode::Refused,
            other => Rcode::Other(other.to_be_bytes()[1]),
        }
    }
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Lower case, without the final dot; none for names that no host has (other bytes, or a dot within a label).
    pub host: Option<Box<str>>,
    pub kind: u16,
    pub class: u16,
    /// Where the question ends in its message; it begins behind the header.
    pub end: usize,
}

impl Question {
    /// The address family that is asked for, where addresses are.
    pub fn family(&self) -> Option<Family> {
        Family::of(self.kind).filter(|_| self.class == CLASS_IN)
    }
}

/// What the asker says of itself beyond RFC 1035.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edns {
    pub payload_bytes: u16,
    pub version: u8,
    pub dnssec_ok: bool,
    /// Cookies, client subnets and the like: answers may depend on them.
    pub has_options: bool,
}

/// A query that came in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    pub header: Header,
    /// None where the message has none, or is of another opcode and not like a query.
    pub question: Option<Question>,
    pub edns: Option<Edns>,
    /// Nothing but a question and perhaps EDNS without options: equal to any other that asks the same.
    pub is_plain: bool,
}

/// Why a message isn't answered as a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// Not even an id to answer to.
    #[error("shorter than a header")]
    Short,
    #[error("got a response as a request from id: {0}")]
    Response(u16),
    /// To be answered with FORMERR.
    #[error("malformed")]
    Malformed,
}

impl Query {
    /// Reads a message. Only ordinary queries have to be well-formed: what they mean decides where they go.
    pub fn parse(message: &[u8]) -> Result<Self, Unfit> {
        let header = Header::read(message).ok_or(Unfit::Short)?;
        if header.is_response() {
            return Err(Unfit::Response(header.id));
        }
        let parsed = Self::parse_rest(message, header);
        if header.opcode() == 0 {
            return parsed.ok_or(Unfit::Malformed);
        }
        let question = question_of(message);
        Ok(Self { header, question, edns: parsed.and_then(|query| query.edns), is_plain: false })
    }

    fn parse_rest(message: &[u8], header: Header) -> Option<Self> {
        let mut cursor = Cursor { message, at: HEADER_BYTES };
        let [questions, answers, authorities, additionals] = header.counts;
        let question = match questions {
            0 => None,
            1 => Some(read_question(&mut cursor)?),
            // RFC 9619.
            _ => return None,
        };
        let mut edns = None;
        let mut others = false;
        let total = u32::from(answers) + u32::from(authorities) + u32::from(additionals);
        for _ in 0..total {
            let record = cursor.record()?;
            if record.kind != OPT {
                others = true;
                continue;
            }
            if edns.is_some() || record.has_owner {
                return None;
            }
            let [_, version, high, _] = record.ttl.to_be_bytes();
            edns = Some(Edns {
                payload_bytes: record.class,
                version,
                dnssec_ok: high & 0x80 != 0,
                has_options: !record.data.is_empty(),
            });
        }
        let is_plain = question.is_some() && !others && edns.is_none_or(|edns| !edns.has_options);
        Some(Self { header, question, edns, is_plain })
    }

    /// The longest datagram that the asker takes.
    pub fn datagram_bytes(&self) -> usize {
        let told = self.edns.map_or(0, |edns| usize::from(edns.payload_bytes));
        told.max(crate::base::limits::DNS_PLAIN_BYTES)
    }
}

/// The first question of any message, where it has one that can be read.
pub fn question_of(message: &[u8]) -> Option<Question> {
    let header = Header::read(message)?;
    if header.counts[0] == 0 {
        return None;
    }
    read_question(&mut Cursor { message, at: HEADER_BYTES })
}

/// The name that a message asks for, as logs show it: with its final dot, foreign bytes as `\DDD` (RFC 1035 5.1).
pub fn shown_name(message: &[u8]) -> String {
    let mut shown = String::new();
    let mut cursor = Cursor { message, at: HEADER_BYTES };
    while let Some(length) = cursor.byte().filter(|length| *length > 0 && usize::from(*length) <= LABEL_BYTES)
    {
        let Some(label) = cursor.take(length.into()) else { break };
        for byte in label {
            match byte {
                b'.' | b'\\' => shown.extend(['\\', char::from(*byte)]),
                _ if byte.is_ascii_graphic() => shown.push(char::from(byte.to_ascii_lowercase())),
                _ => drop(write!(shown, "\\{byte:03}")),
            }
        }
        shown.push('.');
    }
    if shown.is_empty() { ".".to_owned() } else { shown }
}

/// Puts another id into a message.
pub fn set_id(message: &mut [u8], id: u16) {
    if let Some(place) = message.first_chunk_mut() {
        *place = id.to_be_bytes();
    }
}

/// Appends a query for a host's addresses; `false` where no host can have this name.
pub fn write_query(host: &str, family: Family, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.extend([0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    if !answer::write_host(host, out) {
        out.truncate(start);
        return false;
    }
    out.extend(family.kind().to_be_bytes());
    out.extend(CLASS_IN.to_be_bytes());
    // EDNS without options (RFC 6891 section 6.1.2).
    out.push(0);
    out.extend(OPT.to_be_bytes());
    out.extend(crate::base::limits::DNS_EDNS_BYTES.to_be_bytes());
    out.extend([0; 6]);
    true
}

fn read_question(cursor: &mut Cursor<'_>) -> Option<Question> {
    let host = read_host(cursor)?;
    let (kind, class) = (cursor.word()?, cursor.word()?);
    Some(Question { host, kind, class, end: cursor.at })
}

/// A name without compression: nothing before a question could be pointed at.
#[expect(clippy::option_option, reason = "malformed, and well-formed but no host's, are two things")]
fn read_host(cursor: &mut Cursor<'_>) -> Option<Option<Box<str>>> {
    let start = cursor.at;
    let mut host = String::with_capacity(64);
    let mut plain = true;
    loop {
        let length = usize::from(cursor.byte()?);
        if length == 0 {
            break;
        }
        if length > LABEL_BYTES {
            return None;
        }
        let label = cursor.take(length)?;
        if cursor.at - start >= NAME_BYTES {
            return None;
        }
        if !host.is_empty() {
            host.push('.');
        }
        for byte in label {
            plain &= byte.is_ascii_graphic() && *byte != b'.';
            host.push(char::from(byte.to_ascii_lowercase()));
        }
    }
    Some(Some(host.into_boxed_str()).filter(|_| plain))
}

/// A resource record as it stands in a message.
struct Record<'a> {
    /// Its name isn't the root's.
    has_owner: bool,
    kind: u16,
    class: u16,
    ttl: u32,
    ttl_at: usize,
    data: &'a [u8],
}

struct Cursor<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.message.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn word(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
    }

    fn long(&mut self) -> Option<u32> {
        self.take(4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Steps over a name; where it is compressed, the pointer ends it, so that no loop can be built.
    fn skip_name(&mut self) -> Option<()> {
        loop {
            let length = self.byte()?;
            match length >> 6 {
                0 if length == 0 => return Some(()),
                0 => drop(self.take(length.into())?),
                3 => return self.byte().map(drop),
                _ => return None,
            }
        }
    }

    fn record(&mut self) -> Option<Record<'a>> {
        let start = self.at;
        self.skip_name()?;
        let has_owner = self.at - start > 1;
        let (kind, class) = (self.word()?, self.word()?);
        let ttl_at = self.at;
        let ttl = self.long()?;
        let length = self.word()?;
        Some(Record { has_owner, kind, class, ttl, ttl_at, data: self.take(length.into())? })
    }
}

/// Any bytes as a query and as the reply to one: whatever is read of them can be written again.
pub fn fuzz_dns(data: &[u8]) {
    let split = data.first().map_or(0, |byte| usize::from(*byte)).min(data.len());
    let (query, message) = data.split_at(split);
    let _ = shown_name(message);
    let _ = reply::answers(message, query);
    let _ = reply::keeping(message);
    let _ = reply::addresses(message);
    let mut out = Vec::new();
    if let Ok(parsed) = Query::parse(message) {
        let ips = [[10, 0, 0, 1].into(), [0_u16; 8].into()];
        answer::write(message, &parsed, answer::Owned { alias: None, addresses: &ips }, 512, &mut out);
        assert!(out.len() <= 512 && Header::read(&out).is_some());
    }
    out.clear();
    answer::write_error(message, Rcode::ServFail, &mut out);
    out.clear();
    reply::cut(message, &mut out);
    assert!(out.len() <= message.len().max(HEADER_BYTES));
}
