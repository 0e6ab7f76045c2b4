//! Revocation lists: a peer that is put on one loses its connections and gets no new ones, in either direction.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};
use ringway::demo::node::NodeProxy;
use ringway_e2e::eventually;
use ringway_e2e::lines::{self, text};
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, dial, service, try_dial};

/// From the change of the file to the end of a connection: two looks at the file, and what a busy machine adds.
const REACTION: Duration = Duration::from_secs(5);

/// A list of the mesh's own root that names the certificate which this proxy holds for an account.
fn list_naming(world: &World, proxy: &NodeProxy, account: &str) -> String {
    let kept = std::fs::read_to_string(world.cluster.authority().join("authority.pem")).unwrap();
    let (key, root) = kept.split_at(kept.find("-----BEGIN CERTIFICATE").unwrap());
    let issuer = Issuer::from_ca_cert_pem(root, KeyPair::from_pem(key).unwrap()).unwrap();
    let dump = proxy.dump().unwrap();
    let held = dump["certificates"].as_array().unwrap().iter();
    let mut held = held.filter(|one| text(one, "identity").ends_with(&format!("/sa/{account}")));
    let chain = &held.next().expect("a certificate of that account")["certChain"];
    let now = SystemTime::now();
    let params = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + Duration::from_secs(3_600)).into(),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: SerialNumber::from_slice(&bytes_of(text(&chain[0], "serialNumber"))),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer).unwrap().pem().unwrap()
}

/// A decimal number as bytes, without leading zeros.
fn bytes_of(decimal: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for digit in decimal.bytes().map(|digit| u32::from(digit - b'0')) {
        let mut carry = digit;
        for byte in bytes.iter_mut().rev() {
            let value = u32::from(*byte) * 10 + carry;
            (*byte, carry) = (u8::try_from(value % 256).unwrap(), value / 256);
        }
        if carry > 0 {
            bytes.insert(0, u8::try_from(carry).unwrap());
        }
    }
    bytes
}

fn open(world: &World) -> TcpStream {
    let mut stream = dial(&world.client, service());
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

fn works(world: &World) -> bool {
    let Ok(mut stream) = try_dial(&world.client, service()) else { return false };
    stream.write_all(b"?").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

fn has_ended(stream: &mut TcpStream) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), WouldBlock | TimedOut),
    }
}

/// Puts a new file in the place of the old one, as a careful writer does.
fn put(path: &Path, content: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, content).unwrap();
    std::fs::rename(&draft, path).unwrap();
}

#[test]
fn a_revoked_peer_is_cut_off_and_kept_out_in_either_direction_until_it_is_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("crl.pem");
    // Not there yet when the proxies start.
    let world = World::start_with(&[("CRL_PATH", file.to_str().unwrap())], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    let rounds = [
        (world.far(), "destination", world.near(), "client", "tls handshake error: "),
        (world.near(), "source", world.far(), "server", "io error: "),
    ];
    for (judge, reporter, holder, account, refusal) in rounds {
        let mut held = open(&world);
        put(&file, &list_naming(&world, holder, account));
        eventually("the revoked peer's connection is closed", REACTION, || has_ended(&mut held));
        lines::wait_for(judge, "closed by revocation", |line| {
            line["error"] == "connection closed: peer certificate revoked by CRL"
        });
        eventually("the revoked peer gets no new connection", STEP, || !works(&world));
        let refused = format!("{refusal}invalid peer certificate: Revoked");
        lines::wait_for(judge, "refused by revocation", |line| line["error"] == refused.as_str());
        lines::wait_for_message(holder, &[&format!("/sa/{account} is revoked: its peers will refuse it")]);
        let metrics = judge.metrics().unwrap();
        let reporter = format!("reporter=\"{reporter}\"");
        assert!(metrics.sum("istio_crl_policy_rejections_total", &[&reporter]) >= 1.0);
        assert_eq!(metrics.sum("istio_crl_untracked_connections_total", &[&reporter]), 0.0);
        let flag = "response_flags=\"CERT_REVOKED\"";
        assert_eq!(metrics.sum("istio_tcp_connections_failed_total", &[&reporter, flag]), 1.0);
        // With those that stood idle in a pool.
        assert!(metrics.sum("ringway_tunnels_revoked_total", &[]) >= 1.0);
        assert_eq!(metrics.sum("ringway_crl_lists", &[]), 1.0);
        put(&file, "");
        eventually("the peer is taken back", REACTION, || works(&world));
    }
}

#[test]
fn a_broken_file_at_start_keeps_the_node_unready_and_its_traffic_up() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("crl.pem");
    std::fs::write(&file, "").unwrap();
    let mut world = World::start_with(&[("CRL_PATH", file.to_str().unwrap())], |_| {});
    let _app = Server::start(&world.server, APP_PORT, echo);
    put(&file, "nonsense");
    world.cluster.start_in_place(2).unwrap();
    eventually("the reason is told", STEP, || {
        let ready = world.far().get(15_021, "/healthz/ready");
        ready.is_ok_and(|(status, body)| status == 500 && body.contains("revocation lists"))
    });
    lines::wait_for_message(world.far(), &["failed to initialize crl manager", "crl.pem: list 1: "]);
    eventually("traffic flows", STEP, || works(&world));
    put(&file, "");
    eventually("ready again", REACTION, || {
        world.far().get(15_021, "/healthz/ready").is_ok_and(|(status, _)| status == 200)
    });
}
