//! Every way that a connection goes in a mesh that a real istiod tells: services of all kinds, entries for what lies
//! outside, waypoints by label, and another network. Each is one echo through real proxies, judged by who answered,
//! whom they saw, and what access log and metrics say. The objects are in loadtest/peer/istiod.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ringway::demo::cluster::agent_pod;
use ringway::demo::topology::Pod;
use ringway_e2e::envoy::Envoy;
use ringway_e2e::eventually;
use ringway_e2e::hbone::{HBONE_PORT, papers};
use ringway_e2e::hello::{Found, call, is_refused, outbound, start};
use ringway_e2e::http::{http_echo, request};
use ringway_e2e::istio_world::{IstioWorld, filled, pod};
use ringway_e2e::lines::{self, text};
use ringway_e2e::names::{A, NameServer, Say, asked_name, dig, reply};
use ringway_e2e::sandwich::{self, Told};
use ringway_e2e::serve::Server;
use ringway_e2e::world::STEP;
use serde_json::Value;

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
const SERVER: &str = "spiffe://cluster.local/ns/default/sa/server";
const WAYPOINT: &str = "spiffe://cluster.local/ns/default/sa/waypoint";
const GATEWAY: &str = "spiffe://cluster.local/ns/default/sa/gateway";
const ROUTES: &str = include_str!("../../../peer/istiod/routes.yaml");
const WAYPOINTS: &str = include_str!("../../../peer/istiod/waypoints.yaml");
const NETWORKS: &str = include_str!("../../../peer/istiod/networks.yaml");
const DOMAIN: &str = "default.svc.cluster.local";

/// How the next hop is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Hbone,
    Tcp,
}

/// Who may answer: the pod, its port, and the workload that it is to the mesh.
type Answer<'a> = (&'a Pod, u16, &'a str);

/// One way: the address that the client calls, who may answer (each of them must), the hostname of the service that the
/// log names.
struct Way<'a> {
    to: &'a str,
    answers: &'a [Answer<'a>],
    service: &'a str,
    by: By,
}

impl Way<'_> {
    /// Calls until everybody that may answer has, and judges each answer.
    #[track_caller]
    fn is_right(&self, world: &IstioWorld) {
        let to = self.to.parse().unwrap();
        eventually(&format!("{to} answers"), STEP, || call(&world.client, to).is_ok());
        let (until, mut seen, mut calls) = (Instant::now() + STEP, vec![false; self.answers.len()], 0);
        // A few more, for somebody who shouldn't answer.
        while calls < 6 || seen.contains(&false) {
            let found = call(&world.client, to).unwrap_or_else(|error| panic!("{to}: {error}"));
            let is_it = |(pod, port, _): &Answer<'_>| found.who == format!("{}:{port}", pod.name);
            let Some(which) = self.answers.iter().position(is_it) else { panic!("{to}: {found:?}") };
            assert_eq!(found.peer, IpAddr::from(world.client.v4), "{to}: {found:?}");
            if !std::mem::replace(&mut seen[which], true) {
                self.is_told(world, &found, self.answers[which]);
            }
            calls += 1;
            assert!(Instant::now() < until, "{to}: somebody never answered in {calls} calls: {seen:?}");
        }
    }

    #[track_caller]
    fn is_told(&self, world: &IstioWorld, found: &Found, (pod, port, workload): Answer<'_>) {
        let line = outbound(world, found);
        assert_eq!(text(&line, "dst.service"), self.service, "{line}");
        let is_hbone = self.by == By::Hbone;
        let (next, asked) =
            if is_hbone { (HBONE_PORT, Some(pod.at(port).to_string())) } else { (port, None) };
        let identity = format!("spiffe://cluster.local/ns/default/sa/{workload}");
        assert_eq!(
            (text(&line, "src.workload"), text(&line, "dst.workload")),
            ("client", workload),
            "{line}"
        );
        assert_eq!(text(&line, "dst.addr"), pod.at(next).to_string(), "{line}");
        assert_eq!(line["dst.hbone_addr"].as_str(), asked.as_deref(), "{line}");
        assert_eq!(line["src.identity"].as_str(), is_hbone.then_some(CLIENT), "{line}");
        assert_eq!(line["dst.identity"].as_str(), is_hbone.then_some(&*identity), "{line}");
        let policy = if is_hbone { "mutual_tls" } else { "unknown" };
        let labels = [
            "reporter=\"source\"",
            "source_zone=\"north-1\"",
            &format!("destination_service=\"{}\"", self.service),
            &format!("destination_workload=\"{workload}\""),
            &format!("connection_security_policy=\"{policy}\""),
        ];
        let metrics = world.near().metrics().unwrap();
        assert!(metrics.sum("istio_tcp_connections_opened_total", &labels) >= 1.0, "{labels:?}");
        if is_hbone {
            let proxy = world.cluster.proxy(pod.node).unwrap();
            let line = lines::wait_for(proxy, &format!("inbound at {workload}"), |line| {
                line["direction"] == "inbound" && line["dst.hbone_addr"].as_str() == asked.as_deref()
            });
            assert_eq!((text(&line, "src.workload"), text(&line, "src.identity")), ("client", CLIENT));
        }
    }
}

