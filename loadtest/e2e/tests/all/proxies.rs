//! The explicit proxies of a pod, SOCKS5 and HTTP CONNECT, byte by byte: what goes through, what is refused and how,
//! and what a hostile client can't do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ringway::demo::mesh_file::{FileService, deny};
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::lines::{self, number, text};
use ringway_e2e::names::{A, Heard, NameServer, Say, asked_name, question_end, reply};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service};
use ringway_e2e::{eventually, pattern, sockets};
use tokio::io::AsyncWriteExt;

const ON: [(&str, &str); 2] = [("RINGWAY_HTTP_CONNECT", "true"), ("UNSTABLE_ENABLE_SOCKS5", "true")];
const CONNECT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 15_081);
const SOCKS5: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 15_080);
const WEB: &str = "web.default.svc.cluster.local";

/// Asks for a tunnel, with `behind` right behind the head; the status and the rest of the answer's head.
#[track_caller]
fn connect(pod: &Pod, to: &str, behind: &[u8]) -> (TcpStream, u16, String) {
    let mut stream = dial(pod, CONNECT.into());
    let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), behind].concat()).unwrap();
    let (status, head) = answer(&mut stream);
    (stream, status, head)
}

/// The head of an answer; what follows stays in the stream.
#[track_caller]
fn answer(stream: &mut TcpStream) -> (u16, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let came = stream.read(&mut byte).unwrap();
        assert!(came == 1, "the answer ended: {}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or(&head);
    (status.parse().unwrap(), head)
}

#[track_caller]
fn rest(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The whole answer to a request that is refused: its status and its one line.
#[track_caller]
fn refused(pod: &Pod, to: &str) -> (u16, String) {
    let (mut stream, status, head) = connect(pod, to, b"");
    let line = rest(&mut stream);
    assert!(head.contains("Connection: close\r\n") && line.ends_with('\n'), "{head}{line}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", line.len())), "{head}{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    (status, line)
}

/// A SOCKS5 request as libraries send it; the reply's code.
#[track_caller]
fn socks5(pod: &Pod, host: &str, port: u16, behind: &[u8]) -> (TcpStream, u8) {
    let mut stream = dial(pod, SOCKS5.into());
    stream.write_all(&[5, 2, 2, 0]).unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    let address = match host.parse() {
        Ok(std::net::IpAddr::V4(v4)) => [&[1][..], &v4.octets()].concat(),
        Ok(std::net::IpAddr::V6(v6)) => [&[4][..], &v6.octets()].concat(),
        Err(_) => [&[3, u8::try_from(host.len()).unwrap()][..], host.as_bytes()].concat(),
    };
    stream.write_all(&[&[5, 1, 0][..], &address, &port.to_be_bytes(), behind].concat()).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((reply[0], &reply[2..]), (5, &[0, 1, 0, 0, 0, 0, 0, 0][..]));
    (stream, reply[1])
}

#[track_caller]
fn echoes(stream: &mut TcpStream, word: &str) {
    stream.write_all(word.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(stream), word);
}

#[test]
fn both_go_the_way_of_captured_traffic_by_name_and_by_address() {
    let world = World::start_with(&ON, |_| {});
    let app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let (pod, v4, v6) = (&world.client, world.server.v4, world.server.v6);
    let mut ways = Vec::new();
    for to in [format!("{WEB}:80"), "web:80".to_owned(), "Web.Default.:80".to_owned()] {
        ways.push((connect(pod, &to, b""), "connect", Some(WEB)));
    }
    ways.push((connect(pod, &service().to_string(), b""), "connect", Some(WEB)));
    ways.push((connect(pod, &format!("{v4}:{APP_PORT}"), b""), "connect", None));
    ways.push((connect(pod, &format!("[{v6}]:{APP_PORT}"), b""), "connect", None));
    let mut all: Vec<_> = ways
        .into_iter()
        .map(|((stream, status, _), via, service)| {
            assert_eq!(status, 200);
            (stream, via, service)
        })
        .collect();
    for (host, port, service) in [
        (WEB.to_owned(), 80, Some(WEB)),
        ("web".to_owned(), 80, Some(WEB)),
        (v4.to_string(), APP_PORT, None),
        (v6.to_string(), APP_PORT, None),
    ] {
        let (stream, code) = socks5(pod, &host, port, b"");
        assert_eq!(code, 0, "{host}");
        all.push((stream, "socks5", service));
    }
    let count = all.len();
    for (number_of, (mut stream, via, service)) in all.into_iter().enumerate() {
        let from = stream.local_addr().unwrap();
        echoes(&mut stream, &"x".repeat(100 + number_of));
        let line = lines::wait_for(world.near(), via, |line| text(line, "src.addr") == from.to_string());
        assert_eq!((text(&line, "via"), text(&line, "direction")), (via, "outbound"));
        assert_eq!(line["dst.service"].as_str(), service);
        assert_eq!(text(&line, "src.identity"), "spiffe://cluster.local/ns/default/sa/client");
        assert_eq!(text(&line, "dst.identity"), "spiffe://cluster.local/ns/default/sa/server");
        assert!(text(&line, "dst.addr").ends_with(":15008"), "{line}");
        assert_eq!(number(&line, "bytes_sent"), 100 + u64::try_from(number_of).unwrap());
        let keys: Vec<_> = line.as_object().unwrap().keys().collect();
        assert!(keys.iter().any(|key| *key == "via"), "{line}");
    }
    // The server sees the pod, not its loopback.
    let own = [pod.at(0).ip(), pod.at6(0).ip()];
    assert!(app.peer_addresses().iter().all(|peer| own.contains(peer)), "{:?}", app.peer_addresses());
    assert_eq!(app.peers().len(), count);
    let metrics = world.near().metrics().unwrap();
    let labels = ["reporter=\"source\"", "connection_security_policy=\"mutual_tls\""];
    let opened = metrics.sum("istio_tcp_connections_opened_total", &labels);
    assert_eq!(opened, f64::from(u32::try_from(count).unwrap()));
    baseline.is_back(&world);
}

#[test]
fn captured_and_explicit_connections_share_a_tunnel() {
    let world = World::start_with(&[ON[0], ON[1], ("ZTUNNEL_WORKER_THREADS", "1")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let to = world.server.at(APP_PORT);
    let mut held = vec![dial(&world.client, to)];
    held.push(connect(&world.client, &to.to_string(), b"").0);
    held.push(socks5(&world.client, &to.ip().to_string(), APP_PORT, b"").0);
    for stream in &mut held {
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    let all = sockets::connections(&world.client.space);
    assert_eq!(all.iter().filter(|socket| socket.peer.contains(":15008")).count(), 1);
}

#[test]
fn bytes_behind_the_request_servers_that_speak_first_and_half_closes() {
    let world = World::start_with(&ON, |_| {});
    let baseline = Baseline::take(&world);
    let (pod, to) = (&world.client, world.server.at(APP_PORT).to_string());
    let stranger = Server::start(&world.stranger, APP_PORT, echo);
    {
        let _app = Server::start(&world.server, APP_PORT, echo);
        // By tunnel and plain.
        for to in [&to, &world.stranger.at(APP_PORT).to_string()] {
            let (mut stream, status, head) = connect(pod, to, b"early ");
            assert_eq!(status, 200);
            let head = head.to_ascii_lowercase();
            assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
            stream.write_all(b"late").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(rest(&mut stream), "early late");
        }
        let (mut stream, code) = socks5(pod, &world.server.v4.to_string(), APP_PORT, b"early ");
        assert_eq!(code, 0);
        stream.write_all(b"late").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut stream), "early late");
        // Much, in both directions at once.
        let mut bytes = vec![0; 8 << 20];
        pattern(7, 0, &mut bytes);
        let (stream, status, _) = connect(pod, &to, &bytes[..60_000]);
        assert_eq!(status, 200);
        let mut writer = stream.try_clone().unwrap();
        let mut heard = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&bytes[60_000..]).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            (&stream).read_to_end(&mut heard).unwrap();
        });
        assert!(heard == bytes, "{} bytes came back", heard.len());
    }
    assert_eq!(stranger.peer_addresses(), [pod.at(0).ip()]);
    let _greeter = Server::start(&world.server, APP_PORT, |mut stream| async move {
        let _ = stream.write_all(b"220 welcome\r\n").await;
        echo(stream).await;
    });
    let (mut first, status, _) = connect(pod, &to, b"");
    let (mut second, code) = socks5(pod, &world.server.v4.to_string(), APP_PORT, b"");
    assert_eq!((status, code), (200, 0));
    for stream in [&mut first, &mut second] {
        let mut banner = [0; 13];
        stream.read_exact(&mut banner).unwrap();
        assert_eq!(&banner, b"220 welcome\r\n");
        echoes(stream, "EHLO");
    }
    drop((first, second));
    baseline.is_back(&world);
}

