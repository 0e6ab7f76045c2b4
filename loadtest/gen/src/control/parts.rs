//! The measurements: load, churn, and a re-push under traffic.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use prost::Message;
use ringway::wire::pb::discovery::DeltaDiscoveryResponse;
use ringway::wire::pb::workload::{Address, NetworkAddress, Port, PortList, Service};
use ringway_standin::generate::Fleet;
use ringway_standin::mesh::{ADDRESS, AUTHORIZATION, Change};

use super::stage::{Stage, base, side_workload};
use crate::compare::arm::SERVER_PORT;
use crate::compare::progress;
use crate::load::outcome::Outcome;
use crate::load::protocol::{ANSWER_BYTES, Opening, decode_answer};
use crate::netns::enter;
use crate::topology::{Side, namespace_path};

/// Virtual addresses of the probes' services, which refuse connections until the proxy knows them.
pub const PROBES: &str = "172.31.0.0/16";
const PROBE_PORT: u16 = 80;
const PROBE_EVERY: u32 = 50;
const PROBE_PAUSE: Duration = Duration::from_micros(500);
const PROBE_DEADLINE: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(1);
const LOAD_DEADLINE: Duration = Duration::from_secs(300);
const DECODES: usize = 3;

pub type Figures = BTreeMap<&'static str, f64>;

/// How long the resident size is given to come to rest.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub fleet: Fleet,
    pub rest: Duration,
    pub updates_per_s: u32,
    pub churn: Duration,
    pub repush: Duration,
}

/// A start with the whole mesh beside a start with two pods, and prost alone on the same messages.
pub fn load(stage: &Stage, size: Size) -> Result<Figures> {
    let (few, many) = (base().prepare(), everything(size.fleet, 0).prepare());
    stage.standin.mesh().reset(few);
    let (idle, _) = stage.start(LOAD_DEADLINE)?;
    std::thread::sleep(SETTLE);
    let idle_usage = idle.process.usage();
    drop(idle);
    stage.standin.mesh().reset(many);
    let messages = [ADDRESS, AUTHORIZATION].map(|type_url| stage.standin.mesh().response(type_url));
    let wire = messages.iter().map(|message| message.len()).sum::<usize>() as f64;
    let decode_s = decode_cpu_s(&messages)?;
    let (mut proxy, synced) = stage.start(LOAD_DEADLINE)?;
    std::thread::sleep(SETTLE);
    let used = proxy.process.usage();
    let peak = proxy.process.peak_bytes();
    std::thread::sleep(size.rest);
    let resting = proxy.process.usage();
    stage.settle(&mut proxy, SETTLE)?;
    exchange(stage)?;
    check(stage, size.fleet, &BTreeMap::new(), 0)?;
    drop(proxy);

    let workloads = f64::from(size.fleet.workloads);
    let load_s = (used.cpu_seconds - idle_usage.cpu_seconds).max(0.0);
    let grown = (resting - idle_usage).anonymous_bytes as f64;
    Ok(Figures::from([
        ("load_s", synced.as_secs_f64()),
        ("load_cpu_us_per_workload", load_s * 1e6 / workloads),
        ("decode_cpu_us_per_workload", decode_s * 1e6 / workloads),
        ("load_cpu_to_decode_cpu", load_s / decode_s),
        ("bytes_per_workload", grown / workloads),
        ("wire_bytes_per_workload", wire / workloads),
        ("rest_mb", resting.memory_bytes as f64 / 1e6),
        ("peak_mb", peak as f64 / 1e6),
        ("peak_to_rest", peak as f64 / resting.memory_bytes as f64),
    ]))
}

