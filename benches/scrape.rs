//! What a scrape of many label sets costs: the control thread, the thread that writes the page, and its size, as text
//! and compressed. Prints figures; two shards of 10,000 label sets each, or as many as SETS says.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench stops where it can't go on"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringway::bridge::lines::LineSink;
use ringway::bridge::mailbox::{Letterbox, Mailbox, mailbox};
use ringway::bridge::order::Order;
use ringway::bridge::published::Published;
use ringway::bridge::report::{ConnectionCounts, ShardStats};
use ringway::control::http::Server;
use ringway::control::metrics::{MetricsServer, Sources};
use ringway::control::recorder::Registry;
use ringway::control::wiring::Facts;
use ringway::mesh::labels::{LabelSet, Labels, Party, Reporter, Security};
use ringway::mesh::snapshot::Snapshot;
use ringway::sys::proc::thread_usage;

const ROUNDS: u32 = 5;

fn party(number: usize) -> Party {
    let name = format!("workload-{number}");
    Party {
        workload: name.as_str().into(),
        canonical_service: name.as_str().into(),
        canonical_revision: "latest".into(),
        namespace: format!("namespace-{}", number % 100).as_str().into(),
        app: name.as_str().into(),
        cluster: "Kubernetes".into(),
        region: "region-1".into(),
        zone: "zone-1".into(),
        principal: format!("spiffe://cluster.local/ns/default/sa/{name}").parse().ok(),
    }
}

fn told(shard: usize, sets: usize) -> ShardStats {
    let counts = |number: usize| ConnectionCounts {
        labels: LabelSet::new(Labels {
            reporter: Reporter::Source,
            source: Some(party(number)),
            destination: Some(party(number / 2)),
            service: None,
            security: Security::MutualTls,
        }),
        opened: 100,
        received_bytes: 123_456,
        sent_bytes: 654_321,
        closed: [100, 0, 0, 0, 0, 0, 0, 0],
    };
    ShardStats { shard, connections: (0..sets).map(counts).collect(), ..ShardStats::default() }
}

/// A shard that has its answer ready.
fn shard(letters: Letterbox<Order>, told: ShardStats) {
    loop {
        while let Some(order) = letters.take() {
            if let Order::Scrape(answer) = order {
                let _ = answer.send(told.clone());
            }
        }
        thread::sleep(Duration::from_micros(200));
    }
}

fn sources() -> Sources {
    Sources {
        registry: Registry::default(),
        facts: Facts {
            version: serde_json::Value::Null,
            config: serde_json::Value::Null,
            istio_version: "unknown".to_owned(),
            event_loop: "io_uring".to_owned(),
            event_loop_cause: String::new(),
            aead: "ring".to_owned(),
        },
        identities: Arc::default(),
        published: Arc::new(Published::new(Snapshot::default())),
        lines: LineSink::new(crossbeam::channel::bounded(1).0),
        board: None,
    }
}

fn scrape(address: SocketAddr, encoding: &str) -> usize {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let asked = format!("GET /metrics HTTP/1.0\r\nhost: a\r\naccept-encoding: {encoding}\r\n\r\n");
    stream.write_all(asked.as_bytes()).expect("it takes a request");
    let (mut total, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        match stream.read(&mut buffer).expect("it answers") {
            0 => return total,
            bytes => total += bytes,
        }
    }
}

fn main() {
    let sets = std::env::var("SETS").ok().and_then(|sets| sets.parse().ok()).unwrap_or(10_000);
    let mut shards: Vec<Mailbox<Order>> = Vec::new();
    for number in 0..2 {
        let (post, letters) = mailbox(16).expect("a mailbox");
        let told = told(number, sets);
        thread::spawn(move || shard(letters, told));
        shards.push(post);
    }
    let server = Server::bind("stats", &[SocketAddr::from(([127, 0, 0, 1], 0))]).expect("an address");
    let address = server.addresses().first().copied().expect("it is bound");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!("{sets} label sets on each of 2 shards");
    runtime.block_on(async {
        let (_close, closing) = tokio::sync::watch::channel(false);
        let _serving =
            server.serve(Arc::new(MetricsServer::new(shards, sources())), &closing).expect("it serves");
        for encoding in ["identity", "gzip", "deflate", "zstd"] {
            let (mut bytes, mut wall) = (0, Duration::ZERO);
            let before = thread_usage().cpu;
            for _ in 0..ROUNDS {
                let started = Instant::now();
                let client = tokio::task::spawn_blocking(move || scrape(address, encoding));
                bytes = client.await.expect("a client");
                wall += started.elapsed();
            }
            let control = (thread_usage().cpu - before) / ROUNDS;
            let kilobytes = bytes / 1_000;
            println!(
                "{encoding:>8}: {kilobytes} kB, {:?} until read, control thread {control:?}",
                wall / ROUNDS
            );
        }
    });
}
