//! What istiod makes of PeerAuthentication and AuthorizationPolicy objects, each as what then gets through: plaintext
//! of a stranger and HBONE of the client, to two ports and to a service.

use std::io::Write;
use std::time::Duration;

use ringway_e2e::eventually;
use ringway_e2e::istio_world::IstioWorld;
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::verdicts::{
    OTHER_PORT, Object, Verdicts, authorization, echo_on, exchange, has_ended, peer_authentication,
};
use ringway_e2e::world::{APP_PORT, dial, service, try_dial};

/// How soon an applied object is in force for what is open.
const SOON: Duration = Duration::from_secs(1);
const STATIC: &str = "istio-system/istio_converted_static_strict";
const CONVERTED: &str = "default/converted_peer_authentication_server";

fn whole(mode: &str) -> String {
    format!("{{mtls: {{mode: {mode}}}}}")
}

fn mesh(mode: &str) -> Object {
    peer_authentication("istio-system", "default", &whole(mode))
}

fn namespace(mode: &str) -> Object {
    peer_authentication("default", "default", &whole(mode))
}

/// Of the server, with modes of its ports 8080 and 9090; an empty one isn't said.
fn workload(mode: &str, one: &str, other: &str) -> Object {
    let port = |port: u16, mode: &str| if mode.is_empty() { None } else { Some((port, mode.to_owned())) };
    let ports = [port(APP_PORT, one), port(OTHER_PORT, other)].into_iter().flatten();
    let ports: Vec<_> = ports.map(|(port, mode)| format!("{port}: {{mode: {mode}}}")).collect();
    let levels =
        if ports.is_empty() { String::new() } else { format!(", portLevelMtls: {{{}}}", ports.join(", ")) };
    let spec = format!("{{selector: {{matchLabels: {{app: server}}}}, mtls: {{mode: {mode}}}{levels}}}");
    peer_authentication("default", "server", &spec)
}

