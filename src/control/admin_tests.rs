//! The admin port, path by path.

use super::*;
use std::sync::Mutex;

use crate::control::http::Server;
use crate::control::http::test::{body, get};
use crate::control::test_support::Shards;
use crate::mesh::snapshot::Snapshot;

/// A filter that behaves like the real one.
struct Levels(Mutex<String>);

const DEFAULT: &str = "hickory_server::server=off,info";

impl LogLevels for Levels {
    fn current(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn set(&self, level: &str) -> Result<String, LevelRefused> {
        match level {
            "bogus" => Err(LevelRefused::Invalid),
            "broken=info" => Err(LevelRefused::Failed("reload failure: gone".into())),
            _ => {
                *self.0.lock().unwrap() = level.to_owned();
                Ok(level.to_owned())
            }
        }
    }

    fn reset(&self) -> Result<String, LevelRefused> {
        self.set(DEFAULT)
    }
}

fn says(logs: &Levels, method: &str, query: &str) -> (u16, String) {
    let reply = logging(Some(logs), &method.parse().unwrap(), query);
    assert_eq!(reply.headers()[CONTENT_TYPE], "text/plain");
    (reply.status().as_u16(), body(reply))
}

#[test]
fn log_levels_are_shown_changed_and_reset() {
    let logs = Levels(Mutex::new(DEFAULT.into()));
    let ok = |filter: &str| (200, format!("current log level is {filter}\n"));
    assert_eq!(says(&logs, "POST", ""), ok(DEFAULT));
    assert_eq!(says(&logs, "POST", "level="), ok(DEFAULT));
    assert_eq!(says(&logs, "POST", "level=debug"), ok("debug"));
    assert_eq!(says(&logs, "POST", "level=ztunnel%3A%3Axds=trace%2Cinfo"), ok("ztunnel::xds=trace,info"));
    assert_eq!(says(&logs, "POST", "reset"), ok(DEFAULT));
    assert_eq!(says(&logs, "POST", "reset=false&level=warn"), ok("warn"));
    let (status, text) = says(&logs, "POST", "level=bogus");
    assert!(
        status == 400 && text.starts_with("Invalid level provided: bogus\n\nusage: POST /logging"),
        "{text}"
    );
    let (status, text) = says(&logs, "POST", "level=broken=info");
    assert!(status == 400 && text.starts_with("Failed to set new level: reload failure: gone\n"), "{text}");
    let (status, text) = says(&logs, "GET", "level=debug");
    assert!(status == 405 && text.starts_with("Invalid HTTP method\n \nusage: "), "{text}");
    assert_eq!((text.matches("usage: ").count(), text.matches("hint: ").count()), (3, 2));
    assert_eq!(logging(None, &Method::POST, "").status(), 500);
}

#[test]
fn hostile_queries_are_read_without_harm() {
    for (query, value) in [
        ("a=1&level=%", "%"),
        ("level=%zz%4", "%zz%4"),
        ("level=%ff", "\u{fffd}"),
        ("level=a+b", "a b"),
        ("level", ""),
        ("l%65vel=x", "x"),
    ] {
        assert_eq!(parameter(query, "level").as_deref(), Some(value), "{query}");
    }
    assert_eq!(parameter("", "level"), None);
}

fn server(shards: &Shards, quit: mpsc::Sender<Quit>) -> AdminServer {
    let facts = Facts {
        version: serde_json::json!({"version": "1"}),
        config: serde_json::json!({"proxyMode": "Shared"}),
        istio_version: String::new(),
        event_loop: String::new(),
        event_loop_cause: String::new(),
        aead: "ring".into(),
    };
    AdminServer {
        published: Arc::new(Published::new(Snapshot::default())),
        identities: Arc::default(),
        shards: shards.mailboxes.clone(),
        board: Some(Arc::default()),
        facts,
        logs: None,
        quit,
        patience: Duration::from_millis(50),
        settings: Arc::new(crate::control::test_support::settings()),
        static_config: None,
    }
}

#[tokio::test]
async fn every_path_answers_with_its_status_type_and_body() {
    let shards = Shards::start(2, |_| Default::default());
    let bound = Server::bind("admin", &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = bound.addresses()[0];
    let (_close, closing) = tokio::sync::watch::channel(false);
    let (quit, mut quits) = mpsc::channel::<Quit>(1);
    let _serving = bound.serve(Arc::new(server(&shards, quit)), &closing).unwrap();
    for (method, path, status, content_type) in [
        ("GET", "/", 200, Some("text/html; charset=utf-8")),
        ("GET", "/config_dump", 200, Some("application/json")),
        ("POST", "/config_dump", 200, Some("application/json")),
        ("GET", "/nope", 404, None),
        ("GET", "/quitquitquit", 405, None),
        ("GET", "/debug/pprof/heap", 500, None),
        ("GET", "/logging", 405, Some("text/plain")),
    ] {
        let answer = get(address, method, path).await;
        let head = answer.split("\r\n\r\n").next().unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {head}");
        let found = head.lines().find_map(|line| line.strip_prefix("content-type: "));
        assert_eq!(found, content_type, "{method} {path}");
    }
    let dump = get(address, "GET", "/config_dump").await;
    let dump: serde_json::Value = serde_json::from_str(dump.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let keys: Vec<&str> = dump.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "certificates",
        "config",
        "policies",
        "services",
        "stagedServices",
        "staticConfig",
        "version",
        "workloadState",
        "workloads",
    ];
    assert_eq!(keys, expected);
    // Nobody accepts the shutdown: the answer comes all the same.
    let answer = get(address, "POST", "/quitquitquit").await;
    assert!(answer.ends_with("\r\n\r\nshutdown now\n"), "{answer}");
    assert!(quits.try_recv().is_ok());
}
