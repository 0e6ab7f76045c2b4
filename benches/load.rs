//! A whole mesh as the control plane sends it: what reading and keeping it costs, in CPU beside decoding the same
//! message with prost, and in memory; then one change of it. Prints figures; loads 100,000 workloads of 2,000
//! services, or as many as WORKLOADS says.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench stops where it can't go on"
)]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use ringway::base::text::Text;
use ringway::mesh::delta::{Change, apply};
use ringway::mesh::snapshot::Snapshot;
use ringway::wire::pb::{discovery, workload as pb};
use ringway::wire::xds::{Address, Memory, Response, address};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// As in the program itself.
#[expect(unsafe_code, reason = "the allocator reads its options from this symbol")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_OPTIONS: &[u8; 114] =
    b"narenas:4,background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,\
    tcache_max:8192,prof:true,prof_active:false\0";

const SERVICES: u32 = 2_000;
const CHANGES: u32 = 10_000;

fn hostname(service: u32) -> (String, String) {
    let namespace = format!("namespace-{}", service % 100);
    (format!("service-{service}.{namespace}.svc.cluster.local"), namespace)
}

fn service(number: u32) -> pb::Service {
    let (hostname, namespace) = hostname(number);
    pb::Service {
        name: format!("service-{number}"),
        namespace,
        hostname,
        addresses: vec![pb::NetworkAddress {
            network: "network-1".into(),
            address: (0x0aff_0000_u32 + number).to_be_bytes().to_vec().into(),
            length: None,
        }],
        ports: vec![
            pb::Port { service_port: 80, target_port: 8080 },
            pb::Port { service_port: 443, target_port: 8443 },
        ],
        ..pb::Service::default()
    }
}

fn workload(number: u32, capacity: u32) -> pb::Workload {
    let service = number % SERVICES;
    let (hostname, namespace) = hostname(service);
    let name = format!("service-{service}-7d9c5b8f6d-{number:05x}");
    // A zone follows from the node.
    let node = number / 3 % 1_000;
    pb::Workload {
        uid: format!("Kubernetes//Pod/{namespace}/{name}"),
        name,
        addresses: vec![(0x0a00_0000 + number).to_be_bytes().to_vec().into()],
        network: "network-1".into(),
        tunnel_protocol: pb::TunnelProtocol::Hbone.into(),
        trust_domain: "cluster.local".into(),
        service_account: format!("service-{service}"),
        node: format!("ip-10-0-{}-{}.eu-central-1.compute.internal", node / 256, node % 256),
        canonical_name: format!("service-{service}"),
        canonical_revision: "latest".into(),
        workload_name: format!("service-{service}"),
        cluster_id: "Kubernetes".into(),
        services: [(
            format!("{namespace}/{hostname}"),
            pb::PortList {
                ports: vec![
                    pb::Port { service_port: 80, target_port: 8080 },
                    pb::Port { service_port: 443, target_port: 8443 },
                ],
            },
        )]
        .into(),
        locality: Some(pb::Locality {
            region: "eu-central-1".into(),
            zone: format!("eu-central-1{}", ["a", "b", "c"].get(node as usize % 3).expect("three zones")),
            subzone: String::new(),
        }),
        namespace,
        capacity: Some(capacity),
        ..pb::Workload::default()
    }
}

