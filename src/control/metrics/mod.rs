//! The metrics server (port 15020): sums what the shards counted, adds the control side's own, and writes OpenMetrics
//! text. Names, help, order of families and of labels are the reference's (sections 15, 17.2); ours are named
//! `ringway_*` and come after. The page is written and compressed by a thread of its own, while it is sent.

mod connections;
mod encoding;
mod family;
mod idle;
mod names;
mod ours;
mod reference;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hyper::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use hyper::{HeaderMap, Response, StatusCode};
use tokio::sync::Semaphore;

use crate::base::limits;
use crate::bridge::identities::Identities;
use crate::bridge::lines::LineSink;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::Order;
use crate::bridge::published::Published;
use crate::bridge::report::ShardStats;
use crate::control::chunks::{Writer, chunks};
use crate::control::cni::Board;
use crate::control::http::{self, Answering, Body, Handler, Question, Reply};
use crate::control::metrics::encoding::{Encoder, Encoding};
use crate::control::metrics::family::Page;
use crate::control::metrics::idle::Idle;
use crate::control::recorder::Registry;
use crate::control::shards;
use crate::control::wiring::Facts;
use crate::sys::proc;

/// Answers scrapes.
pub struct MetricsServer {
    shards: Vec<Mailbox<Order>>,
    sources: Arc<Sources>,
    idle: Arc<Mutex<Idle>>,
    places: Arc<Semaphore>,
}

/// Where the control side's own values are read.
pub struct Sources {
    pub registry: Registry,
    pub facts: Facts,
    pub identities: Arc<Identities>,
    pub published: Arc<Published>,
    pub lines: LineSink,
    /// In shared mode.
    pub board: Option<Arc<Board>>,
}

impl Handler for MetricsServer {
    fn answer(&self, question: Question) -> Answering<'_> {
        Box::pin(async move {
            if !matches!(question.uri.path(), "/metrics" | "/stats/prometheus") {
                return http::empty(StatusCode::NOT_FOUND);
            }
            match self.scrape(&question.headers).await {
                Ok(reply) => reply,
                Err(error) => http::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            }
        })
    }
}

impl MetricsServer {
    pub fn new(shards: Vec<Mailbox<Order>>, sources: Sources) -> Self {
        Self {
            shards,
            sources: Arc::new(sources),
            idle: Arc::default(),
            places: Arc::new(Semaphore::new(limits::SCRAPES_AT_ONCE)),
        }
    }

    async fn scrape(&self, headers: &HeaderMap) -> io::Result<Reply> {
        let encoding = Encoding::asked(headers);
        let wait = Duration::from_millis(limits::SCRAPE_WAIT_MS);
        let Ok(place) = tokio::time::timeout(wait, self.places.clone().acquire_owned()).await else {
            let full = format!("{} scrapes are being read already\n", limits::SCRAPES_AT_ONCE);
            return Ok(http::text(StatusCode::SERVICE_UNAVAILABLE, full));
        };
        let mut stats = shards::ask(&self.shards, Order::Scrape).await;
        stats.sort_unstable_by_key(|shard| shard.shard);
        let runtime = tokio::runtime::Handle::current().metrics();
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let scrape = Scrape {
            sources: self.sources.clone(),
            stats,
            shards: self.shards.len(),
            control: Tasks {
                queued: count(runtime.global_queue_depth()),
                tasks: count(runtime.num_alive_tasks()),
            },
        };
        let encoder = Encoder::new(encoding)?;
        let (writer, reader) = chunks(
            Duration::from_millis(limits::CHUNK_WAIT_MS),
            Duration::from_millis(limits::CHUNKS_WHOLE_MS),
        );
        let (idle, shards) = (self.idle.clone(), self.shards.clone());
        thread::Builder::new().name("scrape".to_owned()).spawn(move || {
            // Where that is refused it still works, only less modestly.
            let _ = proc::be_nice(limits::SCRAPE_NICE);
            scrape.send(encoder, writer);
            scrape.drop_idle(&idle, &shards, Instant::now());
            drop(place);
        })?;
        let body = match reader.begin().await.map_err(io::Error::other)? {
            Ok(whole) => Body::from(whole),
            Err(longer) => Body::from(longer),
        };
        let mut reply = http::with_header(Response::new(body), CONTENT_TYPE.as_str(), content_type(headers));
        if let Some(name) = encoding.name() {
            reply = http::with_header(reply, CONTENT_ENCODING.as_str(), name);
        }
        Ok(http::with_header(reply, VARY.as_str(), "accept-encoding"))
    }
}

/// All that one page tells.
struct Scrape {
    sources: Arc<Sources>,
    /// In the order of the shards' numbers; fewer than there are where one doesn't answer.
    stats: Vec<ShardStats>,
    shards: usize,
    control: Tasks,
}

/// The control thread's own event loop.
struct Tasks {
    queued: u64,
    tasks: u64,
}

impl Scrape {
    /// Writes the page to its reader. Where either fails, the reader sees that it isn't whole.
    fn send(&self, mut encoder: Encoder, writer: Writer) {
        let mut pass_on = |text: &str| match encoder.write(text.as_bytes()) {
            Ok(None) => true,
            Ok(Some(piece)) => writer.send(piece),
            Err(_) => false,
        };
        if self.write(&mut pass_on)
            && let Ok(rest) = encoder.finish()
            && writer.send(rest)
        {
            writer.finish();
        }
    }

    /// Whether all of it was taken.
    fn write(&self, take: &mut dyn FnMut(&str) -> bool) -> bool {
        let samples = self.sources.registry.samples();
        let mut page = Page::new(take);
        reference::before_connections(&mut page, self, &samples);
        connections::families(&mut page, &self.stats);
        names::families(&mut page, &self.stats);
        reference::after_connections(&mut page, &samples);
        ours::families(&mut page, self, &samples);
        page.finish()
    }

    /// What is dropped is dropped everywhere, so nothing is while a shard doesn't answer.
    fn drop_idle(&self, idle: &Mutex<Idle>, shards: &[Mailbox<Order>], now: Instant) {
        if self.stats.len() < shards.len() {
            return;
        }
        let due = idle.lock().unwrap_or_else(PoisonError::into_inner).look(&self.stats, now);
        for (shard, due) in shards.iter().zip(due).filter(|(_, due)| !due.is_empty()) {
            // A full mailbox is a shard that stands still: it keeps what it has.
            let _ = shard.post(Order::Forget(due));
        }
    }
}

/// The type that the scraper asked for; the body is the same.
fn content_type(headers: &HeaderMap) -> &'static str {
    const OPEN_METRICS: &str = "application/openmetrics-text";
    let asked = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let asked = asked
        .flat_map(|value| value.split(','))
        // Not trimmed, as in the reference: a blank after the comma keeps the answer plain.
        .any(|element| element.split(';').next().is_some_and(|kind| kind.eq_ignore_ascii_case(OPEN_METRICS)));
    if asked {
        "application/openmetrics-text;charset=utf-8;version=1.0.0"
    } else {
        "text/plain; charset=utf-8"
    }
}

#[cfg(test)]
mod document;
#[cfg(test)]
mod tests;
