//! HTTP as the tests of waypoints and gateways need it: a server that gives a request's body back and tells what it
//! saw, and curl from inside a pod.

use std::path::Path;

use ringway::demo::topology::Pod;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Answers each request of a connection (HTTP/1.1, bodies with a length) with its own body; `x-saw-peer` is the
/// address that the connection came from, `x-saw-marker` the request's `x-marker`.
pub async fn http_echo(stream: TcpStream) {
    let Ok(peer) = stream.peer_addr() else { return };
    let peer = peer.ip().to_canonical();
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    while let Some(head) = read_head(&mut stream).await {
        let length: usize = value(&head, "content-length").parse().unwrap_or(0);
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let marker = value(&head, "x-marker");
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nx-saw-peer: {peer}\r\nx-saw-marker: {marker}\r\n\r\n"
        );
        let written = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.write_all(&body).await
        };
        if written.await.is_err() {
            return;
        }
    }
}

async fn read_head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    loop {
        match stream.read_line(&mut head).await {
            Ok(1..) if head.ends_with("\r\n\r\n") => return Some(head),
            Ok(1..) => {}
            Ok(0) | Err(_) => return None,
        }
    }
}

/// What a head says under a name, empty where it says nothing.
fn value<'a>(head: &'a str, name: &str) -> &'a str {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value.trim())
}

/// What curl got. Status 0: no HTTP answer at all.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        value(&self.head, name)
    }
}

/// One request from inside a pod: a GET, or a POST of what is in the file.
pub fn request(pod: &Pod, url: &str, body: Option<&Path>) -> Answer {
    let mut arguments = vec!["-sSig", "--noproxy", "*", "--max-time", "15", "-H", "Expect:"];
    let data = body.map(|path| format!("@{}", path.display()));
    arguments.extend(data.iter().flat_map(|data| ["--data-binary", data]));
    arguments.push(url);
    let output = pod.space.output("curl", &arguments).expect("curl");
    let end = output.stdout.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else { return Answer { status: 0, head: String::new(), body: output.stdout } };
    let head = String::from_utf8_lossy(&output.stdout[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head, body: output.stdout[end + 4..].to_vec() }
}
