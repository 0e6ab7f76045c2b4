//! The text of HBONE: what a CONNECT says beside its authority (reference sections 6.4 and 7.7), and the authority
//! itself. Pure functions; everything that is read here was written by a peer and is refused or cut, never trusted.

use std::net::SocketAddr;

use crate::base::limits::LABEL_BYTES;
use crate::base::text::beginning;
pub use crate::mesh::authority::{Authority, NotAnAuthority};
use crate::mesh::labels::Party;
use crate::mesh::workload::Workload;
use crate::wire::log_text::write_address;

/// What a peer says of its workload. Absent and empty are the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Baggage {
    pub cluster: Option<String>,
    pub namespace: Option<String>,
    /// `deployment`, `cronjob`, `pod` or `job`, where a workload name is given.
    pub workload_type: Option<&'static str>,
    pub workload_name: Option<String>,
    pub service_name: Option<String>,
    pub revision: Option<String>,
    pub region: Option<String>,
    pub zone: Option<String>,
}

impl Baggage {
    /// The labels of a party that is known by its baggage only.
    pub fn party(&self) -> Party {
        let text =
            |value: &Option<String>| beginning(value.as_deref().unwrap_or_default(), LABEL_BYTES).into();
        Party {
            workload: text(&self.workload_name),
            canonical_service: text(&self.service_name),
            canonical_revision: text(&self.revision),
            namespace: text(&self.namespace),
            // Known by its baggage, the app is the workload (reference 15.2); known by the mesh, the canonical name.
            app: text(&self.workload_name),
            cluster: text(&self.cluster),
            region: text(&self.region),
            zone: text(&self.zone),
            principal: None,
        }
    }
}

/// The `baggage` header of a workload: its non-empty members in the reference's order. A value that would break the
/// header or pose as another member is left out.
pub fn baggage_of(workload: &Workload) -> String {
    let name_key = match &*workload.workload_type {
        "pod" => "k8s.pod.name",
        "job" => "k8s.job.name",
        "cronjob" => "k8s.cronjob.name",
        _ => "k8s.deployment.name",
    };
    let members = [
        ("k8s.cluster.name", &workload.cluster_id),
        ("k8s.namespace.name", &workload.namespace),
        (name_key, &workload.workload_name),
        ("service.name", &workload.canonical_name),
        ("service.version", &workload.canonical_revision),
        ("cloud.region", &workload.locality.region),
        ("cloud.availability_zone", &workload.locality.zone),
    ];
    let mut text = String::with_capacity(192);
    for (key, value) in members {
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
            continue;
        }
        let comma = if text.is_empty() { "" } else { "," };
        // Part by part: each connection says it, and the formatter costs five times as much.
        for part in [comma, key, "=", value] {
            text.push_str(part);
        }
    }
    text
}

/// Reads any number of `baggage` headers; of a member given twice the last counts. One value that isn't visible
/// ASCII spoils them all, as in the reference.
pub fn parse_baggage(values: &[&[u8]]) -> Baggage {
    parse_baggage_if_visible(values).unwrap_or_default()
}

/// The same, `None` where a value isn't visible ASCII.
pub fn parse_baggage_if_visible(values: &[&[u8]]) -> Option<Baggage> {
    let mut baggage = Baggage::default();
    for value in values {
        let text = visible(value)?;
        for member in text.split(',') {
            let Some((key, value)) = member.split_once('=') else { continue };
            let value = value.trim();
            let value = (!value.is_empty()).then(|| value.to_owned());
            let kind = match key.trim() {
                "k8s.cluster.name" => {
                    baggage.cluster = value;
                    continue;
                }
                "k8s.namespace.name" => {
                    baggage.namespace = value;
                    continue;
                }
                "service.name" => {
                    baggage.service_name = value;
                    continue;
                }
                "service.version" => {
                    baggage.revision = value;
                    continue;
                }
                "cloud.region" => {
                    baggage.region = value;
                    continue;
                }
                "cloud.availability_zone" => {
                    baggage.zone = value;
                    continue;
                }
                "k8s.deployment.name" => "deployment",
                "k8s.cronjob.name" => "cronjob",
                "k8s.pod.name" => "pod",
                "k8s.job.name" => "job",
                _ => continue,
            };
            baggage.workload_type = value.is_some().then_some(kind);
            baggage.workload_name = value;
        }
    }
    Some(baggage)
}

