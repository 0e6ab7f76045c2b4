//! Names asked for by several, answered late, wrongly or never; and a name server that is real.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Gives these outcomes in turn.
struct Script(Arc<(Mutex<VecDeque<Resolved>>, AtomicUsize)>);

impl Resolve for Script {
    fn resolve(&self, _: &str) -> Pin<Box<dyn Future<Output = Resolved> + Send>> {
        self.0.1.fetch_add(1, Ordering::Relaxed);
        match self.0.0.lock().unwrap().pop_front() {
            Some(outcome) => Box::pin(std::future::ready(outcome)),
            None => Box::pin(std::future::pending()),
        }
    }
}

fn desk(outcomes: Vec<Resolved>) -> (HostDesk, Arc<Hosts>, impl Fn() -> usize) {
    let script = Arc::new((Mutex::new(outcomes.into()), AtomicUsize::new(0)));
    let shared = Arc::new(Hosts::default());
    let desk = HostDesk::new(shared.clone(), Box::new(Script(script.clone())));
    (desk, shared, move || script.1.load(Ordering::Relaxed))
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn good(last: u8, ttl_s: u64) -> Resolved {
    Ok((vec![ip(last)], Duration::from_secs(ttl_s)))
}

fn bad() -> Resolved {
    Err("no luck".to_owned())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_name_is_looked_for_once_however_many_ask() {
    runtime().block_on(async {
        let (mut desk, shared, asked) = desk(vec![good(1, 60)]);
        let now = Instant::now();
        for _ in 0..10 {
            desk.want("h".into(), now);
        }
        desk.finished().await;
        assert_eq!(asked(), 1);
        let answer = shared.lookup("h", now).unwrap();
        assert_eq!(answer.addresses.as_deref(), Some(&[ip(1)][..]));
        desk.want("h".into(), now);
        assert_eq!((asked(), shared.lookup("other", now)), (1, None));
    });
}

#[test]
fn answers_are_kept_for_their_time_within_bounds() {
    let now = Instant::now();
    for (ttl_s, kept_ms) in [(0, HOST_ANSWER_LEAST_MS), (60, 60_000), (1_000_000, HOST_ANSWER_MOST_MS)] {
        let (mut desk, shared, _) = desk(vec![]);
        desk.settle("h".into(), good(1, ttl_s), now);
        desk.shared.publish(&desk.answers);
        assert!(shared.lookup("h", now + ms(kept_ms - 1)).is_some());
        assert!(shared.lookup("h", now + ms(kept_ms)).is_none());
    }
}

#[test]
fn a_failure_keeps_the_last_addresses_until_they_are_too_old() {
    let (mut desk, shared, _) = desk(vec![]);
    let start = Instant::now();
    let known = Cell::new(start);
    let mut told = |outcome, after_ms| {
        let now = start + ms(after_ms);
        desk.settle("h".into(), outcome, now);
        desk.shared.publish(&desk.answers);
        known.set(now);
        shared.lookup("h", now).unwrap().addresses.map(|found| found.to_vec())
    };
    assert_eq!(told(bad(), 0), None);
    assert_eq!(told(good(1, 1), 1), Some(vec![ip(1)]));
    assert_eq!(told(bad(), HOST_STALE_MS), Some(vec![ip(1)]));
    assert_eq!(told(bad(), HOST_STALE_MS + 2), None);
    assert_eq!(told(bad(), 1), None, "what was given up stays so");
    assert_eq!(told(Ok((vec![], ms(0))), HOST_STALE_MS + 3), Some(vec![]));
    assert!(shared.lookup("h", known.get() + ms(HOST_ANSWER_MOST_MS)).is_none());
}

#[test]
fn whoever_never_answers_is_given_up_and_may_be_asked_again() {
    runtime().block_on(async {
        let (mut desk, shared, asked) = desk(vec![]);
        let now = Instant::now();
        desk.deadline = ms(1);
        desk.want("h".into(), now);
        desk.finished().await;
        assert_eq!(shared.lookup("h", Instant::now()).unwrap().addresses, None);
        desk.want("h".into(), Instant::now() + ms(HOST_FAILED_MS));
        assert_eq!(asked(), 2);
    });
}

#[test]
fn names_are_bounded_in_number() {
    let (mut kept, _, _) = desk(vec![]);
    let now = Instant::now();
    for number in 0..HOSTS_KEPT + 10 {
        kept.settle(format!("h{number}").into(), good(1, 60), now);
    }
    assert!(kept.answers.len() <= HOSTS_KEPT && kept.resolved_at.len() <= HOSTS_KEPT);
    assert!(kept.answers.contains_key(&*format!("h{}", HOSTS_KEPT + 9)));
    runtime().block_on(async {
        let (mut desk, _, asked) = desk(vec![]);
        for number in 0..HOSTS_AT_ONCE + 10 {
            desk.want(format!("h{number}").into(), now);
        }
        assert_eq!(asked(), HOSTS_AT_ONCE);
    });
}

/// Answers every A question with one address and everything else with nothing.
fn name_server(questions: usize) -> (std::net::SocketAddr, std::thread::JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        for _ in 0..questions {
            let mut question = [0; 512];
            let (length, from) = socket.recv_from(&mut question).unwrap();
            let end = 12 + question[12..length].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_a = question[end - 3] == 1;
            let mut answer = question[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            if is_a {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 77, 0, 4, 192, 0, 2, 9]);
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
    (at, serving)
}

#[test]
fn a_real_server_is_asked() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (at, serving) = name_server(2);
        let mut config = NameServerConfig::udp(at.ip());
        config.connections[0].port = at.port();
        let config = ResolverConfig::from_parts(None, vec![], vec![config]);
        let mut options = ResolverOpts::default();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.cache_size = 0;
        let built = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let dns = Dns(Arc::new(built.with_options(options).build().unwrap()));
        let (addresses, left) = dns.resolve("name.example.").await.unwrap();
        assert_eq!(addresses, [ip(9)]);
        assert!((70..=77).contains(&left.as_secs()), "{left:?}");
        serving.join().unwrap();
    });
}

#[test]
fn without_servers_every_name_fails_at_once() {
    let none = NameServers {
        servers: vec![],
        domain: None,
        search: vec![],
        ndots: 1,
        timeout: ms(1),
        attempts: 1,
        edns0: false,
        ipv6: true,
    };
    let outcome = runtime().block_on(none.resolver().resolve("h"));
    assert_eq!(outcome, Err("no name servers are known".to_owned()));
}
