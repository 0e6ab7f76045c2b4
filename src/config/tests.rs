#![expect(clippy::wildcard_enum_match_arm, reason = "tests pick the kinds of rows that they are about")]

use std::io;
use std::path::Path;

use serde_json::Value;

use super::*;
use crate::config::table::{Fallback, Kind, VARIABLES};

/// A file system of a few files.
struct Fake<'a>(&'a [(&'a str, &'a str)]);

impl Files for Fake<'_> {
    fn read(&self, path: &Path) -> io::Result<String> {
        let found = self.0.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn exists(&self, path: &Path) -> bool {
        self.0.iter().any(|(name, _)| Path::new(name) == path)
    }
}

const ALWAYS: [(&str, &str); 2] =
    [("/etc/resolv.conf", "nameserver 10.96.0.10\n"), ("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0\n")];

fn load_with(files: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let files = Fake(files);
    let surroundings = Surroundings {
        environment: environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        args: vec!["proxy".to_owned(), "ztunnel".to_owned()],
        cpus: CpuFacts { online: 2 },
        files: &files,
    };
    Config::load(&surroundings).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn load(environment: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    load_with(&ALWAYS, environment)
}

fn one_error(environment: &[(&str, &str)]) -> String {
    let errors = load(environment).expect_err("the configuration is wrong");
    let [error] = errors.as_slice() else { panic!("one error is expected: {errors:?}") };
    error.clone()
}

/// What the nodes of the samples ran with.
const SAMPLE: [(&str, &str); 8] = [
    ("CA_ADDRESS", "https://10.99.0.1:15012"),
    ("XDS_ADDRESS", "https://10.99.0.1:15012"),
    ("NODE_NAME", "node1"),
    ("POD_NAME", "ztunnel-node1"),
    ("POD_NAMESPACE", "istio-system"),
    ("SERVICE_ACCOUNT", "ztunnel"),
    ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
    ("ISTIO_META_DNS_CAPTURE", "true"),
];

/// The `config` object of a dump of the reference in that environment.
const SAMPLE_DUMP: &str = include_str!("testdata/config_dump.json");

#[test]
fn the_dump_is_the_references() {
    let mut ours = load(&SAMPLE).unwrap().dump();
    for key in ["trustDomains", "leastConnections"] {
        assert!(ours.as_object_mut().unwrap().remove(key).is_some(), "ours beside theirs: {key}");
    }
    let theirs: Value = serde_json::from_str(SAMPLE_DUMP).unwrap();
    for (key, value) in theirs.as_object().unwrap() {
        assert_eq!(&ours[key], value, "{key}");
    }
    assert_eq!(ours, theirs);
}

#[test]
fn the_printed_configuration_has_the_same_keys_and_values() {
    let config = load(&SAMPLE).unwrap();
    let yaml = config.to_yaml();
    assert!(yaml.starts_with("proxy: true\ndnsProxy: true\nwindowSize: 4194304\n"), "{yaml}");
    let read: Value = serde_saphyr::from_str(&yaml.replace("!Localhost", "")).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&read), keys(&config.dump()));
}

#[test]
fn defaults_are_the_references() {
    let config = load(&[]).unwrap();
    assert_eq!(config.mode, ProxyMode::Shared);
    assert_eq!(config.sources.xds.address.as_deref(), Some("https://localhost:15012"));
    assert_eq!(config.sources.auth, Auth::None);
    assert_eq!((config.place.cluster_id.as_str(), config.worker_threads), ("Kubernetes", 2));
    assert_eq!(config.dump()["ztunnelWorkload"], Value::Null);
    assert_eq!(config.warnings, Vec::<String>::new());
    let settings = config.settings(8);
    assert_eq!(settings.inbound.to_string(), "[::]:15008");
    assert_eq!((settings.mark, settings.pod_shards, settings.shards), (Some(1337), 4, 8));
    assert_eq!(
        settings.keepalive.map(|it| (it.time.as_secs(), it.retries, it.user_timeout)),
        Some((180, 9, false))
    );
    assert_eq!(settings.termination_deadline.as_secs(), 5);
    assert_eq!(settings.illegal_ports, [15008, 15006, 15001]);
    assert_eq!(config.settings(2).pod_shards, 2);
}

