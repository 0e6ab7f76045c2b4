//! The answer to one DNS query from bytes to bytes, without the socket, in a mesh of 100,000 services: the goal is
//! 50,000 a second and core with the socket, so an answer may take a few microseconds.

#![allow(clippy::expect_used, reason = "a bench stops where it can't go on")]

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use ringway::mesh::delta::{Change, apply};
use ringway::mesh::dns::{Asker, Names};
use ringway::mesh::service::{NetworkIp, Service};
use ringway::mesh::snapshot::Snapshot;
use ringway::wire::dns::answer::{Owned, write};
use ringway::wire::dns::{Family, Query, write_query};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SERVICES: u32 = 100_000;

fn service(number: u32, host: &str) -> Change {
    let vip = NetworkIp { network: "".into(), ip: IpAddr::from(number.to_be_bytes()) };
    let namespace = format!("ns-{}", number % 100);
    let service = Service { vips: vec![vip], ..Service::plain(&namespace, host, host) };
    Change::Service { service: Arc::new(service), endpoints: Vec::new() }
}

/// Whether the mesh had an answer.
fn answer(snapshot: &Snapshot, names: &Names, message: &[u8], out: &mut Vec<u8>) -> bool {
    let query = Query::parse(message).expect("a query");
    let host = query.question.as_ref().and_then(|question| question.host.as_deref()).expect("a host");
    let search = names.search("ns-7");
    let asker = Asker { namespace: "ns-7", network: "", search: &search };
    let Some(found) = names.look_up(snapshot, asker, host) else { return false };
    let mut addresses = Vec::new();
    names.addresses(snapshot, asker, found.service, false, &mut addresses);
    out.clear();
    write(message, &query, Owned { alias: found.alias, addresses: &addresses }, 1_232, out);
    true
}

fn answers(criterion: &mut Criterion) {
    let names = Names::new("cluster.local", None, true);
    let services = (0..SERVICES)
        .map(|number| service(number, &format!("web-{number}.ns-{}.svc.cluster.local", number % 100)));
    let wild = [service(SERVICES, "*.example.com"), service(SERVICES + 7, "*.apps.example.com")];
    let snapshot = apply(&Snapshot::default(), services.chain(wild), None);
    let mut out = Vec::new();
    for (what, host, owned) in [
        ("a whole name", "web-7.ns-7.svc.cluster.local", true),
        ("a short name", "web-7", true),
        ("a name behind a search domain", "web-7.ns-7.ns-7.svc.cluster.local", true),
        ("a wildcard", "a.b.apps.example.com", true),
        ("a foreign name, which will be forwarded", "www.a.very.far.example.org", false),
        ("a foreign name behind a search domain", "www.example.org.ns-7.svc.cluster.local", false),
        ("a foreign name of 100 labels", &["a"; 100].join("."), false),
    ] {
        let mut message = Vec::new();
        assert!(write_query(host, Family::V4, &mut message));
        assert_eq!(answer(&snapshot, &names, &message, &mut out), owned, "{host}");
        criterion.bench_function(&format!("answer: {what}"), |bench| {
            bench.iter(|| black_box(answer(&snapshot, &names, black_box(&message), &mut out)));
        });
    }
}

criterion_group!(benches, answers);
criterion_main!(benches);
