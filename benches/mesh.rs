//! The decisions of one connection and the cost of one change, in a mesh of 100,000 workloads.
//! The bench prints the memory a workload takes before it measures.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench stops where it can't go on"
)]

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use ringway::base::net::Captured;
use ringway::base::text::Interner;
use ringway::mesh::admit::{Call, admit};
use ringway::mesh::delta::{Change, apply};
use ringway::mesh::identity::Identity;
use ringway::mesh::policy::{Action, Match, Policy, PolicyScope, StringMatch};
use ringway::mesh::route::{Request, Routed, route};
use ringway::mesh::seen::View;
use ringway::mesh::service::{NetworkIp, Service, ServiceKey};
use ringway::mesh::snapshot::Snapshot;
use ringway::mesh::workload::{Common, PortPair, Protocol, Shared, Workload};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WORKLOADS: u32 = 100_000;
const WORKLOADS_A_SERVICE: u32 = 10;
const POLICIES: usize = 1_000;

fn ip(base: [u8; 2], number: u32) -> IpAddr {
    let [_, high, middle, low] = number.to_be_bytes();
    IpAddr::from([base[0], base[1] + high, middle, low])
}

fn key(number: u32, interner: &mut Interner) -> ServiceKey {
    ServiceKey {
        namespace: interner.intern(&format!("ns-{}", number % 100)),
        hostname: interner.intern(&format!("service-{number}.ns-{}.svc.cluster.local", number % 100)),
    }
}

fn workload(number: u32, shared: &mut Shared) -> Workload {
    let service = number / WORKLOADS_A_SERVICE;
    let name = format!("service-{service}-5d8f9c7b6-{number:05x}");
    let key = key(service, &mut shared.texts);
    let deployment = shared.texts.intern(&format!("service-{service}"));
    let common = Common {
        trust_domain: shared.texts.intern("cluster.local"),
        service_account: deployment.clone(),
        workload_name: deployment.clone(),
        workload_type: shared.texts.intern("deployment"),
        canonical_name: deployment,
        canonical_revision: shared.texts.intern("latest"),
        cluster_id: shared.texts.intern("Kubernetes"),
        network: shared.texts.intern(""),
        services: vec![(key.clone(), vec![PortPair { service: 80, target: 8080 }])],
        namespace: key.namespace,
        ..Common::default()
    };
    Workload {
        addresses: vec![ip([10, 0], number)],
        protocol: Protocol::Hbone,
        node: shared.texts.intern(&format!("node-{}", number % 1_000)),
        common: shared.commons.share(common),
        ..Workload::plain(&format!("Kubernetes//Pod/ns-{}/{name}", service % 100), "", &name)
    }
}

fn service(number: u32, interner: &mut Interner) -> Service {
    let key = key(number, interner);
    Service {
        vips: vec![NetworkIp { network: interner.intern(""), ip: ip([172, 16], number) }],
        ports: vec![PortPair { service: 80, target: 8080 }],
        name: interner.intern(&format!("service-{number}")),
        ..Service::plain(&key.namespace, &key.hostname, "")
    }
}

fn policy(number: usize) -> Change {
    let entry = Match {
        principals: vec![StringMatch::Exact(format!("cluster.local/ns/other/sa/{number}").into())],
        ..Match::default()
    };
    let policy = Policy {
        name: format!("policy-{number}").into(),
        namespace: "istio-system".into(),
        scope: PolicyScope::Global,
        action: Action::Deny,
        rules: vec![vec![vec![entry]]],
        dry_run: false,
    };
    Change::Policy { key: format!("istio-system/policy-{number}").into(), policy: Arc::new(policy) }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("statm");
    pages.split(' ').nth(1).and_then(|count| count.parse::<usize>().ok()).map_or(0, |count| count * 4096)
}

fn build(shared: &mut Shared) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.synced = true;
    let before = resident_bytes();
    // As pushes come: in slices, services first.
    for slice in 0..(WORKLOADS / 1_000) {
        let services = (slice * 100..(slice + 1) * 100).map(|number| Change::Service {
            service: Arc::new(service(number, &mut shared.texts)),
            endpoints: Vec::new(),
        });
        let services: Vec<_> = services.collect();
        let workloads = (slice * 1_000..(slice + 1) * 1_000)
            .map(|number| Change::Workload(Arc::new(workload(number, shared))));
        snapshot = apply(&snapshot, services.into_iter().chain(workloads), Some("node-1"));
    }
    let taken = resident_bytes() - before;
    println!("{} bytes a workload, its tenth of a service included", taken / WORKLOADS as usize);
    snapshot
}