#[test]
fn every_row_is_read_and_every_default_can_be() {
    let least = |row: &table::Variable| match row.kind {
        Kind::Number(least, _) => least.to_string(),
        _ => String::new(),
    };
    let sample = |row: &table::Variable| match row.kind {
        Kind::Flag | Kind::Word("true") => "true",
        Kind::Word(word) => word,
        Kind::Choice(words) => words.last().unwrap(),
        Kind::Duration => "7s",
        Kind::Number(..) => "",
        Kind::Workers | Kind::Cpus | Kind::Percentage => "3",
        Kind::WorkloadName => "ns/name/sa",
        Kind::Uri => "https://example.test:1",
        Kind::Yaml => "{proxyMetadata: {}}",
        Kind::Json => "{}",
        Kind::Directives => "warn",
        Kind::Text | Kind::Path | Kind::RootCertificate | Kind::Token | Kind::Header => "value",
    };
    for row in VARIABLES {
        let name = row.name.replace('*', "SOME");
        let mode = if name == "PROXY_WORKLOAD_INFO" { "dedicated" } else { "shared" };
        let mut environment = vec![("PROXY_MODE", mode)];
        if name == "XDS_ON_DEMAND" {
            environment.push(("ISTIO_META_DNS_CAPTURE", "false"));
        }
        let number = least(row);
        let value = match row.kind {
            Kind::Number(..) => &number,
            _ if name == "PROXY_MODE" => "shared",
            _ => sample(row),
        };
        environment.push((&name, value));
        let config = load(&environment).unwrap_or_else(|errors| panic!("{name}={value}: {errors:?}"));
        let shown = config.shown.iter().find(|shown| shown.name == name);
        assert_eq!(shown.map(|shown| &shown.origin), Some(&Origin::Environment), "{name} isn't read");
    }
    let config = load(&[]).unwrap();
    for row in VARIABLES {
        if let Fallback::Is(value) = row.default {
            let shown = config.shown.iter().find(|shown| shown.name == row.name).unwrap();
            assert_eq!((shown.value.as_str(), &shown.origin), (value, &Origin::Default));
        }
    }
}

#[test]
fn trust_domain_aliases_and_revocation_lists_are_read() {
    let config = load(&[
        ("TRUST_DOMAIN", "mesh"),
        ("RINGWAY_TRUST_DOMAIN_ALIASES", "old, older"),
        ("CRL_PATH", "/crl.pem"),
        ("RINGWAY_HYBRID_KEY_EXCHANGE", "true"),
    ])
    .unwrap();
    assert!(config.settings(1).trust_domains.same("mesh", "older") && config.warnings.is_empty());
    assert!(config.sources.hybrid && config.sources.crl_path.as_deref() == Some(Path::new("/crl.pem")));
    assert_eq!(config.dump()["crlPath"], "/crl.pem");
    let alone = load(&[("RINGWAY_TRUST_DOMAIN_ALIASES", "old"), ("CRL_PATH", "")]).unwrap();
    assert!(alone.warnings[0].contains("without TRUST_DOMAIN: these are taken as aliases of cluster.local"));
    assert_eq!(alone.sources.crl_path, None);
}

#[test]
fn bad_values_of_every_kind_are_errors_that_name_them() {
    for row in VARIABLES {
        let wrong = match row.kind {
            Kind::Flag => "True",
            Kind::Choice(_) if row.name != "COMPLIANCE_POLICY" => "neither",
            Kind::Duration => "soon",
            Kind::Number(..) | Kind::Workers | Kind::Cpus | Kind::Percentage => "-1",
            Kind::Uri => "ftp://x",
            Kind::Directives => "info,access=loud",
            _ => continue,
        };
        let error = one_error(&[(row.name, wrong)]);
        assert!(error.contains(row.name) && error.contains(wrong), "{error}");
    }
    assert_eq!(
        one_error(&[("ENABLE_PROXY", "yes")]),
        "invalid env var ENABLE_PROXY=yes (provided string was not `true` or `false`); expected true or false"
    );
    assert!(one_error(&[("HTTP2_FRAME_SIZE", "100")]).contains("(must be at least 16384)"));
    assert!(
        one_error(&[("PROXY_MODE", "sidecar")]).starts_with("PROXY_MODE must be one of dedicated, shared")
    );
}

