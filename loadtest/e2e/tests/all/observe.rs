//! What operators and their tools see: readiness, metrics, dump, log lines, admin answers.

use std::io::{Read, Write};
use std::net::Shutdown;

use ringway::demo::node::{ADMIN_PORT, METRICS_PORT, READY_PORT};
use ringway_e2e::baseline::{live_connections, open_by_metrics};
use ringway_e2e::lines;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service};

#[test]
fn readiness_metrics_and_admin_answer_as_the_reference_does() {
    let world = World::start();
    let near = world.near();
    for (method, port, path, status, body) in [
        ("GET", READY_PORT, "/healthz/ready", 200, Some("ready\n")),
        ("POST", READY_PORT, "/healthz/ready", 405, Some("")),
        ("GET", READY_PORT, "/x", 404, Some("")),
        ("GET", METRICS_PORT, "/metrics", 200, None),
        ("GET", METRICS_PORT, "/stats/prometheus", 200, None),
        ("GET", METRICS_PORT, "/x", 404, None),
        ("GET", ADMIN_PORT, "/", 200, None),
        ("GET", ADMIN_PORT, "/nope", 404, Some("")),
        ("GET", ADMIN_PORT, "/quitquitquit", 405, Some("")),
        ("POST", ADMIN_PORT, "/logging", 200, Some("current log level is hickory_server::server=off,info\n")),
        (
            "POST",
            ADMIN_PORT,
            "/logging?level=debug",
            200,
            Some("current log level is hickory_server::server=off,debug\n"),
        ),
        (
            "POST",
            ADMIN_PORT,
            "/logging?reset",
            200,
            Some("current log level is hickory_server::server=off,info\n"),
        ),
        ("POST", ADMIN_PORT, "/logging?level=bogus", 400, None),
        ("GET", ADMIN_PORT, "/logging", 405, None),
    ] {
        let (was, said) =
            near.request(method, port, path).unwrap_or_else(|error| panic!("{method} {path}: {error:#}"));
        assert_eq!(was, status, "{method} :{port}{path}: {said}");
        if let Some(body) = body {
            assert_eq!(said, body, "{method} :{port}{path}");
        }
    }
}

#[test]
fn the_dump_has_the_references_keys_and_lists_a_live_connection() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = dial(&world.client, service());
    held.write_all(b"?").unwrap();
    held.read_exact(&mut [0]).unwrap();
    let (near, far) = (world.near().dump().unwrap(), world.far().dump().unwrap());
    for key in [
        "certificates",
        "config",
        "policies",
        "services",
        "stagedServices",
        "staticConfig",
        "version",
        "workloadState",
        "workloads",
    ] {
        assert!(near.get(key).is_some(), "{key} is missing");
    }
    for key in [
        "proxy",
        "dnsProxy",
        "windowSize",
        "connectionWindowSize",
        "frameSize",
        "poolMaxStreamsPerConn",
        "poolUnusedReleaseTimeout",
        "socks5Addr",
        "adminAddr",
        "statsAddr",
        "readinessAddr",
        "inboundAddr",
        "inboundPlaintextAddr",
        "outboundAddr",
        "illegalPorts",
        "network",
        "localNode",
        "proxyMode",
        "proxyWorkloadInformation",
        "clusterId",
        "clusterDomain",
        "caAddress",
        "caRootCert",
        "xdsAddress",
        "xdsRootCert",
        "secretTtl",
        "xdsOnDemand",
        "fakeCa",
        "selfTerminationDeadline",
        "proxyMetadata",
        "numWorkerThreads",
        "requireOriginalSource",
        "proxyArgs",
        "inpodUds",
        "inpodPortReuse",
        "packetMark",
        "socketConfig",
        "xdsHeaders",
        "caHeaders",
        "localhostAppTunnel",
        "ztunnelIdentity",
        "ztunnelWorkload",
        "ipv6Enabled",
        "crlPath",
        "enableEnhancedBaggage",
    ] {
        assert!(near["config"].get(key).is_some(), "config.{key} is missing");
    }
    let pod = &near["workloadState"]["uid-client"];
    assert_eq!(pod["state"], "Up");
    assert_eq!(pod["info"]["serviceAccount"], "client");
    let outbound = &pod["connections"]["outbound"][0];
    assert_eq!(outbound["src"], held.local_addr().unwrap().to_string());
    assert_eq!(outbound["originalDst"], service().to_string());
    assert_eq!(outbound["actualDst"], world.server.at(15008).to_string());
    assert_eq!(outbound["protocol"], "HBONE");
    let inbound = &far["workloadState"]["uid-server"]["connections"]["inbound"][0];
    assert_eq!(inbound["actualDst"], world.server.at(APP_PORT).to_string());
    assert_eq!(inbound["originalDst"], "web.default.svc.cluster.local");
    assert_eq!(inbound["protocol"], "HBONE");
    let certificate = &near["certificates"][0];
    assert_eq!(certificate["identity"], "spiffe://cluster.local/ns/default/sa/client");
    assert_eq!(certificate["state"], "Available");
    for key in ["pem", "serialNumber", "validFrom", "expirationTime"] {
        assert!(certificate["certChain"][0][key].is_string(), "{key} in {certificate}");
        assert!(certificate["rootCerts"][0][key].is_string(), "{key} in {certificate}");
    }
    assert_eq!(near["services"][0]["hostname"], "web.default.svc.cluster.local");
    assert_eq!(near["workloads"].as_array().unwrap().len(), 2);
    let uids: Vec<_> =
        near["workloads"].as_array().unwrap().iter().map(|one| one["uid"].as_str().unwrap()).collect();
    assert!(uids.is_sorted());
}

