//! A peer with a valid certificate of the mesh and no manners: each request gets the reference's status, and
//! nothing but the pod's own ports is ever dialled.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringway::demo::mesh_file::deny;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::hbone::{Card, HBONE_PORT, HbonePeer, ask, connect};
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service};
use ringway_e2e::{block_on, pattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";

fn peer(world: &World) -> (HbonePeer, SocketAddr) {
    (HbonePeer::new(&world.stranger, &world.cluster.authority(), CLIENT), world.server.at(HBONE_PORT))
}

#[test]
fn settings_and_a_good_connect_are_the_references() {
    let world = World::start();
    let app = Server::start(&world.server, APP_PORT, echo);
    let (peer, to) = peer(&world);
    block_on(async {
        let mut settings = peer.settings(to).await;
        settings.sort_unstable();
        for pair in [(3, 200), (5, 1_048_576), (6, 65_536)] {
            assert!(settings.contains(&pair), "{pair:?} isn't in {settings:?}");
        }
        // The reference offers 4 MiB at once; ours begins smaller and grows while the reader keeps up.
        let window = settings.iter().find(|(name, _)| *name == 4).map_or(65_535, |(_, value)| *value);
        assert!((65_535..=4_194_304).contains(&window), "{settings:?}");
        for authority in
            [world.server.at(APP_PORT).to_string(), "web.default.svc.cluster.local:80".to_owned()]
        {
            let mut answer = peer.connect(to, &authority).await;
            assert_eq!(answer.status, 200, "{authority}");
            let baggage = "k8s.cluster.name=Kubernetes,k8s.namespace.name=default,k8s.pod.name=server,\
                           service.name=server,service.version=latest";
            assert_eq!(answer.headers.get("baggage").map(|value| value.to_str().unwrap()), Some(baggage));
            assert_eq!(answer.echo(b"through the tunnel").await, b"through the tunnel");
        }
    });
    assert_eq!(app.peer_addresses(), [world.stranger.at(0).ip(), world.stranger.at(0).ip()]);
    lines::wait_for(world.far(), "identity from the certificate", |line| {
        text(line, "src.identity") == CLIENT
    });
}

#[test]
fn every_bad_request_has_its_status_and_the_connection_lives_on() {
    let mut world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let (peer, to) = peer(&world);
    let server = world.server.clone();
    let at = |port: u16| server.at(port).to_string();
    let other = world.client.at(APP_PORT).to_string();
    let node = world.cluster.topology.node(2).unwrap().v4.to_string();
    let six = format!("[{}]:{APP_PORT}", world.server.v6);
    block_on(async {
        let mut connection = peer.open(to).await;
        for (authority, status, error) in [
            (at(9), 503, "connection failed: "),
            (at(15008), 503, "attempted recursive call to ourselves"),
            (at(15006), 503, "attempted recursive call to ourselves"),
            (at(15001), 503, "attempted recursive call to ourselves"),
            (other, 400, "ip mismatch: "),
            (six, 400, "ip mismatch: "),
            (format!("{node}:15000"), 400, "ip mismatch: "),
            ("127.0.0.1:15000".to_owned(), 400, "ip mismatch: "),
            ("127.0.0.1:8080".to_owned(), 400, "ip mismatch: "),
            ("[::1]:15000".to_owned(), 400, "ip mismatch: "),
            ("169.254.169.254:80".to_owned(), 400, "ip mismatch: "),
            ("[::ffff:127.0.0.1]:15000".to_owned(), 400, "ip mismatch: "),
            ("nosuch.host:80".to_owned(), 503, "no service or workload for hostname: "),
            ("localhost:15000".to_owned(), 503, "no service or workload for hostname: "),
            ("web.default.svc.cluster.local:81".to_owned(), 503, ""),
            ("junk".to_owned(), 400, "no valid authority pseudo header: "),
        ] {
            let answer = connect(&mut connection, &authority, &[]).await;
            assert_eq!(answer.status, status, "CONNECT {authority}");
            assert!(answer.ended, "CONNECT {authority}: the answer has no END_STREAM");
            assert!(answer.headers.get("baggage").is_none(), "CONNECT {authority}");
            if !error.is_empty() {
                lines::wait_for(world.far(), &format!("{authority}: {error}"), |line| {
                    text(line, "error").starts_with(error)
                });
            }
        }
        let port_0 = connect(&mut connection, &at(0), &[]).await;
        assert!((400..600).contains(&port_0.status), "port 0: {}", port_0.status);
        let url = format!("https://{}/", at(APP_PORT));
        let get = ask(&mut connection, http::Method::GET, &url, &[]).await;
        assert_eq!((get.status, get.ended), (400, true));
        lines::wait_for(world.far(), "the method", |line| {
            line["error"] == "expected method CONNECT, got GET"
        });
        // After all of this the same connection still carries a good tunnel.
        let mut good = connect(&mut connection, &at(APP_PORT), &[]).await;
        assert_eq!(good.status, 200);
        assert_eq!(good.echo(b"still here").await, b"still here");
    });
    world.change_policies(vec![deny("no-client", "cluster.local/ns/default/sa/client")]);
    let denied = block_on(peer.connect(to, &at(APP_PORT)));
    assert_eq!((denied.status, denied.ended), (401, true));
    drop(denied);
    world.change_policies(Vec::new());
    baseline.is_back(&world);
}

#[test]
fn headers_of_any_kind_break_nothing_and_forge_nothing() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let (peer, to) = peer(&world);
    let authority = world.server.at(APP_PORT).to_string();
    // 55 bytes, all parts hexadecimal, too few of them.
    let crooked = format!("00-{}", "0".repeat(52));
    let long = "x".repeat(15_000);
    block_on(async {
        for headers in [
            vec![("traceparent", crooked.as_str())],
            vec![("traceparent", "")],
            vec![("baggage", "=,=,,k8s.namespace.name=,=x,k8s.namespace.name=kube-system")],
            vec![("baggage", long.as_str())],
            vec![("forwarded", "for=10.0.0.1;host=\"web.default.svc.cluster.local\"")],
            vec![("forwarded", ";;;host=;for=\"")],
            vec![("x-forwarded-network", "elsewhere"), ("baggage", "k8s.namespace.name=kube-system")],
            vec![("x-forwarded-for", "10.0.0.1")],
        ] {
            let mut connection = peer.open(to).await;
            let mut answer = connect(&mut connection, &authority, &headers).await;
            assert_eq!(answer.status, 200, "{headers:?}");
            assert_eq!(answer.echo(b"fine").await, b"fine", "{headers:?}");
        }
    });
    drop(peer);
    ringway_e2e::eventually("every line is written", STEP, || lines::completed(world.far()).len() == 8);
    for line in world.far().access_lines().unwrap() {
        assert_eq!(text(&line, "src.identity"), CLIENT, "the identity is the certificate's: {line}");
        let source: SocketAddr = text(&line, "src.addr").parse().unwrap();
        assert_eq!(source.ip(), world.stranger.at(0).ip(), "the address is the connection's: {line}");
    }
}

