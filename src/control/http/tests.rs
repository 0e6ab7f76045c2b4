//! The server against clients, good and bad.

use super::test::exchange;
use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

struct Echo;

impl Handler for Echo {
    fn answer(&self, question: Question) -> Answering<'_> {
        Box::pin(async move { text(StatusCode::OK, format!("{} {}", question.method, question.uri)) })
    }
}

fn here() -> [SocketAddr; 1] {
    ["127.0.0.1:0".parse().unwrap()]
}

#[tokio::test]
async fn a_request_is_answered_even_after_a_half_close_and_closing_ends_everything() {
    let server = Server::bind("admin", &here()).unwrap();
    let address = server.addresses()[0];
    let (close, closing) = watch::channel(false);
    let serving = server.serve(Arc::new(Echo), &closing).unwrap();
    let answer = exchange(address, b"GET /x?y HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("GET /x?y"), "{answer}");
    let idle = TcpStream::connect(address).await.unwrap();
    close.send(true).unwrap();
    serving.finish().await;
    assert!(TcpStream::connect(address).await.is_err(), "it listens still");
    drop(idle);
}

#[tokio::test]
async fn oversized_and_broken_requests_are_refused() {
    let server = Server::bind("admin", &here()).unwrap();
    let address = server.addresses()[0];
    let (_close, closing) = watch::channel(false);
    let _serving = server.serve(Arc::new(Echo), &closing).unwrap();
    let large = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", "a".repeat(20_000));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(large.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    assert!(exchange(address, b"\x16\x03\x01\x00\xff\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    assert!(exchange(address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_client_that_sends_no_headers_is_let_go() {
    let mut server = Server::bind("admin", &here()).unwrap();
    server.header_deadline = Duration::from_millis(50);
    let address = server.addresses()[0];
    let (_close, closing) = watch::channel(false);
    let _serving = server.serve(Arc::new(Echo), &closing).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection is still open");
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Server::bind("stats", &[address]).err().unwrap().to_string();
    let starts = format!("stats server starts: failed to bind to address {address}: ");
    assert!(error.starts_with(&starts), "{error}");
}

async fn talk(mut stream: impl Wire, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_socket_file_answers_alike_replaces_a_stale_one_and_goes_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    // One that a killed process left.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(UnixStream::connect(&path).await.is_err());
    let serve = || {
        let mut server = Server::bind("admin", &[]).unwrap();
        server.also_at(&path).unwrap();
        let (close, closing) = watch::channel(false);
        (server.serve(Arc::new(Echo), &closing).unwrap(), close)
    };
    let (serving, close) = serve();
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let request = "GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answer = talk(UnixStream::connect(&path).await.unwrap(), request).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("GET /x"), "{answer}");
    // A successor takes the name over; the predecessor's end leaves it alone.
    let (successor, _close) = serve();
    close.send(true).unwrap();
    serving.finish().await;
    assert!(talk(UnixStream::connect(&path).await.unwrap(), request).await.ends_with("GET /x"));
    drop(successor);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    std::fs::write(&path, "mine").unwrap();
    let error = Server::bind("admin", &[]).unwrap().also_at(&path).unwrap_err().to_string();
    assert!(error.contains("admin.sock") && error.contains("no socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[tokio::test]
async fn announced_bodies_are_bounded_and_a_head_has_no_body() {
    let server = Server::bind("admin", &here()).unwrap();
    let address = server.addresses()[0];
    let (_close, closing) = watch::channel(false);
    let _serving = server.serve(Arc::new(Echo), &closing).unwrap();
    for (request, status, end) in [
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 65537\r\n\r\n", "413", "\r\n\r\n"),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab", "200", "POST /"),
        ("HEAD /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", "200", "\r\n\r\n"),
    ] {
        let answer = talk(TcpStream::connect(address).await.unwrap(), request).await;
        let begins = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&begins) && answer.ends_with(end), "{request}: {answer}");
    }
    let large = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(9_000));
    let answer = talk(TcpStream::connect(address).await.unwrap(), &large).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

/// An answer that never ends.
struct Endless;

impl Handler for Endless {
    fn answer(&self, _: Question) -> Answering<'_> {
        Box::pin(async move {
            let (pieces, body) = Body::pieces();
            tokio::spawn(async move { while pieces.send(Bytes::from(vec![b'x'; 65_536])).await.is_ok() {} });
            Response::new(body)
        })
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_let_go() {
    let mut server = Server::bind("admin", &here()).unwrap();
    server.write_deadline = Duration::from_millis(50);
    let address = server.addresses()[0];
    let connections = server.connections.clone();
    let (_close, closing) = watch::channel(false);
    let _serving = server.serve(Arc::new(Endless), &closing).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    stream.read_exact(&mut [0; 100]).await.unwrap();
    let all = u32::try_from(HTTP_CONNECTIONS).unwrap();
    let gone = tokio::time::timeout(Duration::from_secs(10), connections.acquire_many(all)).await;
    assert!(gone.is_ok(), "it is waited for still");
}
