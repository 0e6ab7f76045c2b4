//! Access-log lines: finding them, and comparing their shape with the reference's.

use std::time::{Duration, Instant};

use ringway::demo::node::NodeProxy;
use serde_json::Value;

/// The fields of the reference's access log, in its order. Absent ones are left out, never empty.
pub const FIELDS: [&str; 17] = [
    "src.addr",
    "src.workload",
    "src.namespace",
    "src.identity",
    "src.cluster",
    "dst.addr",
    "dst.hbone_addr",
    "dst.service",
    "dst.workload",
    "dst.namespace",
    "dst.identity",
    "dst.cluster",
    "direction",
    "bytes_sent",
    "bytes_recv",
    "duration",
    "error",
];

/// What is ours alone; it comes after all of these.
pub const OURS: [&str; 5] = ["reason", "attempts", "setup_ms", "shard", "via"];

/// The lines of connections that have ended, written so far.
pub fn completed(proxy: &NodeProxy) -> Vec<Value> {
    let mut lines = proxy.access_lines().expect("the access log");
    lines.retain(|line| line["message"] == "connection complete");
    lines
}

/// Waits for the first line that fits.
#[track_caller]
pub fn wait_for(proxy: &NodeProxy, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let lines = proxy.access_lines().expect("the access log");
        if let Some(line) = lines.iter().find(|line| fits(line)) {
            return line.clone();
        }
        assert!(Instant::now() < until, "no access-log line: {what}; there are {lines:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a line of any kind whose message has all these words.
#[track_caller]
pub fn wait_for_message(proxy: &NodeProxy, words: &[&str]) {
    let until = Instant::now() + Duration::from_secs(10);
    let fits = |line: &Value| words.iter().all(|word| text(line, "message").contains(word));
    while !proxy.log_lines().is_ok_and(|lines| lines.iter().any(fits)) {
        assert!(Instant::now() < until, "no line says {words:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_default()
}

pub fn number(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_else(|| panic!("{field} is no number in {line}"))
}

/// Panics unless the line has exactly these fields (beside level, time, scope, message), each of its kind.
#[track_caller]
pub fn assert_shape(line: &Value, fields: &[&str]) {
    let object = line.as_object().expect("an object");
    let own = object.keys().filter(|key| !matches!(key.as_str(), "level" | "time" | "scope" | "message"));
    let mut found: Vec<_> = own.map(String::as_str).filter(|key| !OURS.contains(key)).collect();
    let mut expected = fields.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{line}");
    for field in &found {
        let is_number = matches!(*field, "bytes_sent" | "bytes_recv");
        assert_eq!(line[*field].is_u64(), is_number, "{field} in {line}");
    }
    let duration = text(line, "duration");
    assert!(duration.ends_with("ms") && duration.trim_end_matches("ms").parse::<u64>().is_ok(), "{line}");
}

/// Panics unless the fields of a raw JSON line come in the reference's order.
#[track_caller]
pub fn assert_order(raw: &str) {
    let fields = FIELDS.iter().chain(&OURS);
    let present: Vec<_> = fields.filter_map(|field| raw.find(&format!("\"{field}\":"))).collect();
    assert!(present.is_sorted(), "fields out of order: {raw}");
}
