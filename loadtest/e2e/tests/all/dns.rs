//! Names asked in a pod: the mesh's own, and all the others, which must come back as their name server said them,
//! whatever it does: lose, lie, cut, flood, stay silent.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringway::demo::mesh_file::FileService;
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::eventually;
use ringway_e2e::lines::text;
use ringway_e2e::names::{
    A, Heard, NameServer, Say, TXT, ask, asked_name, comparable, dig, query, rcode, read_frame, reply,
    write_frame,
};
use ringway_e2e::world::{STEP, VIP, VIP6, World, try_dial};

pub const ON: (&str, &str) = ("ISTIO_META_DNS_CAPTURE", "true");
/// What the name server says of every host.
pub const FAR: [u8; 4] = [192, 0, 2, 1];

/// A world with a pod for name servers.
pub fn world(environment: &[(&str, &str)]) -> (World, Pod) {
    let environment: Vec<_> =
        [ON, ("RUST_LOG", "info,dns=debug")].iter().chain(environment).copied().collect();
    let mut names = None;
    let world = World::start_with(&environment, |world| {
        names = Some(world.cluster.plain_pod(2, "names").unwrap());
        let mut wild = FileService::new("wild", &["10.77.200.7"], &[(80, 80)]);
        wild.extra.push("subjectAltNames: []".to_owned());
        world.cluster.mesh.services.push(wild);
        let headless = FileService::new("headless", &[], &[(80, 0)]);
        let workload = world.cluster.mesh.workload("server").unwrap();
        workload.serves.push((headless.hostname(), 80, 8080));
        world.cluster.mesh.services.push(headless);
    });
    (world, names.unwrap())
}

pub fn address(query: &Heard) -> Vec<u8> {
    reply(&query.message, 0, &[(A, 20, FAR.to_vec())])
}

pub fn ordinary(query: &Heard, _: usize) -> Vec<Say> {
    vec![Say::Reply(address(query))]
}

