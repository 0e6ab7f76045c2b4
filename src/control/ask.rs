//! A question to a port of a running proxy, from another process: the other side of `control::http`, and blocking.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// Status and body of one request on a fresh connection, of which no more than `most_bytes` are read. How long it may
/// take is the stream's to say.
pub fn ask(mut stream: TcpStream, method: &str, path: &str, most_bytes: u64) -> io::Result<(u16, String)> {
    // In one piece: who answers early closes on what is still to come, and that resets the answer. By HTTP/1.0, so that
    // a long answer comes as it is, not in chunks.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(most_bytes).read_to_string(&mut answer)?;
    let not_http = || io::Error::new(ErrorKind::InvalidData, "it doesn't speak HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(not_http)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(not_http)?, body.to_owned()))
}
