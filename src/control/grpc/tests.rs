//! Every way in which the control plane can't be reached or refuses, against real servers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use hyper::{HeaderMap, Request};
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpListener;
use tonic::client::Grpc;
use tonic::{Code, Response, Status};
use tonic_prost::ProstCodec;

use super::testing::{Handler, Root, Server, options, server_config, target};
use super::*;
use crate::tls::config::Exchange;
use crate::wire::pb::ca::{IstioCertificateRequest, IstioCertificateResponse};

const DAY: (i64, i64) = (-1, 24);
type Seen = Arc<Mutex<Vec<HeaderMap>>>;

/// Answers every unary call with this, and remembers the headers.
fn answering(status: Option<Status>) -> (Handler, Seen) {
    struct Say(Option<Status>);
    impl tonic::server::UnaryService<IstioCertificateRequest> for Say {
        type Response = IstioCertificateResponse;
        type Future = std::future::Ready<Result<Response<IstioCertificateResponse>, Status>>;
        fn call(&mut self, _: tonic::Request<IstioCertificateRequest>) -> Self::Future {
            let answer = IstioCertificateResponse { cert_chain: vec!["yes".to_owned()] };
            std::future::ready(self.0.clone().map_or(Ok(Response::new(answer)), Err))
        }
    }
    let seen = Seen::default();
    let remembered = seen.clone();
    let handler: Handler = Arc::new(move |request: Request<_>| {
        remembered.lock().unwrap().push(request.headers().clone());
        let say = Say(status.clone());
        Box::pin(async move { tonic::server::Grpc::new(ProstCodec::default()).unary(say, request).await })
    });
    (handler, seen)
}

async fn server(root: &Root, status: Option<Status>) -> (Server, Seen) {
    let (handler, seen) = answering(status);
    let certificate = root.server(&["127.0.0.1", "localhost"], DAY);
    (Server::start(server_config(&certificate, &[&TLS13], Exchange::Default), handler).await, seen)
}

/// One call on a new connection.
async fn call(target: &Target) -> Result<Vec<String>, String> {
    let channel = target.connect().await.map_err(|error| error.to_string())?;
    let mut client = Grpc::with_origin(channel, target.uri().clone());
    let mut request = tonic::Request::new(IstioCertificateRequest::default());
    target.headers(request.metadata_mut()).map_err(|error| error.to_string())?;
    client.ready().await.map_err(|error| error.to_string())?;
    let path = "/istio.v1.auth.IstioCertificateService/CreateCertificate".parse().unwrap();
    let codec = ProstCodec::<IstioCertificateRequest, IstioCertificateResponse>::default();
    let answer = client.unary(request, path, codec).await;
    answer.map(|answer| answer.into_inner().cert_chain).map_err(|status| target.explain(&status).to_string())
}

async fn refusal(target: &Target) -> String {
    let said = call(target).await.expect_err("a call that must fail");
    println!("{said}");
    said
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[tokio::test]
async fn a_request_carries_cluster_token_and_extra_headers_the_token_as_it_is_now() {
    let root = Root::new("root");
    let (server, seen) = server(&root, None).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "first").unwrap();
    let mut options = options(server.address, &root);
    options.token = Token::File(file.clone());
    options.cluster_id = "east".to_owned();
    options.headers = vec![("x-team".to_owned(), "a".to_owned()), ("clusterid".to_owned(), "x".to_owned())];
    let target = target(options);
    assert_eq!(call(&target).await.unwrap(), ["yes"]);
    std::fs::write(&file, "second\n").unwrap();
    assert_eq!(call(&target).await.unwrap(), ["yes"]);
    let seen = seen.lock().unwrap();
    let of = |index: usize, name| {
        seen[index].get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(
        (of(0, "authorization"), of(1, "authorization")),
        (vec!["Bearer first"], vec!["Bearer second"])
    );
    assert_eq!((of(0, "clusterid"), of(0, "x-team")), (vec!["east"], vec!["a"]));
    has(seen[0]["user-agent"].to_str().unwrap(), &["ringway/"]);
}

#[tokio::test]
async fn the_faults_of_a_start_have_texts_of_their_own() {
    let root = Root::new("root");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let said = refusal(&target(options(closed, &root))).await;
    has(&said, &[&format!("https://{closed}: tcp connect error"), "refused", "hint", "CA_ADDRESS"]);

    let said = refusal(&target(options("no-such-name.invalid:15012", &root))).await;
    has(&said, &["https://no-such-name.invalid:15012: dns error", "(hint: is the DNS server reachable?"]);

    let (stranger, _) = server(&Root::new("other"), None).await;
    let said = refusal(&target(options(stranger.address, &root))).await;
    has(
        &said,
        &[&stranger.address.to_string(), "its certificate isn't trusted", "UnknownIssuer", "CA_ROOT_CA"],
    );

    let (strict, _) = server(&root, Some(Status::unauthenticated("no such token"))).await;
    let said = refusal(&target(options(strict.address, &root))).await;
    has(
        &said,
        &[
            &strict.address.to_string(),
            "authentication failure: no such token",
            "(hint: check the control plane logs for more information",
            "AUTH_TOKEN isn't set",
        ],
    );

    let (strict, _) = server(&root, Some(Status::permission_denied("not you"))).await;
    let said = refusal(&target(options(strict.address, &root))).await;
    has(&said, &[&strict.address.to_string(), "not authorized: not you", "hint", "CA_TRUSTED_NODE_ACCOUNTS"]);

    let (odd, _) = server(&root, Some(Status::new(Code::Internal, "ouch"))).await;
    has(&refusal(&target(options(odd.address, &root))).await, &[&odd.address.to_string(), "Internal: ouch"]);
}

#[tokio::test]
async fn a_black_hole_is_told_from_a_closed_door() {
    let root = Root::new("root");
    // Accepted by the kernel, but nobody speaks.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = silent.local_addr().unwrap();
    let said = refusal(&target(options(at, &root))).await;
    has(&said, &[&at.to_string(), "tls handshake timeout", "300ms", "hint"]);
    // A queue that is full drops what comes.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let at = full.local_addr().unwrap().as_socket().unwrap();
    let _first = tokio::net::TcpStream::connect(at).await.unwrap();
    let said = refusal(&target(options(at, &root))).await;
    has(&said, &[&at.to_string(), "tcp connect timeout", "300ms", "hint"]);
}

#[tokio::test]
async fn all_addresses_of_a_name_are_tried() {
    let root = Root::new("root");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let open = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(options(closed, &root));
    let stream = target.dial(&[closed, open.local_addr().unwrap()]).await.unwrap();
    let socket = socket2::SockRef::from(&stream);
    assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(std::time::Duration::from_secs(20)));
}

