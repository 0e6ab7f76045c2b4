use std::io;
use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
const SERVER: &str = "spiffe://cluster.local/ns/default/sa/server";
/// 2026-11-30T06:08:35Z.
const BASE_S: u64 = 1_796_018_915;

fn at(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(BASE_S) + Duration::from_micros(micros)
}

fn end<'a>(workload: &'a str, identity: &'a &'a str) -> End<'a> {
    End {
        workload: Some(workload),
        namespace: Some("default"),
        identity: Some(identity),
        cluster: Some("Kubernetes"),
    }
}

/// A good outbound connection of the samples; the others differ from it.
fn outbound() -> AccessLine<'static> {
    AccessLine {
        event: Event::Complete,
        src_addr: "10.99.1.10:59464".parse().unwrap(),
        src: end("client", &CLIENT),
        dst_addr: "10.99.2.10:15008".parse().unwrap(),
        dst_name: None,
        dst_hbone_addr: Some(HboneAddr::Address("10.99.2.10:8080".parse().unwrap())),
        dst_service: Some("web.default.svc.cluster.local"),
        dst: end("server", &SERVER),
        direction: Direction::Outbound,
        bytes_sent: 75,
        bytes_recv: 94,
        duration: Duration::from_micros(12_900),
        error: None,
        ours: Ours { attempts: 1, shard: 3, ..Ours::default() },
    }
}

fn plain(line: &AccessLine<'_>, now: SystemTime) -> String {
    let mut out = Vec::new();
    line.write_plain(now, &mut out);
    String::from_utf8(out).unwrap()
}

fn json(line: &AccessLine<'_>, now: SystemTime) -> String {
    let mut out = Vec::new();
    line.write_json(now, &mut out);
    String::from_utf8(out).unwrap()
}

/// Lines of the reference: plain good, plain refused by the peer, plain early deny; JSON good, JSON refused.
const SAMPLES: &str = include_str!("samples.txt");

fn sample(place: usize) -> &'static str {
    SAMPLES.lines().nth(place).unwrap()
}

/// The sample, and behind it the one field of ours that every line has.
fn plain_sample(place: usize) -> String {
    format!("{} shard=3\n", sample(place))
}

fn json_sample(place: usize) -> String {
    format!("{},\"shard\":3}}\n", sample(place).strip_suffix('}').unwrap())
}

#[test]
fn good_connections_equal_the_samples() {
    assert_eq!(plain(&outbound(), at(775_075)), plain_sample(0));
    let other = AccessLine {
        src_addr: "10.99.1.10:49352".parse().unwrap(),
        duration: Duration::from_millis(5),
        ..outbound()
    };
    let eleven_seconds_before = at(793_372) - Duration::from_secs(11);
    assert_eq!(json(&other, eleven_seconds_before), json_sample(3));
}

#[test]
fn what_is_ours_comes_behind_everything_else() {
    let ours = Ours {
        reason: Some("connect_timeout"),
        attempts: 2,
        setup: Some(Duration::from_micros(3_900)),
        shard: 1,
        via: Some(Via::Connect),
    };
    let line = AccessLine { error: Some(&"late"), ours, ..outbound() };
    let text = plain(&line, at(0));
    let last = " error=\"late\" reason=\"connect_timeout\" attempts=2 setup_ms=3 shard=1 via=\"connect\"\n";
    assert!(text.ends_with(last), "{text}");
    let text = json(&line, at(0));
    let last =
        r#","error":"late","reason":"connect_timeout","attempts":2,"setup_ms":3,"shard":1,"via":"connect"}"#;
    assert!(text.trim_end().ends_with(last), "{text}");
    let unknown = AccessLine {
        event: Event::Failed,
        dst_name: Some("nobody:80"),
        ours: Ours { via: Some(Via::Socks5), ..Ours::default() },
        ..outbound()
    };
    let text = plain(&unknown, at(0));
    assert!(text.contains("dst.addr=nobody:80 direction=\"outbound\" shard=0 via=\"socks5\""), "{text}");
    let value: Value = serde_json::from_str(&json(&unknown, at(0))).unwrap();
    assert_eq!((&value["dst.addr"], &value["via"]), (&"nobody:80".into(), &"socks5".into()));
}