#[test]
fn without_a_certificate_of_the_mesh_nobody_gets_in() {
    let world = World::start();
    let app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let to = world.server.at(HBONE_PORT);
    let refused = |what: &str, peer: HbonePeer| {
        block_on(async {
            // With TLS 1.3 a client learns of the refusal only when it reads.
            let result = match peer.handshake(to).await {
                Ok(mut tls) => {
                    let _ = tls
                        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                        .await;
                    tokio::time::timeout(STEP, tls.read_u8()).await.expect("an end in time").map(|_| ())
                }
                Err(error) => Err(error),
            };
            assert!(result.is_err(), "{what} got in");
        });
    };
    let with = |card, version, protocol: &[u8]| {
        HbonePeer::with_card(&world.stranger, &world.cluster.authority(), CLIENT, card, version, protocol)
    };
    refused("nobody", with(Card::None, &rustls::version::TLS13, b"h2"));
    refused("somebody else's certificate", with(Card::Foreign, &rustls::version::TLS13, b"h2"));
    refused(
        "another trust domain",
        HbonePeer::new(
            &world.stranger,
            &world.cluster.authority(),
            "spiffe://elsewhere/ns/default/sa/client",
        ),
    );
    let line = lines::wait_for(world.far(), "a handshake that failed", |line| {
        text(line, "error").starts_with("tls handshake error: ")
    });
    assert_eq!((line["level"].as_str(), line["message"].as_str()), (Some("warn"), Some("connection failed")));
    assert_eq!(app.peers(), []);
    baseline.is_back(&world);
}

