//! Certificates of every wrong kind, shown to our inbound side by a client and to our outbound side by a server: none
//! gets anywhere, the log says why, and whoever has a right one isn't disturbed.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::block_on;
use ringway_e2e::forge::{Draft, Forge, stolen};
use ringway_e2e::hbone::{HBONE_PORT, HbonePeer, PREFACE, Papers, connect};
use ringway_e2e::hbone_server::HboneServer;
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, try_dial};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
const GATEWAY: &str = "spiffe://cluster.local/ns/default/sa/gateway";
const OTHER: &str = "spiffe://cluster.local/ns/default/sa/other";
const ELSEWHERE: &str = "spiffe://elsewhere/ns/default/sa/client";

/// A peer, and the words of the log that must meet it.
struct Wrong {
    what: &'static str,
    papers: Option<Papers>,
    version: &'static SupportedProtocolVersion,
    protocol: &'static [u8],
    says: &'static [&'static str],
}

fn wrong(what: &'static str, papers: Papers, says: &'static [&'static str]) -> Wrong {
    Wrong { what, papers: Some(papers), version: &TLS13, protocol: b"h2", says }
}

/// What is wrong with papers of this name, whichever part their holder has.
fn wrong_for_all(mesh: &Forge, name: &str) -> Vec<Wrong> {
    let good = || Draft::of(name);
    let made = |draft: &Draft| mesh.papers(draft);
    vec![
        wrong(
            "another root of the same name",
            Forge::foreign().papers(&good()),
            &["invalid peer certificate: ", "BadSignature"],
        ),
        wrong("expired", made(&good().expired()), &["invalid peer certificate: ", "expired"]),
        wrong(
            "not yet valid",
            made(&good().not_yet_valid()),
            &["invalid peer certificate: ", "not valid yet"],
        ),
        wrong(
            "signed by a workload",
            mesh.papers_by_holder(&Draft::of(OTHER), &good()),
            &["invalid peer certificate: ", "EndEntityUsedAsCa"],
        ),
    ]
}

fn wrong_clients(mesh: &Forge) -> Vec<Wrong> {
    const DOMAIN: &str = "peer did not present the expected trustdomain (cluster.local), got ";
    let good = || Draft::of(CLIENT);
    let made = |draft: &Draft| mesh.papers(draft);
    let mut all = wrong_for_all(mesh, CLIENT);
    all.extend([
        wrong("another trust domain", made(&Draft::of(ELSEWHERE)), &[DOMAIN, ELSEWHERE]),
        wrong(
            "a URI that is no identity",
            made(&good().uris(&["https://a.example/"])),
            &[DOMAIN, "a.example"],
        ),
        wrong(
            "an identity with too much",
            made(&good().uris(&["spiffe://cluster.local/ns/default/sa/client/x"])),
            &[DOMAIN],
        ),
        wrong("no name", made(&good().uris(&[])), &[DOMAIN]),
        wrong("two identities", made(&good().uris(&[CLIENT, OTHER])), &["more than one identity", OTHER]),
        wrong("a DNS name", made(&good().only_dns(&["client.default.svc.cluster.local"])), &[DOMAIN]),
        wrong(
            "a server's certificate",
            made(&good().only_for(ServerAuth)),
            &["invalid peer certificate: ", "InvalidPurpose"],
        ),
        wrong(
            "an authority's certificate",
            made(&good().as_authority()),
            &["invalid peer certificate: ", "CaUsedAsEndEntity"],
        ),
        wrong("another's key", stolen(&made(&good())), &["invalid peer certificate: ", "BadSignature"]),
        Wrong { papers: None, ..wrong("no certificate", made(&good()), &["peer sent no certificate"]) },
        Wrong { version: &TLS12, ..wrong("TLS 1.2", made(&good()), &["peer is incompatible: ", "Tls12"]) },
        Wrong { protocol: b"http/1.1", ..wrong("not HTTP/2", made(&good()), &["known protocol"]) },
    ]);
    all
}

/// Handshakes and greets on a new connection; its own address, and whether anything of HTTP/2 came back.
async fn greet(pod: &Pod, wrong: &Wrong, to: SocketAddr) -> (SocketAddr, bool) {
    let stream = pod.space.connect(to, STEP).expect("a connection");
    let from = stream.local_addr().unwrap();
    let peer = HbonePeer::with_papers(pod, wrong.papers.as_ref(), wrong.version, wrong.protocol);
    // With TLS 1.3 a client learns of the refusal only when it reads.
    let Ok(mut tls) = peer.shake(stream).await else { return (from, false) };
    let _ = tls.write_all(PREFACE).await;
    let heard = tokio::time::timeout(STEP, tls.read_u8()).await.expect("an end in time");
    (from, heard.is_ok())
}

#[test]
fn a_client_with_a_wrong_certificate_never_gets_to_speak_and_one_beside_goes_on() {
    let world = World::start();
    let app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let mesh = Forge::of_mesh(&world.cluster.authority());
    let to = world.server.at(HBONE_PORT);
    let authority = world.server.at(APP_PORT).to_string();
    block_on(async {
        let good = mesh.papers(&Draft::of(CLIENT));
        let good = HbonePeer::with_papers(&world.stranger, Some(&good), &TLS13, b"h2");
        let mut connection = good.open(to).await;
        let mut beside = connect(&mut connection, &authority, &[]).await;
        for wrong in wrong_clients(&mesh) {
            let (from, in_) = greet(&world.stranger, &wrong, to).await;
            assert!(!in_, "{} got in", wrong.what);
            let from = from.to_string();
            let line = lines::wait_for(world.far(), wrong.what, |line| text(line, "src.addr") == from);
            let said = text(&line, "error");
            assert!(
                said.starts_with("tls handshake error: ")
                    && wrong.says.iter().all(|word| said.contains(word)),
                "{}: {:?} isn't in {said}",
                wrong.what,
                wrong.says
            );
            assert_eq!(
                (text(&line, "level"), text(&line, "message")),
                ("warn", "connection failed"),
                "{line}"
            );
            assert_eq!(text(&line, "src.identity"), "", "nobody is believed: {line}");
            assert_eq!(beside.echo(b"still here").await, b"still here", "beside {}", wrong.what);
        }
    });
    assert_eq!(app.peers().len(), 1, "the application was dialled for others than the good client");
    baseline.is_back(&world);
}

#[test]
fn odd_certificates_of_the_mesh_are_taken_as_who_they_are() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mesh = Forge::of_mesh(&world.cluster.authority());
    let (to, authority) = (world.server.at(HBONE_PORT), world.server.at(APP_PORT).to_string());
    let intermediate = Draft::of(OTHER).uris(&[]).as_authority();
    for (what, papers) in [
        ("a client's only", mesh.papers(&Draft::of(CLIENT).only_for(ClientAuth))),
        ("an intermediate's", mesh.papers_by_holder(&intermediate, &Draft::of(CLIENT))),
        ("one identity among names", mesh.papers(&Draft::of(CLIENT).uris(&["https://a.example/", CLIENT]))),
    ] {
        let peer = HbonePeer::with_papers(&world.stranger, Some(&papers), &TLS13, b"h2");
        let answer = block_on(async {
            let mut answer = peer.connect(to, &authority).await;
            assert_eq!(answer.echo(b"hello").await, b"hello", "{what}");
            answer.status
        });
        assert_eq!(answer, 200, "{what}");
    }
    ringway_e2e::eventually("three lines", STEP, || world.far().access_lines().unwrap().len() == 3);
    for line in world.far().access_lines().unwrap() {
        assert_eq!(text(&line, "src.identity"), CLIENT, "{line}");
    }
}