/// A choice among 10,000 endpoints: from the table, and right after a change, when the table is made anew.
fn large_service(criterion: &mut Criterion, snapshot: &Snapshot, source: &Workload, shared: &mut Shared) {
    const ENDPOINTS: u32 = 10_000;
    let large = WORKLOADS;
    let key = key(large, &mut shared.texts);
    let member = |number: u32, capacity, shared: &mut Shared| {
        let mut workload = Workload { capacity, ..workload(WORKLOADS + number, shared) };
        workload.services = vec![(key.clone(), vec![PortPair { service: 80, target: 8080 }])];
        Change::Workload(Arc::new(workload))
    };
    let of = Change::Service { service: Arc::new(service(large, &mut shared.texts)), endpoints: Vec::new() };
    let members: Vec<_> = (0..ENDPOINTS).map(|number| member(number, 1, shared)).collect();
    let snapshot = apply(snapshot, members.into_iter().chain([of]), None);
    let target = Captured(std::net::SocketAddr::new(ip([172, 16], large), 80));
    let mut random = fastrand::Rng::with_seed(1);
    fn request<'a>(snapshot: &'a Snapshot, source: &'a Workload, target: Captured) -> Request<'a> {
        let (caller, view) = (source.addresses[0], View::default());
        Request { snapshot, network: "", source, caller, target, ipv6: true, view }
    }
    assert!(
        matches!(route(&request(&snapshot, source, target), &mut random), Ok(Routed::Go(plan)) if plan.picked.is_some())
    );
    criterion.bench_function("route to a service of 10,000", |bench| {
        bench.iter(|| black_box(route(&request(&snapshot, source, target), &mut random)));
    });
    let mut flip = 1;
    criterion.bench_function("route to a service of 10,000, one of them changed", |bench| {
        bench.iter_batched(
            || {
                flip += 1;
                apply(&snapshot, [member(5, flip, shared)], None)
            },
            |changed| black_box(route(&request(&changed, source, target), &mut random).is_ok()),
            BatchSize::PerIteration,
        );
    });
}

fn decisions(criterion: &mut Criterion) {
    let mut shared = Shared::default();
    let snapshot = build(&mut shared);
    let source = workload(5, &mut shared);

    let mut flip = 0_u32;
    criterion.bench_function("apply one change to 100k workloads", |bench| {
        bench.iter(|| {
            flip += 1;
            let changed = Workload { capacity: flip, ..workload(50_000, &mut shared) };
            black_box(apply(&snapshot, [Change::Workload(Arc::new(changed))], Some("node-1")))
        });
    });
    let mut random = fastrand::Rng::with_seed(1);
    for (name, target) in [
        ("route to a service of 10", "172.16.39.15:80"),
        ("route to a pod", "10.0.200.1:8080"),
        ("route to nobody", "192.0.2.1:443"),
    ] {
        let request = Request {
            snapshot: &snapshot,
            network: "",
            source: &source,
            caller: source.addresses[0],
            target: Captured(target.parse().expect("an address")),
            ipv6: true,
            view: View::default(),
        };
        criterion.bench_function(name, |bench| bench.iter(|| black_box(route(&request, &mut random))));
    }
    large_service(criterion, &snapshot, &source, &mut shared);
    let guarded = apply(&snapshot, (0..POLICIES).map(policy), Some("node-1"));
    let identity: Identity = "spiffe://cluster.local/ns/ns-1/sa/service-1".parse().expect("an identity");
    let call = Call {
        source: ip([10, 0], 1),
        identity: Some(&identity),
        destination: "10.0.0.5:8080".parse().expect("an address"),
        workload: &source,
    };
    criterion
        .bench_function("admit with 1000 policies", |bench| bench.iter(|| black_box(admit(&guarded, &call))));
}

criterion_group!(benches, decisions);
criterion_main!(benches);
