//! Shapes of the dump against a real one.

use super::*;
use std::sync::Arc;
use std::time::Duration;

use crate::bridge::order::PodInfo;
use crate::tls::cert::Authority;
use crate::tls::config::Profile;

#[test]
fn base64_is_the_standards() {
    for (text, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
        assert_eq!(base64(text.as_bytes()), coded);
    }
    assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
}

#[test]
fn certificates_are_shown_as_the_reference_shows_them() {
    let authority = Authority::new("cluster.local").unwrap();
    let identity: Identity = "spiffe://cluster.local/ns/default/sa/client".parse().unwrap();
    let ttl = Duration::from_secs(86_400);
    let credential = Arc::new(authority.credential(&identity, ttl, Profile::default()).unwrap());
    let shown = certificate(&(identity.clone(), Standing::Available(credential.clone()).into()));
    assert_eq!(shown["validUntil"], shown["certChain"][0]["expirationTime"]);
    assert!(shown.get("lastError").is_none() && shown.get("nextAttempt").is_none());
    assert_eq!(shown["identity"], "spiffe://cluster.local/ns/default/sa/client");
    assert_eq!(shown["state"], "Available");
    let leaf = &shown["certChain"][0];
    assert_eq!(shown["certChain"].as_array().unwrap().len(), 1);
    assert_eq!(shown["rootCerts"].as_array().unwrap().len(), 1);
    let keys: Vec<&String> = leaf.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["expirationTime", "pem", "serialNumber", "validFrom"]);
    assert!(leaf["serialNumber"].as_str().unwrap().bytes().all(|byte| byte.is_ascii_digit()));
    let ends = leaf["expirationTime"].as_str().unwrap();
    assert!(ends.len() == 20 && ends.ends_with('Z') && ends.as_bytes()[10] == b'T', "{ends}");
    assert!(leaf["pem"].as_str().unwrap().starts_with("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tC"));
    let unavailable = certificate(&(identity.clone(), Standing::Unavailable("no".into()).into()));
    assert_eq!(unavailable["state"], "Unavailable: no");
    assert_eq!(unavailable["certChain"], json!([]));
    let known = Known {
        standing: Standing::Available(credential),
        last_error: Some("the authority is away".into()),
        next_attempt: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500)),
    };
    let failing = certificate(&(identity, known));
    assert_eq!(
        (&failing["state"], &failing["lastError"]),
        (&json!("Available"), &json!("the authority is away"))
    );
    assert_eq!(failing["nextAttempt"], "1970-01-01T00:00:01Z");
}

#[test]
fn pem_lines_are_sixty_long_and_say_the_same() {
    let pem = format!("-----BEGIN X-----\n{}\n{}\n-----END X-----\n", "A".repeat(64), "B".repeat(64));
    let narrow = narrow(&pem);
    let lengths: Vec<usize> = narrow.lines().map(str::len).collect();
    assert_eq!(lengths, [17, 60, 60, 8, 15]);
    assert_eq!(narrow.replace('\n', ""), pem.replace('\n', ""));
    assert!(narrow.ends_with("-----END X-----\n"));
}

#[test]
fn pods_are_shown_with_their_own_connections_only() {
    let info = PodInfo { name: "client".into(), namespace: "default".into(), service_account: "sa".into() };
    let mut pod = PodView { uid: "uid-client".into(), info, up: true };
    let live = |pod: &str, inbound, original_dst: Option<&str>, protocol| LiveConnection {
        pod: pod.into(),
        inbound,
        src: "10.99.1.10:58010".parse().unwrap(),
        original_dst: original_dst.map(str::to_owned),
        actual_dst: "10.99.2.10:15008".parse().unwrap(),
        protocol,
    };
    let live = [
        live("uid-client", false, Some("10.99.2.10:7000"), LiveProtocol::Hbone),
        live("uid-client", true, None, LiveProtocol::Tcp),
        live("uid-other", true, None, LiveProtocol::Tcp),
    ];
    let expected = json!({
        "connections": {
            "inbound": [{
                "actualDst": "10.99.2.10:15008",
                "originalDst": null,
                "protocol": "TCP",
                "src": "10.99.1.10:58010",
            }],
            "outbound": [{
                "actualDst": "10.99.2.10:15008",
                "originalDst": "10.99.2.10:7000",
                "protocol": "HBONE",
                "src": "10.99.1.10:58010",
            }],
        },
        "info": {"name": "client", "namespace": "default", "serviceAccount": "sa"},
        "state": "Up",
    });
    assert_eq!(workload_state(&pod, &live), expected);
    let earlier = LiveConnection { src: "10.99.1.10:80".parse().unwrap(), ..live[1].clone() };
    let sorted = workload_state(&pod, &[live[1].clone(), earlier]);
    assert_eq!(sorted["connections"]["inbound"][0]["src"], "10.99.1.10:80");
    pod.up = false;
    let pending = workload_state(&pod, &live);
    assert_eq!(pending["state"], "Pending");
    assert_eq!(pending.get("connections"), None);
}