#[test]
fn peers_that_begin_and_do_not_go_on_are_given_up() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let (peer, to) = peer(&world);
    block_on(async {
        let mut idle = Vec::new();
        for greeting in [&b""[..], b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 300]] {
            let stream = world.stranger.space.connect(to, STEP).unwrap();
            stream.set_nonblocking(true).unwrap();
            let mut stream = tokio::net::TcpStream::from_std(stream).unwrap();
            stream.write_all(greeting).await.unwrap();
            idle.push(stream);
        }
        let started = Instant::now();
        for mut stream in idle {
            // An alert may come before the end.
            let mut bytes = Vec::new();
            let end = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut bytes)).await;
            end.expect("given up within the handshake's bound").ok();
        }
        assert!(started.elapsed() < Duration::from_secs(13));
        // A peer that opens a stream, then neither reads nor answers pings.
        let mut tls = peer.handshake(to).await.unwrap();
        tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (stream, _session) = tls.into_inner();
        let mut bytes = vec![0; 65_536];
        let started = Instant::now();
        loop {
            let read = tokio::time::timeout(Duration::from_secs(45), async {
                stream.readable().await.map(|()| stream.try_read(&mut bytes))
            });
            match read.await.expect("closed within ping interval and timeout").unwrap() {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        assert!(started.elapsed() < Duration::from_secs(40), "it took {:?}", started.elapsed());
    });
    baseline.is_back(&world);
}

#[test]
fn a_flood_of_resets_pings_or_settings_ends_that_connection_and_hurts_no_other() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let (peer, to) = peer(&world);
    let mut bystander = dial(&world.client, service());
    let before = world.far().resident_bytes().unwrap();
    let floods: [(&str, Vec<u8>); 3] = [
        ("pings", b"\x00\x00\x08\x06\x00\x00\x00\x00\x00pingpong".to_vec()),
        ("settings", b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64".to_vec()),
        ("empty data", b"\x00\x00\x00\x00\x00\x00\x00\x00\x01".to_vec()),
    ];
    block_on(async {
        for (what, frame) in floods {
            let mut tls = peer.handshake(to).await.unwrap();
            tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                .await
                .unwrap();
            let burst = frame.repeat(1_000);
            // Never reading: what is answered piles up somewhere, and that must be bounded.
            let flood = async {
                for _ in 0..200 {
                    if tls.write_all(&burst).await.is_err() {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(10), flood).await;
            let grown = world.far().resident_bytes().unwrap().saturating_sub(before);
            assert!(grown < 32 << 20, "{what}: {grown} bytes held");
        }
        // Streams opened and reset at once, 20,000 times (rapid reset).
        let mut connection = peer.open(to).await;
        let authority = world.server.at(APP_PORT).to_string();
        for _ in 0..20_000 {
            let Ok(()) = std::future::poll_fn(|context| connection.poll_ready(context)).await else { break };
            let request = http::Request::builder().method(http::Method::CONNECT).uri(authority.as_str());
            let Ok((_, mut stream)) = connection.send_request(request.body(()).unwrap(), false) else {
                break;
            };
            stream.send_reset(h2::Reason::CANCEL);
        }
    });
    use std::io::{Read, Write};
    let mut bytes = [0; 64];
    pattern(1, 0, &mut bytes);
    bystander.write_all(&bytes).unwrap();
    bystander.read_exact(&mut bytes).expect("a bystander's connection");
    drop(bystander);
    baseline.is_back(&world);
}

#[test]
fn a_reset_stream_and_an_ended_one_reach_the_app_as_what_they_are() {
    let world = World::start();
    let (peer, to) = peer(&world);
    let listener = world.server.space.listen(world.server.at(7_000)).unwrap();
    let authority = world.server.at(7_000).to_string();
    use std::io::Read;
    block_on(async {
        let mut connection = peer.open(to).await;
        for reset in [true, false] {
            let mut answer = connect(&mut connection, &authority, &[]).await;
            assert_eq!(answer.status, 200);
            let (mut app, _) = listener.accept().unwrap();
            app.set_read_timeout(Some(STEP)).unwrap();
            if reset {
                answer.send.send_reset(h2::Reason::CANCEL);
                // The frame goes out when the connection's driver runs.
                tokio::time::sleep(Duration::from_millis(200)).await;
                let error = app.read(&mut [0]).expect_err("a reset became an orderly end");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            } else {
                answer.send.send_data(Bytes::from_static(b"last words"), true).unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
                let mut heard = String::new();
                app.read_to_string(&mut heard).unwrap();
                assert_eq!(heard, "last words");
            }
        }
    });
}
