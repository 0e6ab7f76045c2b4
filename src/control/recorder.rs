//! Counters and gauges of the control side, behind the `metrics` facade: few of them, read only at a scrape.
//! Shards don't use it, they count in plain integers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Everything recorded; clones share it. Each thread of the control side installs a clone for itself.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Cells>>);

type Cells = BTreeMap<Kind, BTreeMap<Key, Arc<AtomicU64>>>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Counter,
    Gauge,
}

/// One value at the moment of a scrape.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub kind: Kind,
    pub value: f64,
}

impl Registry {
    /// All values, by kind and then by name and labels.
    pub fn samples(&self) -> Vec<Sample> {
        let mut all = Vec::new();
        for (kind, cells) in self.lock().iter() {
            for (key, cell) in cells {
                let bits = cell.load(Ordering::Relaxed);
                #[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 lose their last digits")]
                let value = match kind {
                    Kind::Counter => bits as f64,
                    Kind::Gauge => f64::from_bits(bits),
                };
                let label = |label: &metrics::Label| (label.key().to_owned(), label.value().to_owned());
                all.push(Sample {
                    name: key.name().to_owned(),
                    labels: key.labels().map(label).collect(),
                    kind: *kind,
                    value,
                });
            }
        }
        all
    }

    fn cell(&self, kind: Kind, key: &Key) -> Arc<AtomicU64> {
        let mut kinds = self.lock();
        let cells = kinds.entry(kind).or_default();
        cells.entry(key.clone()).or_default().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for Registry {
    // Names, help and order of what is exposed stand in `control::metrics`, in one table.
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(Kind::Counter, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(Kind::Gauge, key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_on_two_threads_is_read_as_one() {
        let registry = Registry::default();
        let count = || {
            metrics::with_local_recorder(&registry, || {
                metrics::counter!("c", "url" => "a").increment(3);
                metrics::gauge!("g").set(1.5);
            });
        };
        std::thread::scope(|scope| {
            scope.spawn(count);
            scope.spawn(count);
        });
        let samples = registry.samples();
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].name.as_str(), samples[0].value), ("c", 6.0));
        assert_eq!(samples[0].labels, [("url".to_owned(), "a".to_owned())]);
        assert_eq!((samples[1].kind, samples[1].value), (Kind::Gauge, 1.5));
    }
}
