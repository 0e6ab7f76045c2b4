//! What a handshake costs, both ends together, by key exchange, with client certificates as in the mesh. Halve it for
//! one end.

#![allow(clippy::expect_used, clippy::panic, reason = "a bench stops where it can't go on")]

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use ringway::mesh::identity::Identity;
use ringway::tls::cert::Authority;
use ringway::tls::config::{Credential, Exchange, Profile};
use ringway::tls::handshake::{Handshake, Progress};

const HOUR: Duration = Duration::from_secs(3_600);

struct Ends {
    client: Credential,
    server: Credential,
    expected: Arc<[Identity]>,
}

impl Ends {
    fn new(exchange: Exchange) -> Self {
        let authority = Authority::new("cluster.local").expect("an authority");
        let identity = |name: &str| -> Identity {
            format!("spiffe://cluster.local/ns/default/sa/{name}").parse().expect("an identity")
        };
        let made = |name| {
            let profile = Profile { exchange, ..Profile::default() };
            authority.credential(&identity(name), HOUR, profile).expect("a credential")
        };
        Self { client: made("client"), server: made("server"), expected: [identity("server")].into() }
    }

    /// Both ends in memory; the bytes that went over the wire.
    fn shake(&self) -> usize {
        let mut client = Handshake::client(&self.client, self.expected.clone()).expect("a client");
        let mut server = Handshake::server(&self.server).expect("a server");
        let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        let (mut client_done, mut server_done) = (false, false);
        while !(client_done && server_done) {
            if !client_done {
                let before = to_server.len();
                client_done = advance(&mut client, &mut to_client, &mut to_server);
                bytes += to_server.len() - before;
            }
            if !server_done {
                let before = to_client.len();
                server_done = advance(&mut server, &mut to_server, &mut to_client);
                bytes += to_client.len() - before;
            }
        }
        bytes
    }
}

/// Whether this end is done.
fn advance(end: &mut Handshake, incoming: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> bool {
    let progress = end.advance(incoming, outgoing).expect("a handshake that goes on");
    matches!(progress, Progress::Done(_))
}

fn handshakes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handshake");
    group.sample_size(50).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    for (name, exchange) in [
        ("classical", Exchange::Default),
        ("hybrid first", Exchange::Hybrid),
        ("post-quantum only", Exchange::PostQuantumOnly),
    ] {
        let ends = Ends::new(exchange);
        let label = format!("{name} ({} bytes)", ends.shake());
        group.bench_function(label, |bencher| bencher.iter(|| ends.shake()));
    }
    group.finish();
}

criterion_group!(benches, handshakes);
criterion_main!(benches);
