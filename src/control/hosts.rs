//! Resolves the host names that shards ask for: each name once at a time, each answer kept for its TTL within bounds.
//! A name that can't be resolved any more keeps its last addresses for a while. Runs on the control thread, in the
//! proxy's own namespace, as the reference does.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use tokio::task::JoinSet;

use crate::base::limits::{
    HOST_ANSWER_DEADLINE_MS, HOST_ANSWER_LEAST_MS, HOST_ANSWER_MOST_MS, HOST_FAILED_MS, HOST_STALE_MS,
    HOSTS_AT_ONCE, HOSTS_KEPT,
};
use crate::base::text::Text;
use crate::bridge::hosts::{Answer, Answers, Hosts};

/// Addresses and how long they may be kept; `Err`: why there are none to be had.
pub type Resolved = Result<(Vec<IpAddr>, Duration), String>;

/// Where names are looked up.
pub trait Resolve {
    fn resolve(&self, host: &str) -> Pin<Box<dyn Future<Output = Resolved> + Send>>;
}

/// Servers and options of `resolv.conf`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameServers {
    pub servers: Vec<IpAddr>,
    pub domain: Option<String>,
    pub search: Vec<String>,
    pub ndots: usize,
    pub timeout: Duration,
    pub attempts: usize,
    pub edns0: bool,
    pub ipv6: bool,
}

/// Looks nothing up: there is no name server.
pub struct NoServers;

impl Resolve for NoServers {
    fn resolve(&self, _: &str) -> Pin<Box<dyn Future<Output = Resolved> + Send>> {
        Box::pin(std::future::ready(Err("no name servers are known".to_owned())))
    }
}

/// Asks the name servers, the hosts file first.
struct Dns(Arc<TokioResolver>);

impl Resolve for Dns {
    fn resolve(&self, host: &str) -> Pin<Box<dyn Future<Output = Resolved> + Send>> {
        let (resolver, host) = (self.0.clone(), host.to_owned());
        Box::pin(async move {
            match resolver.lookup_ip(host).await {
                Ok(found) => {
                    let left = found.valid_until().saturating_duration_since(Instant::now());
                    Ok((found.iter().collect(), left))
                }
                Err(error) if error.is_no_records_found() && !error.is_nx_domain() => {
                    Ok((Vec::new(), Duration::from_millis(HOST_FAILED_MS)))
                }
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

impl NameServers {
    /// A resolver of these; one that fails every look-up where there are none. Must be called within the runtime.
    pub fn resolver(&self) -> Box<dyn Resolve + Send> {
        if self.servers.is_empty() {
            return Box::new(NoServers);
        }
        let name = |text: &String| Name::from_utf8(text).ok();
        let servers = self.servers.iter().map(|server| NameServerConfig::udp_and_tcp(*server));
        let config = ResolverConfig::from_parts(
            self.domain.as_ref().and_then(name),
            self.search.iter().filter_map(name).collect(),
            servers.collect(),
        );
        let mut options = ResolverOpts::default();
        options.ndots = self.ndots;
        options.timeout = self.timeout;
        options.attempts = self.attempts;
        options.edns0 = self.edns0;
        // Answers are kept here, with bounds of our own.
        options.cache_size = 0;
        options.ip_strategy =
            if self.ipv6 { LookupIpStrategy::Ipv4AndIpv6 } else { LookupIpStrategy::Ipv4Only };
        let built = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            .with_options(options)
            .build();
        match built {
            Ok(resolver) => Box::new(Dns(Arc::new(resolver))),
            Err(error) => {
                tracing::warn!("host names can't be resolved: {error}");
                Box::new(NoServers)
            }
        }
    }
}

/// The writing side of `bridge::hosts`.
pub struct HostDesk {
    shared: Arc<Hosts>,
    resolve: Box<dyn Resolve + Send>,
    answers: Answers,
    /// When each name with addresses was last resolved, for the bound of what is stale.
    resolved_at: HashMap<Text, Instant>,
    asked: HashSet<Text>,
    running: JoinSet<(Text, Resolved)>,
    deadline: Duration,
}

impl HostDesk {
    pub fn new(shared: Arc<Hosts>, resolve: Box<dyn Resolve + Send>) -> Self {
        Self {
            shared,
            resolve,
            answers: Answers::default(),
            resolved_at: HashMap::new(),
            asked: HashSet::new(),
            running: JoinSet::new(),
            deadline: Duration::from_millis(HOST_ANSWER_DEADLINE_MS),
        }
    }

    /// A connection waits for this name. Whoever is looked for already isn't looked for twice; past the bound nobody
    /// is, and the connection fails by its own deadline.
    pub fn want(&mut self, host: Text, now: Instant) {
        let fresh = self.answers.get(&host).is_some_and(|answer| now < answer.fresh_until);
        if fresh || self.asked.len() >= HOSTS_AT_ONCE || !self.asked.insert(host.clone()) {
            return;
        }
        let looking = self.resolve.resolve(&host);
        let deadline = self.deadline;
        self.running.spawn(async move {
            let outcome = match tokio::time::timeout(deadline, looking).await {
                Ok(outcome) => outcome,
                Err(_) => Err(format!("no answer within {deadline:?}")),
            };
            (host, outcome)
        });
    }

    /// Waits until a look-up has ended, for ever where none runs; then takes all that have. Cancellation-safe.
    pub async fn finished(&mut self) {
        match self.running.join_next().await {
            Some(Ok((host, outcome))) => self.settle(host, outcome, Instant::now()),
            // A look-up that panicked is forgotten with its name: asked again, it is tried again.
            Some(Err(_)) => self.asked.clear(),
            None => std::future::pending().await,
        }
        while let Some(Ok((host, outcome))) = self.running.try_join_next() {
            self.settle(host, outcome, Instant::now());
        }
        self.shared.publish(&self.answers);
    }

    fn settle(&mut self, host: Text, outcome: Resolved, now: Instant) {
        self.asked.remove(&host);
        let millis = Duration::from_millis;
        let answer = match outcome {
            Ok((addresses, ttl)) => {
                self.resolved_at.insert(host.clone(), now);
                let kept = ttl.clamp(millis(HOST_ANSWER_LEAST_MS), millis(HOST_ANSWER_MOST_MS));
                Answer { addresses: Some(addresses.into()), fresh_until: now + kept }
            }
            Err(why) => {
                tracing::debug!(target: "ztunnel::dns", "{host} can't be resolved: {why}");
                let known = self.answers.get(&host).and_then(|answer| answer.addresses.clone());
                let at = self.resolved_at.get(&host);
                let is_stale = |at: &Instant| now.saturating_duration_since(*at) > millis(HOST_STALE_MS);
                let addresses = known.filter(|_| !at.is_none_or(is_stale));
                Answer { addresses, fresh_until: now + millis(HOST_FAILED_MS) }
            }
        };
        self.make_room(now);
        self.answers.insert(host, answer);
    }

    fn make_room(&mut self, now: Instant) {
        if self.answers.len() < HOSTS_KEPT {
            return;
        }
        self.answers.retain(|_, answer| now < answer.fresh_until);
        if self.answers.len() >= HOSTS_KEPT {
            // All are fresh: asking again costs a look-up each, holding more costs memory without end.
            self.answers.clear();
        }
        let answers = &self.answers;
        self.resolved_at.retain(|host, _| answers.contains_key(host));
    }
}

#[cfg(test)]
#[path = "hosts_tests.rs"]
mod tests;
