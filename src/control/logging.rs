//! `/logging`: which log lines are written, shown and changed. Statuses and texts are the reference's (section 17.3);
//! `for` is ours: a change that ends by itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::ALLOW;
use hyper::{Method, StatusCode};
use tokio::task::AbortHandle;
use tracing::warn;

use crate::base::limits::LOG_CHANGE_MOST_S;
use crate::control::http::{self, Reply};
use crate::control::logs::{LevelError, Logs};

/// The filter of log lines, as an operator changes it while the process runs.
pub trait LogLevels: Send + Sync {
    /// The filter in force.
    fn current(&self) -> String;
    /// Adds `level` or `target=level` clauses; answers the new filter.
    fn set(&self, level: &str) -> Result<String, LevelRefused>;
    /// Back to the filter of the start; answers it.
    fn reset(&self) -> Result<String, LevelRefused>;
    /// Back to a filter that `current` told.
    fn restore(&self, filter: &str) -> Result<String, LevelRefused>;
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

    fn restore(&self, filter: &str) -> Result<String, LevelRefused> {
        Self::restore(self, filter).map_err(LevelRefused::from)
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

const HELP: &str = "
usage: POST /logging                                       (shows the filter in force)
usage: POST /logging?level=LEVEL                           (changes the level of everything)
usage: POST /logging?level=TARGET1=LEVEL1,TARGET2=LEVEL2   (changes the level of single targets; reset: as at start)

hint: levels are off, error, warn, info, debug, trace
hint: a target is the name in front of a message, such as access or ztunnel::inpod
";

/// See above.
pub struct Logging {
    /// `None`: there is nothing to change.
    logs: Option<Arc<dyn LogLevels>>,
    timer: Arc<Mutex<Option<Timer>>>,
}

/// A change that ends by itself.
struct Timer {
    /// The filter before it.
    before: String,
    task: AbortHandle,
}

impl Logging {
    pub fn new(logs: Option<Arc<dyn LogLevels>>) -> Self {
        Self { logs, timer: Arc::default() }
    }

    /// Must be called on the control thread's runtime.
    pub fn answer(&self, method: &Method, parameter: impl Fn(&str) -> Option<String>) -> Reply {
        if method != Method::POST {
            let body = format!("Invalid HTTP method\n {HELP}");
            return http::with_header(
                http::text(StatusCode::METHOD_NOT_ALLOWED, body),
                ALLOW.as_str(),
                "POST",
            );
        }
        let Some(logs) = &self.logs else {
            let body = format!("failed to get the log level: logging is not initialized\n {HELP}");
            return http::text(StatusCode::INTERNAL_SERVER_ERROR, body);
        };
        let seconds = match parameter("for").map(|value| value.parse::<u64>()) {
            None => None,
            Some(Ok(seconds)) if (1..=LOG_CHANGE_MOST_S).contains(&seconds) => Some(seconds),
            Some(_) => {
                let body = format!("invalid for value; expected seconds, 1-{LOG_CHANGE_MOST_S}\n{HELP}");
                return http::text(StatusCode::BAD_REQUEST, body);
            }
        };
        let before = logs.current();
        let mut current = before.clone();
        let mut changed = false;
        if parameter("reset").is_some() {
            match logs.reset() {
                Ok(filter) => current = filter,
                Err(error) => return refused("reset", error),
            }
            changed = true;
        }
        if let Some(level) = parameter("level").filter(|level| !level.is_empty()) {
            match logs.set(&level) {
                Ok(filter) => current = filter,
                Err(error) => {
                    // A refused request changes nothing, not even by its reset.
                    if changed && let Err(error) = logs.restore(&before) {
                        return refused(&before, error);
                    }
                    return refused(&level, error);
                }
            }
            changed = true;
        }
        let mut body = format!("current log level is {current}\n");
        if changed && let Some(back) = self.remember(logs, before, seconds) {
            body.push_str(&back);
        }
        http::text(StatusCode::OK, body)
    }

    /// A change without an end is for good, and ends what was to end; one with an end goes back to what was in force
    /// before the first of them.
    fn remember(&self, logs: &Arc<dyn LogLevels>, before: String, seconds: Option<u64>) -> Option<String> {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = timer.take().map(|timer| {
            timer.task.abort();
            timer.before
        });
        let seconds = seconds?;
        let before = earlier.unwrap_or(before);
        let (logs, back, all) = (logs.clone(), before.clone(), self.timer.clone());
        let task = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            all.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Err(error) = logs.restore(&back) {
                warn!("the log filter can't go back to {back}: {error:?}");
            }
        });
        let told = format!("in {seconds} s it is {before} again\n");
        *timer = Some(Timer { before, task: task.abort_handle() });
        Some(told)
    }
}