#[test]
fn the_mesh_answers_for_its_own_names_over_both_transports_and_families() {
    let (world, names) = world(&[]);
    let baseline = Baseline::take(&world);
    let server = NameServer::start(&names, ordinary);
    let (four, six) = (format!("@{}", names.v4), format!("@{}", names.v6));
    for (words, expected) in [
        (&["web", "A"][..], vec![VIP]),
        (&["web.default", "A"], vec![VIP]),
        (&["web.default.svc", "A", "+tcp"], vec![VIP]),
        (&["WEB.default.svc.cluster.local", "A"], vec![VIP]),
        (&["web.default.svc.cluster.local", "AAAA"], vec![VIP6]),
        (&["web.default.default.svc.cluster.local", "A"], vec!["web.default.", VIP]),
        (&["headless.default", "A"], vec!["SERVER"]),
        (&["headless.default", "AAAA", "+tcp"], vec!["SERVER6"]),
        (&["wild.default", "AAAA"], vec![]),
        (&["elsewhere.example", "A"], vec!["192.0.2.1"]),
    ] {
        let (own4, own6) = (world.server.v4.to_string(), world.server.v6.to_string());
        let expected: Vec<_> = expected
            .into_iter()
            .map(|word| match word {
                "SERVER" => own4.as_str(),
                "SERVER6" => own6.as_str(),
                other => other,
            })
            .collect();
        let said = dig(&world.client, &[&[four.as_str(), "+short"], words].concat());
        assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{words:?}");
    }
    // Captured over IPv6 too; nobody listens there, so only the mesh can answer.
    let said = dig(&world.client, &[&six, "+short", "web", "A"]);
    assert_eq!(said.trim(), VIP);
    let whole = dig(&world.client, &[&four, "web", "A"]);
    for part in
        ["status: NOERROR", "flags: qr aa rd ra;", "ADDITIONAL: 1", "EDNS: version: 0", "\t30\tIN\tA\t"]
    {
        assert!(whole.contains(part), "{part} isn't in {whole}");
    }
    assert_eq!(server.heard().len(), 1);
    let metrics = world.near().metrics().unwrap();
    let sum = |name: &str, labels: &[&str]| metrics.sum(name, labels);
    assert_eq!(sum("istio_dns_requests_total", &["source_canonical_service=\"client\""]), 12.0);
    assert_eq!(sum("istio_dns_requests_total", &["request_protocol=\"tcp\""]), 2.0);
    assert_eq!(sum("istio_dns_upstream_requests_total", &["request_query_type=\"a\""]), 1.0);
    assert_eq!(sum("istio_dns_upstream_request_duration_seconds_count", &[]), 1.0);
    assert_eq!(sum("istio_dns_upstream_failures_total", &[]), 0.0);
    eventually("the debug line", STEP, || {
        world.near().log_lines().unwrap().iter().any(|line| {
            text(line, "scope") == "dns"
                && text(line, "src.workload") == "client"
                && text(line, "src.namespace") == "default"
                && text(line, "query") == "A"
                && text(line, "domain") == "web.default.default.svc.cluster.local."
                && text(line, "result") == "success"
                && line["endpoints"] == 1
        })
    });
    drop(server);
    baseline.is_back(&world);
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A real name server with records of many types.
fn unbound(world: &World, names: &Pod) -> Running {
    let records = [
        "a.corp.test. 300 IN A 192.0.2.7",
        "a.corp.test. 300 IN AAAA 2001:db8::7",
        "a.corp.test. 300 IN TXT \"one\" \"two; three\"",
        "_sip._tcp.corp.test. 60 IN SRV 1 2 5060 a.corp.test.",
        "corp.test. 60 IN MX 10 a.corp.test.",
        "corp.test. 60 IN NS a.corp.test.",
        "corp.test. 60 IN SOA a.corp.test. mail.corp.test. 7 60 60 60 33",
        "corp.test. 60 IN CAA 0 issue \"ca.test\"",
        "alias.corp.test. 60 IN CNAME a.corp.test.",
        "web.corp.test. 60 IN HTTPS 1 . alpn=h2",
        "odd.corp.test. 60 IN TYPE65280 \\# 4 01020304",
    ];
    let long: String =
        (0..120).map(|n| format!("local-data: 'big.corp.test. 60 IN TXT \"{n:0>40}\"'\n")).collect();
    let quoted: String = records.iter().map(|record| format!("local-data: '{record}'\n")).collect();
    let directory = world.cluster.directory();
    let file = directory.join("unbound.conf");
    let configuration = format!(
        "server:\n interface: {}\n do-ip6: no\n access-control: 0.0.0.0/0 allow\n chroot: ''\n username: ''\n \
         directory: '{}'\n pidfile: ''\n use-syslog: no\n rrset-roundrobin: no\n \
         local-zone: corp.test. static\n local-zone: example. refuse\n local-zone: cluster.local. static\n \
         local-data-ptr: '192.0.2.7 300 a.corp.test'\n{quoted}{long}remote-control:\n control-enable: no\n",
        names.v4,
        directory.display(),
    );
    std::fs::write(&file, configuration).unwrap();
    let mut command = Command::new("unbound");
    command.arg("-d").arg("-c").arg(&file).stdin(Stdio::null());
    let running = Running(names.space.spawn(&mut command).expect("unbound"));
    eventually("unbound answers", STEP, || {
        ask(&world.stranger, names.at(53), &query(1, "a.corp.test", A), Duration::from_millis(200)).is_some()
    });
    running
}

#[test]
fn everything_else_comes_back_as_a_real_name_server_says_it() {
    let (world, names) = world(&[("RINGWAY_DNS_CACHE", "false")]);
    let _unbound = unbound(&world, &names);
    let server = format!("@{}", names.v4);
    let questions: &[&[&str]] = &[
        &["a.corp.test", "A"],
        &["a.corp.test", "AAAA"],
        &["a.corp.test", "TXT"],
        &["A.Corp.TEST", "A", "+noedns"],
        &["_sip._tcp.corp.test", "SRV"],
        &["corp.test", "MX"],
        &["corp.test", "NS", "+norecurse"],
        &["corp.test", "SOA", "+dnssec"],
        &["corp.test", "CAA", "+cdflag", "+adflag"],
        &["alias.corp.test", "A"],
        &["web.corp.test", "HTTPS"],
        &["odd.corp.test", "TYPE65280"],
        &["a.corp.test", "ANY"],
        &["a.corp.test", "A", "+ednsopt=65001:0102"],
        &["-x", "192.0.2.7"],
        &["nothing.corp.test", "A"],
        &["corp.test", "A"],
        &["refused.example", "A"],
        &["a.corp.test", "A", "-c", "CH"],
        &["version.bind", "TXT", "-c", "CH"],
        &["big.corp.test", "TXT"],
        &["big.corp.test", "TXT", "+ignore", "+noedns"],
        &["big.corp.test", "TXT", "+bufsize=4096"],
        &["a.corp.test", "A", "+opcode=update"],
        &["a.corp.test", "SOA", "+opcode=notify"],
        &["a.corp.test", "A", "+opcode=status"],
        &["web.default.svc.cluster.local", "SRV"],
    ];
    for transport in ["+notcp", "+tcp"] {
        for question in questions {
            let words = [&[server.as_str(), transport], *question].concat();
            let direct = comparable(&dig(&world.stranger, &words));
            let through = comparable(&dig(&world.client, &words));
            assert_eq!(through, direct, "{words:?}");
        }
    }
    let large = dig(&world.client, &[&server, "big.corp.test", "TXT", "+short"]);
    assert_eq!(large.lines().count(), 120);
}

#[test]
fn a_signed_update_passes_byte_for_byte_and_so_does_its_answer() {
    let (world, names) = world(&[]);
    let answer_of = |message: &[u8]| {
        let mut answer = message.to_vec();
        answer[2] |= 0x80;
        answer.extend_from_slice(b"signature of the answer");
        answer
    };
    let server = NameServer::start(&names, move |heard, _| vec![Say::Reply(answer_of(&heard.message))]);
    let mut update = query(0x4711, "zone.example", 6);
    update[2] = 0x28;
    update.extend((0..=255).cycle().take(700));
    let answer = ask(&world.client, names.at(53), &update, STEP).unwrap();
    assert_eq!(answer, answer_of(&update));
    let mut stream = world.client.space.connect(names.at(53), STEP).unwrap();
    stream.set_read_timeout(Some(STEP)).unwrap();
    write_frame(&mut stream, &update).unwrap();
    assert_eq!(read_frame(&mut stream).unwrap(), answer_of(&update));
    let heard = server.heard();
    assert_eq!(heard.iter().map(|one| one.tcp).collect::<Vec<_>>(), [false, true]);
    for one in &heard {
        assert_eq!(one.message[2..], update[2..]);
        assert_ne!(one.id(), 0x4711, "an id of its own");
    }
}

#[test]
fn large_answers_are_cut_for_datagrams_and_whole_over_tcp_also_pipelined() {
    let (world, names) = world(&[]);
    let server = NameServer::start(&names, |heard, _| {
        let records: Vec<_> = (0..150_u8).map(|last| (A, 20, vec![10, 1, 1, last])).collect();
        match asked_name(&heard.message).as_str() {
            "huge.example" => vec![Say::Reply(reply(&heard.message, 0, &records))],
            "slow.example" => {
                std::thread::sleep(Duration::from_millis(400));
                vec![Say::Reply(address(heard))]
            }
            "cut.example" if !heard.tcp => vec![Say::Reply(reply(&heard.message, 0x200, &[]))],
            _ => vec![Say::Reply(address(heard))],
        }
    });
    // It sends 2,400 bytes to somebody who takes 512.
    let cut = ask(&world.client, names.at(53), &query(9, "huge.example", A), STEP).unwrap();
    assert!(cut.len() <= 512 && cut[2] & 2 != 0, "{cut:?}");
    let at = format!("@{}", names.v4);
    for name in ["huge.example", "cut.example"] {
        let said = dig(&world.client, &[&at, name, "A", "+noedns"]);
        assert!(said.contains("Truncated, retrying in TCP mode"), "{said}");
        assert!(said.contains("status: NOERROR") && !said.contains("ANSWER: 0"), "{said}");
    }
    let wide = dig(&world.client, &[&at, "huge.example", "A", "+bufsize=4096", "+short", "+ignore"]);
    assert_eq!(wide.lines().count(), 150);

    let mut stream = world.client.space.connect(names.at(53), STEP).unwrap();
    stream.set_read_timeout(Some(STEP)).unwrap();
    let asked = [(1, "slow.example"), (2, "web"), (3, "huge.example"), (4, "web.default")];
    for (id, name) in asked {
        write_frame(&mut stream, &query(id, name, A)).unwrap();
    }
    let ids: Vec<_> = asked.iter().map(|_| read_frame(&mut stream).unwrap()[1]).collect();
    assert_eq!(ids.len(), 4);
    assert_eq!(*ids.last().unwrap(), 1, "the slow one held up the others: {ids:?}");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 4);
    drop(server);
}