#[test]
fn each_refusal_says_why_in_the_words_of_its_protocol() {
    let mut world = World::start_with(&ON, |world| {
        world.cluster.mesh.services.push(FileService::new("idle", &["10.77.201.1"], &[(80, APP_PORT)]));
    });
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let (tunnelled, plain) = (world.server.at(9), world.stranger.at(9));
    for (to, status, code) in [
        // Nothing listens: behind a tunnel, and in the open.
        (tunnelled.to_string(), 502, 5),
        (plain.to_string(), 502, 5),
        // A service without endpoints, by address and by name.
        ("10.77.201.1:80".to_owned(), 503, 4),
        ("idle.default.svc.cluster.local:80".to_owned(), 503, 4),
        // Ourselves.
        ("127.0.0.1:15001".to_owned(), 403, 2),
        ("127.0.0.1:15081".to_owned(), 403, 2),
        ("localhost:15080".to_owned(), 403, 2),
    ] {
        let (answered, line) = refused(&world.client, &to);
        assert_eq!(answered, status, "{to}: {line}");
        let (host, port) = to.rsplit_once(':').unwrap();
        let (mut stream, reply) = socks5(&world.client, host, port.parse().unwrap(), b"");
        assert_eq!(reply, code, "{to}");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end follows the reply");
    }
    let unknown = "no.such.host.invalid";
    let (status, line) = refused(&world.client, &format!("{unknown}:443"));
    assert!(matches!(status, 502 | 504) && line.contains(unknown), "{status} {line}");
    assert_eq!(socks5(&world.client, unknown, 443, b"").1, 4);
    for via in ["connect", "socks5"] {
        let denied = lines::wait_for(world.near(), "an unknown name", |line| {
            text(line, "dst.addr") == format!("{unknown}:443") && line["via"] == via
        });
        assert_eq!((text(&denied, "message"), text(&denied, "level")), ("connection failed", "warn"));
    }
    world.change_policies(vec![deny("no-client", "cluster.local/ns/default/sa/client")]);
    assert_eq!(refused(&world.client, &format!("{WEB}:80")).0, 403);
    assert_eq!(socks5(&world.client, "web", 80, b"").1, 2);
    lines::wait_for(world.near(), "a denial", |line| {
        line["error"] == "http status: 401 Unauthorized" && line["via"] == "connect"
    });
    baseline.is_back(&world);
}

