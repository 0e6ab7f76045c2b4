//! A question to a port of a running proxy, from another process: the other side of `control::http`, and blocking. How
//! long it may take is the stream's to say.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

/// Bound of an answer's head: those of this program have a few lines.
const HEAD_BYTES: u64 = 64 * 1024;

/// Status and body of one request on a fresh connection, of which no more than `most_bytes` are read.
pub fn ask(
    stream: impl Read + Write,
    method: &str,
    path: &str,
    most_bytes: u64,
) -> io::Result<(u16, String)> {
    let (status, body) = follow(stream, method, path)?;
    let mut text = String::new();
    body.take(most_bytes).read_to_string(&mut text)?;
    Ok((status, text))
}

/// The status, and the body as it comes, to the end of the connection: an answer to HTTP/1.0 has no chunks.
pub fn follow<S: Read + Write>(mut stream: S, method: &str, path: &str) -> io::Result<(u16, BufReader<S>)> {
    // In one piece: who answers early closes on what is still to come, and that resets the answer.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = BufReader::new(stream);
    let status = status(&mut answer.by_ref().take(HEAD_BYTES))?;
    Ok((status, answer))
}

/// Reads a head to its end.
fn status(head: &mut impl BufRead) -> io::Result<u16> {
    let not_http = || io::Error::new(ErrorKind::InvalidData, "it doesn't speak HTTP");
    let mut line = String::new();
    head.read_line(&mut line)?;
    let mut words = line.split(' ');
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Err(not_http());
    }
    let status = words.next().and_then(|status| status.parse().ok()).ok_or_else(not_http)?;
    while !line.trim_end().is_empty() {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(not_http());
        }
    }
    Ok(status)
}
