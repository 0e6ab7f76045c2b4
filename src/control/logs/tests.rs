use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::*;
use crate::base::limits::LOG_BYTES_QUEUED;
use crate::bridge::lines::Lines;

/// An output that can be read back.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is written while `body` runs.
fn written(directives: Option<&str>, format: Format, body: impl FnOnce(&Logs)) -> String {
    let output = Output::default();
    let logs = Logs::open(directives, format, output.clone()).unwrap();
    logs.follow_access_level();
    dispatcher::with_default(&logs.dispatch, || body(&logs));
    assert!(logs.finish());
    output.text()
}

/// The lines of the samples that have every feature: fields, spans, no fields, several lines.
fn say_the_samples(_: &Logs) {
    let (wildcard, loopback) = ("[::]:15008", "127.0.0.1:15000");
    tracing::info!(
        target: "ztunnel::proxy::inbound", address = %wildcard, component = "inbound", transparent = true,
        "listener established"
    );
    tracing::info!(target: "ztunnel::hyper_util", address = %loopback, component = "a", "listener drained");
    tracing::info!(target: "ztunnel::signal::imp", "received signal SIGTERM, starting shutdown");
    tracing::info_span!("xds", id = 1).in_scope(|| {
        tracing::info!(target: "ztunnel::xds::client", "Stream established");
    });
    tracing::info_span!("proxy", wl = %"default/server").in_scope(|| {
        let late = tracing::info_span!("inbound", id = %"81c0", peer = tracing::field::Empty);
        late.record("peer", tracing::field::display("10.99.1.10:37878"));
        let policy = "default/allow-client";
        late.in_scope(|| tracing::info!(target: "ztunnel::state", policy, "allow policy match"));
    });
    tracing::info_span!("bare")
        .in_scope(|| tracing::warn!(target: "ringway::control::cni", "in a bare span"));
    tracing::info!(target: "dns", query = "a.b. \"IN\" A", answers = 2, log.file = "gone");
    tracing::info!(target: "ztunnel", "running with config: {}", "proxy: true\ndnsProxy: true\n");
}

#[test]
fn plain_lines_are_those_of_the_reference() {
    let text = written(None, Format::Plain, say_the_samples);
    let expected = [
        "info\tproxy::inbound\tlistener established\taddress=[::]:15008 component=\"inbound\" \
         transparent=true\n",
        "info\thyper_util\tlistener drained\taddress=127.0.0.1:15000 component=\"a\"\n",
        "info\tsignal::imp\treceived signal SIGTERM, starting shutdown\t\n",
        "info\txds::client:xds{id=1}\tStream established\t\n",
        "info\tstate:proxy{wl=default/server}:inbound{id=81c0 peer=10.99.1.10:37878}\tallow policy match\t\
         policy=\"default/allow-client\"\n",
        "warn\tcontrol::cni:bare\tin a bare span\t\n",
        "info\tdns\tquery=\"a.b. \\\"IN\\\" A\" answers=2\n",
        "info\tztunnel\trunning with config: proxy: true\ndnsProxy: true\n\t\n",
    ];
    let mut rest = text.as_str();
    for expected in expected {
        let (time, after) = rest.split_once('\t').unwrap();
        assert_eq!((time.len(), time.ends_with('Z')), (27, true), "{time}");
        rest =
            after.strip_prefix(expected).unwrap_or_else(|| panic!("{expected:?} is expected, not {after:?}"));
    }
    assert_eq!(rest, "");
}

#[test]
fn json_lines_are_those_of_the_reference() {
    let text = written(None, Format::Json, say_the_samples);
    let expected: Vec<_> = include_str!("expected.jsonl").lines().collect();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.into_iter().zip(expected) {
        let read: Value = serde_json::from_str(line).unwrap();
        let (level, time) = (read["level"].as_str().unwrap(), read["time"].as_str().unwrap());
        assert!(["info", "warn"].contains(&level) && time.len() == 27, "{line}");
        assert_eq!(line, expected.replace("LEVEL", level).replace("TIME", time));
    }
}