/// Updates at a fixed rate; every fiftieth makes an address valid, and a client in the pod tries it until it is.
pub fn churn(stage: &Stage, size: Size) -> Result<Figures> {
    stage.standin.mesh().reset(everything(size.fleet, 0).prepare());
    let (mut proxy, _) = stage.start(LOAD_DEADLINE)?;
    exchange(stage)?;
    std::thread::sleep(SETTLE);
    let (tell, told) = channel();
    let pod = namespace_path(&stage.topology.pod(Side::Client));
    let prober = std::thread::Builder::new().name("probes".into()).spawn(move || {
        enter(&pod)?;
        probe(&told)
    })?;
    let before = proxy.process.usage();
    let begun = Instant::now();
    let updates = u32::try_from(size.churn.as_secs())?.saturating_mul(size.updates_per_s);
    let mut revisions = BTreeMap::new();
    for step in 0..updates {
        let due = begun + Duration::from_secs(1) * step / size.updates_per_s;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if step % PROBE_EVERY == PROBE_EVERY - 1 {
            let number = step / PROBE_EVERY;
            let change = probe_change(number).prepare();
            tell.send((probe_address(number), Instant::now())).context("the probes ended early")?;
            stage.standin.mesh().publish(change);
        } else {
            let workload = size.fleet.churn(step);
            revisions.insert(workload.uid.clone(), workload.canonical_revision.clone());
            stage.standin.mesh().put([workload]);
        }
    }
    let took = begun.elapsed().as_secs_f64();
    drop(tell);
    let mut waits = prober.join().ok().context("the probes' thread")??;
    stage.settle(&mut proxy, LOAD_DEADLINE)?;
    let used = proxy.process.usage() - before;
    ensure!(!waits.is_empty(), "no probe was made");
    check(stage, size.fleet, &revisions, 0)?;
    waits.sort();
    let at = |percent: usize| {
        let place = ((waits.len() - 1) * percent).div_ceil(100);
        waits.get(place).map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e3)
    };
    Ok(Figures::from([
        ("updates_per_s", f64::from(updates) / took),
        ("effective_p50_ms", at(50)),
        ("effective_p99_ms", at(99)),
        ("effective_max_ms", at(100)),
        ("probes", waits.len() as f64),
        ("cpu_us_per_update", used.cpu_seconds * 1e6 / f64::from(updates)),
    ]))
}

/// A 1 kHz echo, first while nothing else happens, then while every workload is pushed anew.
pub fn repush(stage: &Stage, size: Size, rounds: u32) -> Result<Figures> {
    stage.standin.mesh().reset(everything(size.fleet, 0).prepare());
    let (mut proxy, _) = stage.start(LOAD_DEADLINE)?;
    exchange(stage)?;
    std::thread::sleep(SETTLE);
    let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut put = |figure, value| found.entry(figure).or_default().push(value);
    for round in 1..=rounds {
        let begun = Instant::now();
        let (calm, calm_p999) = echo(stage, size.repush, || Ok(()))?;
        // Encoded before: the stand-in's work is not the proxy's.
        let again = Change { put: size.fleet.all_workloads(round).collect(), remove: vec![] }.prepare();
        let mut applied = Duration::ZERO;
        let (busy, busy_p999) = echo(stage, size.repush, || {
            let begun = Instant::now();
            stage.standin.mesh().publish(again);
            stage.wait(&mut proxy, size.repush, "the re-push is on its way", || {
                stage.standin.responses() > 0
            })?;
            stage.settle(&mut proxy, size.repush)?;
            applied = begun.elapsed();
            Ok(())
        })?;
        check(stage, size.fleet, &BTreeMap::new(), round)?;
        progress(&format!("re-push {round}: gap {busy:.1} ms, quiet {calm:.1} ms"), begun);
        put("quiet_gap_ms", calm);
        put("quiet_p999_ms", calm_p999);
        put("repush_gap_ms", busy);
        put("repush_p999_ms", busy_p999);
        put("gap_more_ms", busy - calm);
        put("repush_s", applied.as_secs_f64());
    }
    Ok(found.into_iter().map(|(figure, values)| (figure, median(values))).collect())
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied().unwrap_or(f64::NAN);
    let lower = values.get((values.len().max(1) - 1) / 2).copied().unwrap_or(f64::NAN);
    f64::midpoint(lower, upper)
}

fn everything(fleet: Fleet, generation: u32) -> Change {
    let mut change = base();
    change.put.extend(fleet.everything(generation).put);
    change
}

/// CPU seconds of prost on exactly what the stand-in sends at a start: the response, and each address in it.
fn decode_cpu_s(messages: &[Bytes]) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..DECODES {
        let before = thread_cpu_s()?;
        for message in messages {
            let response = DeltaDiscoveryResponse::decode(message.clone())?;
            if response.type_url == ADDRESS {
                for resource in response.resources {
                    black_box(Address::decode(resource.resource.context("no value")?.value)?);
                }
            }
        }
        times.push(thread_cpu_s()? - before);
    }
    Ok(median(times))
}

/// Of the calling thread, by the scheduler's own count.
fn thread_cpu_s() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns: u64 = text.split(' ').next().context("schedstat")?.parse()?;
    Ok(Duration::from_nanos(ns).as_secs_f64())
}

