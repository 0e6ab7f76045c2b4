//! The real istioctl reads a live mesh from a proxy's port and from a file: every subcommand of ztunnel-config, as
//! table, JSON and YAML. What it must show is known from the mesh that was told and the connections that are open.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use bytes::Bytes;
use ringway::demo::agent::AgentPod;
use ringway::demo::cluster::agent_pod;
use ringway::demo::node::ADMIN_PORT;
use ringway::demo::topology::Pod;
use ringway::wire::pb::security::string_match::MatchType;
use ringway::wire::pb::security::{Action, Authorization, Clause, Match, Rule, Scope, StringMatch};
use ringway::wire::pb::workload::gateway_address::Destination;
use ringway::wire::pb::workload::load_balancing::{self, HealthPolicy, Mode};
use ringway::wire::pb::workload::{
    GatewayAddress, IpFamilies, LoadBalancing, NamespacedHostname, NetworkAddress, Port, PortList, Service,
    Workload, WorkloadStatus,
};
use ringway_e2e::istioctl::{Istioctl, rows};
use ringway_e2e::serve::{Server, banner};
use ringway_e2e::standin_world::{StandinWorld, workload};
use ringway_e2e::world::{APP_PORT, STEP, dial, service};
use ringway_standin::behaviour::code;
use ringway_standin::certificates::Outcome;
use ringway_standin::generate;
use serde_json::Value;

