//! How far a peer with a valid certificate reaches: to the applications of the pod that it called, and nowhere else.
//! The kernel's count of SYNs shows that nothing else was even tried. (`hostile` has the statuses of more requests.)

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ringway::demo::mesh_file::{FileService, deny, namespace_policy};
use ringway_e2e::block_on;
use ringway_e2e::dials::Dials;
use ringway_e2e::hbone::{HBONE_PORT, HbonePeer, connect};
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::verdicts::exchange;
use ringway_e2e::world::{APP_PORT, World};

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const CONTROL_PLANE: &str = "istiod.default.svc.cluster.local";
const RECURSIVE: &str = "attempted recursive call to ourselves";
const MISMATCH: &str = "ip mismatch: ";
const UNKNOWN: &str = "no service or workload for hostname: ";
const NONSENSE: &str = "no valid authority pseudo header: ";

/// With a service that the server's pod doesn't serve, on a port where the pod has nothing.
fn world() -> World {
    World::start_with(&[], |world| {
        let elsewhere = FileService::new("istiod", &["10.77.200.50"], &[(15_012, 15_012)]);
        let no_address = FileService::new("headless", &[], &[(80, 0)]);
        world.cluster.mesh.services.extend([elsewhere, no_address]);
    })
}

/// Applications that only a dial at the wrong place reaches.
fn traps(world: &World) -> Vec<Server> {
    let server = &world.server;
    server.space.ip_batch(&format!("addr add {METADATA}/32 dev lo\n")).unwrap();
    let node = world.cluster.topology.node(2).unwrap();
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let mut node_as_pod = world.stranger.clone();
    node_as_pod.space = node.space.clone();
    vec![
        Server::start_on(server, at(loopback, 15_000), echo),
        Server::start_on(server, at(loopback, APP_PORT), echo),
        Server::start_on(server, at("::1".parse().unwrap(), APP_PORT), echo),
        Server::start_on(server, at(METADATA.into(), 80), echo),
        Server::start(&world.client, APP_PORT, echo),
        Server::start(&world.stranger, APP_PORT, echo),
        Server::start_on(&node_as_pod, at(node.v4.into(), APP_PORT), echo),
    ]
}