/// What is applied, the policies that istiod then names at the server, and what passes.
type Row = (&'static str, Vec<Object>, &'static [&'static str], &'static str);

const UNSET: &str = "UNSET";
const PERMISSIVE: &str = "PERMISSIVE";
const STRICT: &str = "STRICT";

fn levels() -> Vec<Row> {
    vec![
        ("mesh strict", vec![mesh(STRICT)], &[STATIC], "--+++"),
        ("mesh permissive", vec![mesh(PERMISSIVE)], &[], "+++++"),
        ("mesh strict, namespace unset", vec![mesh(STRICT), namespace(UNSET)], &[STATIC], "--+++"),
        ("mesh strict, namespace permissive", vec![mesh(STRICT), namespace(PERMISSIVE)], &[], "+++++"),
        ("mesh permissive, namespace strict", vec![mesh(PERMISSIVE), namespace(STRICT)], &[STATIC], "--+++"),
        ("mesh unset", vec![mesh(UNSET)], &[], "+++++"),
        ("namespace strict", vec![namespace(STRICT)], &[STATIC], "--+++"),
        ("..., workload permissive", vec![namespace(STRICT), workload(PERMISSIVE, "", "")], &[], "+++++"),
        ("workload strict alone", vec![workload(STRICT, "", "")], &[STATIC], "--+++"),
        ("mesh strict, workload disabled", vec![mesh(STRICT), workload("DISABLE", "", "")], &[], "+++++"),
        ("mesh strict, workload unset", vec![mesh(STRICT), workload(UNSET, "", "")], &[STATIC], "--+++"),
        ("all unset", vec![mesh(UNSET), namespace(UNSET), workload(UNSET, "", "")], &[], "+++++"),
        (
            "namespace permissive, workload strict",
            vec![mesh(PERMISSIVE), namespace(PERMISSIVE), workload(STRICT, "", "")],
            &[STATIC],
            "--+++",
        ),
    ]
}

fn ports() -> Vec<Row> {
    vec![
        ("strict but 9090", vec![workload(STRICT, "", PERMISSIVE)], &[CONVERTED], "-++++"),
        ("strict but 9090 disabled", vec![workload(STRICT, "", "DISABLE")], &[CONVERTED], "-++++"),
        ("strict but both", vec![workload(STRICT, PERMISSIVE, PERMISSIVE)], &[CONVERTED], "+++++"),
        ("strict and both strict", vec![workload(STRICT, STRICT, STRICT)], &[STATIC], "--+++"),
        ("strict, 9090 unset", vec![workload(STRICT, "", UNSET)], &[STATIC], "--+++"),
        ("permissive but 9090", vec![workload(PERMISSIVE, "", STRICT)], &[CONVERTED], "+-+++"),
        ("disabled but 8080", vec![workload("DISABLE", STRICT, "")], &[CONVERTED], "-++++"),
        ("permissive but both", vec![workload(PERMISSIVE, STRICT, STRICT)], &[CONVERTED], "--+++"),
        ("permissive and 9090 too", vec![workload(PERMISSIVE, "", PERMISSIVE)], &[], "+++++"),
        ("unset but 9090", vec![workload(UNSET, "", STRICT)], &[CONVERTED], "+-+++"),
        (
            "namespace strict, unset but 9090",
            vec![namespace(STRICT), workload(UNSET, "", PERMISSIVE)],
            &[CONVERTED],
            "-++++",
        ),
        (
            "mesh strict, unset but 8080",
            vec![mesh(STRICT), workload(UNSET, PERMISSIVE, "")],
            &[CONVERTED],
            "+-+++",
        ),
        (
            "mesh strict, unset and 9090 strict",
            vec![mesh(STRICT), workload(UNSET, "", STRICT)],
            &[STATIC],
            "--+++",
        ),
        (
            "mesh strict, namespace permissive, unset but 9090",
            vec![mesh(STRICT), namespace(PERMISSIVE), workload(UNSET, "", STRICT)],
            &[CONVERTED],
            "+-+++",
        ),
        // istiod takes only PERMISSIVE for an exception here.
        (
            "mesh strict, unset and 9090 disabled",
            vec![mesh(STRICT), workload(UNSET, "", "DISABLE")],
            &[STATIC],
            "--+++",
        ),
    ]
}

#[test]
fn every_level_of_peer_authentication_and_every_port_override_is_as_istiod_converts_it() {
    let world = IstioWorld::start(&[], &[]);
    let mut verdicts = Verdicts::new(&world);
    for (what, objects, attached, passes) in levels().into_iter().chain(ports()) {
        verdicts.row(what, objects, Some(attached), passes);
    }
    let elsewhere = |namespace, app: &str| {
        let spec = format!("{{selector: {{matchLabels: {{app: {app}}}}}, mtls: {{mode: STRICT}}}}");
        vec![peer_authentication(namespace, "elsewhere", &spec)]
    };
    verdicts.row("a selector in the root namespace", elsewhere("istio-system", "server"), Some(&[]), "+++++");
    verdicts.row("of another workload", elsewhere("default", "client"), Some(&[]), "+++++");
    let other = vec![peer_authentication("elsewhere", "default", &whole(STRICT))];
    verdicts.row("of another namespace", other, Some(&[]), "+++++");
    let both = vec![mesh(STRICT), deny("{ports: [\"9090\"]}")];
    verdicts.row("strict, and a policy beside", both, Some(&[STATIC]), "--+-+");
    // Without its setting istiod keeps dry runs to itself.
    verdicts.row("a dry run", vec![rules("DENY", "[{}]").dry_run("true")], Some(&[]), "+++++");
    verdicts.are_right();
}

const CLIENT: &str = "cluster.local/ns/default/sa/client";

fn rules(action: &str, rules: &str) -> Object {
    authorization("default", "tested", &format!("{{action: {action}, rules: {rules}}}"))
}

fn deny_from(source: &str) -> Object {
    rules("DENY", &format!("[{{from: [{{source: {source}}}]}}]"))
}

fn allow_from(source: &str) -> Object {
    rules("ALLOW", &format!("[{{from: [{{source: {source}}}]}}]"))
}

fn deny(operation: &str) -> Object {
    rules("DENY", &format!("[{{to: [{{operation: {operation}}}]}}]"))
}

fn allow(operation: &str) -> Object {
    rules("ALLOW", &format!("[{{to: [{{operation: {operation}}}]}}]"))
}

#[test]
fn every_kind_of_match_in_a_deny_refuses_what_it_names_and_nothing_else() {
    let world = dry_running();
    let mut verdicts = Verdicts::new(&world);
    for (source, passes) in [
        ("{principals: [cluster.local/ns/default/sa/client]}", "++---"),
        ("{principals: [cluster.local/ns/default/sa/clien]}", "+++++"),
        ("{principals: [\"cluster.local/ns/default/*\"]}", "++---"),
        ("{principals: [\"cluster.local/ns/elsewhere/*\"]}", "+++++"),
        ("{principals: [\"*/sa/client\"]}", "++---"),
        ("{principals: [\"*\"]}", "++---"),
        ("{notPrincipals: [cluster.local/ns/default/sa/client]}", "--+++"),
        ("{notPrincipals: [\"*/sa/other\"]}", "-----"),
        ("{namespaces: [default]}", "++---"),
        ("{notNamespaces: [default]}", "--+++"),
        ("{serviceAccounts: [client]}", "++---"),
        ("{serviceAccounts: [elsewhere/client, default/other]}", "+++++"),
        ("{notServiceAccounts: [default/client]}", "--+++"),
        ("{ipBlocks: [{client}]}", "++---"),
        ("{ipBlocks: [\"{stranger}/32\"]}", "--+++"),
        ("{ipBlocks: [10.77.0.0/16]}", "-----"),
        ("{ipBlocks: [192.0.2.0/24]}", "+++++"),
        ("{notIpBlocks: [{client}]}", "--+++"),
        ("{ipBlocks: [10.77.0.0/16], notIpBlocks: [{stranger}]}", "++---"),
    ] {
        verdicts.row(&format!("deny from {source}"), vec![deny_from(source)], Some(&[]), passes);
    }
    for (operation, passes) in [
        ("{ports: [\"8080\"]}", "-+-+-"),
        ("{ports: [\"80\"]}", "+++++"),
        ("{ports: [\"80\", \"9090\"]}", "+-+-+"),
        ("{notPorts: [\"8080\"]}", "+-+-+"),
        // What isn't of layer 4 is left out, and the rest denies more than it said.
        ("{ports: [\"8080\"], methods: [GET]}", "-+-+-"),
    ] {
        verdicts.row(&format!("deny to {operation}"), vec![deny(operation)], Some(&[]), passes);
    }
    let from = format!("from: [{{source: {{principals: [{CLIENT}]}}}}]");
    let to = "to: [{operation: {ports: [\"9090\"]}}]";
    for (text, passes) in [
        ("[]".to_owned(), "+++++"),
        ("[{}]".to_owned(), "-----"),
        (format!("[{{{from}, {to}}}]"), "+++-+"),
        (format!("[{{{from}}}, {{{to}}}]"), "+----"),
        (format!("[{{{to}, when: [{{key: source.ip, values: [\"{{stranger}}\"]}}]}}]"), "+-+++"),
        ("[{when: [{key: source.principal, notValues: [\"*\"]}]}]".to_owned(), "--+++"),
        ("[{when: [{key: destination.port, notValues: [\"9090\"]}]}]".to_owned(), "-+-+-"),
        ("[{when: [{key: destination.ip, values: [\"{server}\"]}]}]".to_owned(), "-----"),
        ("[{when: [{key: source.namespace, values: [default]}]}]".to_owned(), "++---"),
    ] {
        verdicts.row(&format!("deny {text}"), vec![rules("DENY", &text)], Some(&[]), passes);
    }
    let everybody = || rules("DENY", "[{}]");
    verdicts.row("a dry run", vec![everybody().dry_run("true")], Some(&[]), "+++++");
    verdicts.row("no dry run", vec![everybody().dry_run("false")], Some(&[]), "-----");
    verdicts.row("for auditors", vec![rules("AUDIT", "[{}]")], Some(&[]), "+++++");
    verdicts.are_right();
}

#[test]
fn every_kind_of_match_in_an_allow_lets_through_what_it_names_and_nothing_else() {
    let world = dry_running();
    let mut verdicts = Verdicts::new(&world);
    for (source, passes) in [
        ("{principals: [cluster.local/ns/default/sa/client]}", "--+++"),
        ("{principals: [cluster.local/ns/default/sa/other]}", "-----"),
        ("{notPrincipals: [cluster.local/ns/default/sa/client]}", "++---"),
        ("{namespaces: [\"def*\"]}", "--+++"),
        ("{serviceAccounts: [other, default/client]}", "--+++"),
        ("{ipBlocks: [{stranger}]}", "++---"),
        ("{notIpBlocks: [{stranger}]}", "--+++"),
        ("{requestPrincipals: [\"*\"]}", "-----"),
        ("{remoteIpBlocks: [10.77.0.0/16]}", "-----"),
    ] {
        verdicts.row(&format!("allow from {source}"), vec![allow_from(source)], Some(&[]), passes);
    }
    for (operation, passes) in [
        ("{ports: [\"9090\"]}", "-+-+-"),
        ("{notPorts: [\"9090\"]}", "+-+-+"),
        // What isn't of layer 4 can't be seen, so it was not seen.
        ("{methods: [GET]}", "-----"),
        ("{paths: [\"*\"]}", "-----"),
        ("{notPaths: [/admin]}", "-----"),
        ("{hosts: [web]}", "-----"),
        ("{ports: [\"8080\"], methods: [GET]}", "-----"),
    ] {
        verdicts.row(&format!("allow to {operation}"), vec![allow(operation)], Some(&[]), passes);
    }
    for (text, passes) in [
        ("[{}]", "+++++"),
        ("[{when: [{key: \"request.headers[x]\", values: [z]}]}]", "-----"),
        ("[{to: [{operation: {methods: [GET]}}]}, {to: [{operation: {ports: [\"9090\"]}}]}]", "-+-+-"),
    ] {
        verdicts.row(&format!("allow {text}"), vec![rules("ALLOW", text)], Some(&[]), passes);
    }
    side_by_side(&mut verdicts);
    by_place(&mut verdicts);
    verdicts.are_right();
}

fn named(name: &str, spec: &str) -> Object {
    authorization("default", name, spec)
}

/// Several policies at once: any DENY refuses, and one ALLOW is enough.
fn side_by_side(verdicts: &mut Verdicts<'_>) {
    let empty = || authorization("default", "empty", "{}");
    let client = || allow_from(&format!("{{principals: [{CLIENT}]}}"));
    let nobody_9090 = || named("deny", "{action: DENY, rules: [{to: [{operation: {ports: [\"9090\"]}}]}]}");
    let strangers = named("strangers", "{rules: [{from: [{source: {ipBlocks: [{stranger}]}}]}]}");
    verdicts.row("nobody", vec![empty()], Some(&[]), "-----");
    verdicts.row("a dry run of nobody", vec![empty().dry_run("true")], Some(&[]), "+++++");
    verdicts.row("nobody, and the client", vec![empty(), client()], Some(&[]), "--+++");
    verdicts.row("a dry run doesn't allow", vec![empty(), client().dry_run("true")], Some(&[]), "-----");
    verdicts.row("the client, not 9090", vec![client(), nobody_9090()], Some(&[]), "--+-+");
    verdicts.row("either allows", vec![client(), strangers], Some(&[]), "+++++");
    let strict = peer_authentication("istio-system", "default", &whole(STRICT));
    let anybody = rules("ALLOW", "[{}]");
    verdicts.row("everybody, under strict", vec![anybody, strict], Some(&[STATIC]), "--+++");
}

/// The same policy at other places: whose it is depends on its namespace and selector.
fn by_place(verdicts: &mut Verdicts<'_>) {
    let spec = |target: &str| {
        format!("{{{target}action: DENY, rules: [{{from: [{{source: {{principals: [{CLIENT}]}}}}]}}]}}")
    };
    let selecting = |app: &str| spec(&format!("selector: {{matchLabels: {{app: {app}}}}}, "));
    for (what, object, attached, passes) in [
        ("of the mesh", authorization("istio-system", "tested", &spec("")), &[][..], "++---"),
        ("of another namespace", authorization("elsewhere", "tested", &spec("")), &[], "+++++"),
        ("of the server", named("tested", &selecting("server")), &["default/tested"], "++---"),
        ("of another workload", named("tested", &selecting("client")), &[], "+++++"),
        (
            "of a waypoint",
            named("tested", &spec("targetRefs: [{group: \"\", kind: Service, name: web}], ")),
            &[],
            "+++++",
        ),
    ] {
        verdicts.row(what, vec![object], Some(attached), passes);
    }
}

/// istiod leaves HTTP attributes out of what it sends to node proxies, and an empty match is what is left: that one is
/// skipped (reference section 12.3). A person should hear of it.
#[test]
fn a_deny_of_http_attributes_is_left_to_waypoints_as_in_the_reference_and_that_is_said() {
    let world = dry_running();
    let mut verdicts = Verdicts::new(&world);
    for (what, object, passes) in [
        ("a method", deny("{methods: [GET]}"), "+++++"),
        ("a path", deny("{paths: [/admin]}"), "+++++"),
        ("all hosts but one", deny("{notHosts: [web]}"), "+++++"),
        ("a claim", rules("DENY", "[{when: [{key: \"request.auth.claims[x]\", values: [z]}]}]"), "+++++"),
        ("callers without a token", deny_from("{notRequestPrincipals: [\"*\"]}"), "+++++"),
        (
            "a method of one caller",
            rules(
                "DENY",
                &format!(
                    "[{{from: [{{source: {{principals: [{CLIENT}]}}}}], to: [{{operation: {{methods: [GET]}}}}]}}]"
                ),
            ),
            "+++++",
        ),
    ] {
        verdicts.row(what, vec![object], Some(&[]), passes);
    }
    verdicts.are_right();
    lines::wait_for_message(world.far(), &["default/", "asks for nothing", "waypoint"]);
}

/// With dry runs handed on to the node proxies.
fn dry_running() -> IstioWorld {
    let setting = ("AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY", "true");
    let mut world = IstioWorld::build_with(&[], &[setting], &[]);
    world.cluster.start().expect("both proxies start and get ready");
    world
}

#[test]
fn strict_closes_plaintext_that_is_open_and_lets_not_one_byte_of_more_of_it_through() {
    let world = IstioWorld::start(&[], &[]);
    let apps = [APP_PORT, OTHER_PORT].map(|port| Server::start(&world.server, port, echo));
    let plain = [APP_PORT, OTHER_PORT].map(|port| world.server.at(port));
    let mut strangers = plain.map(|to| dial(&world.stranger, to));
    let mut clients = dial(&world.client, service());
    strangers.iter_mut().chain([&mut clients]).for_each(|stream| echo_on(stream).unwrap());

    world.istiod.apply(workload("PERMISSIVE", "", "STRICT").yaml());
    eventually("plaintext to the strict port is closed", SOON, || has_ended(&strangers[1]));
    assert!(!has_ended(&strangers[0]) && !has_ended(&clients), "only one port became strict");
    echo_on(&mut strangers[0]).unwrap();
    world.istiod.apply(mesh("STRICT").yaml());
    world.istiod.delete("PeerAuthentication", "default", "server");
    eventually("all plaintext is closed", SOON, || has_ended(&strangers[0]));
    echo_on(&mut clients).unwrap();
    lines::wait_for(world.far(), "closed by policy", |line| {
        line["error"] == "connection closed due to policy change" && text(line, "src.identity").is_empty()
    });

    let before = apps.each_ref().map(|app| app.peers().len());
    for to in plain.iter().cycle().take(40) {
        let Ok(mut stream) = try_dial(&world.stranger, *to) else { continue };
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        eventually("an end", Duration::from_secs(2), || has_ended(&stream));
    }
    assert_eq!(apps.each_ref().map(|app| app.peers().len()), before, "an application was dialled");
    let reason = format!("connection closed due to policy rejection: explicitly denied by: {STATIC}");
    lines::wait_for(world.far(), "refused by policy", |line| line["error"] == reason.as_str());
    exchange(&world.client, service()).unwrap();
    echo_on(&mut clients).unwrap();
}
