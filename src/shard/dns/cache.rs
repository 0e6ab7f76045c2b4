//! Replies that may be given again, within a bound of bytes; the oldest go first. Only plain queries have them: those
//! that differ in nothing but their id and the letters' case. Time comes in, so that nothing here waits.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::wire::dns::reply::{Keeping, age, keeping};
use crate::wire::dns::{ANY, HEADER_BYTES, Query, flag};

/// See above.
#[derive(Default)]
pub(super) struct Cache {
    known: HashMap<Rc<[u8]>, Kept, std::hash::RandomState>,
    /// In the order of their arrival; one that was replaced or forgotten stays until its turn.
    order: VecDeque<(Rc<[u8]>, Instant)>,
    bytes: usize,
}

struct Kept {
    reply: Box<[u8]>,
    keeping: Keeping,
    since: Instant,
    cost_bytes: usize,
}

/// What an entry takes beside its bytes: map, queue and their slack.
const ENTRY_BYTES: usize = 192;
/// Places in the queue, of which replaced entries take some.
const MOST_PLACES: usize = limits::DNS_CACHE_BYTES / 64;

impl Cache {
    /// The reply to this query with its times to live as they are now.
    pub fn find(
        &mut self,
        message: &[u8],
        query: &Query,
        server: SocketAddr,
        limit_bytes: usize,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let key = key(message, query, server)?;
        let kept = self.known.get(&*key)?;
        let since = now.saturating_duration_since(kept.since);
        if since >= Duration::from_secs(kept.keeping.lifetime_s.into()) {
            self.forget(&key);
            return None;
        }
        if kept.reply.len() > limit_bytes {
            return None;
        }
        let mut reply = kept.reply.to_vec();
        age(&mut reply, &kept.keeping.ttls_at, u32::try_from(since.as_secs()).unwrap_or(u32::MAX));
        // Its own id, and the question as it wrote it.
        for part in [0..2, HEADER_BYTES..query.question.as_ref()?.end] {
            reply.get_mut(part.clone())?.copy_from_slice(message.get(part)?);
        }
        Some(reply)
    }

    pub fn keep(&mut self, message: &[u8], query: &Query, server: SocketAddr, reply: &[u8], now: Instant) {
        if reply.len() > limits::DNS_CACHED_MESSAGE_BYTES {
            return;
        }
        let Some(key) = key(message, query, server) else { return };
        let Some(keeping) = keeping(reply) else { return };
        self.forget(&key);
        let key: Rc<[u8]> = key.into();
        let cost_bytes = ENTRY_BYTES + key.len() + reply.len() + keeping.ttls_at.len() * size_of::<usize>();
        self.bytes += cost_bytes;
        self.order.push_back((key.clone(), now));
        self.known.insert(key, Kept { reply: reply.into(), keeping, since: now, cost_bytes });
        while self.bytes > limits::DNS_CACHE_BYTES || self.order.len() > MOST_PLACES {
            let Some((oldest, since)) = self.order.pop_front() else { break };
            if self.known.get(&oldest).is_some_and(|kept| kept.since == since) {
                self.forget(&oldest);
            }
        }
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some(kept) = self.known.remove(key) {
            self.bytes -= kept.cost_bytes;
        }
    }
}

