//! The admin port, path by path.

use super::*;

use tokio::sync::watch;

use crate::bridge::order::PodInfo;
use crate::control::http::Server;
use crate::control::http::test::get;
use crate::control::test_support::Shards;
use crate::mesh::snapshot::Snapshot;

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
    let info = PodInfo { name: "client".into(), namespace: "default".into(), service_account: "sa".into() };
    let pods = Pods { board: Some(Arc::default()), own: [("pod-a".into(), info)].into() };
    AdminServer {
        published: Arc::new(Published::new(Snapshot::default())),
        identities: Arc::default(),
        shards: shards.mailboxes.clone(),
        pods: pods.clone(),
        facts,
        logging: Logging::new(None),
        flows: FlowDesk::new(shards.mailboxes.clone(), pods, watch::channel(false).1),
        readiness: Arc::default(),
        started: Instant::now(),
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
    let (_close, closing) = watch::channel(false);
    let (quit, mut quits) = mpsc::channel::<Quit>(1);
    let _serving = bound.serve(Arc::new(server(&shards, quit)), &closing).unwrap();
    for (method, path, status, content_type) in [
        ("GET", "/", 200, Some("text/html; charset=utf-8")),
        ("GET", "/config_dump", 200, Some("application/json")),
        ("POST", "/config_dump", 200, Some("application/json")),
        ("GET", "/nope", 404, None),
        ("GET", "/quitquitquit", 405, None),
        ("POST", "/connections", 405, None),
        ("DELETE", "/flows", 405, None),
        ("GET", "/drain", 405, None),
        ("HEAD", "/pods", 200, Some("application/json")),
        ("GET", "/certificates", 200, Some("application/json")),
        ("GET", "/services", 200, Some("application/json")),
        ("GET", "/flows?verdict=denied", 200, Some("application/x-ndjson")),
        ("GET", "/flows?verdict=maybe", 400, Some("text/plain")),
        ("GET", "/connections?limit=x", 400, Some("text/plain")),
        ("GET", "/status", 200, Some("application/json")),
        ("POST", "/status", 405, None),
        ("GET", "/policies", 200, Some("application/json")),
        ("GET", "/policies?limit=x", 400, Some("text/plain")),
        ("POST", "/policies", 405, None),
        ("POST", "/drain?pod=default/nobody", 404, Some("text/plain")),
        ("POST", "/drain?pod=pod-a&grace=x", 400, Some("text/plain")),
        ("POST", "/drain?grace=5", 400, Some("text/plain")),
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

#[tokio::test]
async fn what_runs_is_told_with_names() {
    let shards = Shards::start(2, |_| Default::default());
    let (quit, mut quits) = mpsc::channel::<Quit>(1);
    let server = server(&shards, quit);
    let ask = |method: &'static str, path: &'static str| {
        let question = http::test::ask(method, path);
        let answer = server.answer(question);
        async move {
            let reply = answer.await;
            let bytes = http_body_util::BodyExt::collect(reply.into_body()).await.unwrap().to_bytes();
            serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()
        }
    };
    let all = ask("GET", "/connections?to=10.0.0.2").await;
    assert_eq!((all["total"].as_u64(), all["shards"]["answering"].as_u64()), (Some(2), Some(2)));
    let (connecting, open) = (&all["items"][0], &all["items"][1]);
    assert_eq!((connecting["state"].as_str(), open["state"].as_str()), (Some("connecting"), Some("open")));
    assert_eq!(open["pod"]["name"], "client");
    assert_eq!(open["source"]["identity"], "spiffe://cluster.local/ns/default/sa/client");
    assert_eq!(open["service"], "default/web.default.svc.cluster.local");
    let sums = ["bytesSent", "bytesReceived", "ageMs"].map(|key| open[key].as_u64().unwrap());
    assert_eq!(sums, [3, 4, 1_500]);
    let some = ask("GET", "/connections?limit=1").await;
    assert_eq!((some["items"].as_array().unwrap().len(), some["total"].as_u64()), (1, Some(2)));
    assert_eq!(ask("GET", "/connections?from=10.9.9.9").await["total"], 0);
    let pods = ask("GET", "/pods").await;
    assert_eq!(
        (pods["items"][0]["state"].as_str(), pods["items"][0]["opened"].as_u64()),
        (Some("Up"), Some(4))
    );
    let on = ask("GET", "/shards").await;
    assert_eq!(
        (on["items"][1]["shard"].as_u64(), on["items"][1]["connections"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(ask("GET", "/status").await["ready"], true);
    server.readiness.expect("state manager", Some("no answer yet".into()));
    let status = ask("GET", "/status").await;
    assert_eq!((&status["ready"], &status["version"]), (&false.into(), &"1".into()));
    assert_eq!(status["pending"], serde_json::json!([{"task": "state manager", "reason": "no answer yet"}]));
    assert_eq!(ask("POST", "/drain?pod=default/client&grace=7").await["graceSeconds"], 7);
    assert!(quits.try_recv().is_err());
    assert_eq!(ask("POST", "/drain").await["draining"], "proxy");
    assert!(quits.try_recv().is_ok());
}

#[tokio::test]
async fn the_page_names_only_what_is_answered_and_other_sites_change_nothing() {
    let shards = Shards::start(1, |_| Default::default());
    let (quit, mut quits) = mpsc::channel::<Quit>(1);
    let server = server(&shards, quit);
    let page = server.answer(http::test::ask("GET", "/")).await;
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    let bytes = http_body_util::BodyExt::collect(page.into_body()).await.unwrap().to_bytes();
    let text = std::str::from_utf8(&bytes).unwrap();
    let paths: Vec<&str> =
        text.split("<td><a href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(paths.len() > 10, "{paths:?}");
    // Neither GET of these ends anything, and a profile takes its time.
    for path in paths.into_iter().filter(|path| !path.ends_with("profile")) {
        let answer = server.answer(http::test::ask("GET", &format!("/{path}"))).await;
        assert_ne!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let mut foreign = http::test::ask("POST", "/quitquitquit");
    foreign.headers.insert("sec-fetch-site", "cross-site".parse().unwrap());
    assert_eq!(server.answer(foreign).await.status(), StatusCode::FORBIDDEN);
    assert!(quits.try_recv().is_err());
}