#[test]
fn hostile_values_cannot_forge_a_line() {
    let hostile = "x\n2026-11-30T06:08:34.331556Z\tinfo\taccess\tconnection complete\t\u{1b}[2J";
    let say = |_: &Logs| {
        let span = tracing::info_span!("peer", name = hostile, shown = %hostile);
        span.in_scope(
            || tracing::info!(field = hostile, shown = %hostile, debug = ?hostile, "says {hostile}"),
        );
        tracing::info!(error = &io::Error::other(hostile) as &(dyn std::error::Error + 'static));
    };
    for format in [Format::Plain, Format::Json] {
        let text = written(None, format, say);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn the_filter_changes_as_in_the_reference() {
    let text = written(None, Format::Json, |logs| {
        assert_eq!(logs.current(), "hickory_server::server=off,info");
        assert!(logs.sink().access_enabled(Level::Info) && !logs.sink().access_enabled(Level::Debug));
        assert_eq!(logs.set_level("debug").unwrap(), "hickory_server::server=off,debug");
        assert!(logs.sink().access_enabled(Level::Debug));
        let trace = "hickory_server::server=off,ztunnel::xds=trace,debug";
        assert_eq!(logs.set_level("ztunnel::xds=trace").unwrap(), trace);
        assert_eq!(logs.set_level("access=off").unwrap(), logs.current());
        assert!(!logs.sink().access_enabled(Level::Error));
        logs.set_level("access=warn").unwrap();
        assert!(logs.sink().access_enabled(Level::Warn) && !logs.sink().access_enabled(Level::Info));
        assert_eq!(logs.reset().unwrap(), "hickory_server::server=off,info");
        assert!(logs.sink().access_enabled(Level::Info));
        for bad in
            ["bogus", "", "info,", "ztunnel::xds", "=info", "xds:debug", "xds=loud", "INFO", "info, debug"]
        {
            let error = logs.set_level(bad).unwrap_err().to_string();
            assert_eq!(error, format!("Invalid level provided: {bad}"));
        }
        tracing::debug!("not written");
    });
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["scope"], "ztunnel::telemetry");
    assert_eq!(first["message"], "new log filter is hickory_server::server=off,debug");
    // `access=off` and the others are told as well; the filter of the moment decides.
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn the_first_filter_comes_from_the_environment() {
    let current = |directives| {
        let mut text = String::new();
        written(directives, Format::Plain, |logs| text = logs.current());
        text
    };
    assert_eq!(current(Some("")), "hickory_server::server=off,info");
    assert_eq!(current(Some("warn")), "hickory_server::server=off,warn");
    assert_eq!(current(Some("access=debug")), "hickory_server::server=off,access=debug");
    let error = check(Some("access=loud")).unwrap_err().to_string();
    assert!(error.starts_with("invalid env var RUST_LOG=access=loud ("), "{error}");
}

#[test]
fn access_lines_and_logs_share_the_output_in_order() {
    let text = written(None, Format::Plain, |logs| {
        logs.sink().send(Lines { bytes: b"one\ntwo\n".to_vec(), count: 2 });
        tracing::info!(target: "three", "x");
        logs.sink().send(Lines { bytes: b"four\n".to_vec(), count: 1 });
    });
    let starts: Vec<_> = text.lines().map(|line| line.rsplit("info\t").next().unwrap()).collect();
    assert_eq!(starts, ["one", "two", "three\tx\t", "four"]);
}

/// Takes nothing until it is opened; tells that it was asked to.
#[derive(Clone, Default)]
struct Stuck {
    open: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.asked.store(true, Ordering::Release);
        if self.open.load(Ordering::Acquire) {
            Ok(bytes.len())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stuck_output_costs_lines_and_one_wait() {
    let output = Stuck::default();
    let logs = Logs::open(None, Format::Plain, output.clone()).unwrap();
    let send = || logs.sink().send(Lines { bytes: b"x\n".to_vec(), count: 1 });
    send();
    while !output.asked.load(Ordering::Acquire) {
        thread::yield_now();
    }
    (0..LOG_LINES_QUEUED + 1_000).for_each(|_| send());
    assert_eq!(logs.sink().dropped(), 1_000);
    let started = Instant::now();
    dispatcher::with_default(&logs.dispatch, || (0..50).for_each(|_| tracing::info!("lost")));
    assert_eq!(logs.sink().dropped(), 1_050);
    // Fifty waits would be five seconds.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    output.open.store(true, Ordering::Release);
    assert!(logs.finish());
    dispatcher::with_default(&logs.dispatch, || tracing::info!("written"));
    assert!(logs.finish());
    assert_eq!(logs.sink().dropped(), 1_050);
}

#[test]
fn a_stuck_output_holds_so_many_bytes_and_no_more() {
    let output = Stuck::default();
    let logs = Logs::open(None, Format::Plain, output.clone()).unwrap();
    let batch = LOG_BYTES_QUEUED / 4;
    let send = || logs.sink().send(Lines { bytes: vec![b'x'; batch], count: 10 });
    (0..6).for_each(|_| send());
    assert_eq!(logs.sink().dropped(), 20);
    output.open.store(true, Ordering::Release);
    assert!(logs.finish());
    (0..4).for_each(|_| send());
    assert_eq!(logs.sink().dropped(), 20, "there is room again");
}

#[test]
fn the_end_does_not_wait_for_a_stuck_output() {
    let logs = Logs::open(None, Format::Plain, Stuck::default()).unwrap();
    logs.sink().send(Lines { bytes: b"x\n".to_vec(), count: 1 });
    let started = Instant::now();
    assert!(!logs.finish());
    assert!(started.elapsed() < Duration::from_millis(3 * LOGS_FINISH_MS));
}

struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_broken_output_is_counted_and_survived() {
    let logs = Logs::open(None, Format::Plain, Broken).unwrap();
    for _ in 0..10 {
        logs.sink().send(Lines { bytes: b"x\ny\n".to_vec(), count: 2 });
    }
    assert!(logs.finish());
    assert_eq!(logs.sink().dropped(), 20);
}

#[test]
fn other_threads_log_too() {
    let text = written(None, Format::Plain, |logs| {
        let dispatch = logs.dispatch.clone();
        let other =
            thread::spawn(move || dispatcher::with_default(&dispatch, || tracing::info!("from afar")));
        other.join().unwrap();
    });
    assert!(text.ends_with("from afar\t\n"), "{text}");
}
