//! Host names of explicit proxies' clients: the mesh first, then the pod's name servers.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;

use crate::base::limits;
use crate::mesh::dns::Asker;
use crate::shard::dns::{AskError, Over};
use crate::shard::failure::Failure;
use crate::shard::pod::PodWorld;
use crate::wire::dns::{Family, Header, Query, Rcode, reply, write_query};

/// Why a host has no address for us.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("{0:?} is not a host name")]
    NotAHost(String),
    #[error("no such host: {0}")]
    NoSuchHost(String),
    #[error("host {0} has no address")]
    NoAddress(String),
    #[error("cannot resolve {host}: {error}")]
    Unanswered { host: String, error: AskError },
    #[error("cannot resolve {host}: {error}")]
    NoWorkload { host: String, error: Failure },
}

impl PodWorld {
    /// The addresses of a host as this pod sees it, at least one: those that the mesh has for it (short names and
    /// search domains as its DNS proxy knows them), else what the pod's name servers say. An address is itself.
    pub async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = literal.parse::<IpAddr>() {
            return Ok(vec![ip.to_canonical()]);
        }
        let absolute = host.ends_with('.');
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if !write_query(&host, Family::V4, &mut Vec::new()) {
            return Err(ResolveError::NotAHost(host));
        }
        let found = self.shard.local_workload(&self.pod.info).await;
        let (snapshot, workload) =
            found.map_err(|error| ResolveError::NoWorkload { host: host.clone(), error })?;
        let search = self.search(&workload.namespace);
        let (asker, names) = (Asker::of(&workload, &search), &self.shard.settings.dns.names);
        if let Some(owned) = names.look_up(&snapshot, asker, &host) {
            let mut addresses = Vec::new();
            names.addresses(&snapshot, asker, owned.service, false, &mut addresses);
            names.addresses(&snapshot, asker, owned.service, true, &mut addresses);
            self.shard.random.borrow_mut().shuffle(&mut addresses);
            addresses.truncate(limits::RESOLVED_ADDRESSES);
            return if addresses.is_empty() { Err(ResolveError::NoAddress(host)) } else { Ok(addresses) };
        }
        // A name with a dot is more likely whole, one without never is.
        let searched = search.iter().filter(|_| !absolute).map(|domain| format!("{host}.{domain}"));
        let mut tries: Vec<String> = searched.collect();
        tries.insert(if host.contains('.') { 0 } else { tries.len() }, host.clone());
        let mut outcome = Err(ResolveError::NoSuchHost(host));
        for name in tries {
            outcome = self.at_name_servers(&name).await;
            if !matches!(outcome, Err(ResolveError::NoSuchHost(_))) {
                break;
            }
        }
        outcome
    }

    /// Both families at once; one of them is enough.
    async fn at_name_servers(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let four = Box::pin(self.of_family(host, Family::V4));
        let six = async {
            if self.shard.settings.ipv6 {
                Some(Box::pin(self.of_family(host, Family::V6)).await)
            } else {
                None
            }
        };
        let (four, six) = both(four, six).await;
        let mut addresses = Vec::new();
        let mut failure = None;
        for outcome in std::iter::once(four).chain(six) {
            match outcome {
                Ok(found) => addresses.extend(found),
                Err(error) => failure = Some(error),
            }
        }
        addresses.truncate(limits::RESOLVED_ADDRESSES);
        match failure {
            _ if !addresses.is_empty() => Ok(addresses),
            Some(failure) => Err(failure),
            None => Err(ResolveError::NoAddress(host.to_owned())),
        }
    }

    async fn of_family(&self, host: &str, family: Family) -> Result<Vec<IpAddr>, ResolveError> {
        let not_a_host = || ResolveError::NotAHost(host.to_owned());
        let mut message = Vec::new();
        if !write_query(host, family, &mut message) {
            return Err(not_a_host());
        }
        let query = Query::parse(&message).map_err(|_| not_a_host())?;
        let servers = self.name_servers(None);
        let first = servers.first().copied();
        let known = first.and_then(|server| self.remembered(&message, &query, server, usize::MAX));
        let said = match known {
            Some(reply) => reply,
            None => {
                let reply = self.ask_whole(&message, &servers).await;
                let reply =
                    reply.map_err(|error| ResolveError::Unanswered { host: host.to_owned(), error })?;
                if let Some(server) = first {
                    self.remember(&message, &query, server, &reply);
                }
                reply
            }
        };
        match Header::read(&said).map(|header| header.rcode()) {
            Some(Rcode::NoError) => {
                let mut addresses = reply::addresses(&said);
                addresses.retain(|ip| family.has(*ip));
                Ok(addresses)
            }
            Some(Rcode::NxDomain) => Err(ResolveError::NoSuchHost(host.to_owned())),
            Some(_) | None => {
                let error = AskError::Refused;
                Err(ResolveError::Unanswered { host: host.to_owned(), error })
            }
        }
    }

    /// By datagram, and where the reply doesn't fit into one, again over TCP.
    async fn ask_whole(&self, message: &[u8], servers: &[std::net::SocketAddr]) -> Result<Vec<u8>, AskError> {
        let reply = self.ask(message, servers, Over::Udp).await?;
        if Header::read(&reply).is_some_and(|header| header.is_truncated()) {
            return self.ask(message, servers, Over::Tcp).await;
        }
        Ok(reply)
    }
}

async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut two) = (None, None);
    poll_fn(move |context| {
        if one.is_none()
            && let Poll::Ready(done) = first.as_mut().poll(context)
        {
            one = Some(done);
        }
        if two.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(context)
        {
            two = Some(done);
        }
        match (one.take(), two.take()) {
            (Some(one), Some(two)) => Poll::Ready((one, two)),
            (early, late) => {
                (one, two) = (early, late);
                Poll::Pending
            }
        }
    })
    .await
}
