//! Requests and answers as a CONNECT tunnel knows them, and the rules a field list has to keep (RFC 9113
//! sections 8.2, 8.3 and 8.5). A list that breaks them is malformed: its stream is reset, the connection
//! lives on.

/// A CONNECT to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectHead<'a> {
    pub authority: &'a str,
    pub baggage: Option<&'a str>,
    pub forwarded: Option<&'a str>,
    pub traceparent: Option<&'a str>,
    /// Only inside a tunnel to another network.
    pub x_forwarded_network: Option<&'a str>,
}

impl<'a> ConnectHead<'a> {
    /// The regular fields that are there, in the order they are sent.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        [
            ("baggage", self.baggage),
            ("forwarded", self.forwarded),
            ("traceparent", self.traceparent),
            ("x-forwarded-network", self.x_forwarded_network),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }

    /// The first field that HTTP/2 would not carry.
    pub fn unsendable(&self) -> Option<&'static str> {
        if !authority_valid(self.authority.as_bytes()) {
            return Some(":authority");
        }
        self.fields().find(|(_, value)| !value_valid(value.as_bytes())).map(|(name, _)| name)
    }
}

/// A request as received. Of repeated fields other than baggage, the first counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestHead {
    pub method: String,
    pub authority: Option<String>,
    /// `:scheme` was there; never so with CONNECT.
    pub scheme: bool,
    /// `:path` was there; never so with CONNECT.
    pub path: bool,
    /// Every value, in order.
    pub baggage: Vec<Vec<u8>>,
    pub forwarded: Option<Vec<u8>>,
    pub traceparent: Option<Vec<u8>>,
    pub x_forwarded_network: Option<Vec<u8>>,
}

/// An answer as received.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseHead {
    pub status: u16,
    /// Several values are joined by commas.
    pub baggage: Option<Vec<u8>>,
}

/// The field list breaks a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Takes a request's fields one by one.
#[derive(Default)]
pub struct RequestFields {
    head: RequestHead,
    rules: Rules,
}

impl RequestFields {
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        if self.rules.check(name, value) {
            let head = &mut self.head;
            let taken = match name {
                b":method" => head.method.is_empty() && token(value, &mut head.method),
                b":authority" => head.authority.is_none() && authority(value, &mut head.authority),
                b":scheme" => !std::mem::replace(&mut head.scheme, true),
                b":path" => !std::mem::replace(&mut head.path, true),
                [b':', ..] => false,
                b"baggage" => {
                    head.baggage.push(value.to_vec());
                    true
                }
                b"forwarded" => first(&mut head.forwarded, value),
                b"traceparent" => first(&mut head.traceparent, value),
                b"x-forwarded-network" => first(&mut head.x_forwarded_network, value),
                _ => true,
            };
            self.rules.broken |= !taken;
        }
    }

    pub fn finish(self) -> Result<RequestHead, Malformed> {
        let head = self.head;
        let connect_with_path = head.method == "CONNECT" && (head.scheme || head.path);
        if self.rules.broken || head.method.is_empty() || connect_with_path {
            return Err(Malformed);
        }
        Ok(head)
    }
}

/// Takes an answer's fields one by one.
#[derive(Default)]
pub struct ResponseFields {
    head: ResponseHead,
    rules: Rules,
}

impl ResponseFields {
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        if self.rules.check(name, value) {
            let head = &mut self.head;
            let taken = match name {
                b":status" => head.status == 0 && status(value, &mut head.status),
                [b':', ..] => false,
                b"baggage" => {
                    match &mut head.baggage {
                        None => head.baggage = Some(value.to_vec()),
                        Some(before) => {
                            before.push(b',');
                            before.extend_from_slice(value);
                        }
                    }
                    true
                }
                _ => true,
            };
            self.rules.broken |= !taken;
        }
    }

    pub fn finish(self) -> Result<ResponseHead, Malformed> {
        // 101 has no meaning in HTTP/2 (section 8.6).
        if self.rules.broken || self.head.status == 0 || self.head.status == 101 {
            return Err(Malformed);
        }
        Ok(self.head)
    }
}

/// Trailers: nothing of them is wanted, yet the rules hold.
#[derive(Default)]
pub struct TrailerFields {
    rules: Rules,
}

impl TrailerFields {
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        self.rules.broken |= name.first() == Some(&b':');
        self.rules.check(name, value);
    }

    pub fn finish(self) -> Result<(), Malformed> {
        if self.rules.broken { Err(Malformed) } else { Ok(()) }
    }
}

/// What holds for every list.
#[derive(Default)]
struct Rules {
    regular: bool,
    broken: bool,
}

impl Rules {
    /// False if the list is broken, by this field or one before.
    fn check(&mut self, name: &[u8], value: &[u8]) -> bool {
        let (pseudo, rest) = match name {
            [b':', rest @ ..] => (true, rest),
            other => (false, other),
        };
        let late = pseudo && self.regular;
        self.regular |= !pseudo;
        self.broken |= late || !name_valid(rest) || !value_valid(value) || connection_specific(name, value);
        !self.broken
    }
}

/// Section 8.2.1; the colon of a pseudo-header is cut off before.
fn name_valid(name: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|byte| matches!(byte, 0x21..=0x7e if !byte.is_ascii_uppercase() && *byte != b':'))
}

pub fn value_valid(value: &[u8]) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    !blank(value.first())
        && !blank(value.last())
        && !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
}

/// Section 8.2.2.
fn connection_specific(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => true,
        b"te" => value != b"trailers",
        _ => false,
    }
}

fn token(value: &[u8], into: &mut String) -> bool {
    let valid = !value.is_empty() && value.iter().all(|byte| matches!(byte, 0x21..=0x7e));
    if valid {
        into.extend(value.iter().map(|byte| char::from(*byte)));
    }
    valid
}

/// Visible ASCII, or nothing at all; whether it names a place is for the path to say.
fn authority_valid(value: &[u8]) -> bool {
    value.iter().all(|byte| matches!(byte, 0x21..=0x7e))
}

fn authority(value: &[u8], into: &mut Option<String>) -> bool {
    let valid = authority_valid(value);
    if valid {
        *into = Some(value.iter().map(|byte| char::from(*byte)).collect());
    }
    valid
}

fn status(value: &[u8], into: &mut u16) -> bool {
    let [hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = value else { return false };
    let digit = |byte: &u8| u16::from(byte - b'0');
    *into = digit(hundreds) * 100 + digit(tens) * 10 + digit(ones);
    true
}

fn first(into: &mut Option<Vec<u8>>, value: &[u8]) -> bool {
    into.get_or_insert_with(|| value.to_vec());
    true
}
