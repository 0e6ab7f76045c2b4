//! What an answer of the DNS proxy costs through real sockets: a pod asks names of the mesh by datagram, captured as
//! istio-cni captures them; the proxy has one CPU, the asker another.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ringway::demo::cluster::{Cluster, ClusterPlan};
use ringway::demo::mesh_file::FileService;
use ringway::demo::topology::Pod;
use ringway::wire::dns::{Family, Header, Rcode, reply, set_id, write_query};
use rustix::thread::{CpuSet, sched_setaffinity};

const SOCKETS: usize = 16;
/// Queries of one socket that wait for their answer.
const WINDOW: u16 = 8;
const PATIENCE: Duration = Duration::from_millis(500);
const PROXY_CPU: &str = "0";
const ASKER_CPU: usize = 1;

/// Answers a second of the DNS proxy on one core.
#[derive(Debug, clap::Args)]
pub struct Names {
    /// The product's binary.
    #[arg(long, env = "RINGWAY_BIN")]
    ringway: PathBuf,
    /// Services of the mesh, each asked in turn.
    #[arg(long, default_value_t = 1_000)]
    services: u16,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// One round.
struct Round {
    answers: u32,
    lost: u32,
    wall: Duration,
    /// Of the proxy.
    cpu: Duration,
}

#[expect(clippy::print_stdout, reason = "the result of a command-line tool")]
pub fn names(arguments: &Names) -> Result<()> {
    ensure!(arguments.services > 0 && arguments.rounds > 0, "at least one service and one round");
    let environment = vec![("ISTIO_META_DNS_CAPTURE".to_owned(), "true".to_owned())];
    let plan = ClusterPlan { kind: "rwnames", nodes: 1, binary: arguments.ringway.clone(), environment };
    let mut cluster = Cluster::build(plan)?;
    cluster.through = ["taskset", "-c", PROXY_CPU].map(str::to_owned).to_vec();
    let client = cluster.mesh_pod(1, "client")?;
    for number in 0..arguments.services {
        let vip = vip(number).to_string();
        cluster.mesh.services.push(FileService::new(&format!("web-{number}"), &[&vip], &[(80, 80)]));
    }
    cluster.start()?;
    let server = SocketAddr::from((cluster.topology.node(1)?.v4, 53));
    let proxy = cluster.proxy(1)?;
    println!("| round | answers/s | lost | proxy CPU an answer | answers/s a core |");
    println!("|--:|--:|--:|--:|--:|");
    // Everything is warm after the first one.
    for number in 0..=arguments.rounds {
        let before = proxy.cpu_time()?;
        let mut round = ask(&client, server, arguments)?;
        round.cpu = proxy.cpu_time()?.saturating_sub(before);
        if number > 0 {
            tell(number, &round);
        }
        ensure!(round.lost * 1_000 <= round.answers, "{} of {} queries lost", round.lost, round.answers);
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result of a command-line tool")]
fn tell(number: usize, round: &Round) {
    let answers = f64::from(round.answers);
    let cpu_us = round.cpu.as_secs_f64() * 1e6 / answers;
    println!(
        "| {number} | {:.0} | {} | {cpu_us:.2} µs | {:.0} |",
        answers / round.wall.as_secs_f64(),
        round.lost,
        1e6 / cpu_us
    );
}

fn vip(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 78, high, low).into()
}

/// Asks from the pod for a while, every answer checked.
fn ask(client: &Pod, server: SocketAddr, arguments: &Names) -> Result<Round> {
    let (services, time) = (arguments.services, Duration::from_secs_f64(arguments.seconds));
    client.space.enter(move || -> Result<Round> {
        let mut cpus = CpuSet::new();
        cpus.set(ASKER_CPU);
        sched_setaffinity(None, &cpus).context("a CPU for the asker")?;
        let mut askers = (0..SOCKETS).map(|_| Asker::new(server)).collect::<Result<Vec<_>>>()?;
        let mut round = Round { answers: 0, lost: 0, wall: Duration::ZERO, cpu: Duration::ZERO };
        let (started, mut next) = (Instant::now(), 0);
        while started.elapsed() < time {
            for asker in &mut askers {
                asker.collect(&mut round)?;
                for _ in 0..WINDOW {
                    asker.ask(next)?;
                    next = (next + 1) % services;
                }
            }
        }
        for asker in &mut askers {
            asker.collect(&mut round)?;
        }
        round.wall = started.elapsed();
        Ok(round)
    })?
}

/// One socket, with the services that its queries are about: a query's id is the service's number.
struct Asker {
    socket: UdpSocket,
    asked: Vec<u16>,
}

impl Asker {
    fn new(server: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, asked: Vec::new() })
    }

    fn ask(&mut self, number: u16) -> Result<()> {
        let mut message = Vec::new();
        let host = format!("web-{number}.default.svc.cluster.local");
        ensure!(write_query(&host, Family::V4, &mut message), "{host} is no name");
        set_id(&mut message, number);
        self.socket.send(&message)?;
        self.asked.push(number);
        Ok(())
    }

    /// Takes what was asked for; what doesn't come is lost.
    fn collect(&mut self, round: &mut Round) -> Result<()> {
        let mut buffer = [0; 1_500];
        while !self.asked.is_empty() {
            let count = match self.socket.recv(&mut buffer) {
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    round.lost += u32::try_from(self.asked.len())?;
                    self.asked.clear();
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            let message = buffer.get(..count).unwrap_or_default();
            let Some(header) = Header::read(message) else { bail!("an answer of {count} bytes") };
            let place = self.asked.iter().position(|number| *number == header.id);
            // One that came after its time was lost already.
            let Some(place) = place else { continue };
            let number = self.asked.swap_remove(place);
            let right = header.rcode() == Rcode::NoError && reply::addresses(message) == [vip(number)];
            ensure!(right, "a wrong answer for web-{number}: {message:?}");
            round.answers += 1;
        }
        Ok(())
    }
}