#[test]
fn names_beyond_the_mesh_are_asked_of_name_servers() {
    let mut names = None;
    let mut world = World::start_with(&ON, |world| {
        names = Some(world.cluster.plain_pod(1, "names").unwrap());
    });
    let (names, stranger) = (names.unwrap(), world.stranger.v4);
    let deaf = names.v4;
    let server = NameServer::start(&names, move |heard, _| {
        let end = question_end(&heard.message);
        let is_four = heard.message[end - 4..end - 2] == A.to_be_bytes();
        match asked_name(&heard.message).as_str() {
            "far.example" if is_four => {
                vec![Say::Reply(reply(&heard.message, 0, &[(A, 20, stranger.octets().to_vec())]))]
            }
            "several.example" if is_four => {
                let records = [deaf, deaf, stranger].map(|ip| (A, 20, ip.octets().to_vec()));
                vec![Say::Reply(reply(&heard.message, 0, &records))]
            }
            "far.example" | "several.example" => vec![Say::Reply(reply(&heard.message, 0, &[]))],
            "silent.example" => Vec::new(),
            _ => vec![Say::Reply(reply(&heard.message, 3, &[]))],
        }
    });
    world.take_over_with_resolv_conf(&format!("nameserver {}\noptions timeout:1\n", names.v4), &[]);
    let app = Server::start(&world.stranger, APP_PORT, echo);
    let (mut stream, status, _) = connect(&world.client, &format!("Far.Example:{APP_PORT}"), b"");
    assert_eq!(status, 200);
    echoes(&mut stream, "far");
    let (mut stream, code) = socks5(&world.client, "far.example", APP_PORT, b"");
    assert_eq!(code, 0);
    echoes(&mut stream, "away");
    // Where nobody listens at one address, the next one is tried: one connection, one line.
    let several = format!("several.example:{APP_PORT}");
    let (mut stream, status, _) = connect(&world.client, &several, b"");
    assert_eq!(status, 200);
    echoes(&mut stream, "third");
    drop(stream);
    let line = lines::wait_for(world.near(), "by the third", |line| line["attempts"] == 3);
    assert_eq!(text(&line, "dst.addr"), world.stranger.at(APP_PORT).to_string());
    let (mut stream, code) = socks5(&world.client, "several.example", APP_PORT, b"");
    assert_eq!(code, 0);
    echoes(&mut stream, "once more");
    assert_eq!(app.peer_addresses(), [world.client.at(0).ip(); 4]);
    let (status, line) = refused(&world.client, "gone.example:80");
    assert!(status == 502 && line.contains("no such host: gone.example"), "{status} {line}");
    let (status, line) = refused(&world.client, "silent.example:80");
    assert!(status == 504 && line.contains("silent.example"), "{status} {line}");
    assert!(!server.heard().is_empty());
    // A service's name is never asked of them.
    let _app = Server::start(&world.server, APP_PORT, echo);
    assert_eq!(connect(&world.client, "web:80", b"").1, 200);
    let asked_for_web = |heard: &Heard| asked_name(&heard.message).starts_with("web");
    assert!(!server.heard().iter().any(asked_for_web));
}