#[tokio::test]
async fn a_port_without_tls_is_told() {
    let root = Root::new("root");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let plain = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            use tokio::io::AsyncWriteExt;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    has(&refusal(&target(options(at, &root))).await, &[&at.to_string(), "does the port speak TLS?"]);
    plain.abort();
}

#[tokio::test]
async fn the_name_of_the_address_or_the_alternative_must_be_in_the_certificate() {
    let root = Root::new("root");
    let (handler, _) = answering(None);
    let certificate = root.server(&["istiod.istio-system.svc"], DAY);
    let server =
        Server::start(server_config(&certificate, &[&TLS13], Exchange::Default), handler.clone()).await;
    let at = format!("localhost:{}", server.address.port());
    let said = refusal(&target(options(&at, &root))).await;
    has(&said, &["isn't trusted", "istiod.istio-system.svc", "ALT_CA_HOSTNAME"]);
    let mut known = options(&at, &root);
    known.alternative_host = Some("istiod.istio-system.svc".to_owned());
    assert!(call(&target(known.clone())).await.is_ok());
    known.alternative_host = Some("other.svc".to_owned());
    has(&refusal(&target(known.clone())).await, &["isn't trusted", "istiod.istio-system.svc"]);
    // The alternative is no way around the chain.
    known.alternative_host = Some("istiod.istio-system.svc".to_owned());
    known.roots = Roots::Inline(Root::new("other").pem);
    has(&refusal(&target(known)).await, &["UnknownIssuer"]);

    let expired = root.server(&["localhost"], (-48, -24));
    let server = Server::start(server_config(&expired, &[&TLS13], Exchange::Default), handler).await;
    let said = refusal(&target(options(format!("localhost:{}", server.address.port()), &root))).await;
    has(&said, &["expired", "is the clock of this node right?"]);
}