#[test]
fn values_that_contradict_each_other() {
    for (environment, text) in [
        (&[("XDS_ON_DEMAND", "true")][..], "DNS proxy does not currently support on-demand mode"),
        (
            &[("ENABLE_PROXY", "false"), ("ISTIO_META_DNS_CAPTURE", "off")],
            "ztunnel run without any servers enabled",
        ),
        (&[("LOCAL_XDS", "{}"), ("LOCAL_XDS_PATH", "/x")], "LOCAL_XDS_PATH=/x and LOCAL_XDS are both set"),
        (&[("PROXY_MODE", "dedicated")], "PROXY_WORKLOAD_INFO=namespace/name/service-account; it is unset"),
        (&[("PROXY_MODE", "dedicated"), ("PROXY_WORKLOAD_INFO", "a/b")], "it is \"a/b\""),
        (
            &[("TRUST_DOMAIN", "mesh"), ("RINGWAY_TRUST_DOMAIN_ALIASES", "old, Old.Mesh")],
            "RINGWAY_TRUST_DOMAIN_ALIASES=old, Old.Mesh: \"Old.Mesh\" is not a trust domain",
        ),
        (
            &[("ISTIO_META_DNS_PROXY_ADDR", "nowhere")],
            "invalid configuration: failed to parse DNS_PROXY_ADDR: nowhere (invalid socket address syntax)",
        ),
        (&[("CA_HEADER_a b", "x")], "failed to parse header key: CA_HEADER_a b"),
        (&[("XDS_HEADER_A", "x\ny")], "failed to parse header value: the value of XDS_HEADER_A"),
    ] {
        let error = one_error(environment);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn modes_addresses_and_metadata() {
    let dedicated = load(&[("PROXY_MODE", "dedicated"), ("PROXY_WORKLOAD_INFO", "ns/pod/sa/x")]).unwrap();
    let ProxyMode::Dedicated(workload) = &dedicated.mode else { panic!("dedicated is expected") };
    assert_eq!((workload.namespace.as_str(), workload.name.as_str()), ("ns", "pod"));
    assert_eq!(workload.service_account, "sa/x");
    assert_eq!(
        (dedicated.data.packet_mark, dedicated.dump()["proxyMode"].as_str()),
        (None, Some("Dedicated"))
    );
    let unmarked = load(&[("PACKET_MARK", "0")]).unwrap();
    assert_eq!((unmarked.settings(1).mark, unmarked.dump()["packetMark"].as_u64()), (None, Some(0)));

    let four = load(&[("IPV6_ENABLED", "false"), ("UNSTABLE_ENABLE_SOCKS5", "true")]).unwrap();
    assert_eq!(four.settings(1).outbound.to_string(), "0.0.0.0:15001");
    assert_eq!(four.admin_addr.addresses(), ["127.0.0.1:15000".parse().unwrap()]);
    assert_eq!(four.dump()["socks5Addr"], "127.0.0.1:15080");
    assert_eq!(four.illegal_ports(), [15008, 15006, 15001, 15080]);
    assert_eq!(four.settings(1).socks5, ["127.0.0.1:15080".parse().unwrap()]);
    assert!(four.settings(1).connect.is_empty() && !four.settings(1).socks5_early_reply);

    let explicit = [("RINGWAY_HTTP_CONNECT", "true"), ("RINGWAY_SOCKS5_EARLY_REPLY", "true")];
    let explicit = load(&explicit).unwrap();
    assert_eq!(
        explicit.settings(1).connect,
        ["127.0.0.1:15081", "[::1]:15081"].map(|it| it.parse().unwrap())
    );
    assert!(explicit.settings(1).socks5.is_empty() && explicit.settings(1).socks5_early_reply);
    assert_eq!(explicit.illegal_ports(), [15008, 15006, 15001, 15081]);
    let without_six = load(&[("IPV6_ENABLED", "false"), ("RINGWAY_HTTP_CONNECT", "true")]).unwrap();
    assert_eq!(without_six.settings(1).connect, ["127.0.0.1:15081".parse().unwrap()]);

    let off = load_with(&[ALWAYS[0], (ALWAYS[1].0, "1\n")], &[("ISTIO_META_DNS_PROXY_ADDR", "localhost:53")])
        .unwrap();
    assert_eq!(off.dns_proxy_addr, Bind::Localhost(false, 53));
    assert_eq!(off.stats_addr.addresses(), ["[::]:15020".parse().unwrap()]);

    let named = load(&[
        ("CLUSTER_ID", "a"),
        ("ISTIO_META_CLUSTER_ID", "b"),
        ("ISTIO_METAJSON_L", "{\"x\":1}"),
        ("ISTIO_METAJSON_M", "{"),
    ]);
    let named = named.unwrap();
    assert_eq!((named.place.cluster_id.as_str(), &named.node_metadata["L"]["x"]), ("b", &Value::from(1)));
    assert!(named.warnings[0].contains("ISTIO_METAJSON_M={ is skipped"), "{:?}", named.warnings);
}

#[test]
fn control_plane_addresses_and_secrets() {
    let mesh = (
        "./etc/istio/config/mesh",
        "defaultConfig: {discoveryAddress: 'mesh:1', statsPort: 9, proxyMetadata: {}}",
    );
    let token = ("./var/run/secrets/tokens/istio-token", "t");
    let files = [ALWAYS[0], ALWAYS[1], mesh, token, ("/ca.pem", "pem")];
    let config = load_with(
        &files,
        &[("KUBERNETES_SERVICE_HOST", "1"), ("CA_ROOT_CA", "/ca.pem"), ("XDS_ROOT_CA", "-----BEGIN")],
    );
    let config = config.unwrap();
    assert_eq!(config.sources.xds.address.as_deref(), Some("https://mesh:1"));
    assert_eq!(config.sources.ca.address.as_deref(), Some("https://istiod.istio-system.svc:15012"));
    assert_eq!(config.sources.ca.root, RootCertificate::File("/ca.pem".into()));
    assert_eq!(config.sources.xds.root, RootCertificate::Static("-----BEGIN".to_owned()));
    assert_eq!(config.dump()["xdsRootCert"], "Static");
    assert_eq!(config.sources.auth, Auth::File(token.0.into()));
    assert_eq!(config.stats_addr.addresses(), ["[::]:9".parse().unwrap()]);
    let shown = config.shown.iter().find(|shown| shown.name == "XDS_ADDRESS").unwrap();
    assert_eq!(shown.origin, Origin::File(mesh.0.into()));

    let environment = [
        ("XDS_ADDRESS", ""),
        ("CA_ADDRESS", "istiod:15012"),
        ("XDS_ROOT_CA", "SYSTEM"),
        ("CA_HEADER_X_TEAM", "a"),
        ("AUTH_TOKEN", "sesame"),
    ];
    let config = load(&environment).unwrap();
    assert_eq!(
        (&config.sources.xds.address, config.sources.ca.address.as_deref()),
        (&None, Some("https://istiod:15012"))
    );
    assert_eq!(config.dump()["xdsRootCert"], "Default");
    assert_eq!(config.dump()["caHeaders"], serde_json::json!([["x_team", "a"]]));
    assert!(!format!("{:?} {}", config, config.dump()).contains("sesame"));
}

#[test]
fn the_deadline_of_a_drain() {
    for (environment, seconds) in [
        (&[][..], 5),
        (&[("TERMINATION_GRACE_PERIOD_SECONDS", "30")], 25),
        (&[("TERMINATION_GRACE_PERIOD_SECONDS", "11")], 6),
        (&[("TERMINATION_GRACE_PERIOD_SECONDS", "10")], 9),
        (&[("TERMINATION_GRACE_PERIOD_SECONDS", "1")], 1),
        (&[("TERMINATION_GRACE_PERIOD_SECONDS", "0")], 1),
        (&[("TERMINATION_GRACE_PERIOD_SECONDS", "30"), ("CONNECTION_TERMINATION_DEADLINE", "1m")], 60),
    ] {
        let config = load(environment).unwrap();
        assert_eq!(config.data.termination_deadline.as_secs(), seconds, "{environment:?}");
    }
}

#[test]
fn missing_files_of_the_system_only_warn() {
    let config = load_with(&[], &[("RINGWAY_TURBO", "1"), ("COMPLIANCE_POLICY", "fips-140-2")]).unwrap();
    let expected =
        ["/proc/sys/net/ipv6/conf/lo/disable_ipv6", "fips-140-2", "/etc/resolv.conf", "RINGWAY_TURBO"];
    for part in expected {
        assert!(
            config.warnings.iter().any(|warning| warning.contains(part)),
            "{part}: {:?}",
            config.warnings
        );
    }
    assert_eq!(config.warnings.len(), expected.len());
}

/// `RINGWAY_UPDATE=1 cargo test page` writes it anew.
#[test]
fn the_documentation_page_is_up_to_date() {
    let path = "deploy/docs/configuration.md";
    if std::env::var_os("RINGWAY_UPDATE").is_some() {
        std::fs::write(path, markdown()).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap();
    assert!(page == markdown(), "deploy/docs/configuration.md is old: run `ringway config show --markdown`");
}