/// The mesh of one network, with its pods and servers.
struct Routes {
    world: IstioWorld,
    twin: Pod,
    unready: Pod,
    outside: Pod,
    waypoint: Pod,
    sandwich: Pod,
    node: Pod,
    _servers: Vec<Server>,
    _names: NameServer,
}

impl Routes {
    fn start() -> Self {
        let mut world = IstioWorld::build(&[], &[("ISTIO_META_DNS_CAPTURE", "true")]);
        let cluster = &mut world.cluster;
        let twin = cluster.mesh_pod(1, "twin").unwrap();
        let unready = cluster.mesh_pod(2, "unready").unwrap();
        let sandwich = cluster.mesh_pod(2, "sandwich").unwrap();
        let outside = cluster.plain_pod(2, "outside").unwrap();
        let waypoint = cluster.plain_pod(2, "waypoint").unwrap();
        let host = cluster.topology.node(2).unwrap();
        // Its other address: the first one is the proxy's own pod's.
        let v4 = Ipv4Addr::new(10, 77, 0, 202);
        host.space.ip_batch(&format!("addr add {v4}/24 dev wire\n")).unwrap();
        let node = Pod { name: "node2".to_owned(), node: 2, space: host.space.clone(), v4, v6: host.v6 };
        let pods = [&world.server, &world.stranger, &twin, &unready, &sandwich, &outside, &waypoint, &node];
        world.istiod.apply(&filled(&format!("{ROUTES}---\n{WAYPOINTS}"), &pods));
        let addresses = [waypoint.v4, outside.v4];
        let names = NameServer::start(&outside, move |heard, _| {
            let known = matches!(&*asked_name(&heard.message), "backend.example" | "itself.example")
                || asked_name(&heard.message) == format!("alias.{DOMAIN}");
            let asks_a = heard.message[ringway_e2e::names::question_end(&heard.message) - 3] == 1;
            // Nobody listens at the first one.
            let addresses = if known && asks_a { &addresses[..] } else { &[] };
            let records: Vec<_> = addresses.iter().map(|ip| (A, 30, ip.octets().to_vec())).collect();
            vec![Say::Reply(reply(&heard.message, if known { 0 } else { 3 }, &records))]
        });
        world.set_resolv_conf(&format!("nameserver {}\n", outside.v4));
        world.cluster.start().expect("both proxies start and get ready");
        let servers = [
            (&world.server, 8_080),
            (&world.server, 9_090),
            (&twin, 8_081),
            (&twin, 9_090),
            (&unready, 8_080),
            (&world.stranger, 8_080),
            (&outside, 8_080),
            (&node, 7_001),
            (&node, 7_002),
        ];
        let servers = servers.map(|(pod, port)| start(pod, &pod.name, port)).into();
        Self { world, twin, unready, outside, waypoint, sandwich, node, _servers: servers, _names: names }
    }
}

