//! What the process still waits for, and the readiness server's answer (port 15021).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hyper::{Method, StatusCode};
use tracing::{info, warn};

use crate::base::text::Text;
use crate::control::http::{self, Answering, Handler, Question, Reply};

/// The mesh's first full state.
pub const STATE: &str = "state manager";
/// The data plane's own listeners.
pub const PROXY: &str = "proxy";
/// The listeners of the DNS proxy, where it is on.
pub const DNS_PROXY: &str = "dns proxy";
/// The CNI agent's snapshot, and every pod of it.
pub const PODS: &str = "workload proxy manager";
/// A file of revocation lists that could be used; one that isn't there is not waited for.
pub const REVOCATION: &str = "revocation lists";
/// The process ends.
pub const DRAIN: &str = "drain";

/// The tasks that stand between the process and readiness. Shared by the control thread, the CNI thread and the
/// readiness server; locked for moments only, and never by a shard.
#[derive(Default)]
pub struct Readiness {
    pending: Mutex<BTreeMap<Task, Pending>>,
}

type Task = Cow<'static, str>;

struct Pending {
    since: Instant,
    reason: Option<Text>,
}

impl Readiness {
    /// Not ready until `task` is complete. An awaited task keeps its age and takes the new reason.
    pub fn expect(&self, task: impl Into<Task>, reason: Option<Text>) {
        let task = task.into();
        let mut pending = self.lock();
        let was_ready = pending.is_empty();
        if was_ready {
            let reason = reason.as_deref().unwrap_or("no reason given");
            tracing::debug!(target: "ztunnel::readiness", %task, %reason, "task awaited");
        }
        pending
            .entry(task)
            .and_modify(|known| known.reason.clone_from(&reason))
            .or_insert_with(|| Pending { since: Instant::now(), reason });
    }

    /// The same, for a task that was complete before: said aloud, because the node stops being ready.
    pub fn lose(&self, task: impl Into<Task>, reason: Text) {
        let task = task.into();
        if !self.lock().contains_key(&task) {
            warn!(target: "ztunnel::readiness", "Task '{task}' is awaited again: {reason}");
        }
        self.expect(task, Some(reason));
    }

    /// Why an awaited task isn't complete yet; nothing where it is.
    pub fn explain(&self, task: &str, reason: Text) {
        if let Some(known) = self.lock().get_mut(task) {
            known.reason = Some(reason);
        }
    }

    pub fn complete(&self, task: &str) {
        let mut pending = self.lock();
        let Some(known) = pending.remove(task) else { return };
        let took = known.since.elapsed();
        match pending.len() {
            0 => {
                info!(target: "ztunnel::readiness", "Task '{task}' complete ({took:?}), marking server ready");
            }
            left => {
                info!(target: "ztunnel::readiness", "Task '{task}' complete ({took:?}), still awaiting {left} tasks");
            }
        }
    }

    /// Names of what is pending, each with its reason where one is known, sorted.
    pub fn pending(&self) -> Vec<(String, Option<Text>)> {
        let pending = self.lock();
        pending.iter().map(|(task, known)| (task.to_string(), known.reason.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Task, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body is the reference's to the letter; the reasons stand beside it, in a header of ours.
pub fn answer(readiness: &Readiness, question: &Question) -> Reply {
    if question.uri.path() != "/healthz/ready" {
        return http::empty(StatusCode::NOT_FOUND);
    }
    if question.method != Method::GET {
        return http::empty(StatusCode::METHOD_NOT_ALLOWED);
    }
    let pending = readiness.pending();
    if pending.is_empty() {
        return http::text(StatusCode::OK, "ready\n");
    }
    let names: Vec<&str> = pending.iter().map(|(name, _)| name.as_str()).collect();
    let body = format!("not ready, pending: {}\n", names.join(", "));
    let mut reasons = String::new();
    for (name, reason) in pending.iter().filter_map(|(name, reason)| Some((name, reason.as_ref()?))) {
        let separator = if reasons.is_empty() { "" } else { "; " };
        let _ = write!(reasons, "{separator}{name}: {reason}");
    }
    let reply = http::text(StatusCode::INTERNAL_SERVER_ERROR, body);
    http::with_header(reply, "ringway-pending", &reasons)
}

/// The server's side of `Readiness`.
pub struct ReadinessServer(pub std::sync::Arc<Readiness>);

impl Handler for ReadinessServer {
    fn answer(&self, question: Question) -> Answering<'_> {
        Box::pin(async move { answer(&self.0, &question) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::http::test::{ask, body};

    #[test]
    fn the_answer_lists_what_is_missing_in_order() {
        let readiness = Readiness::default();
        readiness.expect(PODS, Some("no snapshot yet".into()));
        readiness.expect(STATE, None);
        let reply = answer(&readiness, &ask("GET", "/healthz/ready"));
        assert_eq!(reply.status(), 500);
        assert_eq!(reply.headers()["ringway-pending"], "workload proxy manager: no snapshot yet");
        assert_eq!(body(reply), "not ready, pending: state manager, workload proxy manager\n");
        readiness.complete(STATE);
        readiness.complete(PODS);
        readiness.complete("never awaited");
        let reply = answer(&readiness, &ask("GET", "/healthz/ready"));
        assert_eq!((reply.status().as_u16(), body(reply).as_str()), (200, "ready\n"));
        readiness.lose(PODS, "the agent went away".into());
        assert_eq!(answer(&readiness, &ask("GET", "/healthz/ready")).status(), 500);
    }

    #[test]
    fn other_methods_and_paths() {
        let readiness = Readiness::default();
        for (method, path, status) in [
            ("POST", "/healthz/ready", 405),
            ("HEAD", "/healthz/ready", 405),
            ("GET", "/x", 404),
            ("GET", "/healthz/ready/", 404),
            ("GET", "/healthz/ready?full", 200),
        ] {
            assert_eq!(answer(&readiness, &ask(method, path)).status(), status, "{method} {path}");
        }
    }

    #[test]
    fn a_reason_that_is_no_header_text_does_no_harm() {
        let readiness = Readiness::default();
        readiness.expect(PODS, Some("line\r\nbreak é".into()));
        let reply = answer(&readiness, &ask("GET", "/healthz/ready"));
        assert_eq!(reply.headers()["ringway-pending"], "workload proxy manager: line  break ?");
    }
}
