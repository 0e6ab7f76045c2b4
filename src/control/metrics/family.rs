//! Families of the page, and the page itself: OpenMetrics text, written in pieces to whoever takes them.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};

use crate::base::limits::CHUNK_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What stands at the head of a family, and in the operators' page about metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    /// Without a counter's `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    pub unit: Option<&'static str>,
    /// Names of the labels in their order, parted by blanks.
    pub labels: &'static str,
}

pub(super) const fn counter(name: &'static str, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help, unit: None, labels }
}

pub(super) const fn gauge(name: &'static str, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help, unit: None, labels }
}

pub(super) const fn histogram(name: &'static str, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Histogram, help, unit: None, labels }
}

impl Family {
    pub(super) const fn in_unit(self, unit: &'static str) -> Self {
        Self { unit: Some(unit), ..self }
    }
}

/// The text being written. A family's head appears with its first sample; one without samples has none.
pub(super) struct Page<'a> {
    text: String,
    family: Option<Family>,
    headed: bool,
    /// Takes a piece; false: nobody wants more.
    take: &'a mut dyn FnMut(&str) -> bool,
    wanted: bool,
}

impl<'a> Page<'a> {
    pub(super) fn new(take: &'a mut dyn FnMut(&str) -> bool) -> Self {
        Self { text: String::new(), family: None, headed: false, take, wanted: true }
    }

    /// The samples that follow are of this family.
    pub(super) fn family(&mut self, family: &Family) {
        self.headed &= self.family.is_some_and(|before| before.name == family.name);
        self.family = Some(*family);
    }

    /// One sample of a counter or gauge, with the values of the family's labels in their order.
    pub(super) fn sample(&mut self, values: &[&str], value: impl Display) {
        let suffix = match self.family {
            Some(Family { kind: Kind::Counter, .. }) => "_total",
            _ => "",
        };
        self.part(suffix, &[&self.labels(values)], value);
    }

    fn labels(&self, values: &[&str]) -> String {
        let names = self.family.map_or("", |family| family.labels).split_whitespace();
        let mut text = String::new();
        for (name, value) in names.zip(values) {
            label(&mut text, name, value);
        }
        text
    }

    /// One line; the pieces of `labels` are written one behind the other.
    pub(super) fn part(&mut self, suffix: &str, labels: &[&str], value: impl Display) {
        let Some(family) = self.family.filter(|_| self.wanted) else { return };
        if !self.headed {
            self.headed = true;
            self.head(&family);
        }
        let text = &mut self.text;
        text.push_str(family.name);
        text.push_str(suffix);
        if labels.iter().any(|labels| !labels.is_empty()) {
            text.push('{');
            labels.iter().for_each(|labels| text.push_str(labels));
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
        if text.len() >= CHUNK_BYTES {
            self.hand_over();
        }
    }

    /// Sum, count and buckets as the reference's encoder orders them, `le` before the other labels. `counts`: how
    /// many are in each bucket alone; one more than there are bounds.
    pub(super) fn buckets(&mut self, values: &[&str], bounds_s: &[f64], counts: &[u64], sum_s: f64) {
        let labels = &*self.labels(values);
        self.part("_sum", &[labels], sum_s);
        self.part("_count", &[labels], counts.iter().sum::<u64>());
        let bounds = bounds_s.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        let comma = if labels.is_empty() { "" } else { "," };
        let mut below = 0;
        for (bound, within) in bounds.zip(counts) {
            below += within;
            self.part("_bucket", &["le=\"", &bound, "\"", comma, labels], below);
        }
    }

    fn head(&mut self, Family { name, kind, help, unit, .. }: &Family) {
        let kind = kind.as_str();
        let _ = write!(self.text, "# HELP {name} {}\n# TYPE {name} {kind}\n", escaped(help));
        if let Some(unit) = unit {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
    }

    fn hand_over(&mut self) {
        self.wanted = self.wanted && (self.take)(&self.text);
        self.text.clear();
    }

    /// Whether somebody has taken all of it.
    pub(super) fn finish(mut self) -> bool {
        self.text.push_str("# EOF\n");
        self.hand_over();
        self.wanted
    }
}

/// `name="value"`, after a comma where it isn't the first; nothing is `unknown`.
pub(super) fn label(to: &mut String, name: &str, value: &str) {
    if !to.is_empty() {
        to.push(',');
    }
    to.push_str(name);
    to.push_str("=\"");
    to.push_str(&escaped(if value.is_empty() { "unknown" } else { value }));
    to.push('"');
}

/// OpenMetrics escaping of label values and help texts.
fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return value.into();
    }
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}