#[test]
fn every_kind_of_service_and_entry_leads_where_istiod_says() {
    let routes = Routes::start();
    let Routes { world, twin, unready, outside, node, .. } = &routes;
    let (server, machine) = (&world.server, &world.stranger);
    let of_cluster = |name: &str| format!("{name}.{DOMAIN}");
    let both: &[Answer<'_>] = &[(server, 9_090, "server"), (twin, 9_090, "twin")];
    let near: &[Answer<'_>] = &[(twin, 9_090, "twin")];
    let far: &[Answer<'_>] = &[(server, 9_090, "server")];
    for (to, answers, service, by) in [
        // A named target port is each pod's own.
        ("10.77.210.1:80", &[(server, 8_080, "server"), (twin, 8_081, "twin")][..], "ports", By::Hbone),
        ("10.77.210.1:81", both, "ports", By::Hbone),
        ("10.77.210.3:80", &[(unready, 8_080, "unready")], "published", By::Hbone),
        ("10.77.210.4:81", near, "local", By::Hbone),
        ("10.77.210.6:81", near, "close", By::Hbone),
        ("10.77.210.7:81", far, "close-elsewhere", By::Hbone),
        ("10.77.210.8:80", &[(node, 7_001, "agent-a")], "agent-a", By::Tcp),
        ("10.77.210.9:80", &[(node, 7_002, "agent-b")], "agent-b", By::Tcp),
        ("10.77.210.11:80", &[(machine, 8_080, "machine")], "machines", By::Tcp),
    ] {
        Way { to, answers, service: &of_cluster(service), by }.is_right(world);
    }
    for (to, answers, service) in [
        ("240.240.2.1:7000", (machine, 8_080, "machine"), "selected.example"),
        ("240.240.2.2:7000", (outside, 8_080, "listed"), "listed.example"),
        ("240.240.2.3:7000", (outside, 8_080, "by-name"), "by-name.example"),
        ("240.240.2.4:8080", (outside, 8_080, "by-own-name"), "itself.example"),
    ] {
        Way { to, answers: &[answers], service, by: By::Tcp }.is_right(world);
    }
    let metrics = world.near().metrics().unwrap();
    for host in ["backend.example", "itself.example"] {
        let labels = [&*format!("hostname=\"{host}\""), "source_workload=\"client\""];
        assert!(metrics.sum("istio_on_demand_dns_total", &labels) >= 6.0, "{host}");
    }
    // Endpoints that aren't pods, as those of the API server: reached, and no more is known of them.
    let found = call(&world.client, "10.77.210.10:443".parse().unwrap()).unwrap();
    assert_eq!((&*found.who, found.peer), ("node2:7001", world.client.v4.into()));
    let line = outbound(world, &found);
    assert_eq!(
        (text(&line, "dst.addr"), text(&line, "dst.service")),
        (&*node.at(7_001).to_string(), &*of_cluster("api"))
    );
    refusals(world);
    passed_through(&routes);
    names(&routes);
    waypoints(&routes);
    taken_over(&routes);
}

/// What has no endpoint for this caller.
fn refusals(world: &IstioWorld) {
    for to in [
        // No such port, nobody ready, nobody on this node.
        "10.77.210.1:82",
        "10.77.210.2:80",
        "10.77.210.5:81",
    ] {
        is_refused(world, to, &format!("no healthy upstream: {to}"));
    }
    let metrics = world.near().metrics().unwrap();
    let labels = ["destination_service=\"ready-only.default.svc.cluster.local\""];
    assert_eq!(metrics.sum("istio_tcp_connections_opened_total", &labels), 0.0);
}

/// Addresses that are nobody's in the mesh, or of a service that wants it so.
fn passed_through(routes: &Routes) {
    let Routes { world, outside, node, .. } = routes;
    for (to, who, peer) in [
        (outside.at6(8_080), "outside:8080", IpAddr::from(world.client.v6)),
        // By the node's address nobody is meant, though two pods have it.
        (node.at(7_001), "node2:7001", world.client.v4.into()),
    ] {
        let found = call(&world.client, to).unwrap();
        assert_eq!((&*found.who, found.peer), (who, peer));
        let line = outbound(world, &found);
        assert_eq!(text(&line, "dst.addr"), to.to_string());
        for field in ["dst.workload", "dst.service", "dst.hbone_addr", "src.identity"] {
            assert!(line.get(field).is_none(), "{field} in {line}");
        }
    }
}

/// What a pod is told of these names, and that it gets there.
fn names(routes: &Routes) {
    let Routes { world, twin, outside, .. } = routes;
    let at = format!("@{}", outside.v4);
    let asked = |name: &str| {
        let said = dig(&world.client, &[&at, "+short", name, "A"]);
        let mut said: Vec<_> = said.lines().map(str::to_owned).collect();
        said.sort();
        said
    };
    let mut pods = [world.server.v4.to_string(), twin.v4.to_string()];
    pods.sort();
    assert_eq!(asked("headless.default"), pods);
    assert_eq!(asked("ports"), ["10.77.210.1"]);
    assert_eq!(asked("by-name.example"), ["240.240.2.3"]);
    // Not the mesh's, as the reference has it: the cluster's own name server knows.
    let mut addresses = [routes.waypoint.v4.to_string(), outside.v4.to_string()];
    addresses.sort();
    assert_eq!(asked(&format!("alias.{DOMAIN}")), addresses);
    // Nothing says by which name a pod was found.
    let found = call(&world.client, world.server.at(8_080)).unwrap();
    let line = outbound(world, &found);
    assert_eq!(text(&line, "dst.hbone_addr"), world.server.at(8_080).to_string());
    assert_eq!((text(&line, "dst.workload"), line.get("dst.service")), ("server", None));
}

const SHOP: &str = "10.77.210.20:80";
const SHOP_PORT: u16 = 8_090;

/// The service `shop` in front of the server, with these labels and annotations.
fn shop(labels: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: shop\n  namespace: default\n  labels: {{{labels}}}\n  \
         annotations: {{{annotations}}}\nspec:\n  clusterIP: 10.77.210.20\n  clusterIPs: [10.77.210.20]\n  \
         selector: {{app: server}}\n  ports: [{{name: http, port: 80, targetPort: {SHOP_PORT}}}]\n"
    )
}

/// A service's waypoint, a pod's, a canary, and one of a whole namespace: each by its label.
fn waypoints(routes: &Routes) {
    let Routes { world, waypoint, .. } = routes;
    let _shop = Server::start(&world.server, SHOP_PORT, http_echo);
    let papers = papers(&world.cluster.authority(), WAYPOINT);
    let values = [
        ("service", SHOP.to_owned()),
        ("service6", "[fd77:0:0:210::20]:80".to_owned()),
        ("server", world.server.at(SHOP_PORT).to_string()),
        ("principal", CLIENT.to_owned()),
        ("server_principal", SERVER.to_owned()),
    ];
    let envoy = Envoy::start(waypoint, world.cluster.directory(), "waypoint.yaml", &papers, &values);
    world.istiod.apply(&shop("istio.io/use-waypoint: waypoint", ""));
    let marker = format!("waypoint for {CLIENT}");
    let ask = |to: &str| request(&world.client, &format!("http://{to}/"), None);
    eventually("the shop is called through its waypoint", STEP, || {
        ask(SHOP).header("x-saw-marker") == marker
    });
    assert_eq!(ask(SHOP).header("x-saw-peer"), waypoint.v4.to_string());
    envoy.wait_for(&["TUNNEL", &format!("to={SHOP}"), CLIENT, &format!("from={}", world.client.v4)]);
    let line = through(world, "waypoint", SHOP);
    assert_eq!(text(&line, "dst.addr"), waypoint.at(HBONE_PORT).to_string());
    assert_eq!(
        (text(&line, "dst.identity"), text(&line, "dst.service")),
        (WAYPOINT, &*format!("shop.{DOMAIN}"))
    );
    let labels = [
        "destination_workload=\"waypoint\"",
        "destination_service_name=\"shop\"",
        &format!("destination_principal=\"{WAYPOINT}\""),
    ];
    let metrics = world.near().metrics().unwrap();
    assert!(metrics.sum("istio_tcp_connections_opened_total", &labels) >= 2.0);
    // The pod behind it hasn't that waypoint.
    let answer = ask(&world.server.at(SHOP_PORT).to_string());
    assert_eq!(
        (answer.header("x-saw-marker"), answer.header("x-saw-peer")),
        ("", &*world.client.v4.to_string())
    );
    let heard = Arc::new(Mutex::new(Vec::new()));
    let at = world.server.at(SHOP_PORT);
    let route = move |asked: SocketAddr| if asked.to_string() == SHOP { at } else { asked };
    let _sandwich = sandwich::start(&routes.sandwich, 15_088, heard.clone(), route);
    of_a_pod(routes, &heard);
    world.istiod.apply(&shop(
        "istio.io/use-waypoint: waypoint, istio.io/use-waypoint-canary: sandwich",
        "istio.io/use-waypoint-canary-weight: \"100\"",
    ));
    let canary = routes.sandwich.v4.to_string();
    eventually("the canary has all of it", STEP, || ask(SHOP).header("x-saw-peer") == canary);
    assert_eq!(text(&through(world, "sandwich", SHOP), "dst.service"), format!("shop.{DOMAIN}"));
    of_the_namespace(routes);
    drop(envoy);
    lines::wait_for(world.far(), "from the waypoint", |line| {
        line["direction"] == "inbound"
            && (text(line, "src.identity"), text(line, "src.workload")) == (WAYPOINT, "waypoint")
            && text(line, "dst.hbone_addr") == world.server.at(SHOP_PORT).to_string()
    });
}

/// The client's line of a connection that asked a waypoint for this.
#[track_caller]
fn through(world: &IstioWorld, waypoint: &str, asked: &str) -> Value {
    lines::wait_for(world.near(), &format!("{asked} through {waypoint}"), |line| {
        (text(line, "dst.workload"), text(line, "dst.hbone_addr")) == (waypoint, asked)
            && text(line, "src.workload") == "client"
    })
}

/// Calls by the pod's own address go through its waypoint, calls of its services don't.
fn of_a_pod(routes: &Routes, heard: &Mutex<Vec<Told>>) {
    let Routes { world, twin, unready, outside, node, sandwich, .. } = routes;
    let own = world.server.at(8_080);
    let pod = ROUTES.split("---\n").find(|one| one.contains("kind: Pod") && one.contains("$server"));
    let labelled = pod.unwrap().replace("tier: back", "tier: back, istio.io/use-waypoint: sandwich");
    world.istiod.apply(&filled(&labelled, &[&world.server, twin, unready, outside, node]));
    let by_sandwich = || call(&world.client, own).is_ok_and(|found| found.peer == IpAddr::from(sandwich.v4));
    eventually("the server is called through its waypoint", STEP, by_sandwich);
    let line = through(world, "sandwich", &own.to_string());
    assert_eq!(text(&line, "dst.addr"), sandwich.at(HBONE_PORT).to_string());
    assert!(line.get("dst.service").is_none(), "{line}");
    let (from, to, identity) = heard.lock().unwrap().last().cloned().unwrap();
    assert_eq!((from.ip(), to, &*identity), (world.client.v4.into(), own, CLIENT));
    lines::wait_for(world.far(), "on from the waypoint, which isn't sent to itself", |line| {
        line["direction"] == "outbound" && text(line, "dst.workload") == "server"
    });
    let found = call(&world.client, "10.77.210.7:81".parse().unwrap()).unwrap();
    assert_eq!((&*found.who, found.peer), ("server:9090", world.client.v4.into()));
}

/// Every service of a namespace has its waypoint, but for those that say no; pods have none by it.
fn of_the_namespace(routes: &Routes) {
    let Routes { world, twin, .. } = routes;
    world.istiod.apply(
        "apiVersion: v1\nkind: Namespace\n\
         metadata: {name: default, labels: {istio.io/use-waypoint: waypoint}}\n",
    );
    let vip = "10.77.210.1:81";
    eventually("the namespace's services have its waypoint", STEP, || {
        call(&world.client, vip.parse().unwrap()).is_err()
    });
    // That one doesn't serve it, which is for it to say.
    let line = through(world, "waypoint", vip);
    assert_eq!(text(&line, "error"), "http status: 404 Not Found", "{line}");
    for (to, who) in [("10.77.210.7:81", "server:9090"), (&*twin.at(8_081).to_string(), "twin:8081")] {
        let found = call(&world.client, to.parse().unwrap()).unwrap();
        assert_eq!((&*found.who, found.peer), (who, world.client.v4.into()));
    }
}

/// Another pod gets the address: whoever is there now is talked to, and nobody for the one before.
fn taken_over(routes: &Routes) {
    let Routes { world, twin, .. } = routes;
    let (agent, to) = (world.cluster.agent(1).unwrap(), twin.at(8_082));
    let heir = Pod { name: "heir".to_owned(), ..twin.clone() };
    agent.delete("uid-twin").unwrap();
    let _server = start(twin, "heir", 8_082);
    agent.add(agent_pod(&heir).unwrap()).unwrap();
    // The control plane tells a moment later, while somebody already calls whom it knew.
    std::thread::scope(|scope| {
        let early = scope.spawn(|| call(&world.client, to));
        world.istiod.apply(&pod(&heir));
        world.istiod.delete("Pod", "default", "twin");
        let _ = early.join().unwrap();
    });
    let asked = to.to_string();
    let of_heir = || {
        let found = call(&world.client, to)?;
        let line = outbound(world, &found);
        Ok::<_, std::io::Error>(text(&line, "dst.identity") == "spiffe://cluster.local/ns/default/sa/heir")
    };
    eventually("the heir answers as itself", STEP, || of_heir().unwrap_or(false));
    let lines = world.near().access_lines().unwrap();
    let mut to_twin = lines
        .iter()
        .filter(|line| (text(line, "dst.hbone_addr"), text(line, "dst.workload")) == (&*asked, "twin"));
    assert!(to_twin.all(|line| line["error"].is_string()), "{lines:?}");
}

/// Kubernetes services are shared between networks where this label says so.
const GLOBAL: &str = "serviceScopeConfigs: [{scope: GLOBAL, servicesSelector: {matchExpressions: \
    [{key: istio.io/global, operator: In, values: [\"true\"]}]}}]";

#[test]
fn a_service_of_two_networks_is_shared_by_capacity_and_nested_through_the_gateway() {
    let settings = [("AMBIENT_ENABLE_MULTI_NETWORK", "true")];
    let mut world = IstioWorld::build_with(&["--mesh-config", GLOBAL], &settings, &[]);
    let gateway = world.cluster.plain_pod(2, "gateway").unwrap();
    let twin = world.cluster.mesh_pod(1, "twin").unwrap();
    for (node, network) in [(1, "near"), (2, "remote")] {
        world.cluster.node_environment.push((node, "NETWORK".to_owned(), network.to_owned()));
    }
    world.istiod.apply(&filled(NETWORKS, &[&world.server, &gateway, &twin]));
    world.cluster.start().expect("both proxies start and get ready");
    let papers = papers(&world.cluster.authority(), GATEWAY);
    let (host, to) = (format!("far.{DOMAIN}"), "10.77.201.1:80".parse().unwrap());
    let values = [("service", format!("{host}:80")), ("onward_address", world.server.v4.to_string())];
    let _envoy = Envoy::start(&gateway, world.cluster.directory(), "east-west.yaml", &papers, &values);
    let _servers = [start(&world.server, "server", 8_080), start(&twin, "twin", 8_080)];
    let (mut there, mut last) = (0, None);
    for _ in 0..100 {
        let found = call(&world.client, to).unwrap();
        match &*found.who {
            "twin:8080" => assert_eq!(found.peer, IpAddr::from(world.client.v4)),
            "server:8080" => {
                // The gateway ends the outer tunnel; who calls is known by the inner one.
                assert_eq!(found.peer, IpAddr::from(gateway.v4));
                (there, last) = (there + 1, Some(found));
            }
            other => panic!("{other} answered"),
        }
    }
    // Nine of ten; five standard deviations.
    assert!((75..100).contains(&there), "{there} of 100 went to the other network");
    let line = outbound(&world, &last.unwrap());
    assert_eq!(text(&line, "dst.addr"), gateway.at(HBONE_PORT).to_string());
    assert_eq!(text(&line, "dst.hbone_addr"), format!("{host}:80"));
    assert_eq!((text(&line, "dst.service"), text(&line, "dst.identity")), (&*host, SERVER));
    assert_eq!((text(&line, "dst.workload"), text(&line, "src.identity")), ("server", CLIENT));
    let line = lines::wait_for(world.far(), "from the other network", |line| line["direction"] == "inbound");
    assert_eq!((text(&line, "src.identity"), text(&line, "src.workload")), (CLIENT, "client"));
    assert_eq!((text(&line, "dst.hbone_addr"), text(&line, "dst.service")), (&*format!("{host}:80"), &*host));
    let metrics = world.near().metrics().unwrap();
    let service = format!("destination_service=\"{host}\"");
    for (workload, at_least) in [("server", 75.0), ("twin", 1.0)] {
        let labels = [
            &*service,
            &format!("destination_workload=\"{workload}\""),
            "connection_security_policy=\"mutual_tls\"",
        ];
        assert!(metrics.sum("istio_tcp_connections_opened_total", &labels) >= at_least, "{workload}");
    }
    is_refused(&world, "10.77.201.2:80", "no healthy upstream: 10.77.201.2:80");
}