fn wrong_servers(mesh: &Forge) -> Vec<Wrong> {
    const SAN: &str = "identity verification error: peer did not present the expected SAN \
                       (spiffe://cluster.local/ns/default/sa/gateway), got ";
    let good = || Draft::of(GATEWAY);
    let made = |draft: &Draft| mesh.papers(draft);
    let mut all = wrong_for_all(mesh, GATEWAY);
    all.extend([
        wrong("another workload", made(&Draft::of(OTHER)), &[SAN, OTHER]),
        wrong(
            "its name in another trust domain",
            made(&Draft::of("spiffe://elsewhere/ns/default/sa/gateway")),
            &[SAN, "spiffe://elsewhere/ns/default/sa/gateway"],
        ),
        wrong("a DNS name", made(&good().only_dns(&["gateway.default.svc.cluster.local"])), &[SAN]),
        wrong("two identities", made(&good().uris(&[GATEWAY, OTHER])), &["more than one identity", OTHER]),
        wrong(
            "a client's certificate",
            made(&good().only_for(ClientAuth)),
            &["invalid peer certificate: ", "InvalidPurpose"],
        ),
        Wrong { version: &TLS12, ..wrong("TLS 1.2", made(&good()), &["ProtocolVersion"]) },
        Wrong { protocol: b"http/1.1", ..wrong("not HTTP/2", made(&good()), &["NoApplicationProtocol"]) },
    ]);
    all
}

