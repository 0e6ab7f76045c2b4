//! Operational logs and the one writer of standard output. Lines of `tracing` and finished access lines meet
//! in one bounded queue; a slow or broken standard output costs lines, never the time of a shard.
//! Formats and the rules of the filter: ztunnel-behaviour 16.2 and 17.3.

mod layer;
mod writer;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{self, Sender};
use tracing::{Dispatch, dispatcher};
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::base::level::Level;
use crate::base::limits::{LOG_LINES_QUEUED, LOG_LINES_WAIT_MS, LOGS_FINISH_MS};
use crate::bridge::lines::LineSink;
use layer::LineLayer;
use writer::{Flush, Writer};

/// Stands before every filter, as in the reference.
const ALWAYS: &str = "hickory_server::server=off";
/// What follows it where RUST_LOG says nothing.
const DEFAULT_LEVEL: &str = "info";

/// The two formats of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Plain,
    Json,
}

/// Why logs can't start.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    #[error(
        "invalid env var RUST_LOG={value} ({reason}); expected directives such as \
         info or info,ringway::control=debug"
    )]
    Filter { value: String, reason: ParseError },
    #[error("cannot start the log writer's thread: {0}")]
    Thread(#[from] io::Error),
    #[error("logs were already started in this process")]
    AlreadyStarted,
}

/// Why a level can't be set while running; the texts are the reference's.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// The request is wrong (the admin server answers it in its own words).
    #[error("Invalid level provided: {0}")]
    Invalid(String),
    #[error("parse failure: {0}")]
    Parse(#[from] ParseError),
    #[error("reload failure: {0}")]
    Reload(#[from] reload::Error),
}

/// The running logs. Clones share them.
#[derive(Clone)]
pub struct Logs {
    sink: LineSink,
    filter: reload::Handle<EnvFilter, Registry>,
    dispatch: Dispatch,
    flush: Sender<Flush>,
    default: Arc<str>,
}

impl Logs {
    /// Starts the writer on standard output and takes over `tracing` for the whole process.
    /// `directives` is the value of RUST_LOG. The calling thread may wait for a slow output for a moment; no
    /// other does.
    pub fn start(directives: Option<&str>, format: Format) -> Result<Self, LogsError> {
        let logs = Self::open(directives, format, io::stdout())?;
        dispatcher::set_global_default(logs.dispatch.clone()).map_err(|_| LogsError::AlreadyStarted)?;
        logs.follow_access_level();
        Ok(logs)
    }

    fn open(
        directives: Option<&str>,
        format: Format,
        output: impl Write + Send + 'static,
    ) -> Result<Self, LogsError> {
        let filter = initial_filter(directives)?;
        let default: Arc<str> = filter.to_string().into();
        let (queue, lines) = channel::bounded(LOG_LINES_QUEUED);
        let (flush, flushes) = channel::bounded(1);
        let sink = LineSink::new(queue.clone());
        Writer { output, lines, flushes, sink: sink.clone() }.spawn()?;
        let (filter, handle) = reload::Layer::new(filter);
        let lines = LineLayer::new(format, queue, sink.clone(), Duration::from_millis(LOG_LINES_WAIT_MS));
        let dispatch = Dispatch::new(Registry::default().with(filter).with(lines));
        let logs = Self { sink, filter: handle, dispatch, flush, default };
        Ok(logs)
    }

    /// Where shards put their access lines.
    pub fn sink(&self) -> LineSink {
        self.sink.clone()
    }

    /// The filter in force.
    pub fn current(&self) -> String {
        self.filter.with_current(EnvFilter::to_string).unwrap_or_default()
    }

    /// Adds directives (`level` or `target=level`, separated by commas) to the filter in force; answers the
    /// new one.
    pub fn set_level(&self, directives: &str) -> Result<String, LevelError> {
        if !directives.split(',').all(is_clause) {
            return Err(LevelError::Invalid(directives.to_owned()));
        }
        self.install(&format!("{},{directives}", self.current()))
    }

    /// Back to the filter of the start; answers it.
    pub fn reset(&self) -> Result<String, LevelError> {
        self.install(&self.default)
    }

    /// Back to a filter that `current` told; answers it.
    pub fn restore(&self, filter: &str) -> Result<String, LevelError> {
        self.install(filter)
    }

    fn install(&self, directives: &str) -> Result<String, LevelError> {
        let filter = EnvFilter::try_new(directives)?;
        let text = filter.to_string();
        self.filter.reload(filter)?;
        self.follow_access_level();
        dispatcher::with_default(&self.dispatch, || {
            tracing::info!(target: "ztunnel::telemetry", "new log filter is {text}");
        });
        Ok(text)
    }

    /// Shards don't ask `tracing`; they look at the sink's level.
    fn follow_access_level(&self) {
        let level = dispatcher::with_default(&self.dispatch, || {
            if tracing::enabled!(target: "access", tracing::Level::DEBUG) {
                Some(Level::Debug)
            } else if tracing::enabled!(target: "access", tracing::Level::INFO) {
                Some(Level::Info)
            } else if tracing::enabled!(target: "access", tracing::Level::WARN) {
                Some(Level::Warn)
            } else if tracing::enabled!(target: "access", tracing::Level::ERROR) {
                Some(Level::Error)
            } else {
                None
            }
        });
        self.sink.set_access_level(level.map_or(0, |level| level as u8));
    }

    /// Waits, at most a second, until everything queued so far is written. False: it wasn't.
    pub fn finish(&self) -> bool {
        let limit = Duration::from_millis(LOGS_FINISH_MS);
        let (done, written) = channel::bounded(1);
        self.flush.send_timeout(Flush { done }, limit).is_ok() && written.recv_timeout(limit).is_ok()
    }
}

/// Whether RUST_LOG can be read: a part of the check of the configuration.
pub fn check(directives: Option<&str>) -> Result<(), LogsError> {
    initial_filter(directives).map(drop)
}

fn initial_filter(directives: Option<&str>) -> Result<EnvFilter, LogsError> {
    let directives = directives.filter(|value| !value.is_empty()).unwrap_or(DEFAULT_LEVEL);
    EnvFilter::try_new(format!("{ALWAYS},{directives}"))
        .map_err(|reason| LogsError::Filter { value: directives.to_owned(), reason })
}

/// A level, or `target=level`. A bare target is refused, as by the reference; the library would take it.
fn is_clause(clause: &str) -> bool {
    let level = match clause.split_once('=') {
        Some(("", _)) => return false,
        Some((_, level)) => level,
        None => clause,
    };
    matches!(level, "off" | "error" | "warn" | "info" | "debug" | "trace")
}

#[cfg(test)]
mod tests;