#[test]
fn opened_minus_closed_is_what_is_live_at_every_moment() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut held = Vec::new();
    for count in 0..=10_u8 {
        for proxy in [world.near(), world.far()] {
            ringway_e2e::eventually("counters and dump agree", STEP, || {
                open_by_metrics(proxy) == f64::from(count) && live_connections(proxy) == usize::from(count)
            });
        }
        let mut stream = dial(&world.client, service());
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        held.push(stream);
    }
    // One ends in order, one is reset, the rest when their pod goes.
    held.pop().unwrap().shutdown(Shutdown::Both).unwrap();
    let socket = socket2::Socket::from(held.pop().unwrap());
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(socket);
    for proxy in [world.near(), world.far()] {
        ringway_e2e::eventually("two fewer", STEP, || {
            open_by_metrics(proxy) == 9.0 && live_connections(proxy) == 9
        });
    }
    world.cluster.agent(2).unwrap().delete("uid-server").unwrap();
    for proxy in [world.near(), world.far()] {
        ringway_e2e::eventually("none", STEP, || {
            open_by_metrics(proxy) == 0.0 && live_connections(proxy) == 0
        });
    }
    ringway_e2e::eventually("each has its line", STEP, || lines::completed(world.far()).len() == 11);
}

#[test]
fn metrics_carry_the_references_names_labels_and_byte_counts() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut stream = dial(&world.client, service());
    stream.write_all(b"eleven bytes").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let labels = [
        "source_workload=\"client\"",
        "source_principal=\"spiffe://cluster.local/ns/default/sa/client\"",
        "destination_principal=\"spiffe://cluster.local/ns/default/sa/server\"",
        "destination_workload=\"server\"",
        "destination_service=\"web.default.svc.cluster.local\"",
        "connection_security_policy=\"mutual_tls\"",
        "request_protocol=\"tcp\"",
        "response_flags=\"-\"",
    ];
    for (proxy, reporter) in
        [(world.near(), "reporter=\"source\""), (world.far(), "reporter=\"destination\"")]
    {
        let labels = [&labels[..], &[reporter]].concat();
        ringway_e2e::eventually(reporter, STEP, || {
            proxy.metrics().unwrap().sum("istio_tcp_connections_closed_total", &labels) == 1.0
        });
        let metrics = proxy.metrics().unwrap();
        assert_eq!(metrics.sum("istio_tcp_connections_opened_total", &labels), 1.0, "{}", metrics.0);
        assert_eq!(metrics.sum("istio_tcp_received_bytes_total", &labels), 12.0);
        assert_eq!(metrics.sum("istio_tcp_sent_bytes_total", &labels), 12.0);
        assert_eq!(metrics.sum("istio_build", &["component=\"ztunnel\""]), 1.0);
        assert_eq!(metrics.sum("workload_manager_active_proxy_count", &[]), 1.0);
        assert!(metrics.sum("tokio_worker_park_count_total", &[]) >= 1.0);
        assert_eq!(metrics.sum("ringway_pods_without_workload", &[]), 0.0);
        assert!(metrics.0.ends_with("# EOF\n"), "the end of the exposition");
    }
    let mut held = dial(&world.client, service());
    held.write_all(b"?").unwrap();
    held.read_exact(&mut [0]).unwrap();
    let (near, far) = (world.near().metrics().unwrap(), world.far().metrics().unwrap());
    for (metrics, name, label) in [
        (&near, "ringway_connection_setup_seconds_count", "direction=\"outbound\""),
        (&far, "ringway_connection_setup_seconds_count", "direction=\"inbound\""),
        (&near, "ringway_tls_handshake_seconds_count", "side=\"client\""),
        (&far, "ringway_tls_handshake_seconds_count", "side=\"server\""),
        (&near, "ringway_dial_seconds_count", ""),
        (&far, "ringway_dial_seconds_count", ""),
        (&near, "ringway_tunnels", "side=\"client\""),
        (&far, "ringway_tunnels", "side=\"server\""),
    ] {
        let labels: &[&str] = if label.is_empty() { &[] } else { &[label] };
        assert!(metrics.sum(name, labels) >= 1.0, "{name} {label}\n{}", metrics.0);
    }
    let pod = &["namespace=\"default\"", "pod=\"client\""];
    assert_eq!(near.sum("ringway_pod_sockets_open", pod), 1.0, "{}", near.0);
}