fn visible(value: &[u8]) -> Option<&str> {
    let fit = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ' || *byte == b'\t';
    if value.iter().all(fit) { std::str::from_utf8(value).ok() } else { None }
}

/// The `forwarded` header: who calls, and the service host that it meant (RFC 7239, host unquoted as in the
/// reference).
pub fn forwarded(source: SocketAddr, service_host: Option<&str>) -> String {
    let mut text = Vec::with_capacity(96);
    text.extend_from_slice(b"for=\"");
    write_address(source, &mut text);
    text.push(b'"');
    if let Some(host) = service_host {
        text.extend_from_slice(b";host=");
        text.extend_from_slice(host.as_bytes());
    }
    // It was put together of text.
    String::from_utf8(text).unwrap_or_default()
}

/// The host of a `forwarded` header, if it has one that is visible ASCII.
pub fn forwarded_host(value: &[u8]) -> Option<&str> {
    let host = visible(value)?.split(';').find_map(|part| part.trim().strip_prefix("host="))?;
    Some(host.trim_matches('"')).filter(|host| !host.is_empty())
}

/// A fresh `traceparent` (W3C Trace Context, version 00, not sampled).
pub fn traceparent(random: &mut fastrand::Rng) -> String {
    // All-zero identifiers are invalid.
    let (trace, parent) = (random.u128(1..), random.u64(1..));
    let mut text = String::with_capacity(55);
    text.push_str("00-");
    push_hex(&mut text, &trace.to_be_bytes());
    text.push('-');
    push_hex(&mut text, &parent.to_be_bytes());
    text.push_str("-00");
    text
}

/// By hand: it is done for every connection, where the formatter showed in profiles.
fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 0xf] {
            text.push(char::from(if digit < 10 { b'0' + digit } else { b'a' - 10 + digit }));
        }
    }
}

/// The trace identifier of a `traceparent`: 55 bytes, of which the first four parts between dashes are hexadecimal
/// (reference section 7.1).
pub fn trace_id(traceparent: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(traceparent).ok().filter(|text| text.len() == 55)?;
    let mut parts = text.split('-');
    let mut next =
        || parts.next().filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let (_version, trace, _parent, _flags) = (next()?, next()?, next()?, next()?);
    Some(trace)
}

/// What the fuzzer runs: any text as an authority; what parses must print back to the same.
#[doc(hidden)]
pub fn fuzz_authority(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(authority) = Authority::parse(text) {
        let printed = authority.to_string();
        assert_eq!(Authority::parse(&printed), Ok(authority), "{text:?} changes in print");
    }
}