#[test]
fn replies_are_remembered_as_long_as_they_say() {
    let (world, names) = world(&[("ZTUNNEL_WORKER_THREADS", "1")]);
    let soa = [&[2, b'n', b's', 0, 1, b'm', 0][..], &[0; 16], &2_u32.to_be_bytes()].concat();
    let server = NameServer::start(&names, move |heard, _| {
        let name = asked_name(&heard.message);
        vec![Say::Reply(match name.split('.').next_back().unwrap_or_default() {
            "short" => reply(&heard.message, 0, &[(A, 2, FAR.to_vec())]),
            "never" => reply(&heard.message, 0, &[(A, 0, FAR.to_vec())]),
            "broken" => reply(&heard.message, 2, &[]),
            "none" => {
                // The SOA belongs into the second section.
                let mut message = reply(&heard.message, 3, &[(6, 30, soa.clone())]);
                message[6..10].copy_from_slice(&[0, 0, 0, 1]);
                message
            }
            _ => address(heard),
        })]
    });
    let asked_for = |name: &str| server.heard().iter().filter(|one| asked_name(&one.message) == name).count();
    let again =
        |name: &str, kind: u16| ask(&world.client, names.at(53), &query(5, name, kind), STEP).unwrap();
    let first = again("a.kept", A);
    assert_eq!((&again("a.kept", A), asked_for("a.kept")), (&first, 1));
    assert_eq!(again("A.KEPT", A)[12..20], *b"\x01A\x04KEPT\x00", "in the asker's own letters");
    again("a.kept", TXT);
    assert_eq!(asked_for("a.kept"), 2, "another type is another question");
    for (name, wanted) in [("a.never", 2), ("a.broken", 2), ("a.none", 1), ("a.short", 1)] {
        let (one, two) = (again(name, A), again(name, A));
        assert_eq!((rcode(&one), asked_for(name)), (rcode(&two), wanted), "{name}");
    }
    std::thread::sleep(Duration::from_millis(2_100));
    again("a.none", A);
    again("a.short", A);
    assert_eq!((asked_for("a.none"), asked_for("a.short")), (2, 2), "they were told to live 2 s");
    let aged = again("a.kept", A);
    let ttl = u32::from_be_bytes(aged[aged.len() - 10..aged.len() - 6].try_into().unwrap());
    assert!((15..=18).contains(&ttl), "{ttl} of 20 s are left");
    assert!(world.near().metrics().unwrap().sum("ringway_dns_cache_hits_total", &[]) >= 5.0);
}