#[test]
fn failed_connections_equal_the_samples() {
    let error = "http status: 401 Unauthorized";
    let refused = AccessLine {
        src_addr: "10.99.1.10:40526".parse().unwrap(),
        dst_hbone_addr: Some(HboneAddr::Named("10.99.2.10:9999")),
        dst_service: None,
        bytes_sent: 0,
        bytes_recv: 0,
        duration: Duration::from_millis(1),
        error: Some(&error),
        ..outbound()
    };
    assert_eq!(plain(&refused, at(822_242)), plain_sample(1));

    let kernel = format!("io error: {}", io::Error::from_raw_os_error(111));
    let passthrough = AccessLine {
        src_addr: "10.99.1.10:51044".parse().unwrap(),
        src: End { identity: None, ..outbound().src },
        dst_addr: "10.99.3.10:8080".parse().unwrap(),
        dst_hbone_addr: None,
        dst: End::default(),
        duration: Duration::from_micros(999),
        error: Some(&kernel),
        ..refused
    };
    assert_eq!(json(&passthrough, at(880_106) - Duration::from_secs(11)), json_sample(4));
}

#[test]
fn early_denies_and_opened_connections_say_less() {
    let error = "attempted recursive call to ourselves";
    let denied = AccessLine {
        event: Event::Failed,
        src_addr: "10.99.1.10:37878".parse().unwrap(),
        direction: Direction::Inbound,
        error: Some(&error),
        ..outbound()
    };
    assert_eq!(plain(&denied, at(886_654)), plain_sample(2));
    let opened = AccessLine { event: Event::Opened, ..outbound() };
    assert_eq!(opened.level(), Level::Debug);
    let text = plain(&opened, at(0));
    assert!(text.contains("\tdebug\taccess\tconnection opened\tsrc.addr=10.99.1.10:59464 "), "{text}");
    assert!(text.ends_with(" dst.cluster=\"Kubernetes\" direction=\"outbound\" shard=3\n"), "{text}");
}

#[test]
fn an_authority_that_is_no_single_word_is_quoted() {
    for (authority, shown) in [
        ("web.default.svc.cluster.local:80", "web.default.svc.cluster.local:80"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("", "\"\""),
        ("a b:1", "\"a b:1\""),
        ("a\nb:1", "\"a\\nb:1\""),
        ("a\"b:1", "\"a\\\"b:1\""),
        ("x dst.identity=y:1", "\"x dst.identity=y:1\""),
        ("ü:1", "\"ü:1\""),
    ] {
        let line = AccessLine { dst_hbone_addr: Some(HboneAddr::Named(authority)), ..outbound() };
        let text = plain(&line, at(0));
        assert!(text.contains(&format!(" dst.hbone_addr={shown} dst.service=")), "{text}");
    }
}

proptest! {
    #[test]
    fn hostile_text_stays_in_its_field(
        name in any::<String>(), authority in any::<String>(), error in any::<String>(),
    ) {
        let line = AccessLine {
            src: End { workload: Some(&name), namespace: Some(&error), ..outbound().src },
            dst_hbone_addr: Some(HboneAddr::Named(&authority)),
            dst_service: Some(&name),
            error: Some(&error),
            ..outbound()
        };
        let text = plain(&line, at(0));
        prop_assert_eq!(text.matches('\n').count(), 1);
        let expected = format!("src.workload={name:?} src.namespace={error:?} src.identity=");
        prop_assert!(text.contains(&expected));
        let ending = format!("duration=\"12ms\" error={error:?} shard=3\n");
        prop_assert!(text.ends_with(&ending));
        let text = json(&line, at(0));
        prop_assert_eq!(text.matches('\n').count(), 1);
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read["src.workload"].as_str(), Some(name.as_str()));
        prop_assert_eq!(read["dst.hbone_addr"].as_str(), Some(authority.as_str()));
        prop_assert_eq!(read["error"].as_str(), Some(error.as_str()));
        prop_assert_eq!(read.as_object().unwrap().len(), 22);
    }
}

/// Not a benchmark: a wide bound that catches an allocation or a quadratic step (0.5 us in a release build).
#[test]
fn a_line_takes_microseconds() {
    let line = outbound();
    let mut out = Vec::with_capacity(1_024);
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let started = std::time::Instant::now();
        for micros in 0..1_000 {
            out.clear();
            line.write_plain(at(micros), &mut out);
        }
        best = best.min(started.elapsed() / 1_000);
    }
    println!("a plain line: {best:?}");
    // An unoptimised build on a busy machine takes 8.
    assert!(best < Duration::from_micros(25), "{best:?}");
}