/// curl in the namespace of the first node's proxy.
fn curl(world: &World, arguments: &[&str]) -> Vec<u8> {
    let node = world.cluster.topology.nodes.iter().find(|node| node.number == 1).unwrap();
    let output = node.space.output("curl", &[&["-sS", "--fail"], arguments].concat()).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn metrics_are_compressed_as_asked() {
    let world = World::start();
    let url = format!("http://localhost:{METRICS_PORT}/metrics");
    let plain = curl(&world, &[&url]);
    for encoding in ["gzip", "deflate"] {
        let header = format!("accept-encoding: {encoding}");
        let packed = curl(&world, &["-H", &header, &url]);
        assert!(packed.len() * 3 < plain.len(), "{encoding}: {} of {}", packed.len(), plain.len());
        let unpacked = String::from_utf8(curl(&world, &["--compressed", "-H", &header, &url])).unwrap();
        assert!(
            unpacked.starts_with("# HELP process_open_fds ") && unpacked.ends_with("# EOF\n"),
            "{unpacked}"
        );
    }
}

/// What `go tool pprof` makes of a profile.
fn pprof(profile: &std::path::Path, how: &str) -> String {
    let output = std::process::Command::new("go").args(["tool", "pprof", how]).arg(profile).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn profiles_of_the_cpu_and_the_heap_are_read_by_gos_pprof() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let admin = |path: &str| format!("http://localhost:{ADMIN_PORT}/debug/pprof/{path}");
    let (status, told) = world.near().request("GET", ADMIN_PORT, "/debug/pprof/heap").unwrap();
    assert!(
        status == 500 && told.starts_with("heap profiling not active; activate with "),
        "{status} {told}"
    );
    let told = curl(&world, &[&admin("heap/profiling?activate=true")]);
    assert_eq!(told, b"heap profiling active: true\n");
    let directory = tempfile::tempdir().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let cpu = directory.path().join("cpu");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [7; 64];
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let mut stream = dial(&world.client, service());
                for _ in 0..200 {
                    stream.write_all(&bytes).unwrap();
                    stream.read_exact(&mut bytes).unwrap();
                }
            }
        });
        let profile = curl(&world, &[&admin("profile?seconds=2&frequency=500")]);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        std::fs::write(&cpu, profile).unwrap();
    });
    let (top, threads) = (pprof(&cpu, "-top"), pprof(&cpu, "-tags"));
    assert!(top.contains("Type: cpu") && top.contains("ringway::"), "{top}");
    // Whichever of them the pod's connections came to.
    assert!(threads.contains(": shard-"), "{threads}");
    let heap = directory.path().join("heap");
    std::fs::write(&heap, curl(&world, &[&admin("heap")])).unwrap();
    let top = pprof(&heap, "-top");
    assert!(top.contains("Type: inuse_space") && top.contains("flat%"), "{top}");
    assert!(!top.contains("_rjem_je_prof"), "the allocator's own functions are left out: {top}");
    let told = curl(&world, &[&admin("heap/profiling?activate=false")]);
    assert_eq!(told, b"heap profiling active: false\n");
}