#[test]
fn by_resolv_conf_the_second_name_server_is_asked_when_the_first_is_silent_or_refuses() {
    let (mut world, names) = world(&[]);
    let second = world.cluster.plain_pod(1, "names2").unwrap();
    let first = NameServer::start(&names, |heard, _| match asked_name(&heard.message).as_str() {
        "refused.example" => vec![Say::Reply(reply(&heard.message, 5, &[]))],
        _ => vec![],
    });
    let other = NameServer::start(&second, ordinary);
    let text = format!("nameserver {}\nnameserver {}\noptions timeout:1\n", names.v4, second.v4);
    world.take_over_with_resolv_conf(&text, &[("RINGWAY_DNS_UPSTREAM", "resolv.conf")]);
    // Whom it asks makes no difference.
    let nowhere: SocketAddr = "10.77.99.99:53".parse().unwrap();
    eventually("only the successor answers", STEP, || {
        let web = query(9, "web.default.svc.cluster.local", A);
        (0..8).all(|_| ask(&world.client, nowhere, &web, Duration::from_millis(200)).is_some())
    });
    for (name, slow) in [("a.example", true), ("refused.example", false)] {
        let started = Instant::now();
        let answer = ask(&world.client, nowhere, &query(3, name, A), STEP).unwrap();
        assert_eq!(answer[answer.len() - 4..], FAR, "{name}");
        assert_eq!(started.elapsed() > Duration::from_millis(800), slow, "{name}: {:?}", started.elapsed());
    }
    assert_eq!((first.heard().len(), other.heard().len()), (2, 2));
}

