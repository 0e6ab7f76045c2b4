//! What a CONNECT costs: decoding one as Envoy writes it, encoding ours, and a whole open and answer.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use ringway::wire::h2::hpack::Decoder;
use ringway::wire::h2::{ConnectHead, Connection, Settings, connect_block};

const BAGGAGE: &str = "k8s.cluster.name=Kubernetes,k8s.namespace.name=default,k8s.pod.name=client,\
    service.name=client,service.version=latest,cloud.region=r1,cloud.availability_zone=z1";

const HEAD: ConnectHead<'_> = ConnectHead {
    authority: "10.99.200.1:80",
    baggage: Some(BAGGAGE),
    forwarded: Some("for=\"10.99.1.10:54780\";host=web.default.svc.cluster.local"),
    traceparent: Some("00-defbed8555fddf63118875fdbad554dd-b2ae71933cf09761-00"),
    x_forwarded_network: None,
};

/// Huffman strings and literals without indexing, the form Envoy's encoder takes once the table is 0.
fn envoy_block() -> Vec<u8> {
    use httlib_hpack::Encoder;
    let mut encoder = Encoder::with_dynamic_size(0);
    let mut block = Vec::new();
    let fields =
        [(":method", "CONNECT"), (":authority", HEAD.authority), ("x-request-id", "1d2f7d1e-2b9f-4c3b")]
            .into_iter()
            .chain(HEAD.fields());
    for (name, value) in fields {
        let flags = Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE | Encoder::BEST_FORMAT;
        let field = (name.as_bytes().to_vec(), value.as_bytes().to_vec(), flags);
        assert!(encoder.encode(field, &mut block).is_ok());
    }
    block
}

fn hpack(criterion: &mut Criterion) {
    let block = envoy_block();
    let mut decoder = Decoder::default();
    criterion.bench_function("hpack/decode_connect", |bencher| {
        bencher.iter(|| {
            let mut bytes = 0;
            let list =
                decoder.decode(black_box(&block), 65_536, |name, value| bytes += name.len() + value.len());
            assert!(list.is_ok());
            bytes
        });
    });
    let mut out = Vec::new();
    criterion.bench_function("hpack/encode_connect", |bencher| {
        bencher.iter(|| {
            out.clear();
            connect_block(&mut out, black_box(&HEAD));
            out.len()
        });
    });
}

fn exchange(criterion: &mut Criterion) {
    let settings = Settings {
        stream_window_bytes: 4 << 20,
        connection_window_bytes: 16 << 20,
        frame_bytes: 1 << 20,
        max_streams: 200,
        header_list_bytes: 65_536,
        start_window_bytes: 256 << 10,
    };
    let now = Instant::now();
    let (mut client, mut server) = (Connection::client(&settings, now), Connection::server(&settings, now));
    let mut events = Vec::new();
    let mut bytes = Vec::new();
    criterion.bench_function("h2/open_answer_close", |bencher| {
        bencher.iter(|| {
            let stream = client.open(&HEAD).ok();
            client.output().clone_into(&mut bytes);
            client.output().clear();
            assert!(server.receive(&bytes, now, &mut events).is_ok());
            if let Some(stream) = stream {
                server.respond(stream, 200, Some(BAGGAGE), true);
                client.finish(stream);
            }
            server.output().clone_into(&mut bytes);
            server.output().clear();
            assert!(client.receive(&bytes, now, &mut events).is_ok());
            client.output().clone_into(&mut bytes);
            client.output().clear();
            assert!(server.receive(&bytes, now, &mut events).is_ok());
            assert!(server.active_streams() == 0 && client.active_streams() == 0);
            events.clear();
        });
    });
}

criterion_group!(benches, hpack, exchange);
criterion_main!(benches);