const WORKLOADS: &[&str] = &["NAMESPACE", "POD NAME", "ADDRESS", "NODE", "WAYPOINT", "PROTOCOL"];
const SERVICES: &[&str] = &["NAMESPACE", "SERVICE NAME", "SERVICE VIP", "WAYPOINT", "ENDPOINTS"];
const POLICIES: &[&str] = &["NAMESPACE", "POLICY NAME", "ACTION", "SCOPE"];
const CERTIFICATES: &[&str] =
    &["CERTIFICATE NAME", "TYPE", "STATUS", "VALID CERT", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE"];
const CONNECTIONS: &[&str] = &["WORKLOAD", "DIRECTION", "LOCAL", "REMOTE", "REMOTE TARGET", "PROTOCOL"];
const WEB: &str = "web.default.svc.cluster.local";
const LATE: &str = "spiffe://cluster.local/ns/default/sa/late";

fn octets(ip: &str) -> Bytes {
    match ip.parse().unwrap() {
        IpAddr::V4(four) => Bytes::copy_from_slice(&four.octets()),
        IpAddr::V6(six) => Bytes::copy_from_slice(&six.octets()),
    }
}

fn vip(ip: &str, length: Option<u32>) -> NetworkAddress {
    NetworkAddress { address: octets(ip), length, ..NetworkAddress::default() }
}

fn named(name: &str, namespace: &str, addresses: Vec<NetworkAddress>) -> Service {
    Service {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        hostname: format!("{name}.{namespace}.svc.cluster.local"),
        addresses,
        ports: vec![Port { service_port: 80, target_port: 8080 }],
        ..Service::default()
    }
}

fn towards(destination: Destination) -> Option<GatewayAddress> {
    Some(GatewayAddress { destination: Some(destination), hbone_mtls_port: 15_008 })
}

fn policy(name: &str, namespace: &str, action: Action, scope: Scope, matched: Match) -> Authorization {
    let rule = Rule { clauses: vec![Clause { matches: vec![matched] }] };
    Authorization {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        action: action.into(),
        scope: scope.into(),
        rules: vec![rule],
        dry_run: false,
    }
}

fn principal(text: &str) -> Vec<StringMatch> {
    vec![StringMatch { match_type: Some(MatchType::Prefix(text.to_owned())) }]
}

/// Every kind of thing that istioctl has a column or a key for.
fn tell(world: &StandinWorld, late: &Pod) {
    let mesh = world.standin.mesh();
    let by_name = || {
        towards(Destination::Hostname(NamespacedHostname {
            namespace: "default".to_owned(),
            hostname: "way.default.svc.cluster.local".to_owned(),
        }))
    };
    mesh.put([
        Service {
            waypoint: by_name(),
            ..named("api", "shop", vec![vip("10.77.200.2", None), vip("fd77::2", None)])
        },
        named("way", "default", vec![vip("10.77.200.3", None)]),
        Service {
            load_balancing: Some(LoadBalancing {
                routing_preference: vec![load_balancing::Scope::Zone.into()],
                mode: Mode::Failover.into(),
                health_policy: HealthPolicy::AllowAll.into(),
            }),
            ip_families: IpFamilies::Dual.into(),
            subject_alt_names: vec!["spiffe://cluster.local/ns/shop/sa/range".to_owned()],
            ..named("range", "shop", vec![vip("240.240.0.0", Some(16))])
        },
    ]);
    let pair = vec![Port { service_port: 80, target_port: 8080 }];
    let serves = |host: &str| BTreeMap::from([(host.to_owned(), PortList { ports: pair.clone() })]);
    let behind = towards(Destination::Address(vip("10.77.200.3", None)));
    mesh.put([
        workload(late, false),
        Workload {
            status: WorkloadStatus::Unhealthy.into(),
            services: serves("shop/range.shop.svc.cluster.local"),
            ..generate::pod("broken", "default", "node9", &["10.77.9.9".parse().unwrap()])
        },
        Workload {
            waypoint: behind,
            tunnel_protocol: 0,
            services: serves("shop/api.shop.svc.cluster.local"),
            ..generate::pod("shelf", "shop", "node9", &["10.77.9.8".parse().unwrap()])
        },
    ]);
    let known = Match { not_principals: principal("cluster.local/ns/shop/"), ..Match::default() };
    let range =
        Match { not_namespaces: principal("sys-"), destination_ports: vec![9_999], ..Match::default() };
    mesh.put([
        policy("known", "default", Action::Allow, Scope::Namespace, known),
        policy("range", "shop", Action::Deny, Scope::WorkloadSelector, range.clone()),
        policy("root", "istio-system", Action::Deny, Scope::Global, range),
    ]);
}

/// One connection of which a byte has been heard, so that both proxies have it in their tables.
fn hold(from: &Pod, to: SocketAddr) -> (TcpStream, String) {
    let mut stream = dial(from, to);
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    let port = stream.local_addr().unwrap().port();
    (stream, port.to_string())
}

fn cells(expected: &[&str]) -> Vec<String> {
    expected.iter().map(|cell| (*cell).to_owned()).collect()
}

/// Whatever istioctl understood is what the dump says: each value that it shows stands there under the same key.
fn assert_within(shown: &Value, dumped: &Value, place: &str) {
    match (shown, dumped) {
        (Value::Object(shown), Value::Object(dumped)) => {
            for (key, value) in shown.iter().filter(|(_, value)| !is_empty(value)) {
                let found = dumped.get(key).unwrap_or_else(|| panic!("{place}.{key} isn't in the dump"));
                assert_within(value, found, &format!("{place}.{key}"));
            }
            // And it understood all that it has a name for.
            for (key, value) in
                shown.iter().filter(|(key, _)| dumped.get(*key).is_some_and(|it| !is_empty(it)))
            {
                assert!(!is_empty(value), "{place}.{key} was not understood");
            }
        }
        (Value::Array(shown), Value::Array(dumped)) => {
            assert_eq!(shown.len(), dumped.len(), "{place}");
            for (at, (shown, dumped)) in shown.iter().zip(dumped).enumerate() {
                assert_within(shown, dumped, &format!("{place}[{at}]"));
            }
        }
        // It writes ranges as text whatever they were.
        (Value::String(text), Value::Object(range)) if range.contains_key("cidr") => {
            let expected =
                format!("{}/{}", range["network"].as_str().unwrap(), range["cidr"].as_str().unwrap());
            assert_eq!(*text, expected, "{place}");
        }
        _ => assert_eq!(shown, dumped, "{place}"),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.values().all(is_empty),
    }
}

/// A number too large for any integer type.
fn hexadecimal(decimal: &str) -> String {
    let mut digits = vec![0_u32];
    for letter in decimal.chars() {
        let mut carry = letter.to_digit(10).unwrap();
        for digit in &mut digits {
            carry += *digit * 10;
            *digit = carry % 16;
            carry /= 16;
        }
        if carry > 0 {
            digits.push(carry);
        }
    }
    digits.iter().rev().map(|digit| char::from_digit(*digit, 16).unwrap()).collect()
}

/// Some it sorts; certificates have neither namespace nor name, and stay as they are.
fn sorted(dumped: &Value) -> Value {
    let mut all = dumped.as_array().unwrap().clone();
    all.sort_by_key(|one| {
        (one["namespace"].as_str().map(str::to_owned), one["name"].as_str().map(str::to_owned))
    });
    all.into()
}

/// The proxies as istioctl calls them.
const NEAR: &str = "ztunnel-1.istio-system";
const FAR: &str = "ztunnel-2.istio-system";

/// A mesh with something of everything, and four connections that stay open.
struct Scene {
    istioctl: Istioctl,
    late: Pod,
    stranger: Pod,
    /// To the service, to the pod, out of the mesh, into the mesh.
    held: [(TcpStream, String); 4],
    _apps: [Server; 2],
    world: StandinWorld,
}

impl Scene {
    fn start() -> Self {
        let mut world = StandinWorld::build(&[]);
        let late = world.cluster.topology.add_pod(1, "late").unwrap();
        tell(&world, &late);
        world.standin.authority(|authority| authority.sign_with(0, 1));
        let refused = Outcome::Status(code::PERMISSION_DENIED, "not you".to_owned());
        world.standin.sign(|signing| drop(signing.by_identity.insert(LATE.to_owned(), refused)));
        let stranger = world.cluster.plain_pod(2, "stranger").unwrap();
        world.cluster.start().unwrap();
        world.cluster.agent(1).unwrap().add(agent_pod(&late).unwrap()).unwrap();
        let pending = AgentPod {
            uid: "uid-pending".to_owned(),
            name: "pending".to_owned(),
            namespace: "default".to_owned(),
            service_account: "pending".to_owned(),
            netns: std::fs::File::open("/dev/null").unwrap().into(),
        };
        world.cluster.agent(1).unwrap().add(pending).unwrap_err();
        let _apps = [&world.server, &stranger].map(|pod| Server::start(pod, APP_PORT, banner));
        let held = [
            hold(&world.client, service()),
            hold(&world.client, world.server.at(APP_PORT)),
            hold(&world.client, stranger.at(APP_PORT)),
            hold(&stranger, world.server.at(APP_PORT)),
        ];
        ringway_e2e::eventually("the refusal has come", STEP, || {
            let dump = world.near().dump().unwrap();
            let mut all = dump["certificates"].as_array().unwrap().iter();
            let late = all.find(|one| one["identity"] == LATE);
            late.is_some_and(|late| late["state"].as_str().unwrap().starts_with("Unavailable: "))
        });
        let istioctl = Istioctl::start(&world.cluster, &[&world.client, &world.server]);
        Self { istioctl, late, stranger, held, _apps, world }
    }

    #[track_caller]
    fn table(&self, words: &str, headings: &[&str]) -> Vec<Vec<String>> {
        self.istioctl.table(&format!("ztunnel-config {words}"), headings)
    }

    fn json(&self, words: &str) -> Value {
        self.istioctl.json(&format!("ztunnel-config {words}"))
    }

    fn workloads(&self) -> [Vec<String>; 5] {
        let addresses = |pod: &Pod| format!("{},{}", pod.v4, pod.v6);
        let pod = |name: &str, pod: &Pod, node: &str| {
            cells(&["default", name, &addresses(pod), node, "None", "HBONE"])
        };
        [
            cells(&["default", "broken", "10.77.9.9", "node9", "None", "HBONE"]),
            pod("client", &self.world.client, "node1"),
            pod("late", &self.late, "node1"),
            pod("server", &self.world.server, "node2"),
            cells(&["shop", "shelf", "10.77.9.8", "node9", "way", "TCP"]),
        ]
    }

    fn services() -> [Vec<String>; 4] {
        [
            cells(&["default", "way", "10.77.200.3", "None", "0/0"]),
            cells(&["default", "web", "10.77.200.1", "None", "1/1"]),
            cells(&["shop", "api", "10.77.200.2,fd77::2", "way", "1/1"]),
            // Its endpoints count whatever their health.
            cells(&["shop", "range", "", "None", "0/1"]),
        ]
    }

    fn policies() -> [Vec<String>; 3] {
        [
            cells(&["default", "known", "Allow", "Namespace"]),
            cells(&["istio-system", "root", "Deny", "Global"]),
            cells(&["shop", "range", "Deny", "WorkloadSelector"]),
        ]
    }

    fn shows_the_mesh(&self) {
        let workloads = self.workloads();
        assert_eq!(self.table(&format!("workload {NEAR}"), WORKLOADS), workloads);
        let one = |words: &str| self.table(words, WORKLOADS);
        assert_eq!(one("workload --workload-node node9"), [workloads[0].clone(), workloads[4].clone()]);
        assert_eq!(one(&format!("workload {NEAR} --address {}", self.late.v4)), [workloads[2].clone()]);
        // A pod of the mesh leads to the proxy of its node.
        assert_eq!(one("workload server.default"), [workloads[3].clone()]);
        assert_eq!(self.table(&format!("service {FAR}"), SERVICES), Self::services());
        assert_eq!(self.table("policy --node node1", POLICIES), Self::policies());
        let shop = self.table("policy --node node1 --policy-namespace shop", POLICIES);
        assert_eq!(shop, Self::policies()[2..]);
    }

    fn shows_certificates(&self) {
        let shown = self.table(&format!("certificate {NEAR}"), CERTIFICATES);
        let kinds: Vec<_> = shown.iter().map(|row| row[..4].to_vec()).collect();
        let client = "spiffe://cluster.local/ns/default/sa/client";
        let expected = [
            cells(&[client, "Leaf", "Available", "true"]),
            cells(&[client, "Intermediate", "Available", "true"]),
            cells(&[client, "Root", "Available", "true"]),
            cells(&[LATE, "NA", "Unavailable", "false"]),
        ];
        assert_eq!(kinds, expected);
        let dump = self.world.near().dump().unwrap();
        let leaf = &dump["certificates"][0]["certChain"][0];
        assert_eq!(shown[0][4], hexadecimal(leaf["serialNumber"].as_str().unwrap()));
        assert_eq!(shown[0][5], leaf["expirationTime"].as_str().unwrap());
        assert_eq!(shown[0][6], leaf["validFrom"].as_str().unwrap());
    }

    /// In any order: ports decide it.
    #[track_caller]
    fn assert_connections(&self, words: &str, mut expected: Vec<Vec<String>>) {
        let mut shown = self.table(&format!("connections {words}"), CONNECTIONS);
        shown.sort();
        expected.sort();
        assert_eq!(shown, expected, "{words}");
    }

    fn shows_connections(&self) {
        let Self { world, stranger, held: [by_name, direct, out, into], .. } = self;
        let client = |port: &str| format!("client.default:{port}");
        let app = format!("server.default:{APP_PORT}");
        let open = stranger.at(APP_PORT).to_string();
        let outbound = |port: &str, remote: &str, target: &str, protocol: &str| {
            cells(&["client.default", "Outbound", &client(port), remote, target, protocol])
        };
        let expected = vec![
            outbound(&by_name.1, "server.default:15008", &format!("{WEB}:80"), "HBONE"),
            outbound(&direct.1, "server.default:15008", &app, "HBONE"),
            outbound(&out.1, &open, &open, "TCP"),
        ];
        self.assert_connections(NEAR, expected);
        // The two by HBONE may have come by two tunnels, each with a port of its own.
        let dump = world.far().dump().unwrap();
        let dumped = dump["workloadState"]["uid-server"]["connections"]["inbound"].as_array().unwrap();
        let tunnel = |host: Option<&str>| {
            let mut by_tunnel = dumped.iter().filter(|one| one["protocol"] == "HBONE");
            let of = by_tunnel.find(|one| one["originalDst"].as_str() == host).unwrap();
            client(of["src"].as_str().unwrap().rsplit(':').next().unwrap())
        };
        let inbound = |remote: &str, target: &str, protocol: &str| {
            cells(&["server.default", "Inbound", &app, remote, target, protocol])
        };
        let expected = vec![
            inbound(&tunnel(Some(WEB)), WEB, "HBONE"),
            inbound(&tunnel(None), "", "HBONE"),
            inbound(&stranger.at(into.1.parse().unwrap()).to_string(), "", "TCP"),
        ];
        self.assert_connections("server.default", expected.clone());
        self.assert_connections(&format!("{FAR} --direction inbound"), expected);
        self.assert_connections(&format!("{NEAR} --direction inbound"), vec![]);
        let raw = self.table(&format!("connections {NEAR} --raw"), CONNECTIONS);
        assert!(raw.iter().any(|row| row[4] == service().to_string()), "{raw:?}");
    }

    /// All of it at once, and from a file, where istioctl needs no cluster.
    fn shows_a_file_as_it_shows_the_port(&self, file: &str) {
        let say = |words: &str| self.istioctl.say(&format!("ztunnel-config {words}"));
        let all = say(&format!("all --with-headers --file {file}"));
        assert_eq!(say(&format!("all --with-headers {NEAR}")), all);
        let after = |part: &str| {
            let found = all.split(&format!("------ {part} INFO ------\n\n")).nth(1);
            found.unwrap_or_else(|| panic!("{part} isn't in {all}"))
        };
        assert_eq!(rows(after("WORKLOAD"), WORKLOADS), self.workloads());
        assert_eq!(rows(after("SERVICE"), SERVICES), Self::services());
        assert_eq!(rows(after("POLICY"), POLICIES), Self::policies());
        assert_eq!(rows(after("SECRET"), CERTIFICATES).len(), 4);
        assert_eq!(rows(after("CONNECTIONS"), CONNECTIONS).len(), 3);
    }

    /// JSON: what it understood is what was dumped. YAML is made of the same.
    fn shows_what_was_dumped(&self, file: &str, dump: &Value) {
        for (part, key) in [
            ("workload", "workloads"),
            ("service", "services"),
            ("policy", "policies"),
            ("certificate", "certificates"),
        ] {
            let shown = self.json(&format!("{part} --file {file}"));
            assert!(!is_empty(&shown), "{part}");
            assert_eq!(self.json(&format!("{part} {NEAR}")), shown, "{part}");
            assert_within(&sorted(&shown), &sorted(&dump[key]), part);
            let yaml = self.istioctl.say(&format!("ztunnel-config {part} {NEAR} -o yaml"));
            assert!(yaml.starts_with("- ") && yaml.contains("cluster.local"), "{part}: {yaml}");
        }
        let states = self.json(&format!("connections {NEAR}"));
        assert_eq!(self.json(&format!("connections --file {file}")), states);
        let names = states.as_array().unwrap().iter().map(|one| one["info"]["name"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["client", "late", "pending"]);
        assert_eq!(states[0]["connections"]["outbound"].as_array().unwrap().len(), 3);
        assert_eq!((&states[0]["state"], &states[2]["state"]), (&"Up".into(), &"Pending".into()));
        let whole = self.json(&format!("all {NEAR}"));
        assert_eq!((&whole["workloads"], &whole["services"]), (&dump["workloads"], &dump["services"]));
    }
}

#[test]
fn istioctl_shows_a_live_mesh_in_every_form_that_it_has() {
    let scene = Scene::start();
    scene.shows_the_mesh();
    scene.shows_certificates();
    scene.shows_connections();
    let (status, text) = scene.world.near().get(ADMIN_PORT, "/config_dump").unwrap();
    assert_eq!(status, 200);
    let file = scene.world.cluster.directory().join("dump.json");
    std::fs::write(&file, &text).unwrap();
    let file = file.to_string_lossy();
    scene.shows_a_file_as_it_shows_the_port(&file);
    scene.shows_what_was_dumped(&file, &serde_json::from_str(&text).unwrap());
}

#[test]
fn istioctl_reads_and_sets_log_levels() {
    let world = StandinWorld::start(&[]);
    let istioctl = Istioctl::start(&world.cluster, &[]);
    let log = |words: &str| istioctl.say(&format!("ztunnel-config log {words}"));
    let told = |node: u8, filter: &str| {
        format!("ztunnel-{node}.istio-system:\ncurrent log level is hickory_server::server=off,{filter}\n\n")
    };
    let both = istioctl.say("ztunnel-config log");
    assert_eq!(both, told(1, "info") + &told(2, "info"));
    assert_eq!(log(&format!("{NEAR} --level debug")), told(1, "debug"));
    assert_eq!(log(&format!("{NEAR} --level warning")), told(1, "warn"));
    assert_eq!(log(&format!("{NEAR} --level access=debug,info")), told(1, "access=debug,info"));
    assert_eq!(log(NEAR), told(1, "access=debug,info"));
    assert_eq!(log(FAR), told(2, "info"));
    // It says in front of the answer what it is about to do.
    assert!(log(&format!("{NEAR} -r")).ends_with(&told(1, "info")));
    // What istioctl's help proposes, the reference refuses too: its clauses have `=`.
    let refused = istioctl.run(&format!("ztunnel-config log {NEAR} --level access:debug,info"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("unexpected status code: 400"), "{said}");
}