#[test]
fn an_idle_connection_for_names_is_closed_and_a_busy_one_is_not() {
    let (world, names) = world(&[]);
    let _server = NameServer::start(&names, ordinary);
    let connect = || -> TcpStream {
        let stream = world.client.space.connect(names.at(53), STEP).unwrap();
        stream.set_read_timeout(Some(STEP)).unwrap();
        stream
    };
    let mut busy = connect();
    for id in 0..4 {
        write_frame(&mut busy, &query(id, "web", A)).unwrap();
        assert_eq!(rcode(&read_frame(&mut busy).unwrap()), 0);
        std::thread::sleep(Duration::from_secs(2));
    }
}

#[test]
fn a_zone_is_transferred_whole_in_its_many_messages() {
    let (world, names) = world(&[]);
    let soa = [&[0, 0][..], &[0; 20]].concat();
    let server = NameServer::start(&names, move |heard, _| {
        let part = |records: &[(u16, u32, Vec<u8>)]| Say::Reply(reply(&heard.message, 0, records));
        let many: Vec<_> = (0..200_u8).map(|last| (A, 20, vec![10, 1, 1, last])).collect();
        let first = std::iter::once(part(&[(6, 20, soa.clone()), (A, 20, FAR.to_vec())]));
        first.chain((0..300).map(|_| part(&many))).chain([part(&[(6, 20, soa.clone())])]).collect()
    });
    let mut stream = world.client.space.connect(names.at(53), STEP).unwrap();
    stream.set_read_timeout(Some(STEP)).unwrap();
    write_frame(&mut stream, &query(77, "zone.example", 252)).unwrap();
    let (mut messages, mut records) = (0, 0);
    while messages < 302 {
        let message = read_frame(&mut stream).unwrap();
        assert_eq!(message[..2], [0, 77]);
        messages += 1;
        records += usize::from(message[7]);
    }
    assert_eq!(records, 2 + 300 * 200 + 1);
    write_frame(&mut stream, &query(78, "web", A)).unwrap();
    assert_eq!(read_frame(&mut stream).unwrap()[..2], [0, 78], "nothing else came");
    drop(server);
}

/// Field report E6: each pod's queries go to the server that it asked, of either family.
#[test]
fn each_query_goes_to_the_server_that_was_asked() {
    let (world, names) = world(&[]);
    let of_v4 = NameServer::start(&names, ordinary);
    let of_v6 = NameServer::start_at(&names, names.at6(53), |heard, _| {
        vec![Say::Reply(reply(&heard.message, 0, &[(A, 20, vec![192, 0, 2, 6])]))]
    });
    for (server, told) in [(names.at(53), 1), (names.at6(53), 6), (names.at(53), 1)] {
        let answer = ask(&world.client, server, &query(1, "same.example", A), STEP).unwrap();
        assert_eq!(answer[answer.len() - 4..], [192, 0, 2, told], "{server}");
        let mut stream = world.client.space.connect(server, STEP).unwrap();
        stream.set_read_timeout(Some(STEP)).unwrap();
        write_frame(&mut stream, &query(2, "other.example", A)).unwrap();
        let answer = read_frame(&mut stream).unwrap();
        assert_eq!(answer[answer.len() - 4..], [192, 0, 2, told], "{server} over TCP");
    }
    let client = [world.client.at(0).ip(), world.client.at6(0).ip()];
    let heard = [of_v4.heard(), of_v6.heard()].concat();
    assert!(heard.iter().all(|one| client.contains(&one.from.ip())), "asked from within the pod: {heard:?}");
}