#[test]
fn what_is_not_the_pods_own_is_answered_as_the_reference_does_and_never_dialled() {
    let world = world();
    let traps = traps(&world);
    let own = SocketAddr::new(world.server.v4.into(), APP_PORT);
    let app = Server::start_on(&world.server, own, echo);
    let node = world.cluster.topology.node(2).unwrap();
    let at = |port: u16| world.server.at(port).to_string();
    let peer = HbonePeer::new(&world.stranger, &world.cluster.authority(), CLIENT);
    // Admin and metrics of the proxy are asked over the node's loopback.
    let dials = [Dials::watch(&world.server.space, true), Dials::watch(&node.space, false)];
    let requests = [
        ("127.0.0.1:15000".to_owned(), 400, MISMATCH),
        (format!("127.0.0.1:{APP_PORT}"), 400, MISMATCH),
        ("169.254.169.254:80".to_owned(), 400, MISMATCH),
        (world.client.at(APP_PORT).to_string(), 400, MISMATCH),
        (world.stranger.at(APP_PORT).to_string(), 400, MISMATCH),
        (format!("{}:{APP_PORT}", node.v4), 400, MISMATCH),
        (format!("{}:15000", node.v4), 400, MISMATCH),
        (format!("[::1]:{APP_PORT}"), 400, MISMATCH),
        (world.server.at6(APP_PORT).to_string(), 400, MISMATCH),
        (format!("[::ffff:127.0.0.1]:{APP_PORT}"), 400, MISMATCH),
        (format!("[fe80::1]:{APP_PORT}"), 400, MISMATCH),
        (format!("0.0.0.0:{APP_PORT}"), 400, MISMATCH),
        (format!("[::]:{APP_PORT}"), 400, MISMATCH),
        ("255.255.255.255:80".to_owned(), 400, MISMATCH),
        ("10.77.200.1:80".to_owned(), 400, MISMATCH),
        ("127.0.0.1:15008".to_owned(), 400, MISMATCH),
        (at(15_001), 503, RECURSIVE),
        (at(15_006), 503, RECURSIVE),
        (at(HBONE_PORT), 503, RECURSIVE),
        ("unknown.example:80".to_owned(), 503, UNKNOWN),
        ("localhost:15000".to_owned(), 503, UNKNOWN),
        ("web.elsewhere.svc.cluster.local:80".to_owned(), 503, UNKNOWN),
        ("web.default.svc.cluster.local:81".to_owned(), 503, "requested service "),
        ("headless.default.svc.cluster.local:80".to_owned(), 503, "requested service "),
        (world.server.v4.to_string(), 400, NONSENSE),
        (":8080".to_owned(), 400, NONSENSE),
        ("web.default.svc.cluster.local:99999".to_owned(), 400, NONSENSE),
    ];
    block_on(async {
        let mut connection = peer.open(world.server.at(HBONE_PORT)).await;
        for (authority, status, error) in &requests {
            let answer = connect(&mut connection, authority, &[]).await;
            assert_eq!((answer.status, answer.ended), (*status, true), "CONNECT {authority}");
            let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
            let named = host.trim_matches(['[', ']']).trim_start_matches("::ffff:").to_owned();
            lines::wait_for(world.far(), &format!("{authority}: {error}"), |line| {
                let said = text(line, "error");
                said.starts_with(error) && (*error == RECURSIVE || said.contains(&named))
            });
        }
        let mut over_v6 = peer.open(world.server.at6(HBONE_PORT)).await;
        for authority in [
            at(APP_PORT),
            world.client.at6(APP_PORT).to_string(),
            format!("[::1]:{APP_PORT}"),
            format!("[fe80::1]:{APP_PORT}"),
            format!("[::ffff:{}]:{APP_PORT}", world.server.v4),
        ] {
            let answer = connect(&mut over_v6, &authority, &[]).await;
            assert_eq!((answer.status, answer.ended), (400, true), "CONNECT {authority} over IPv6");
        }
        assert_eq!(dials.each_ref().map(Dials::count), [0, 0], "something was dialled");
        // The pod is called about a service that it has no part in: it is still only itself that is dialled.
        let answer = connect(&mut connection, &format!("{CONTROL_PLANE}:15012"), &[]).await;
        assert_eq!((answer.status, answer.ended), (503, true));
        lines::wait_for(world.far(), "refused by the pod", |line| {
            text(line, "error").starts_with("connection failed: ")
                && text(line, "dst.hbone_addr") == format!("{CONTROL_PLANE}:15012")
        });
        let port_0 = connect(&mut connection, &at(0), &[]).await;
        assert_eq!((port_0.status, port_0.ended), (503, true), "port 0");
        assert!((1..=2).contains(&dials[0].count()), "{} dials in the pod", dials[0].count());
        let mut good = connect(&mut connection, &at(APP_PORT), &[]).await;
        assert_eq!(good.echo(b"still here").await, b"still here");
    });
    assert_eq!(traps.iter().map(|trap| trap.peers().len()).sum::<usize>(), 0);
    assert_eq!((app.peers().len(), dials[1].count()), (1, 0));
}