fn refused(level: &str, refused: LevelRefused) -> Reply {
    let body = match refused {
        LevelRefused::Invalid => format!("Invalid level provided: {level}\n{HELP}"),
        LevelRefused::Failed(error) => format!("Failed to set new level: {error}\n{HELP}"),
    };
    http::text(StatusCode::BAD_REQUEST, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::admin::parameter;
    use crate::control::http::test::body;
    use hyper::header::CONTENT_TYPE;

    /// A filter that behaves like the real one.
    struct Levels(Mutex<String>);

    const DEFAULT: &str = "hickory_server::server=off,info";

    impl LogLevels for Levels {
        fn current(&self) -> String {
            self.0.lock().unwrap().clone()
        }

        fn set(&self, level: &str) -> Result<String, LevelRefused> {
            match level {
                "bogus" => Err(LevelRefused::Invalid),
                "broken=info" => Err(LevelRefused::Failed("reload failure: gone".into())),
                _ => self.restore(level),
            }
        }

        fn reset(&self) -> Result<String, LevelRefused> {
            self.restore(DEFAULT)
        }

        fn restore(&self, filter: &str) -> Result<String, LevelRefused> {
            *self.0.lock().unwrap() = filter.to_owned();
            Ok(filter.to_owned())
        }
    }

    fn desk() -> (Logging, Arc<Levels>) {
        let levels = Arc::new(Levels(Mutex::new(DEFAULT.into())));
        (Logging::new(Some(levels.clone())), levels)
    }

    fn reply(logging: &Logging, method: &str, query: &str) -> Reply {
        logging.answer(&method.parse().unwrap(), |name| parameter(query, name))
    }

    #[test]
    fn log_levels_are_shown_changed_and_reset() {
        let (logging, _) = desk();
        let says = |method: &str, query: &str| {
            let reply = reply(&logging, method, query);
            assert_eq!(reply.headers()[CONTENT_TYPE], "text/plain");
            (reply.status().as_u16(), body(reply))
        };
        let ok = |filter: &str| (200, format!("current log level is {filter}\n"));
        assert_eq!(says("POST", ""), ok(DEFAULT));
        assert_eq!(says("POST", "level="), ok(DEFAULT));
        assert_eq!(says("POST", "level=debug"), ok("debug"));
        assert_eq!(says("POST", "level=ztunnel%3A%3Axds=trace%2Cinfo"), ok("ztunnel::xds=trace,info"));
        assert_eq!(says("POST", "reset"), ok(DEFAULT));
        assert_eq!(says("POST", "reset=false&level=warn"), ok("warn"));
        let (status, text) = says("POST", "level=bogus");
        assert!(
            status == 400 && text.starts_with("Invalid level provided: bogus\n\nusage: POST /logging"),
            "{text}"
        );
        assert_eq!(says("POST", "reset&level=bogus").0, 400);
        assert_eq!(says("POST", ""), ok("warn"));
        let (status, text) = says("POST", "level=broken=info");
        assert!(
            status == 400 && text.starts_with("Failed to set new level: reload failure: gone\n"),
            "{text}"
        );
        let (status, text) = says("GET", "level=debug");
        assert!(status == 405 && text.starts_with("Invalid HTTP method\n \nusage: "), "{text}");
        assert_eq!((text.matches("usage: ").count(), text.matches("hint: ").count()), (3, 2));
        assert_eq!(Logging::new(None).answer(&Method::POST, |_| None).status(), 500);
        for query in ["level=debug&for=0", "level=debug&for=x", "level=debug&for=999999999"] {
            assert_eq!(says("POST", query).0, 400);
        }
    }

    #[tokio::test]
    async fn a_change_for_a_while_goes_back_to_what_was_before() {
        let (logging, levels) = desk();
        let post = |query: &str| assert_eq!(reply(&logging, "POST", query).status(), 200);
        post("level=warn");
        post("level=debug&for=86400");
        post("level=trace&for=1");
        assert_eq!(levels.current(), "trace");
        let back = async {
            while levels.current() != "warn" {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), back).await.unwrap();
        // A change for good ends what was to end.
        post("level=debug&for=1");
        post("level=error");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(levels.current(), "error");
    }
}