#[test]
fn alone_it_serves_names_and_captures_nothing_else() {
    let (world, names) = world(&[("ENABLE_PROXY", "false")]);
    let server = NameServer::start(&names, ordinary);
    for name in ["web", "far.example"] {
        assert_eq!(rcode(&ask(&world.client, names.at(53), &query(1, name, A), STEP).unwrap()), 0, "{name}");
    }
    assert_eq!(ringway_e2e::sockets::proxy_listeners(&world.client.space), 0);
    assert_eq!(server.heard().len(), 1);
}

#[test]
fn a_pod_without_ipv6_on_its_loopback_is_served_over_ipv4() {
    let (mut world, names) = world(&[]);
    let pod = world.cluster.topology.add_pod(1, "four").unwrap();
    world.cluster.mesh.add(&pod, true);
    world.cluster.mesh.write().unwrap();
    pod.capture_with_names().unwrap();
    // After the rules, of which those for IPv6 need it.
    pod.space.set("net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
    let announced = ringway::demo::cluster::agent_pod(&pod).unwrap();
    world.cluster.agent(1).unwrap().add(announced).unwrap();
    let answer = ask(&pod, names.at(53), &query(1, "web", A), STEP).unwrap();
    assert_eq!(answer[answer.len() - 4..], [10, 77, 200, 1]);
}

/// Pods of one family: everything works by that family alone, the way to the name server included.
#[test]
fn pods_of_one_family_ask_by_it_and_are_answered_for_both() {
    let (mut six, mut four) = (None, None);
    let world = World::start_with(&[ON], |world| {
        let cluster = &mut world.cluster;
        let pods = ["six", "four"].map(|name| cluster.mesh_pod(1, name).unwrap());
        let [six_pod, four_pod] = &pods;
        let flushed = six_pod.space.output("ip", &["-4", "addr", "flush", "dev", "eth0"]).unwrap();
        assert!(flushed.status.success(), "{flushed:?}");
        four_pod.space.set("net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        cluster.mesh.workload("six").unwrap().addresses = vec![six_pod.v6.to_string()];
        cluster.mesh.workload("four").unwrap().addresses = vec![four_pod.v4.to_string()];
        [six, four] = pods.map(Some);
    });
    let (six, four) = (six.unwrap(), four.unwrap());
    let name_server = |at| NameServer::start_at(&world.stranger, at, ordinary);
    let servers = [name_server(world.stranger.at6(53)), name_server(world.stranger.at(53))];
    for (pod, at, own) in [
        (&six, world.stranger.at6(9), IpAddr::from(six.v6)),
        (&four, world.stranger.at(9), IpAddr::from(four.v4)),
    ] {
        let server = format!("@{}", at.ip());
        // It may take a second until new neighbours find each other: longer than a silent server is waited for.
        let _ = try_dial(pod, at).and_then(|mut stream| stream.read(&mut [0]));
        // A name of its own for each, since answers are remembered.
        for (over, foreign) in [("+notcp", "udp.example"), ("+tcp", "tcp.example")] {
            for (words, expected) in [
                (["web", "A"], vec![VIP]),
                (["web.default", "AAAA"], vec![VIP6]),
                (["web.default.svc.cluster.local", "A"], vec![VIP]),
                (["web.default.default.svc.cluster.local", "AAAA"], vec!["web.default.", VIP6]),
                ([foreign, "A"], vec!["192.0.2.1"]),
            ] {
                let said = dig(pod, &[&[server.as_str(), "+short", over][..], &words].concat());
                assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{} {over} {words:?}", pod.name);
            }
        }
        let heard = servers[usize::from(own.is_ipv4())].heard();
        assert_eq!(heard.iter().filter(|heard| heard.tcp).count(), 1, "{heard:?}");
        assert_eq!(heard.iter().map(|heard| heard.from.ip()).collect::<Vec<_>>(), [own; 2]);
    }
}