/// The proxy's mesh is the stand-in's: each workload once, in its newest revision.
fn check(stage: &Stage, fleet: Fleet, changed: &BTreeMap<String, String>, generation: u32) -> Result<()> {
    /// A dump of more is a test of JSON.
    const MOST: u32 = 200_000;
    if fleet.workloads > MOST {
        return Ok(());
    }
    let mut expected: BTreeMap<String, String> = (0..fleet.workloads)
        .map(|number| fleet.workload(number, generation))
        .chain([Side::Client, Side::Server].map(side_workload))
        .map(|workload| (workload.uid, workload.canonical_revision))
        .collect();
    expected.extend(changed.clone());
    let held = stage.revisions()?;
    let differing = expected.iter().find(|(uid, revision)| held.get(*uid) != Some(revision));
    ensure!(
        differing.is_none() && held.len() == expected.len(),
        "the proxy holds {} workloads instead of {}; the first that differs: {differing:?}",
        held.len(),
        expected.len()
    );
    Ok(())
}

/// A connection is carried to the server.
fn exchange(stage: &Stage) -> Result<()> {
    let mut load = stage.load(&["rr", "--seconds", "0.1"])?;
    load.proceed()?;
    let outcome: Outcome = serde_json::from_str(&load.line(LOAD_DEADLINE)?)?;
    ensure!(outcome.errors == 0 && outcome.operations > 0, "no connection is carried: {outcome:?}");
    Ok(())
}

/// The longest that an answer took, and that one in a thousand took longer than, in ms.
fn echo(stage: &Stage, during: Duration, then: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let seconds = during.as_secs_f64().to_string();
    let small = ["--request-bytes", "64", "--response-bytes", "64"];
    let mut arguments = vec!["rr", "--rate", "1000", "--seconds", &seconds];
    arguments.extend(small);
    let mut load = stage.load(&arguments)?;
    stage.standin.forget();
    load.proceed()?;
    then()?;
    let outcome: Outcome = serde_json::from_str(&load.line(LOAD_DEADLINE)?)?;
    ensure!(outcome.errors == 0 && outcome.unanswered == 0, "the echo failed: {outcome:?}");
    let latency = outcome.latency.context("no echo came back")?;
    Ok((latency.max_us as f64 / 1e3, latency.p999_us as f64 / 1e3))
}

/// A new service in front of the server, whose workload says so.
fn probe_change(number: u32) -> Change {
    let (name, namespace) = (format!("probe-{number}"), "default");
    let hostname = format!("{name}.{namespace}.svc.cluster.local");
    let ports = vec![Port { service_port: PROBE_PORT.into(), target_port: SERVER_PORT.into() }];
    let mut server = side_workload(Side::Server);
    server.services.insert(format!("{namespace}/{hostname}"), PortList { ports: ports.clone() });
    let address = Bytes::copy_from_slice(&probe_address(number).octets());
    let service = Service {
        name,
        namespace: namespace.to_owned(),
        hostname,
        addresses: vec![NetworkAddress { address, ..NetworkAddress::default() }],
        ports,
        canonical: true,
        ..Service::default()
    };
    Change { put: vec![service.into(), server.into()], remove: vec![] }
}

fn probe_address(number: u32) -> Ipv4Addr {
    const FIRST: Ipv4Addr = Ipv4Addr::new(172, 31, 0, 1);
    Ipv4Addr::from_bits(FIRST.to_bits() + number)
}

/// How long each address took from its push until a connection through it was carried and answered.
fn probe(told: &Receiver<(Ipv4Addr, Instant)>) -> Result<Vec<Duration>> {
    let mut waits = Vec::new();
    for (address, pushed) in told {
        while !is_served(SocketAddr::from((address, PROBE_PORT))) {
            ensure!(
                pushed.elapsed() < PROBE_DEADLINE,
                "{address} isn't served {PROBE_DEADLINE:?} after its push"
            );
            std::thread::sleep(PROBE_PAUSE);
        }
        waits.push(pushed.elapsed());
    }
    Ok(waits)
}

fn is_served(address: SocketAddr) -> bool {
    let attempt = || {
        let mut stream = TcpStream::connect_timeout(&address, PROBE_DEADLINE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PROBE_DEADLINE))?;
        stream.write_all(&Opening::Exchange { request_bytes: 1, response_bytes: 1 }.encode())?;
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer)?;
        Ok::<_, std::io::Error>(decode_answer(&answer).is_some())
    };
    attempt().unwrap_or(false)
}
