//! `ringway why`: what would become of a connection, by a running proxy or by a dump of one.

use std::path::Path;

use anyhow::Context;
use serde_json::json;

use super::admin::{Admin, query};
use super::{Console, WhyArguments, archive, exit};
use crate::control::offline::explain;

/// Prints the explanation; exit code 2 where the connection would not be carried.
pub fn main(asked: &WhyArguments, admin: &Admin, console: &mut Console<'_>) -> anyhow::Result<u8> {
    if let Some(file) = &asked.file {
        return offline(asked, file, console);
    }
    let path =
        query("/why", &[("from", Some(&asked.from)), ("to", Some(&asked.to)), ("format", Some("json"))]);
    let body = admin.get(&path)?;
    let answer: Answer =
        serde_json::from_str(&body).context("the answer of the admin port isn't what was asked for")?;
    let text = if asked.json { body } else { answer.explanation };
    Ok(console.print(&text, if answer.allowed { exit::OK } else { exit::PROBLEMS }))
}

/// The same from a dump.
fn offline(asked: &WhyArguments, file: &Path, console: &mut Console<'_>) -> anyhow::Result<u8> {
    let read = || {
        let bytes = std::fs::read(file)?;
        let bytes = if bytes.starts_with(&archive::GZIP) {
            archive::file(&bytes, "config_dump.json")?.context("there is no config_dump.json in it")?
        } else {
            bytes
        };
        let dump: serde_json::Value = serde_json::from_slice(&bytes)?;
        Ok::<_, anyhow::Error>(explain(&dump, &asked.from, &asked.to)?)
    };
    let told = read().with_context(|| file.display().to_string())?;
    let (allowed, explanation) = (told.is_allowed(), told.to_string());
    let text = if asked.json {
        format!("{}\n", json!({"allowed": allowed, "explanation": explanation}))
    } else {
        explanation
    };
    Ok(console.print(&text, if allowed { exit::OK } else { exit::PROBLEMS }))
}

#[derive(serde::Deserialize)]
struct Answer {
    allowed: bool,
    explanation: String,
}

#[cfg(test)]
mod tests {
    use super::super::admin::test::answering;
    use super::super::tests::printed;
    use super::*;

    fn arguments(json: bool) -> WhyArguments {
        WhyArguments { from: "a/b".into(), to: "[::1]:80".into(), file: None, json }
    }

    #[test]
    fn the_answer_is_printed_and_a_denial_is_exit_code_2() {
        let denied = r#"{"allowed":false,"explanation":"because\n"}"#;
        let allowed = r#"{"allowed":true,"explanation":"because\n"}"#;
        let answers = [denied, allowed, "<html>"].map(|body| ("200 OK", body.to_owned()));
        let (admin, serving) = answering(answers.into());
        let (code, out, _) = printed(|console| main(&arguments(false), &admin, console));
        assert_eq!((code.unwrap(), out.as_str()), (exit::PROBLEMS, "because\n"));
        let (code, out, _) = printed(|console| main(&arguments(true), &admin, console));
        assert_eq!((code.unwrap(), out.as_str()), (exit::OK, allowed));
        assert!(printed(|console| main(&arguments(false), &admin, console)).0.is_err());
        let requests = serving.join().unwrap();
        assert_eq!(requests[0], "GET /why?from=a%2Fb&to=%5B%3A%3A1%5D%3A80&format=json HTTP/1.0");
    }

    #[test]
    fn a_dump_answers_as_file_and_as_archive() {
        let pod =
            |name: &str, ip: &str| json!({"uid": name, "name": name, "namespace": "a", "workloadIps": [ip]});
        let deny = json!({"name": "no", "namespace": "a", "scope": "Namespace", "action": "Deny", "dryRun": false,
                          "rules": [[[{"destinationPorts": [80]}]]]});
        let workloads = [pod("b", "10.0.0.1"), pod("c", "10.0.0.2")];
        let dump = json!({"workloads": workloads, "services": [], "policies": [deny]}).to_string();
        let directory = tempfile::tempdir().unwrap();
        let plain = directory.path().join("dump.json");
        std::fs::write(&plain, &dump).unwrap();
        let mut archive = archive::Archive::new("x", 0);
        archive.add("config_dump.json", dump.as_bytes()).unwrap();
        let packed = directory.path().join("dump.tar.gz");
        std::fs::write(&packed, archive.finish().unwrap()).unwrap();
        let nobody = Admin::Port("127.0.0.1:1".into());
        for file in [plain, packed] {
            for (to, code) in [("10.0.0.2:80", exit::PROBLEMS), ("10.0.0.2:81", exit::OK)] {
                let asked =
                    WhyArguments { to: to.into(), file: Some(file.clone()), json: false, ..arguments(false) };
                let (answered, out, _) = printed(|console| main(&asked, &nobody, console));
                assert_eq!(answered.unwrap(), code, "{out}");
                assert!(out.starts_with("a/b -> 10.0.0.2"), "{out}");
            }
        }
        let asked = WhyArguments { file: Some("/nowhere".into()), ..arguments(false) };
        let error = printed(|console| main(&asked, &nobody, console)).0.unwrap_err();
        assert!(format!("{error:#}").starts_with("/nowhere: "), "{error:#}");
    }
}