/// What makes two queries the same; none for those whose reply isn't given again.
fn key(message: &[u8], query: &Query, server: SocketAddr) -> Option<Vec<u8>> {
    let question = query.question.as_ref()?;
    if !query.is_plain || question.kind == ANY {
        return None;
    }
    let mut key = message.get(HEADER_BYTES..question.end)?.to_ascii_lowercase();
    let flags = query.header.flags & (flag::RECURSION_DESIRED | flag::CHECKING_DISABLED | flag::AUTHENTIC);
    key.extend(flags.to_be_bytes());
    if let Some(edns) = query.edns {
        key.extend([1, edns.version, u8::from(edns.dnssec_ok)]);
    }
    key.extend(server.port().to_be_bytes());
    match server.ip() {
        std::net::IpAddr::V4(ip) => key.extend(ip.octets()),
        std::net::IpAddr::V6(ip) => key.extend(ip.octets()),
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::dns::{Family, write_query};

    const SERVER: &str = "10.0.0.53:53";

    fn asked(host: &str) -> (Vec<u8>, Query) {
        let mut message = Vec::new();
        assert!(write_query(host, Family::V4, &mut message));
        let query = Query::parse(&message).unwrap();
        (message, query)
    }

    /// A reply with one address and this time to live, and `more` bytes of another record.
    fn reply(message: &[u8], query: &Query, ttl: u8, more: u8) -> Vec<u8> {
        let end = query.question.as_ref().unwrap().end;
        let mut reply = message[..end].to_vec();
        reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 1]);
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, ttl, 0, 4, 10, 0, 0, 1]);
        reply.extend([0, 0, 16, 0, 1, 0, 0, 0, 9, 0, more]);
        reply.extend(std::iter::repeat_n(b'x', more.into()));
        reply
    }

    #[test]
    fn a_reply_is_given_again_until_its_time_is_over() {
        let (server, start) = (SERVER.parse().unwrap(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut cache = Cache::default();
        let (message, query) = asked("example.com");
        cache.keep(&message, &query, server, &reply(&message, &query, 60, 0), start);
        let mut other = message.clone();
        other[..2].copy_from_slice(&[7, 7]);
        other[14] = b'X';
        let found = cache.find(&other, &query, server, 512, at(59)).unwrap();
        let mut expected = reply(&other, &query, 60, 0);
        let places = keeping(&expected).unwrap().ttls_at;
        age(&mut expected, &places, 59);
        assert_eq!(found, expected);
        assert!(cache.find(&message, &query, server, 20, at(1)).is_none(), "too long for the asker");
        assert!(cache.find(&message, &query, "10.0.0.54:53".parse().unwrap(), 512, at(1)).is_none());
        let mut checking = query.clone();
        checking.header.flags |= flag::CHECKING_DISABLED;
        assert!(cache.find(&message, &checking, server, 512, at(1)).is_none());
        assert!(cache.find(&message, &query, server, 512, at(60)).is_none());
        assert!(cache.find(&message, &query, server, 512, at(1)).is_none(), "it is gone");
        assert_eq!(cache.bytes, 0);
    }

    #[test]
    fn the_bound_holds_and_the_newest_stay() {
        let (server, now) = (SERVER.parse().unwrap(), Instant::now());
        let mut cache = Cache::default();
        for number in 0..3_000_u32 {
            let (message, query) = asked(&format!("host-{}.example", number % 2_000));
            cache.keep(&message, &query, server, &reply(&message, &query, 200, 200), now);
            assert!(cache.bytes <= limits::DNS_CACHE_BYTES && cache.order.len() <= MOST_PLACES);
        }
        let known = |host: &str| {
            let (message, query) = asked(host);
            cache.known.contains_key(&*key(&message, &query, server).unwrap())
        };
        assert!(known("host-999.example") && !known("host-1.example"));
        assert!(cache.known.len() > 300, "{}", cache.known.len());
        let held: usize = cache.known.values().map(|kept| kept.cost_bytes).sum();
        assert_eq!(held, cache.bytes);
    }

    #[test]
    fn one_name_asked_for_ever_takes_no_more_and_more() {
        let (server, start) = (SERVER.parse().unwrap(), Instant::now());
        let mut cache = Cache::default();
        let (message, query) = asked("example.com");
        for second in 0..20_000 {
            let now = start + Duration::from_secs(second);
            cache.find(&message, &query, server, 512, now);
            cache.keep(&message, &query, server, &reply(&message, &query, 1, 0), now);
        }
        assert!(cache.order.len() <= MOST_PLACES && cache.known.len() == 1);
    }
}