/// How the connection ends, which it may do before everything is said.
fn send_a_secret(from: &Pod, to: SocketAddr) -> std::io::Result<usize> {
    let mut stream = try_dial(from, to)?;
    stream.write_all(b"a secret")?;
    stream.read(&mut [0])
}

#[test]
fn a_server_with_a_wrong_certificate_is_not_spoken_to_and_never_in_plaintext() {
    let (world, gateway) = World::start_with_gateway();
    let mesh = Forge::of_mesh(&world.cluster.authority());
    let plain = Server::start(&gateway, APP_PORT, echo);
    let calls = Arc::new(AtomicUsize::new(0));
    let serve = |wrong: &Wrong| {
        let (papers, calls) = (wrong.papers.as_ref().unwrap(), calls.clone());
        HboneServer::with_papers(&gateway, papers, wrong.version, wrong.protocol, move |mut call| {
            calls.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                let response = http::Response::builder().status(200).body(()).unwrap();
                let _ = call.respond.send_response(response, false).map(|mut send| {
                    let _ = send.send_data(bytes::Bytes::from_static(b"!"), true);
                });
            })
        })
    };
    for wrong in wrong_servers(&mesh) {
        let _server = serve(&wrong);
        let told = || world.near().access_lines().unwrap();
        let (before, started) = (told().len(), Instant::now());
        let end = send_a_secret(&world.client, gateway.at(APP_PORT));
        let took = started.elapsed();
        let ended = matches!(&end, Ok(0))
            || end.as_ref().is_err_and(|error| {
                matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
            });
        assert!(ended && took < Duration::from_secs(5), "{}: {end:?} after {took:?}", wrong.what);
        ringway_e2e::eventually(wrong.what, STEP, || told().len() > before);
        let line = told().pop().unwrap();
        let said = text(&line, "error");
        assert!(
            said.starts_with("io error: ") && wrong.says.iter().all(|word| said.contains(word)),
            "{}: {:?} isn't in {said}",
            wrong.what,
            wrong.says
        );
        assert_eq!((text(&line, "level"), text(&line, "direction")), ("error", "outbound"), "{line}");
    }
    assert_eq!(plain.peers(), [], "sent in plaintext instead");
    assert_eq!(calls.load(Ordering::SeqCst), 0, "a CONNECT went to a server that nobody should trust");
    // A right one in its place is spoken to at once.
    let _server = serve(&wrong("none", mesh.papers(&Draft::of(GATEWAY)), &[]));
    let mut stream = dial(&world.client, gateway.at(APP_PORT));
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!((plain.peers(), calls.load(Ordering::SeqCst)), (Vec::new(), 1));
}
