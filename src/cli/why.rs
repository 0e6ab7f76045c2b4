//! `ringway why`: asks a running proxy what would become of a connection.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};

use super::{Console, WhyArguments, exit};
use crate::control::ask::ask;

/// Bound of each step towards the admin port.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than any explanation has.
const ANSWER_BYTES: u64 = 16 << 20;

/// Prints the explanation; exit code 2 where the connection would not be carried.
pub fn main(asked: &WhyArguments, console: &mut Console<'_>) -> anyhow::Result<u8> {
    let query = format!("/why?from={}&to={}&format=json", encoded(&asked.from), encoded(&asked.to));
    let (status, body) = get(&asked.admin, &query)?;
    if status != 200 {
        bail!("{}", body.trim_end());
    }
    let answer: Answer =
        serde_json::from_str(&body).context("the answer of the admin port isn't what was asked for")?;
    let text = if asked.json { body } else { answer.explanation };
    Ok(console.print(&text, if answer.allowed { exit::OK } else { exit::PROBLEMS }))
}

#[derive(serde::Deserialize)]
struct Answer {
    allowed: bool,
    explanation: String,
}

/// Status and body of a GET.
fn get(admin: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let address = admin
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .with_context(|| format!("{admin:?} isn't HOST:PORT"))?;
    exchange(address, path).with_context(|| format!("asking the admin port {address}"))
}

fn exchange(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    ask(stream, "GET", path, ANSWER_BYTES)
}

/// For a query (RFC 3986 section 2.3).
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// An admin port that gives one answer; the request's first line, the exit code and what was printed.
    fn asked(status: &str, body: &str, json: bool) -> (String, anyhow::Result<u8>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n{body}");
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = [0; 1_024];
            let count = stream.read(&mut heard).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&heard[..count]).lines().next().unwrap_or_default().to_owned()
        });
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let arguments = WhyArguments { from: "a/b".into(), to: "[::1]:80".into(), admin, json };
        let code = main(&arguments, &mut Console { out: &mut out, err: &mut err });
        (serving.join().unwrap(), code, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_answer_is_printed_and_a_denial_is_exit_code_2() {
        let body = r#"{"allowed":false,"explanation":"because\n"}"#;
        let (request, code, out) = asked("200 OK", body, false);
        assert_eq!(request, "GET /why?from=a%2Fb&to=%5B%3A%3A1%5D%3A80&format=json HTTP/1.0");
        assert_eq!((code.unwrap(), out.as_str()), (exit::PROBLEMS, "because\n"));
        let body = r#"{"allowed":true,"explanation":"because\n"}"#;
        let (_, code, out) = asked("200 OK", body, true);
        assert_eq!((code.unwrap(), out.as_str()), (exit::OK, body));
    }

    #[test]
    fn a_question_that_is_refused_and_a_port_that_is_silent_are_errors() {
        let (_, code, _) = asked("400 Bad Request", "no workload \"a/b\"\n", false);
        assert_eq!(code.unwrap_err().to_string(), "no workload \"a/b\"");
        let (_, code, _) = asked("200 OK", "<html>", false);
        assert!(code.is_err());
        let nobody = WhyArguments {
            from: "a/b".into(),
            to: "10.0.0.1:80".into(),
            admin: "127.0.0.1:1".into(),
            json: false,
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let error = main(&nobody, &mut Console { out: &mut out, err: &mut err }).unwrap_err();
        assert!(format!("{error:#}").contains("127.0.0.1:1"), "{error:#}");
    }
}
