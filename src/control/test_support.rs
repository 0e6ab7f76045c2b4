//! What several tests of the control layer stand on: settings, and shards that are threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crate::base::text::Text;
use crate::bridge::flow::{
    Flow, FlowEnd, FlowPage, FlowVerdict, LiveDetail, Parties, PodTraffic, ShardStatus,
};
use crate::bridge::mailbox::{Letterbox, Mailbox, mailbox};
use crate::bridge::order::Order;
use crate::bridge::report::{LastWord, LiveConnection, LiveProtocol, Report, ShardStats};
use crate::bridge::settings::{DnsSettings, Settings};
use crate::mesh::dns::Names;
use crate::mesh::identity::TrustDomains;
use crate::wire::access_log::Direction;

pub fn settings() -> Settings {
    let any = |port| std::net::SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), port);
    Settings {
        proxy: true,
        inbound: any(15_008),
        inbound_plaintext: any(15_006),
        outbound: any(15_001),
        socks5: Vec::new(),
        connect: Vec::new(),
        socks5_early_reply: false,
        illegal_ports: vec![15_001, 15_006, 15_008],
        network: Text::default(),
        dns: DnsSettings {
            addresses: Vec::new(),
            names: Names::new("cluster.local", None, true),
            name_servers: Vec::new(),
            search: None,
            timeout: Duration::from_secs(1),
            attempts: 1,
            patience: Duration::from_secs(1),
            cache: true,
            follows_asker: true,
        },
        trust_domains: TrustDomains::default(),
        policy_info: false,
        original_source: None,
        mark: None,
        port_reuse: true,
        ipv6: true,
        keepalive: None,
        stream_window_bytes: 4 << 20,
        connection_window_bytes: 16 << 20,
        frame_bytes: 1 << 20,
        pool_streams: 100,
        pool_idle: Duration::from_secs(300),
        certificate_deadline: Duration::from_secs(1),
        workload_deadline: Duration::from_secs(1),
        on_demand: false,
        termination_deadline: Duration::from_secs(5),
        response_baggage: false,
        localhost_app_tunnel: false,
        retries: 2,
        ejection: Duration::from_secs(10),
        least_connections: false,
        log_json: false,
        access_log_per_million: 1_000_000,
        pod_shards: 2,
        shards: 2,
    }
}

/// Shards that answer every order at once until dropped.
pub struct Shards {
    pub mailboxes: Vec<Mailbox<Order>>,
    pub reports: Option<Letterbox<Report>>,
    pub threads: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Shards {
    /// `stats` is what shard n says of itself.
    pub fn start(count: usize, stats: fn(usize) -> ShardStats) -> Self {
        let (report, reports) = mailbox(1_000).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (mailboxes, boxes): (Vec<_>, Vec<_>) = (0..count).map(|_| mailbox::<Order>(100).unwrap()).unzip();
        let mut threads = Vec::new();
        for (shard, orders) in boxes.into_iter().enumerate() {
            let (report, over) = (report.clone(), over.clone());
            threads.push(std::thread::spawn(move || {
                let _told_at_the_end = LastWord::new(shard, report.clone());
                while !over.load(Ordering::Relaxed) {
                    while let Some(order) = orders.take() {
                        answer(shard, order, &report, stats);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }));
        }
        Self { mailboxes, reports: Some(reports), threads, over }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn answer(shard: usize, order: Order, report: &Mailbox<Report>, stats: fn(usize) -> ShardStats) {
    let letter = match order {
        Order::Start(pod) if &*pod.uid == "bad" => {
            Report::Started { uid: pod.uid.clone(), shard, result: Err("no luck".into()) }
        }
        Order::Start(pod) if &*pod.uid == "fatal" => panic!("out of luck"),
        Order::Start(pod) => Report::Started { uid: pod.uid.clone(), shard, result: Ok(()) },
        Order::Stop { uid, .. } => Report::Stopped { uid, shard },
        Order::Drain { .. } => Report::Drained { shard },
        Order::Look | Order::Forget(_) => return,
        Order::Beat(to) => {
            let _ = to.send(());
            return;
        }
        Order::Scrape(to) => return drop(to.send(stats(shard))),
        Order::Connections(to) => return drop(to.send(vec![live(shard)])),
        Order::Flows { after, answer } => return drop(answer.send(page(shard, after))),
        Order::Status(to) => {
            let traffic = PodTraffic { uid: "pod-a".into(), live: 1, opened: 2, ..PodTraffic::default() };
            return drop(to.send(ShardStatus {
                shard,
                connections: 1,
                pods: vec![traffic],
                ..ShardStatus::default()
            }));
        }
        Order::DrainPod { .. } => return,
    };
    assert!(report.post(letter).is_ok());
}

/// What each shard says it carries: a call of default/client to the service web.
pub fn parties() -> Parties {
    let end = |name: &str| FlowEnd {
        workload: name.into(),
        namespace: "default".into(),
        cluster: "Kubernetes".into(),
        identity: Some(format!("spiffe://cluster.local/ns/default/sa/{name}")),
    };
    Parties {
        pod: "pod-a".into(),
        direction: Direction::Outbound,
        src: "10.0.0.1:40000".parse().unwrap(),
        dst: "10.0.0.2:15008".parse().unwrap(),
        dst_name: None,
        authority: Some("10.0.0.2:8080".into()),
        source: end("client"),
        destination: end("server"),
        service: Some("default/web.default.svc.cluster.local".into()),
        via: None,
    }
}

fn live(shard: usize) -> LiveConnection {
    LiveConnection {
        pod: "pod-a".into(),
        inbound: false,
        src: "10.0.0.1:40000".parse().unwrap(),
        original_dst: Some("10.1.0.1:80".into()),
        actual_dst: "10.0.0.2:15008".parse().unwrap(),
        protocol: LiveProtocol::Hbone,
        shard,
        detail: (shard == 0).then(|| LiveDetail {
            parties: parties(),
            sent_bytes: 3,
            received_bytes: 4,
            age: Duration::from_millis(1_500),
        }),
        policy: None,
    }
}

/// One that ended, of verdict n: three in all; three more are lost to whoever asks for the first.
pub fn flow(verdict: FlowVerdict, seconds: u64) -> Flow {
    Flow {
        ended: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        lasted: Duration::from_millis(5),
        parties: parties(),
        sent_bytes: 1,
        received_bytes: 2,
        attempts: 1,
        verdict,
        error: (verdict != FlowVerdict::Allowed).then(|| "why".into()),
    }
}

fn page(shard: usize, after: u64) -> FlowPage {
    let all: Vec<Flow> =
        (0_u64..).zip(FlowVerdict::ALL).map(|(at, verdict)| flow(verdict, 10 * at)).collect();
    let start = if after == 0 { 4 } else { after.clamp(4, 7) };
    let lost = if after == 0 { 0 } else { start.saturating_sub(after) };
    let skipped = usize::try_from(start - 4).unwrap();
    FlowPage { shard, flows: all.into_iter().skip(skipped).collect(), next: 7, lost }
}