#[test]
fn access_lines_keep_the_references_order_in_json_and_in_plain_text() {
    let world = World::start();
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut stream = dial(&world.client, service());
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    lines::wait_for(world.near(), "one connection", |line| line["direction"] == "outbound");
    let text = world.near().output_text().unwrap();
    let raw = text.lines().find(|line| line.contains("\"scope\":\"access\"")).unwrap();
    lines::assert_order(raw);
    assert!(raw.starts_with("{\"level\":\"info\",\"time\":\""), "{raw}");
    drop(world);
    let world = World::start_with(&[("LOG_FORMAT", "plain")], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let mut stream = dial(&world.client, service());
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let mut line = String::new();
    ringway_e2e::eventually("a plain line", STEP, || {
        let text = world.near().output_text().unwrap();
        line = text.lines().find(|line| line.contains("\taccess\t")).unwrap_or_default().to_owned();
        !line.is_empty()
    });
    let columns: Vec<_> = line.split('\t').collect();
    assert_eq!(columns.len(), 5, "{line}");
    assert_eq!((columns[1], columns[2], columns[3]), ("info", "access", "connection complete"));
    let expected = [
        "src.addr=10.77.1.10:",
        " src.workload=\"client\" src.namespace=\"default\" \
         src.identity=\"spiffe://cluster.local/ns/default/sa/client\" src.cluster=\"Kubernetes\" \
         dst.addr=10.77.2.10:15008 dst.hbone_addr=10.77.2.10:8080 \
         dst.service=\"web.default.svc.cluster.local\" dst.workload=\"server\" dst.namespace=\"default\" \
         dst.identity=\"spiffe://cluster.local/ns/default/sa/server\" dst.cluster=\"Kubernetes\" \
         direction=\"outbound\" bytes_sent=0 bytes_recv=0 duration=\"",
    ];
    for part in expected {
        assert!(columns[4].contains(part), "{part:?} isn't in {line}");
    }
}

#[test]
fn a_running_proxy_says_why_a_connection_is_carried_or_not() {
    let mut world = World::start();
    let ask = |world: &World, to: &str| {
        let program = ringway_e2e::world::binary();
        let node = world.cluster.topology.nodes.iter().find(|node| node.number == 1).unwrap();
        let output = node.space.output(&program.to_string_lossy(), &["why", "default/client", to]).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &errors)
    };
    let (code, text) = ask(&world, "web.default.svc.cluster.local:80");
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "the address is of service default/web.default.svc.cluster.local",
        "  Kubernetes//Pod/default/server: may be chosen",
        "  who answers must be spiffe://cluster.local/ns/default/sa/server",
        "policies: allowed, none has to allow it",
        "=> carried",
    ] {
        assert!(text.lines().any(|told| told == line), "{line:?} isn't in\n{text}");
    }
    world.change_policies(vec![ringway::demo::mesh_file::deny("no", "cluster.local/ns/default/sa/client")]);
    let (code, text) = ask(&world, &world.server.at(APP_PORT).to_string());
    assert_eq!(code, Some(2), "{text}");
    let last = "policies: denied by default/no rules[0][0][0]\n=> not carried\n";
    assert!(text.ends_with(last), "{text}");
    let (code, text) = ask(&world, "10.77.2.10");
    assert!(code == Some(1) && text.contains("ADDRESS:PORT"), "{text}");
}
