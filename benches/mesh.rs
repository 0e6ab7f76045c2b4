//! The decisions of one connection and the cost of one change, in a mesh of 100,000 workloads.
//! The bench prints the memory a workload takes before it measures.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench stops where it can't go on"
)]

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use ringway::base::net::Captured;
use ringway::base::text::Interner;
use ringway::bridge::report::LiveProtocol;
use ringway::mesh::admit::{Call, admit};
use ringway::mesh::delta::{Change, apply};
use ringway::mesh::identity::{Identity, TrustDomains};
use ringway::mesh::policy::{Action, Match, Policy, PolicyScope, StringMatch};
use ringway::mesh::route::{Request, Routed, route};
use ringway::mesh::seen::View;
use ringway::mesh::service::{NetworkIp, Service, ServiceKey};
use ringway::mesh::snapshot::Snapshot;
use ringway::mesh::workload::{Common, PortPair, Protocol, Shared, Workload};
use ringway::shard::closer::Closer;
use ringway::shard::table::{Entered, Entry, Original, Subject, Table};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WORKLOADS: u32 = 100_000;
const WORKLOADS_A_SERVICE: u32 = 10;
const POLICIES: usize = 10_000;
const LIVE: usize = 20_000;

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

/// Ten rules, each for another service account.
fn policy(number: usize, scope: PolicyScope) -> Change {
    let rule = |rule: usize| {
        let principal = StringMatch::Exact(format!("cluster.local/ns/other/sa/{number}-{rule}").into());
        let entry = Match {
            principals: vec![principal],
            not_source_ips: vec!["192.0.2.0/24".parse().expect("a range")],
            ..Match::default()
        };
        vec![vec![entry]]
    };
    let policy = Policy {
        name: format!("policy-{number}").into(),
        namespace: "istio-system".into(),
        scope,
        action: Action::Deny,
        rules: (0..10).map(rule).collect(),
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
    let target = Captured(SocketAddr::new(ip([172, 16], large), 80));
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
    verdicts(criterion, &snapshot, source);
}

/// What a decision costs with 10,000 policies of 10 rules each, and what asking 20,000 open connections again.
fn verdicts(criterion: &mut Criterion, snapshot: &Snapshot, source: Workload) {
    let identity: Identity = "spiffe://cluster.local/ns/ns-1/sa/service-1".parse().expect("an identity");
    let domains = TrustDomains::default();
    for (name, scope) in [
        ("admit with 10k policies of which 3 are named", PolicyScope::WorkloadSelector),
        ("admit with 10k policies for everybody", PolicyScope::Global),
    ] {
        let guarded = apply(snapshot, (0..POLICIES).map(|number| policy(number, scope)), Some("node-1"));
        let mut workload = source.clone();
        if scope == PolicyScope::WorkloadSelector {
            workload.authorization_policies =
                [5, 50, 500].map(|number| format!("istio-system/policy-{number}").into()).to_vec();
        }
        let call = Call {
            source: ip([10, 0], 1),
            identity: Some(&identity),
            destination: "10.0.0.5:8080".parse().expect("an address"),
            workload: &workload,
            domains: &domains,
        };
        criterion.bench_function(name, |bench| bench.iter(|| black_box(admit(&guarded, &call))));
        let mut flip = false;
        criterion.bench_function(&format!("apply one change to them: {scope:?}"), |bench| {
            bench.iter(|| {
                flip = !flip;
                let Change::Policy { key, policy } = policy(POLICIES / 2, scope) else { unreachable!() };
                let policy = Arc::new(Policy { dry_run: flip, ..(*policy).clone() });
                black_box(apply(&guarded, [Change::Policy { key, policy }], Some("node-1")))
            });
        });
    }
    let (table, entered) = live(snapshot, &source, &identity);
    let denied = apply(snapshot, [policy(1, PolicyScope::Global)], Some("node-1"));
    let mut flip = false;
    criterion.bench_function("ask 20k open connections again", |bench| {
        bench.iter(|| {
            flip = !flip;
            let snapshot = if flip { &denied } else { snapshot };
            let mut asked = 0;
            for touched in table.touched(snapshot, "") {
                let mut next = Some(0);
                while let Some(from) = next {
                    next = touched.group.each(from, 512, |_, subject| {
                        asked += 1;
                        assert!(table.objection(&touched, subject, snapshot).is_none());
                    });
                }
                touched.settle(snapshot);
            }
            assert_eq!(asked, LIVE);
        });
    });
    criterion.bench_function("see that no open connection has to be asked again", |bench| {
        bench.iter(|| black_box(table.touched(if flip { &denied } else { snapshot }, "").len()));
    });
    drop(entered);
}

fn live(snapshot: &Snapshot, workload: &Workload, identity: &Identity) -> (Rc<Table>, Vec<Entered>) {
    let table = Rc::new(Table::default());
    let workload = Arc::new(workload.clone());
    let enter = |port: usize| {
        let source = SocketAddr::new(ip([10, 0], 1), u16::try_from(port).unwrap_or(u16::MAX));
        let destination = "10.0.0.5:8080".parse().expect("an address");
        let subject =
            Subject { source: source.ip(), identity: Some(identity.clone()), destination, asked: None };
        let entry = Entry {
            pod: "uid".into(),
            src: source,
            original: Original::Host(None),
            actual_dst: destination,
            protocol: LiveProtocol::Hbone,
            closer: Closer::default(),
            subject: Some(Box::new(subject)),
            detail: None,
        };
        table.enter_at(&workload, snapshot, entry)
    };
    let entered = (0..LIVE).map(enter).collect();
    (table, entered)
}

criterion_group!(benches, decisions);
criterion_main!(benches);