#[tokio::test]
async fn a_root_file_is_believed_as_it_is_at_each_connect() {
    let (old, new) = (Root::new("root"), Root::new("root"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("root-cert.pem");
    let (server, _) = server(&new, None).await;
    let mut options = options(server.address, &old);
    options.roots = Roots::File(file.clone());
    let target = target(options);
    has(&refusal(&target).await, &["CA_ROOT_CA", "root-cert.pem", "No such file"]);
    for (text, said) in [
        (String::new(), "no certificate in it"),
        ("nonsense".to_owned(), "no certificate in it"),
        ("-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n".to_owned(), "not PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(), "none of its 1 cert"),
        ("x".repeat(crate::base::limits::ROOTS_BYTES + 1), "larger than"),
        (old.pem.clone(), "isn't trusted"),
    ] {
        std::fs::write(&file, text).unwrap();
        has(&refusal(&target).await, &["CA_ROOT_CA", "root-cert.pem", said]);
    }
    // Both while the root is replaced: the same subject, different keys.
    std::fs::write(&file, format!("{}{}", old.pem, new.pem)).unwrap();
    assert!(call(&target).await.is_ok());
}

#[tokio::test]
async fn the_roots_of_the_system_dont_believe_a_stranger() {
    let root = Root::new("root");
    let (server, _) = server(&root, None).await;
    let mut options = options(server.address, &root);
    options.roots = Roots::System;
    let said = refusal(&target(options)).await;
    assert!(said.contains("isn't trusted") || said.contains("the roots of the operating system"), "{said}");
}

#[tokio::test]
async fn tls12_needs_its_switch_and_the_policy_its_group() {
    const OLD: &[&rustls::SupportedProtocolVersion] = &[&TLS12];
    const NEW: &[&rustls::SupportedProtocolVersion] = &[&TLS13];
    let root = Root::new("root");
    let (handler, _) = answering(None);
    let certificate = root.server(&["127.0.0.1"], DAY);
    let server =
        |versions, exchange| Server::start(server_config(&certificate, versions, exchange), handler.clone());
    let old = server(OLD, Exchange::Default).await;
    let mut wish = options(old.address, &root);
    has(&refusal(&target(wish.clone())).await, &[&old.address.to_string(), "TLS12_ENABLED=true"]);
    wish.protection.tls12 = true;
    assert!(call(&target(wish.clone())).await.is_ok());
    wish.protection.exchange = Exchange::Hybrid;
    assert!(call(&target(wish.clone())).await.is_ok(), "preferring the hybrid excludes nobody");
    wish.protection.exchange = Exchange::PostQuantumOnly;
    has(&refusal(&target(wish.clone())).await, &["tls handshake error"]);
    let both = server(NEW, Exchange::Default).await;
    wish.address = format!("https://{}", both.address);
    assert!(call(&target(wish.clone())).await.is_ok());
    let hybrid = server(NEW, Exchange::PostQuantumOnly).await;
    wish.address = format!("https://{}", hybrid.address);
    assert!(call(&target(wish.clone())).await.is_ok());
}

#[tokio::test]
async fn a_server_that_goes_away_breaks_the_call() {
    let root = Root::new("root");
    let handler: Handler = Arc::new(|_| Box::pin(std::future::pending()));
    let certificate = root.server(&["127.0.0.1"], DAY);
    let server = Server::start(server_config(&certificate, &[&TLS13], Exchange::Default), handler).await;
    let target = target(options(server.address, &root));
    let (said, ()) = tokio::join!(refusal(&target), async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        drop(server);
    });
    has(&said, &[target.at(), "the connection broke"]);
}

#[test]
fn tokens_that_cant_be_sent_are_named() {
    let root = Root::new("root");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let said = |path: &Path| {
        let mut options = options("localhost:1", &root);
        options.token = Token::File(path.to_owned());
        target(options).headers(&mut tonic::metadata::MetadataMap::new()).unwrap_err().to_string()
    };
    has(&said(&file), &["can't read the token file", "token", "AUTH_TOKEN"]);
    has(&said(directory.path()), &["not a regular file"]);
    std::fs::write(&file, " \n").unwrap();
    has(&said(&file), &["token file exists, but was empty"]);
    std::fs::write(&file, b"abc\xffdef").unwrap();
    has(&said(&file), &["isn't text: byte 3"]);
    std::fs::write(&file, b"abc\r\nx: y").unwrap();
    has(&said(&file), &["isn't text: byte 3"]);
    std::fs::write(&file, "a".repeat(crate::base::limits::TOKEN_BYTES + 1)).unwrap();
    has(&said(&file), &["is larger than"]);
    assert!(!format!("{:?}", Token::Fixed("secret".to_owned())).contains("secret"));
}

#[test]
fn addresses_headers_and_names_are_checked_once() {
    let root = Root::new("root");
    let at = |address: &str| {
        let options = Options { address: address.to_owned(), ..options("x", &root) };
        Target::new(options).map(|target| target.at().to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(at("https://istiod.istio-system.svc:15012").unwrap(), "https://istiod.istio-system.svc:15012");
    assert_eq!(at("https://[::1]:15012").unwrap(), "https://[::1]:15012");
    assert_eq!(at("https://10.0.0.1").unwrap(), "https://10.0.0.1:443");
    has(&at("http://istiod:15010").unwrap_err(), &["CA_ADDRESS=http://istiod:15010", "write https://"]);
    has(&at("https://a b").unwrap_err(), &["CA_ADDRESS"]);
    has(&at("https://-x-:1").unwrap_err(), &["neither a DNS name nor an IP"]);
    let mut odd = options("localhost:1", &root);
    odd.headers = vec![("x-bin".to_owned(), "a".to_owned())];
    has(&Target::new(odd).unwrap_err().to_string(), &["header x-bin"]);
    let mut odd = options("localhost:1", &root);
    odd.cluster_id = "ü\n".to_owned();
    has(&Target::new(odd).unwrap_err().to_string(), &["cluster id"]);
    let mut odd = options("localhost:1", &root);
    odd.alternative_host = Some("a b".to_owned());
    has(&Target::new(odd).unwrap_err().to_string(), &["ALT_CA_HOSTNAME=a b"]);
}