/// A `:authority` that no library sends: the request as bytes.
#[test]
fn a_request_without_an_authority_or_with_an_empty_one_is_refused() {
    let world = world();
    let app = Server::start(&world.server, APP_PORT, echo);
    let dials = Dials::watch(&world.server.space, true);
    let peer = HbonePeer::new(&world.stranger, &world.cluster.authority(), CLIENT);
    let to = world.server.at(HBONE_PORT);
    // Literal fields without indexing (RFC 7541 section 6.2.2): `:method` by its index, `:authority` likewise.
    let method = b"\x02\x07CONNECT".to_vec();
    let authority = |text: &str| [&[0x01, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let good = authority(&world.server.at(APP_PORT).to_string());
    for (what, block, right) in [
        ("none", method.clone(), None),
        ("an empty one", [method.clone(), authority("")].concat(), None),
        ("a blank", [method.clone(), authority(" ")].concat(), None),
        ("a user's", [method.clone(), authority(&format!("x@{}", world.server.at(APP_PORT)))].concat(), None),
        ("a path", [method.clone(), authority(&format!("{}/x", world.server.at(APP_PORT)))].concat(), None),
        ("two", [method.clone(), good.clone(), good.clone()].concat(), None),
        ("a good one", [method.clone(), good.clone()].concat(), Some(0x88)),
    ] {
        let answer = block_on(peer.first_answer(to, &block));
        match right {
            Some(status) => assert_eq!(answer, Some(status), "{what}"),
            // Indexed 400 of the static table (RFC 7541 appendix A), or the stream or the connection is ended.
            None => assert!(matches!(answer, Some(0x8c) | None), "{what}: {answer:?}"),
        }
    }
    assert_eq!((dials.count(), app.peers().len()), (1, 1), "the good one only");
}

#[test]
fn plaintext_reaches_the_pods_own_ports_and_no_port_of_the_proxy() {
    let world = world();
    let app = Server::start(&world.server, APP_PORT, echo);
    let dials = Dials::watch(&world.server.space, true);
    for port in [15_001, 15_006] {
        for to in [world.server.at(port), world.server.at6(port)] {
            assert!(exchange(&world.stranger, to).is_err(), "{to} answered");
            lines::wait_for(world.far(), RECURSIVE, |line| {
                text(line, "error") == RECURSIVE && text(line, "dst.addr") == to.to_string()
            });
        }
    }
    assert_eq!(dials.count(), 0, "one of the proxy's own ports was dialled");
    exchange(&world.stranger, world.server.at(APP_PORT)).unwrap();
    assert_eq!((dials.count(), app.peer_addresses()), (1, vec![world.stranger.v4.into()]));
}

/// The address that policies see is the connection's, whatever the request says of itself.
#[test]
fn no_header_makes_a_caller_somebody_else() {
    let mut world = world();
    let app = Server::start(&world.server, APP_PORT, echo);
    let (client, stranger) = (world.client.v4, world.stranger.v4);
    let only = |address| namespace_policy("only", "Allow", &format!("{{sourceIps: [\"{address}/32\"]}}"));
    let peer = HbonePeer::new(&world.stranger, &world.cluster.authority(), CLIENT);
    let (to, authority) = (world.server.at(HBONE_PORT), world.server.at(APP_PORT).to_string());
    let from = format!("for=\"{client}:4000\"");
    let ip = client.to_string();
    let forged: [&[(&str, &str)]; 5] = [
        &[("forwarded", &from)],
        &[("x-forwarded-for", &ip), ("x-real-ip", &ip)],
        &[("x-forwarded-network", "elsewhere"), ("forwarded", &from)],
        &[("baggage", "k8s.namespace.name=default,k8s.pod.name=client,service.name=client")],
        &[("x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/default/sa/client")],
    ];
    world.change_policies(vec![only(client)]);
    block_on(async {
        let mut connection = peer.open(to).await;
        for headers in forged {
            assert_eq!(connect(&mut connection, &authority, headers).await.status, 401, "{headers:?}");
        }
    });
    assert_eq!(app.peers(), []);
    world.change_policies(vec![only(stranger), deny("no-other", "cluster.local/ns/default/sa/other")]);
    block_on(async {
        let mut connection = peer.open(to).await;
        for headers in forged {
            assert_eq!(connect(&mut connection, &authority, headers).await.status, 200, "{headers:?}");
        }
    });
    assert!(app.peer_addresses().iter().all(|address| *address == IpAddr::from(stranger)));
}
