//! What one run of a load client found: counts, latencies, and the first error; printed as one line of JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies are kept in microseconds up to a minute, three digits exact.
const LATENCY_MAX_US: u64 = 60_000_000;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub seconds: f64,
    /// Payload bytes that the receiving end saw whole.
    pub bytes: u64,
    pub operations: u64,
    /// Operations that had no answer when time was up.
    pub unanswered: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub latency: Option<Latency>,
    /// What the server took for the client's address, on the last connection opened.
    pub seen_as: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

/// Collects while a run lasts; shared by the tasks of one thread.
pub struct Tally {
    pub outcome: Outcome,
    latencies: Histogram<u64>,
}

impl Tally {
    pub fn new() -> anyhow::Result<Self> {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?;
        Ok(Self { outcome: Outcome::default(), latencies })
    }

    pub fn operation(&mut self, took: Duration) {
        self.outcome.operations += 1;
        self.latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    pub fn error(&mut self, what: impl std::fmt::Display) {
        self.outcome.errors += 1;
        self.outcome.first_error.get_or_insert_with(|| what.to_string());
    }

    /// Forgets the warm-up, keeps errors.
    pub fn restart(&mut self) {
        self.latencies.reset();
        self.outcome.bytes = 0;
        self.outcome.operations = 0;
        self.outcome.unanswered = 0;
    }

    pub fn finish(&mut self, took: Duration) -> Outcome {
        self.outcome.seconds = took.as_secs_f64();
        self.outcome.latency = (!self.latencies.is_empty()).then(|| Latency {
            mean_us: self.latencies.mean(),
            p50_us: self.latencies.value_at_quantile(0.5),
            p90_us: self.latencies.value_at_quantile(0.9),
            p99_us: self.latencies.value_at_quantile(0.99),
            p999_us: self.latencies.value_at_quantile(0.999),
            max_us: self.latencies.max(),
        });
        self.outcome.clone()
    }
}
