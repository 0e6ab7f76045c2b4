//! The admin server (port 15000): dump, log levels, shutdown. Paths, methods, statuses and bodies are the
//! reference's (sections 17.3, 17.4).

use std::sync::Arc;
use std::time::Duration;

use hyper::header::CONTENT_TYPE;
use hyper::{Method, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::bridge::identities::Identities;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::Order;
use crate::bridge::published::Published;
use crate::bridge::settings::Settings;
use crate::control::cni::Board;
use crate::control::control::{Facts, Quit};
use crate::control::dump::Dump;
use crate::control::http::{self, Answering, Handler, Question, Reply};
use crate::control::logs::{LevelError, Logs};
use crate::control::pprof;
use crate::control::publish::StaticConfig;
use crate::control::shards;
use crate::control::why;

/// The filter of log lines, as an operator changes it while the process runs.
pub trait LogLevels: Send + Sync {
    /// The filter in force.
    fn current(&self) -> String;
    /// Adds `level` or `target=level` clauses; answers the new filter.
    fn set(&self, level: &str) -> Result<String, LevelRefused>;
    /// Back to the filter of the start; answers it.
    fn reset(&self) -> Result<String, LevelRefused>;
}

/// Why a level isn't set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LevelRefused {
    /// The request names no level.
    Invalid,
    /// The filter could not be changed.
    Failed(String),
}

impl LogLevels for Logs {
    fn current(&self) -> String {
        Self::current(self)
    }

    fn set(&self, level: &str) -> Result<String, LevelRefused> {
        self.set_level(level).map_err(LevelRefused::from)
    }

    fn reset(&self) -> Result<String, LevelRefused> {
        Self::reset(self).map_err(LevelRefused::from)
    }
}

impl From<LevelError> for LevelRefused {
    fn from(error: LevelError) -> Self {
        match error {
            LevelError::Invalid(_) => Self::Invalid,
            error @ (LevelError::Parse(_) | LevelError::Reload(_)) => Self::Failed(error.to_string()),
        }
    }
}

/// Answers the admin port.
pub struct AdminServer {
    pub published: Arc<Published>,
    pub identities: Arc<Identities>,
    pub shards: Vec<Mailbox<Order>>,
    /// In shared mode.
    pub board: Option<Arc<Board>>,
    pub facts: Facts,
    pub logs: Option<Arc<dyn LogLevels>>,
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
            match question.uri.path() {
                "/" => dashboard(),
                "/config_dump" => self.config_dump().await,
                "/why" => why::answer(&self.published.load(), &self.settings, |name| parameter(query, name)),
                "/logging" => logging(self.logs.as_deref(), &question.method, query),
                "/quitquitquit" if question.method == Method::POST => self.quit().await,
                "/quitquitquit" => http::empty(StatusCode::METHOD_NOT_ALLOWED),
                "/debug/pprof/profile" => pprof::cpu(query).await,
                "/debug/pprof/heap" => pprof::heap().await,
                "/debug/pprof/heap/profiling" => pprof::heap_profiling(query),
                _ => http::empty(StatusCode::NOT_FOUND),
            }
        })
    }
}

impl AdminServer {
    async fn config_dump(&self) -> Reply {
        let live = match &self.board {
            Some(_) => shards::ask(&self.shards, Order::Connections).await.concat(),
            None => Vec::new(),
        };
        let dump = Dump {
            snapshot: &self.published.load(),
            identities: &self.identities.all(),
            pods: self.board.as_ref().map(|board| board.pods()),
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

    async fn quit(&self) -> Reply {
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
        http::text(StatusCode::OK, "shutdown now\n")
    }
}

/// What there is, as a page.
fn dashboard() -> Reply {
    const ROWS: &[(&str, &str)] = &[
        ("debug/pprof/profile", "CPU profile for pprof: ?seconds=10&frequency=100"),
        ("debug/pprof/heap", "heap profile for pprof, while it is active"),
        ("debug/pprof/heap/profiling", "heap profiling on and off: ?activate=true"),
        ("quitquitquit", "shut down (POST)"),
        ("config_dump", "mesh, configuration, certificates and connections as JSON"),
        ("why", "what would become of a connection: ?from=NAMESPACE/POD&to=HOST:PORT"),
        ("logging", "log levels: show and change (POST)"),
    ];
    let rows: String = ROWS
        .iter()
        .map(|(path, about)| format!("<tr><td><a href=\"{path}\">{path}</a></td><td>{about}</td></tr>\n"))
        .collect();
    let page = format!(
        "<!DOCTYPE html>\n<html><head><title>Ringway admin</title></head>\n<body><table>\n\
         {rows}</table></body></html>\n"
    );
    http::with_header(http::plain(StatusCode::OK, page), CONTENT_TYPE.as_str(), "text/html; charset=utf-8")
}

const LOGGING_HELP: &str = "
usage: POST /logging                                       (shows the filter in force)
usage: POST /logging?level=LEVEL                           (changes the level of everything)
usage: POST /logging?level=TARGET1=LEVEL1,TARGET2=LEVEL2   (changes the level of single targets; reset: as at start)

hint: levels are off, error, warn, info, debug, trace
hint: a target is the name in front of a message, such as access or ztunnel::inpod
";

fn logging(logs: Option<&dyn LogLevels>, method: &Method, query: &str) -> Reply {
    if method != Method::POST {
        return http::text(StatusCode::METHOD_NOT_ALLOWED, format!("Invalid HTTP method\n {LOGGING_HELP}"));
    }
    let Some(logs) = logs else {
        let body = format!("failed to get the log level: logging is not initialized\n {LOGGING_HELP}");
        return http::text(StatusCode::INTERNAL_SERVER_ERROR, body);
    };
    let mut current = logs.current();
    if parameter(query, "reset").is_some() {
        match logs.reset() {
            Ok(filter) => current = filter,
            Err(error) => return level_refused("reset", error),
        }
    }
    if let Some(level) = parameter(query, "level").filter(|level| !level.is_empty()) {
        match logs.set(&level) {
            Ok(filter) => current = filter,
            Err(error) => return level_refused(&level, error),
        }
    }
    http::text(StatusCode::OK, format!("current log level is {current}\n"))
}

fn level_refused(level: &str, refused: LevelRefused) -> Reply {
    let body = match refused {
        LevelRefused::Invalid => format!("Invalid level provided: {level}\n{LOGGING_HELP}"),
        LevelRefused::Failed(error) => format!("Failed to set new level: {error}\n{LOGGING_HELP}"),
    };
    http::text(StatusCode::BAD_REQUEST, body)
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
