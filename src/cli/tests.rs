use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::*;
use crate::config::{CpuFacts, Files};

struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn exists(&self, _: &Path) -> bool {
        false
    }
}

/// Sources that this version has.
const SERVABLE: [(&str, &str); 2] = [("XDS_ADDRESS", ""), ("FAKE_CA", "true")];

struct Outcome {
    code: u8,
    out: String,
    err: String,
}

fn invoke(name: &str, args: &[&str], environment: &[(&str, &str)]) -> Outcome {
    let from = Surroundings {
        environment: environment
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        cpus: CpuFacts { online: 4 },
        files: &NoFiles,
    };
    let programs = Programs {
        run: |config| {
            assert!(
                config.proxy_args.is_empty()
                    || config.proxy_args.starts_with('p')
                    || config.proxy_args == "run"
            );
            if config.place.network == "broken" {
                anyhow::bail!("no data plane here")
            }
            Ok(42)
        },
        demo: |demo| Ok(demo.hold),
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = main(name, &from, &programs, &mut Console::new(&mut out, &mut err, false));
    Outcome { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

/// What a command answered, and what it printed on both outputs.
pub fn printed<R>(work: impl FnOnce(&mut Console<'_>) -> R) -> (R, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let answer = work(&mut Console::new(&mut out, &mut err, false));
    (answer, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn every_spelling_of_run_runs() {
    for args in [
        &[][..],
        &["run"],
        &["proxy"],
        &["proxy", "ztunnel"],
        &["proxy", "ztunnel", "--log", "x"],
        &["proxy", "--x"],
    ] {
        for name in ["ringway", "/usr/local/bin/ztunnel"] {
            let outcome = invoke(name, args, &SERVABLE);
            assert_eq!((outcome.code, outcome.out.as_str()), (42, ""), "{args:?}: {}", outcome.err);
        }
    }
}

#[test]
fn failures_have_their_codes_and_talk_on_stderr() {
    let usage = invoke("ztunnel", &["fly"], &[]);
    assert_eq!((usage.code, usage.out.as_str()), (exit::USAGE, ""));
    assert!(usage.err.contains("fly") && usage.err.contains("ztunnel"), "{}", usage.err);
    let refused = invoke("ringway", &[], &[("ENABLE_PROXY", "yes"), ("PACKET_MARK", "-1")]);
    assert_eq!((refused.code, refused.out.as_str()), (exit::CONFIGURATION, ""));
    assert_eq!(refused.err.lines().count(), 2, "{}", refused.err);
    assert!(refused.err.contains("error: invalid env var ENABLE_PROXY=yes ("), "{}", refused.err);
    let failed = invoke("ringway", &[], &[("NETWORK", "broken"), SERVABLE[0], SERVABLE[1]]);
    assert_eq!((failed.code, failed.err.as_str()), (exit::FAILED, "error: no data plane here\n"));
    assert_eq!(invoke("ringway", &["demo"], &[]).code, exit::PROBLEMS);
    assert_eq!(invoke("ringway", &["demo", "--hold"], &[]).code, exit::OK);
}

#[test]
fn what_this_version_cannot_serve_is_refused_before_anything_starts() {
    let local = ("LOCAL_XDS", "workloads: []");
    for (environment, parts) in [
        (&[][..], &[][..]),
        (&[("XDS_ADDRESS", "")], &[]),
        (&[local, ("CA_ADDRESS", "http://istiod:15010")], &["CA_ADDRESS=http://istiod:15010"]),
        (&[("XDS_ADDRESS", "http://istiod:15010")], &["XDS_ADDRESS=http://istiod:15010"]),
        (&[local, ("CA_ADDRESS", "")], &[]),
        (&[("LOCAL_XDS", "workloads: 7")], &["LOCAL_XDS: expected sequence start at line 1"]),
        (&[("LOCAL_XDS_PATH", "/nonexistent/mesh.yaml")], &["LOCAL_XDS_PATH: /nonexistent/mesh.yaml: "]),
        (&[("XDS_ADDRESS", "istiod:15012"), SERVABLE[1]], &[]),
        (&[SERVABLE[0], SERVABLE[1], ("ENABLE_PROXY", "false")], &[]),
    ] {
        for command in [&["run"][..], &["config", "check"]] {
            let outcome = invoke("ringway", command, environment);
            assert_eq!(outcome.code == exit::CONFIGURATION, !parts.is_empty(), "{environment:?}");
            let told = outcome.err + &outcome.out;
            assert!(parts.iter().all(|part| told.contains(part)), "{told}");
        }
        assert_eq!(invoke("ringway", &["config", "show"], environment).code, exit::OK);
    }
}

#[test]
fn help_and_version_are_data() {
    for args in [&["help"][..], &["--help"]] {
        let help = invoke("ringway", args, &[]);
        assert_eq!((help.code, help.err.as_str()), (exit::OK, ""));
        for word in ["run", "config", "demo", "version", "completions"] {
            assert!(help.out.contains(word), "{}", help.out);
        }
    }
    for args in [&["version"][..], &["--version"], &["-V"]] {
        let version = invoke("ringway", args, &[("ISTIO_META_ISTIO_VERSION", "1.30.1")]);
        assert_eq!((version.code, version.err.as_str()), (exit::OK, ""));
        assert!(version.out.starts_with("version.BuildInfo{Version:\""), "{}", version.out);
        assert!(version.out.contains("IstioVersion:\"1.30.1\""), "{}", version.out);
    }
    assert!(invoke("ringway", &["completions", "bash"], &[]).out.contains("ringway"));
}

#[test]
fn show_gives_value_and_origin_in_every_format() {
    let environment =
        [("CLUSTER_ID", "east"), ("XDS_HEADER_AUTHORIZATION", "sesame"), ("AUTH_TOKEN", "hidden")];
    for output in ["table", "json", "yaml"] {
        let shown = invoke("ringway", &["config", "show", "-o", output], &environment);
        assert_eq!((shown.code, shown.err.as_str()), (exit::OK, ""));
        for part in [
            "CLUSTER_ID",
            "east",
            "environment",
            "KEEPALIVE_TIME",
            "180s",
            "default",
            "XDS_HEADER_AUTHORIZATION",
        ] {
            assert!(shown.out.contains(part), "{part} is missing in {}", shown.out);
        }
        assert!(!shown.out.contains("sesame") && !shown.out.contains("hidden"), "{}", shown.out);
    }
    let table = invoke("ringway", &["config", "show"], &environment).out;
    let row = table.lines().find(|line| line.starts_with("CLUSTER_ID ")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["CLUSTER_ID", "east", "environment"]);
}

#[test]
fn check_tells_everything_at_once() {
    let quiet = [("RINGWAY_POD_SHARDS", "2")];
    let strange = invoke(
        "ringway",
        &["config", "check"],
        &[("RINGWAY_POD_SHARD", "2"), ("RINGWAY_HTTP_CONECT", "true"), SERVABLE[0], SERVABLE[1]],
    );
    assert_eq!(strange.code, exit::PROBLEMS);
    assert!(
        strange.out.contains("RINGWAY_POD_SHARD is set")
            && strange.out.contains("RINGWAY_HTTP_CONECT is set"),
        "{}",
        strange.out
    );
    let wrong = [("KEEPALIVE_TIME", "soon"), ("FAKE_CA", "1"), ("PROXY_MODE", "sidecar"), quiet[0]];
    let wrong = invoke("ringway", &["config", "check", "-o", "json"], &wrong);
    assert_eq!(wrong.code, exit::CONFIGURATION);
    let findings: serde_json::Value = serde_json::from_str(&wrong.out).unwrap();
    let texts: Vec<_> = findings.as_array().unwrap().iter().map(|it| it["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    for (text, part) in
        texts.iter().zip(["PROXY_MODE must be one of dedicated, shared", "FAKE_CA=1", "KEEPALIVE_TIME=soon"])
    {
        assert!(text.contains(part), "{text}");
    }
}
