//! The admin server (port 15000, and RINGWAY_ADMIN_SOCKET): which path is answered by what. Paths, methods, statuses
//! and bodies of ztunnel's are the reference's (sections 17.3, 17.4); ours are in deploy/docs/admin.md.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::CONTENT_TYPE;
use hyper::{Method, StatusCode};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::base::limits::{DRAIN_MOST_S, SURVEY_DEADLINE_MS};
use crate::bridge::identities::Identities;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::Order;
use crate::bridge::published::Published;
use crate::bridge::settings::Settings;
use crate::control::control::Quit;
use crate::control::cross_site;
use crate::control::dump::Dump;
use crate::control::flows::FlowDesk;
use crate::control::http::{self, Answering, Handler, Question, Reply};
use crate::control::live::Pods;
use crate::control::logging::Logging;
use crate::control::page;
use crate::control::pprof;
use crate::control::publish::StaticConfig;
use crate::control::ready::Readiness;
use crate::control::shards;
use crate::control::why;
use crate::control::wiring::Facts;

/// Answers the admin port.
pub struct AdminServer {
    pub published: Arc<Published>,
    pub identities: Arc<Identities>,
    pub shards: Vec<Mailbox<Order>>,
    pub pods: Pods,
    pub facts: Facts,
    pub logging: Logging,
    pub flows: FlowDesk,
    pub readiness: Arc<Readiness>,
    pub started: Instant,
    pub quit: mpsc::Sender<Quit>,
    /// How long `/quitquitquit` waits to be accepted.
    pub patience: Duration,
    pub settings: Arc<Settings>,
    pub static_config: Option<StaticConfig>,
}

impl Handler for AdminServer {
    fn answer(&self, question: Question) -> Answering<'_> {
        Box::pin(async move {
            let query = question.uri.query().unwrap_or_default();
            let parameter = |name: &str| parameter(query, name);
            let path = question.uri.path();
            if let Some(why) = cross_site::refused(&question) {
                return http::text(StatusCode::FORBIDDEN, format!("{why}\n"));
            }
            if let Some(allow) = refused_method(path, &question.method) {
                return http::not_allowed(allow);
            }
            match path {
                "/" => page::answer(),
                "/config_dump" => self.config_dump().await,
                "/status" => self.status(),
                "/why" => why::answer(&self.published.load(), &self.settings, parameter),
                "/connections" => self.connections(parameter).await,
                "/flows" => self.flows.answer(parameter).await,
                "/pods" => self.pods().await,
                "/shards" => self.shards().await,
                "/policies" => self.policies(parameter),
                "/services" => self.services().await,
                "/certificates" => self.certificates(),
                "/logging" => self.logging.answer(&question.method, parameter),
                "/drain" => self.drain(parameter).await,
                "/quitquitquit" => self.quit().await,
                "/debug/pprof/profile" => pprof::cpu(query).await,
                "/debug/pprof/heap" => pprof::heap().await,
                "/debug/pprof/heap/profiling" => pprof::heap_profiling(query),
                _ => http::empty(StatusCode::NOT_FOUND),
            }
        })
    }
}

/// The methods that a path is for, where this isn't one of them. What the reference answers to any method is answered
/// to any; `/logging` has its own words.
fn refused_method(path: &str, method: &Method) -> Option<&'static str> {
    let (is_allowed, allow) = match path {
        "/quitquitquit" | "/drain" => (method == Method::POST, "POST"),
        "/status" | "/why" | "/connections" | "/flows" | "/pods" | "/shards" | "/services" | "/policies"
        | "/certificates" => (method == Method::GET || method == Method::HEAD, "GET, HEAD"),
        _ => return None,
    };
    (!is_allowed).then_some(allow)
}

impl AdminServer {
    async fn config_dump(&self) -> Reply {
        let board = self.pods.board.as_ref();
        let live = match board {
            Some(_) => {
                let order = |_, answer| Order::Connections(answer);
                shards::ask_each(&self.shards, SURVEY_DEADLINE_MS, order).await.concat()
            }
            None => Vec::new(),
        };
        let dump = Dump {
            snapshot: &self.published.load(),
            identities: &self.identities.all(),
            pods: board.map(|board| board.pods()),
            live: &live,
            version: &self.facts.version,
            config: &self.facts.config,
            static_config: self.static_config.as_ref().map(|read| read()),
        };
        match serde_json::to_string_pretty(&dump.value()) {
            Ok(text) => {
                let reply = http::plain(StatusCode::OK, text);
                http::with_header(reply, CONTENT_TYPE.as_str(), "application/json")
            }
            Err(error) => http::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    /// Lets go of one pod, as if it were about to leave, or with none named of everything: the process ends.
    async fn drain(&self, parameter: impl Fn(&str) -> Option<String>) -> Reply {
        let grace = match parameter("grace").map(|grace| grace.parse::<u64>()) {
            None => self.settings.termination_deadline,
            Some(Ok(seconds)) if seconds <= DRAIN_MOST_S => Duration::from_secs(seconds),
            Some(_) => {
                let body = format!("invalid grace value; expected seconds, 0-{DRAIN_MOST_S}\n");
                return http::text(StatusCode::BAD_REQUEST, body);
            }
        };
        let Some(name) = parameter("pod").filter(|name| !name.is_empty()) else {
            if parameter("grace").is_some() {
                let body = "the whole proxy's grace is CONNECTION_TERMINATION_DEADLINE\n";
                return http::text(StatusCode::BAD_REQUEST, body);
            }
            self.accepted().await;
            return http::json(&json!({"draining": "proxy", "graceSeconds": grace.as_secs()}));
        };
        let Some((uid, info)) = self.pods.find(&name) else {
            return http::text(StatusCode::NOT_FOUND, format!("no pod {name:?} on this node\n"));
        };
        info!(pod = %format_args!("{}/{}", info.namespace, info.name), "drain of a pod, within {grace:?}");
        for shard in &self.shards {
            if shard.post(Order::DrainPod { uid: uid.clone(), grace }).is_err() {
                return http::text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "a shard takes no orders now: try again\n",
                );
            }
        }
        let pod = json!({"uid": uid, "name": info.name, "namespace": info.namespace});
        http::json(&json!({"draining": "pod", "pod": pod, "graceSeconds": grace.as_secs()}))
    }

    async fn quit(&self) -> Reply {
        self.accepted().await;
        http::text(StatusCode::OK, "shutdown now\n")
    }

    /// Asks the process to end, and waits until it has heard it.
    async fn accepted(&self) {
        let (accept, accepted) = oneshot::channel();
        let asked = async {
            self.quit.send(accept).await.ok()?;
            accepted.await.ok()
        };
        let patience = self.patience;
        match tokio::time::timeout(patience, asked).await {
            Ok(_) => info!("Shutdown completed gracefully"),
            Err(_) => warn!("Graceful shutdown did not complete in {patience:?}, terminating now"),
        }
    }
}

/// The first value of a query parameter, percent-decoded; empty where it stands without a value.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decoded(key) == name).then(|| percent_decoded(value))
    })
}

fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        rest = match rest {
            [] => return String::from_utf8_lossy(&decoded).into_owned(),
            [b'%', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit =
                    |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                decoded.extend(digit(high).zip(digit(low)).map(|(high, low)| high * 16 + low));
                after
            }
            [b'+', after @ ..] => {
                decoded.push(b' ');
                after
            }
            [byte, after @ ..] => {
                decoded.push(*byte);
                after
            }
        };
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
