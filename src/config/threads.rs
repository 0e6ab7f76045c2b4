//! How many worker threads (shards) there are: the rules at the end of ztunnel-behaviour 2.2, pure.

use super::parse::{Workers, share};

/// What the rules look at.
#[derive(Clone, Copy, Default, Debug)]
pub struct Facts {
    /// CPUs that the process may use.
    pub online: usize,
    /// `ZTUNNEL_WORKER_THREADS`.
    pub workers: Option<Workers>,
    /// `concurrency` of the proxy configuration.
    pub concurrency: Option<u16>,
    /// `ZTUNNEL_RESOURCE_CPU_LIMIT`.
    pub resource_limit: Option<usize>,
    /// `ZTUNNEL_RESOURCE_CPU_REQUEST`.
    pub resource_request: Option<usize>,
    /// `ZTUNNEL_CPU_LIMIT`.
    pub limit: Option<usize>,
}

impl Facts {
    pub fn cpus(&self) -> usize {
        self.resource_limit.or(self.limit).unwrap_or(self.online).max(1)
    }

    pub fn threads(&self) -> usize {
        let cpus = self.cpus();
        let threads = match (self.workers, self.concurrency) {
            (Some(workers), _) => workers.of(cpus),
            (None, Some(0)) => cpus,
            (None, Some(concurrency)) => usize::from(concurrency),
            (None, None) => self.derived(),
        };
        threads.max(1)
    }

    fn derived(&self) -> usize {
        let request = self.resource_request.unwrap_or(0);
        match self.resource_limit {
            Some(limit) => limit.max(request),
            // The reference's floor of 2 is for threads that share work. Shards don't: two of them on the one CPU that
            // the process may use would only take turns, at twice the wake-ups.
            None => share(self.cpus(), 0.25).max(request).max(self.online.clamp(1, 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_and_its_rank() {
        let on = |online| Facts { online, ..Facts::default() };
        for (facts, expected) in [
            (on(1), 1),
            (on(2), 2),
            (on(8), 2),
            (on(9), 3),
            (on(64), 16),
            (Facts { resource_request: Some(5), ..on(8) }, 5),
            (Facts { resource_limit: Some(1), ..on(64) }, 1),
            (Facts { resource_limit: Some(3), resource_request: Some(4), ..on(64) }, 4),
            (Facts { limit: Some(32), ..on(4) }, 8),
            (Facts { limit: Some(32), resource_limit: Some(6), ..on(4) }, 6),
            (Facts { concurrency: Some(7), ..on(64) }, 7),
            (Facts { concurrency: Some(0), ..on(12) }, 12),
            (Facts { concurrency: Some(0), resource_limit: Some(3), ..on(12) }, 3),
            (Facts { concurrency: Some(7), workers: Some(Workers::Count(5)), ..on(12) }, 5),
            (Facts { workers: Some(Workers::Count(0)), ..on(12) }, 12),
            (Facts { workers: Some(Workers::Percent(50.0)), limit: Some(9), ..on(12) }, 5),
            (Facts { workers: Some(Workers::Percent(0.1)), ..on(2) }, 1),
        ] {
            assert_eq!(facts.threads(), expected, "{facts:?}");
        }
    }
}