#[test]
fn what_is_no_request_is_answered_or_closed_and_counted() {
    let world = World::start_with(&ON, |_| {});
    let baseline = Baseline::take(&world);
    let say = |to: (Ipv4Addr, u16), bytes: &[u8]| {
        let mut stream = dial(&world.client, to.into());
        // The answer may come, and the end with it, before all is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        String::from_utf8_lossy(&heard).into_owned()
    };
    let long = [&b"CONNECT web:80 HTTP/1.1\r\nHost: web\r\nX: "[..], &vec![b'y'; 1 << 20]].concat();
    let many = format!("CONNECT web:80 HTTP/1.1\r\nHost: web\r\n{}\r\n", "X: y\r\n".repeat(200));
    for (said, status) in [
        (&b"GET http://web/ HTTP/1.1\r\nHost: web\r\n\r\n"[..], 405),
        (b"CONNECT web HTTP/1.1\r\nHost: web\r\n\r\n", 400),
        (b"CONNECT web:80 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT web:80 HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\n\r\nbody", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n\n", 400),
        (&long, 431),
        (many.as_bytes(), 431),
    ] {
        let heard = say(CONNECT, said);
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {heard}");
        assert!(
            status != 405 || heard.contains("Allow: CONNECT") && heard.contains("only tunnels"),
            "{heard}"
        );
    }
    assert_eq!(say(CONNECT, b"CONNECT web:80 HT"), "", "half a head, and the end");
    for (said, heard) in [
        (&[4, 1, 0, 80, 10, 0, 0, 1, 0][..], &[5, 7, 0, 1, 0, 0, 0, 0, 0, 0][..]),
        (&[5, 1, 2], &[5, 0xff]),
        (&[5, 1, 0, 5, 2, 0, 1, 10, 0, 0, 1, 0, 80], &[5, 0, 5, 7, 0, 1, 0, 0, 0, 0, 0, 0]),
        (&[5, 1, 0, 5, 1, 0, 9], &[5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0]),
        (&[5, 1, 0, 5, 1, 0], &[5, 0]),
        (b"GET / HTTP/1.1\r\n\r\n", &[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]),
        (&[], &[]),
    ] {
        assert_eq!(say(SOCKS5, said), String::from_utf8_lossy(heard), "{said:?}");
    }
    let counted = || world.near().metrics().unwrap().sum("ringway_proxy_refusals_total", &[]);
    eventually("all are counted", STEP, || counted() == 16.0);
    baseline.is_back(&world);
}

#[test]
fn slow_clients_slow_nobody_else_and_are_sent_away() {
    let world = World::start_with(&ON, |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let baseline = Baseline::take(&world);
    let started = Instant::now();
    let mut slow: Vec<_> = (0..400).map(|_| dial(&world.client, CONNECT.into())).collect();
    let mut half: Vec<_> = (0..100).map(|_| dial(&world.client, SOCKS5.into())).collect();
    half.iter_mut().for_each(|stream| stream.write_all(&[5]).unwrap());
    for byte in b"CONNECT web:80 HTTP/1.1\r\nX:" {
        slow.iter_mut().for_each(|stream| stream.write_all(&[*byte]).unwrap());
    }
    let asked = Instant::now();
    for _ in 0..20 {
        let (mut stream, status, _) = connect(&world.client, &format!("{WEB}:80"), b"");
        assert_eq!(status, 200);
        echoes(&mut stream, "quick");
    }
    assert!(asked.elapsed() < Duration::from_secs(5), "20 tunnels took {:?}", asked.elapsed());
    for stream in &mut slow {
        stream.set_read_timeout(Some(2 * STEP)).unwrap();
        let (status, _) = answer(stream);
        assert_eq!(status, 408);
        rest(stream);
    }
    for stream in &mut half {
        stream.set_read_timeout(Some(2 * STEP)).unwrap();
        assert!(!matches!(stream.read(&mut [0; 16]), Ok(1..)), "half a greeting was answered");
    }
    assert!(started.elapsed() >= Duration::from_secs(9), "sent away after {:?}", started.elapsed());
    drop((slow, half));
    baseline.is_back(&world);
}

#[test]
fn the_references_early_reply_and_a_loopback_without_ipv6() {
    let early = [ON[0], ON[1], ("RINGWAY_SOCKS5_EARLY_REPLY", "true")];
    let world = World::start_with(&early, |world| {
        world.server.space.set("net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
    });
    let listeners = |pod: &Pod| {
        let all = sockets::listeners(&pod.space);
        let mut all: Vec<_> = all.into_iter().map(|socket| socket.local).collect();
        all.retain(|local| local.ends_with(":15081") || local.ends_with(":15080"));
        all.sort_unstable();
        all.dedup();
        all
    };
    let (four, six) = ("127.0.0.1:15080 127.0.0.1:15081", "127.0.0.1:15080 127.0.0.1:15081 [::1]:15081");
    assert_eq!(listeners(&world.client).join(" "), six);
    assert_eq!(listeners(&world.server).join(" "), four);
    let (mut stream, code) = socks5(&world.client, &world.stranger.v4.to_string(), 9, b"");
    assert_eq!(code, 0, "success is told before anybody is called");
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    let _app = Server::start(&world.client, APP_PORT, echo);
    let to = SocketAddr::from((Ipv6Addr::LOCALHOST, 15_081));
    let mut stream = dial(&world.client, to);
    let head = format!("CONNECT {} HTTP/1.1\r\nHost:\r\n\r\n", world.client.at(APP_PORT));
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(answer(&mut stream).0, 200);
    echoes(&mut stream, "by six");
    let (mut stream, status, _) = connect(&world.server, &world.client.at(APP_PORT).to_string(), b"");
    assert_eq!(status, 200);
    echoes(&mut stream, "by four");
}

#[test]
fn both_are_off_unless_asked_for() {
    let world = World::start();
    for port in [CONNECT, SOCKS5] {
        assert!(world.client.space.connect(port.into(), STEP).is_err(), "{port:?} listens");
    }
}
