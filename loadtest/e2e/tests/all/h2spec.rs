//! h2spec against the inbound port. It speaks HTTP/2 without TLS here: a bridge has the certificate of the mesh. Its
//! requests are GET, which are answered 400 without a body; what fails for that reason, and no other, is listed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use ringway_e2e::baseline::Baseline;
use ringway_e2e::hbone::{HBONE_PORT, HbonePeer};
use ringway_e2e::world::World;
use ringway_e2e::{block_on, report};
use tokio::io::{AsyncWriteExt, copy, sink, split};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
/// Run side by side, since most of the time is spent waiting for nothing to come.
const SECTIONS: [&str; 8] =
    ["generic", "hpack", "http2/3", "http2/4", "http2/5", "http2/6", "http2/7", "http2/8"];
/// All but a few of h2spec's 146 cases, so that a run of nothing can't pass.
const LEAST_PASSED: u32 = 125;

/// Cases that can't be met, and why.
const NOT_APPLICABLE: [(&str, &[&str]); 8] = [
    (
        "a DATA frame is expected; our answer has no body",
        &[
            "Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
            "Sends a PRIORITY frame on half-closed (remote) stream",
        ],
    ),
    (
        "our SETTINGS say a table of 0, which h2spec acknowledges and exceeds (RFC 9113 section 4.3.1)",
        &[
            "Sends a dynamic table size update",
            "Sends multiple dynamic table size update",
            "Sends multiple CONTINUATION frames preceded by a HEADERS frame",
        ],
    ),
    (
        "a request is refused before the next one comes, so that no limit is exceeded",
        &["Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded"],
    ),
    (
        "priorities are read over (RFC 9113 section 5.3.2)",
        &["Sends HEADERS frame that depend on itself", "Sends PRIORITY frame that depend on itself"],
    ),
    (
        "answered 400, as a malformed request may be (RFC 9113 section 8.1.1)",
        &[
            "Sends a HEADERS frame with empty \":path\" pseudo-header field",
            "Sends a HEADERS frame that omits \":scheme\" pseudo-header field",
            "Sends a HEADERS frame that omits \":path\" pseudo-header field",
            "Sends a HEADERS frame with the \"content-length\" header field which does not equal the DATA frame \
             payload length",
            "Sends a HEADERS frame with the \"content-length\" header field which does not equal the sum of the \
             multiple DATA frames payload length",
        ],
    ),
    (
        "the answer has mostly closed the stream before, and what comes late is read over (RFC 9113 section 5.1); a \
         live stream is reset (wire::h2::tests::rules)",
        &[
            "Sends a WINDOW_UPDATE frame with a flow control window increment of 0 on a stream",
            "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
        ],
    ),
    (
        "a peer that breaks a rule is reset behind the GOAWAY, and may see that first",
        &["Sends a large size DATA frame that exceeds the SETTINGS_MAX_FRAME_SIZE"],
    ),
    (
        "its frame is larger than the protocol's default and not than the 1 MiB that is announced: a long request, \
         which is answered",
        &["Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE"],
    ),
];

/// H2SPEC_BIN, else where deploy/test.sh builds it.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("H2SPEC_BIN") {
        return path.into();
    }
    let cache = std::env::var_os("RINGWAY_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/ringway")));
    cache.expect("RINGWAY_CACHE or HOME").join("h2spec/h2spec")
}

/// Hands each connection on through TLS with the peer's certificate. What h2spec says to a connection that has ended
/// is read over: a reset would hide what came before.
async fn bridge(listener: TcpListener, peer: HbonePeer, to: SocketAddr) {
    while let Ok((plain, _)) = listener.accept().await {
        let peer = peer.clone();
        spawn_local(async move {
            let Ok(tls) = peer.handshake(to).await else { return };
            let ((mut from_case, mut to_case), (mut from_proxy, mut to_proxy)) = (split(plain), split(tls));
            let there = async {
                let _ = copy(&mut from_case, &mut to_proxy).await;
                let _ = to_proxy.shutdown().await;
                let _ = copy(&mut from_case, &mut sink()).await;
            };
            let back = async {
                let _ = copy(&mut from_proxy, &mut to_case).await;
                let _ = to_case.shutdown().await;
            };
            tokio::join!(there, back);
        });
    }
}

/// The titles of cases that failed, from what h2spec says behind "Failures".
fn failed(said: &str) -> Vec<String> {
    let failures = said.split_once("Failures:").map_or("", |(_, failures)| failures);
    let titles = failures.lines().filter_map(|line| line.trim().strip_prefix('×'));
    titles.filter_map(|title| Some(title.split_once(": ")?.1.to_owned())).collect()
}

/// The count in "146 tests, 128 passed, 4 skipped, 14 failed".
fn passed(said: &str) -> u32 {
    let counts = said.lines().find(|line| line.contains(" tests, ")).unwrap_or_default();
    let part = counts.split(", ").find_map(|part| part.strip_suffix(" passed"));
    part.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[test]
fn h2spec_finds_nothing_but_what_does_not_apply() {
    let world = World::start();
    let baseline = Baseline::take(&world);
    let peer = HbonePeer::new(&world.stranger, &world.cluster.authority(), CLIENT);
    let to = world.server.at(HBONE_PORT);
    let outputs = block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let bridge = spawn_local(bridge(listener, peer, to));
        let runs = SECTIONS.map(|section| {
            let arguments = [section, "--strict", "-h", "127.0.0.1", "-p", &port].map(str::to_owned);
            spawn_blocking(move || Command::new(program()).args(arguments).output())
        });
        let mut outputs = Vec::new();
        for run in runs {
            outputs.push(run.await.unwrap().expect("h2spec; deploy/test.sh builds it"));
        }
        bridge.abort();
        outputs
    }));
    let said: Vec<_> = outputs.iter().map(|output| String::from_utf8_lossy(&output.stdout)).collect();
    let total: u32 = said.iter().map(|said| passed(said)).sum();
    let failures: Vec<_> = said.iter().flat_map(|said| failed(said)).collect();
    report(&format!("h2spec: {total} cases passed, {} failed", failures.len()));
    let known = |title: &String| NOT_APPLICABLE.iter().any(|(_, titles)| titles.contains(&title.as_str()));
    let wrong: Vec<_> = failures.iter().filter(|title| !known(title)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", said.join("\n"));
    assert!(total >= LEAST_PASSED, "only {total} cases passed:\n{}", said.join("\n"));
    baseline.is_back(&world);
}