/// What the fuzzer runs: any bytes as headers, newlines between several.
#[doc(hidden)]
pub fn fuzz_headers(data: &[u8]) {
    let values: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let baggage = parse_baggage(&values);
    assert_eq!(baggage.workload_type.is_some(), baggage.workload_name.is_some());
    for value in values {
        if let Some(host) = forwarded_host(value) {
            assert!(!host.is_empty() && host.is_ascii());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server() -> Workload {
        let mut workload = Workload::plain("Kubernetes//Pod/default/server", "default", "server");
        workload.cluster_id = "Kubernetes".into();
        workload.workload_type = "pod".into();
        workload.workload_name = "server".into();
        workload.canonical_name = "server".into();
        workload.canonical_revision = "latest".into();
        workload.locality.region = "r1".into();
        workload.locality.zone = "z2".into();
        workload
    }

    #[test]
    fn baggage_reads_as_the_captured_sample() {
        let text = "k8s.cluster.name=Kubernetes,k8s.namespace.name=default,k8s.pod.name=server,\
                    service.name=server,service.version=latest,cloud.region=r1,cloud.availability_zone=z2";
        assert_eq!(baggage_of(&server()), text);
    }

    #[test]
    fn every_kind_of_workload_reads_back_what_it_wrote() {
        for kind in ["pod", "job", "cronjob", "deployment"] {
            let mut workload = server();
            workload.workload_type = kind.into();
            workload.workload_name = "deployed".into();
            let read = parse_baggage(&[baggage_of(&workload).as_bytes()]);
            assert_eq!(read.workload_type, Some(kind));
            assert_eq!(read.party(), Party { app: "deployed".into(), ..Party::of(&workload) });
        }
    }

    #[test]
    fn empty_and_dangerous_values_are_left_out() {
        let mut workload = server();
        workload.workload_name = "".into();
        workload.canonical_name = "a,k8s.namespace.name=kube-system".into();
        workload.canonical_revision = "v1\r\nx: y".into();
        workload.locality.region = "".into();
        let text = "k8s.cluster.name=Kubernetes,k8s.namespace.name=default,cloud.availability_zone=z2";
        assert_eq!(baggage_of(&workload), text);
        assert_eq!(baggage_of(&Workload::plain("", "", "")), "");
    }

    #[test]
    fn baggage_comes_in_several_headers_and_odd_members_are_ignored() {
        let read = parse_baggage(&[
            b"service.name=one, k8s.job.name=nightly ,junk,=,x=y,cloud.region=",
            b"service.name=two",
        ]);
        let expected = Baggage {
            service_name: Some("two".into()),
            workload_type: Some("job"),
            workload_name: Some("nightly".into()),
            ..Baggage::default()
        };
        assert_eq!(read, expected);
        assert_eq!(parse_baggage(&[]), Baggage::default());
        assert_eq!(
            parse_baggage(&[b"service.name=ok", "cloud.region=\u{e9}".as_bytes()]),
            Baggage::default()
        );
    }

    #[test]
    fn forwarded_is_written_and_its_host_read() {
        let four = "10.99.1.10:54780".parse().unwrap();
        let host = "web.default.svc.cluster.local";
        let text = forwarded(four, Some(host));
        assert_eq!(text, "for=\"10.99.1.10:54780\";host=web.default.svc.cluster.local");
        assert_eq!(forwarded_host(text.as_bytes()), Some(host));
        assert_eq!(forwarded("[::1]:80".parse().unwrap(), None), "for=\"[::1]:80\"");
        for (value, host) in [
            (&b"for=1.2.3.4;host=\"a.b\""[..], Some("a.b")),
            (b"host=a.b;for=1.2.3.4", Some("a.b")),
            (b"for=1.2.3.4; host=a.b", Some("a.b")),
            (b"for=1.2.3.4", None),
            (b"for=1.2.3.4;host=", None),
            (b"for=1.2.3.4;host=\"\"", None),
            (b"for=1.2.3.4;host=a\xffb", None),
            (b"", None),
        ] {
            assert_eq!(forwarded_host(value), host, "{}", value.escape_ascii());
        }
    }

    #[test]
    fn traceparents_are_fresh_and_of_the_right_form() {
        let mut random = fastrand::Rng::with_seed(1);
        let (one, two) = (traceparent(&mut random), traceparent(&mut random));
        assert_ne!(one, two);
        let parts: Vec<_> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [2, 32, 16, 2], "{one}");
        assert!(one.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{one}");
    }

    #[test]
    fn trace_ids_are_read_where_they_are_well_formed() {
        let fresh = traceparent(&mut fastrand::Rng::with_seed(1));
        assert_eq!(trace_id(fresh.as_bytes()), fresh.split('-').nth(1));
        // The second is the one that ends a whole connection in the reference.
        let wrong = [format!("{fresh}-00"), format!("00-{}", "0".repeat(52)), fresh.replace('-', "g")];
        for wrong in wrong.iter().map(String::as_bytes).chain([&b""[..], &[0xff; 55]]) {
            assert_eq!(trace_id(wrong), None, "{wrong:?}");
        }
    }

    const NEARLY_RIGHT: &str =
        "(k8s\\.(pod|job|x)\\.name|host|for|service\\.name|,|;|=|\"|\n|[a-z0-9:\\.\\[\\]]){0,30}";

    proptest! {
        #[test]
        fn fuzz_headers_survives_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_headers(&data);
        }

        #[test]
        fn fuzz_headers_survives_nearly_right_text(text in NEARLY_RIGHT) {
            fuzz_headers(text.as_bytes());
        }

        #[test]
        fn fuzz_authority_survives_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_authority(&data);
        }

        #[test]
        fn fuzz_authority_survives_nearly_right_text(text in NEARLY_RIGHT) {
            fuzz_authority(text.as_bytes());
        }
    }
}