fn resource(form: pb::address::Type, version: u32) -> discovery::Resource {
    let name = match &form {
        pb::address::Type::Workload(workload) => workload.uid.clone(),
        pb::address::Type::Service(service) => format!("{}/{}", service.namespace, service.hostname),
    };
    let value = pb::Address { r#type: Some(form) }.encode_to_vec();
    discovery::Resource {
        version: format!("2026-11-30T10:00:00Z/{version}"),
        resource: Some(discovery::Payload {
            type_url: ringway::wire::xds::ADDRESS_TYPE.into(),
            value: value.into(),
        }),
        name,
        aliases: Vec::new(),
    }
}

fn message(workloads: u32) -> Bytes {
    let services = (0..SERVICES).map(|number| resource(pb::address::Type::Service(service(number)), 1));
    let pods = (0..workloads).map(|number| resource(pb::address::Type::Workload(workload(number, 1)), 1));
    discovery::DeltaDiscoveryResponse {
        system_version_info: "1".into(),
        resources: services.chain(pods).collect(),
        type_url: ringway::wire::xds::ADDRESS_TYPE.into(),
        nonce: "1".into(),
        removed_resources: Vec::new(),
    }
    .encode_to_vec()
    .into()
}

fn by_prost(message: &Bytes) {
    let response = discovery::DeltaDiscoveryResponse::decode(message.clone()).expect("a response");
    for resource in response.resources {
        let payload = resource.resource.expect("a payload");
        black_box(pb::Address::decode(payload.value).expect("an address"));
    }
}

/// What the control thread keeps of a load.
struct Kept {
    snapshot: Snapshot,
    memory: Memory,
    versions: HashMap<Text, Box<str>, foldhash::fast::RandomState>,
}

/// Time on the CPU of reading, of applying.
fn load(message: &Bytes) -> (Kept, Duration, Duration) {
    let start = cpu();
    let (mut memory, mut versions) = (Memory::default(), HashMap::default());
    let response = Response::parse(message.clone()).expect("a response");
    let mut changes = Vec::new();
    for resource in response.resources() {
        let resource = resource.expect("a resource");
        let change = match address(resource.value, &mut memory).expect("an address") {
            Address::Workload(workload) => {
                versions.insert(workload.uid.clone(), resource.version.into());
                Change::Workload(Arc::new(workload))
            }
            Address::Service(service) => {
                Change::Service { service: Arc::new(service), endpoints: Vec::new() }
            }
        };
        changes.push(change);
    }
    let read = cpu();
    let snapshot = apply(&Snapshot::default(), changes, Some("node-1"));
    (Kept { snapshot, memory, versions }, read - start, cpu() - read)
}

/// Changes of one workload each; every snapshot is kept until the next stands.
fn change(kept: &mut Kept, workloads: u32) -> (Duration, Duration) {
    let messages: Vec<_> = (0..CHANGES)
        .map(|turn| workload(turn.wrapping_mul(7_919) % workloads, turn + 2))
        .map(|form| pb::Address { r#type: Some(pb::address::Type::Workload(form)) }.encode_to_vec())
        .collect();
    let start = cpu();
    let read: Vec<_> = messages
        .iter()
        .map(|message| match address(message, &mut kept.memory) {
            Ok(Address::Workload(workload)) => Change::Workload(Arc::new(workload)),
            other => panic!("no workload: {other:?}"),
        })
        .collect();
    let between = cpu();
    for change in read {
        kept.snapshot = apply(&kept.snapshot, [change], Some("node-1"));
    }
    ((between - start) / CHANGES, (cpu() - between) / CHANGES)
}

/// This thread's time on a CPU, told by the kernel's tick: others on the machine don't count.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    Duration::from_nanos(text.split(' ').next().and_then(|count| count.parse().ok()).expect("nanoseconds"))
}

/// Resident memory once the allocator has given back what is free.
fn resident_bytes() -> u64 {
    let read = || {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("statm");
        pages.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).map_or(0, |count| count * 4096)
    };
    let (start, mut last) = (Instant::now(), u64::MAX);
    while start.elapsed() < Duration::from_secs(40) {
        std::thread::sleep(Duration::from_secs(4));
        let now = read();
        if now == last {
            break;
        }
        last = now;
    }
    last
}

fn main() {
    // Tried, not measured: by `cargo test` and by the smoke run.
    let arguments: Vec<_> = std::env::args().collect();
    let said = |argument: &str| arguments.iter().any(|said| said == argument);
    if said("--test") || !said("--bench") {
        let (mut kept, _, _) = load(&message(SERVICES));
        change(&mut kept, SERVICES);
        return;
    }
    let workloads: u32 =
        std::env::var("WORKLOADS").map_or(100_000, |text| text.parse().expect("WORKLOADS is a number"));
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(workloads) / 1_000.0;
    let message = message(workloads);
    println!("{} bytes of message a workload", message.len() / workloads as usize);
    let mut best = [Duration::MAX; 3];
    let mut kept = None;
    for _ in 0..3 {
        drop(kept.take());
        let start = cpu();
        by_prost(&message);
        let decoded = cpu() - start;
        let (load, read, applied) = load(&message);
        for (best, now) in best.iter_mut().zip([decoded, read, applied]) {
            *best = now.min(*best);
        }
        kept = Some(load);
    }
    let [decoded, read, applied] = best;
    println!("prost alone {:.2} us a workload", each(decoded));
    println!(
        "read {:.2} us, apply {:.2} us: {:.2} times prost",
        each(read),
        each(applied),
        (read + applied).as_secs_f64() / decoded.as_secs_f64()
    );
    let mut kept = kept.expect("three loads");
    let (reading, applying) = change(&mut kept, workloads);
    println!("one change: read {reading:?}, apply {applying:?}");
    let with = resident_bytes();
    let versions = std::mem::take(&mut kept.versions);
    println!("{} versions", versions.len());
    drop(versions);
    let without = resident_bytes();
    drop(kept);
    let nothing = resident_bytes();
    println!(
        "{} bytes a workload, {} of them versions",
        (with - nothing) / u64::from(workloads),
        (with - without) / u64::from(workloads)
    );
}
