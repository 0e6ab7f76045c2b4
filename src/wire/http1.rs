//! The head of an HTTP/1.1 request to a proxy that knows CONNECT only, and what it answers (RFC 9110 section 9.3.6,
//! RFC 9112). Bytes behind the head are the tunnel's.

use std::fmt::Write as _;

use crate::base::limits::{PROXY_HEAD_BYTES, PROXY_HEAD_FIELDS};
use crate::wire::destination::{Destination, NoDestination};

/// The answer to a CONNECT that got there: neither Content-Length nor Transfer-Encoding (RFC 9110 section 9.3.6).
pub const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Empty lines before the request line are ignored (RFC 9112 section 2.2), but not for ever.
const LEADING_EMPTY_BYTES: usize = 8;

/// Why a request isn't one that can be served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    #[error("the request is not HTTP/1.1: {0}")]
    Syntax(httparse::Error),
    #[error("only HTTP/1.1 is spoken here")]
    Version,
    #[error("more than {PROXY_HEAD_FIELDS} header fields")]
    Fields,
    #[error("the head is longer than {PROXY_HEAD_BYTES} bytes")]
    Long,
    #[error(
        "this proxy only tunnels: ask it for CONNECT host:port ({0} needs no proxy here, call the host itself)"
    )]
    Method(Method),
    #[error("CONNECT needs HOST:PORT: {0}")]
    Destination(#[from] NoDestination),
    #[error("HTTP/1.1 needs exactly one Host field of a valid form")]
    Host,
    #[error("a CONNECT has no content, so neither Content-Length nor Transfer-Encoding")]
    Content,
}

/// What was asked for instead of CONNECT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    Head,
    Other,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Head => "a HEAD request",
            Self::Other => "plain HTTP",
        })
    }
}

impl Malformed {
    pub fn status(&self) -> u16 {
        match self {
            Self::Syntax(_) | Self::Destination(_) | Self::Host | Self::Content => 400,
            Self::Method(_) => 405,
            Self::Fields | Self::Long => 431,
            Self::Version => 505,
        }
    }

    /// The whole response.
    pub fn answer(&self) -> Vec<u8> {
        let mut answer = refusal(self.status(), &self.to_string());
        if *self == Self::Method(Method::Head) {
            // No content in the response to HEAD (RFC 9110 section 9.3.2).
            let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_default();
            answer.truncate(head + 4);
        }
        answer
    }
}

/// The destination of a CONNECT and the length of its head; `None` until it is whole. `before`: how much of `said` was
/// looked at the last time.
pub fn request(said: &[u8], before: usize) -> Result<Option<(Destination, usize)>, Malformed> {
    // A head ends with a line, so bytes within a line decide nothing: one at a time, they would cost a look each.
    if !said.get(before..).unwrap_or_default().contains(&b'\n') {
        return if said.len() < PROXY_HEAD_BYTES { Ok(None) } else { Err(Malformed::Long) };
    }
    let empty = said.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    if empty > LEADING_EMPTY_BYTES {
        return Err(Malformed::Syntax(httparse::Error::NewLine));
    }
    let mut fields = [httparse::EMPTY_HEADER; PROXY_HEAD_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let length = match head.parse(said) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if said.len() >= PROXY_HEAD_BYTES => return Err(Malformed::Long),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Malformed::Fields),
        Err(httparse::Error::Version) => return Err(Malformed::Version),
        Err(error) => return Err(Malformed::Syntax(error)),
    };
    check(&head).map(|destination| Some((destination, length)))
}

fn check(head: &httparse::Request<'_, '_>) -> Result<Destination, Malformed> {
    match head.method {
        Some("CONNECT") => {}
        Some("HEAD") => return Err(Malformed::Method(Method::Head)),
        _ => return Err(Malformed::Method(Method::Other)),
    }
    let values = |name: &'static str| {
        let named = head.headers.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    };
    if values("transfer-encoding").next().is_some() || values("content-length").any(|length| length != b"0") {
        return Err(Malformed::Content);
    }
    // HTTP/1.0 knows no Host (RFC 9112 section 3.2). Where it says something else than the target, the target counts.
    let hosts = values("host").count();
    if hosts > 1 || (hosts == 0 && head.version == Some(1)) || !values("host").all(is_host) {
        return Err(Malformed::Host);
    }
    Ok(Destination::parse(head.path.unwrap_or_default())?)
}

/// `uri-host [":" port]` as far as bytes go; it may be empty (RFC 9110 section 7.2).
fn is_host(value: &[u8]) -> bool {
    let fit = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte);
    value.iter().all(fit)
}

/// A response that refuses, with one line of text, after which the connection ends.
pub fn refusal(status: u16, why: &str) -> Vec<u8> {
    let phrase = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Refused",
    };
    let line: String = why.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let mut answer = format!("HTTP/1.1 {status} {phrase}\r\n");
    if status == 405 {
        answer.push_str("Allow: CONNECT\r\n");
    }
    let length = line.len() + 1;
    // Writing into a String can't fail.
    let _ = write!(
        answer,
        "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{line}\n"
    );
    answer.into_bytes()
}

/// What the fuzzer runs: any bytes as a head, at once and in pieces.
#[doc(hidden)]
pub fn fuzz_http1(data: &[u8]) {
    let whole = request(data, 0);
    match &whole {
        Ok(Some((_, length))) => {
            let head = data.get(..*length).unwrap_or_default();
            assert!(head.ends_with(b"\n"), "a head ends with a line");
            assert_eq!(request(head, 0), whole, "what follows the head plays a part");
        }
        Ok(None) => assert!(data.len() < PROXY_HEAD_BYTES, "never decided"),
        Err(error) => {
            let answer = error.answer();
            let text = String::from_utf8_lossy(&answer);
            assert!(text.starts_with(&format!("HTTP/1.1 {} ", error.status())), "{text}");
        }
    }
    for step in [1, 7] {
        let mut before = 0;
        for end in (0..data.len().min(600)).step_by(step) {
            match request(data.get(..end).unwrap_or_default(), before) {
                Ok(None) => before = end,
                Ok(decided) => {
                    assert_eq!(Ok(decided), whole, "what came later changed the mind");
                    break;
                }
                Err(_) => {
                    assert!(whole.is_err(), "what came later changed the mind");
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
