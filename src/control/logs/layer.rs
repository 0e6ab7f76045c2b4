//! Turns events of `tracing` into lines of the two formats of ztunnel-behaviour 16.2, and queues them.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, SystemTime};

use crossbeam::channel::{SendTimeoutError, Sender};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::Format;
use crate::bridge::lines::{LineSink, Lines};
use crate::wire::log_text::{Bare, Json, Quoted, Raw, write_time};

pub(super) struct LineLayer {
    format: Format,
    queue: Sender<Lines>,
    sink: LineSink,
    /// The one thread that may wait for room in the queue.
    patient: ThreadId,
    wait: Duration,
    /// Waiting was in vain: until a line gets through again, nobody waits.
    stuck: AtomicBool,
}

impl LineLayer {
    pub fn new(format: Format, queue: Sender<Lines>, sink: LineSink, wait: Duration) -> Self {
        let patient = thread::current().id();
        Self { format, queue, sink, patient, wait, stuck: AtomicBool::new(false) }
    }

    fn send(&self, bytes: Vec<u8>) {
        let may_wait = thread::current().id() == self.patient && !self.stuck.load(Ordering::Relaxed);
        let wait = if may_wait { self.wait } else { Duration::ZERO };
        let length = bytes.len();
        self.sink.count_queued(length);
        let sent = self.queue.send_timeout(Lines { bytes, count: 1 }, wait);
        match sent {
            Ok(()) => self.stuck.store(false, Ordering::Relaxed),
            Err(SendTimeoutError::Timeout(_) | SendTimeoutError::Disconnected(_)) => {
                self.stuck.store(true, Ordering::Relaxed);
                self.sink.count_taken(length);
                self.sink.count_lost(1);
            }
        }
    }

    fn line<S>(&self, now: SystemTime, event: &Event<'_>, context: &Context<'_, S>) -> Vec<u8>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let mut out = Vec::with_capacity(256);
        let target = event.metadata().target();
        let mut fields =
            Fields { format: self.format, message: None, text: Vec::new(), free: target == FREE };
        event.record(&mut fields);
        match self.format {
            Format::Plain => {
                write_time(now, &mut out);
                let _ = write!(Raw(&mut out), "\t{}\t{}", word(*event.metadata().level()), short(target));
                for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
                    let _ = write!(Raw(&mut out), ":{}", span.name());
                    if let Some(SpanText(text)) = span.extensions().get() {
                        out.push(b'{');
                        out.extend_from_slice(text);
                        out.push(b'}');
                    }
                }
                out.push(b'\t');
                if let Some(message) = &fields.message {
                    out.extend_from_slice(message);
                    out.push(b'\t');
                }
                out.extend_from_slice(&fields.text);
            }
            Format::Json => {
                let _ =
                    write!(Raw(&mut out), "{{\"level\":\"{}\",\"time\":\"", word(*event.metadata().level()));
                write_time(now, &mut out);
                let _ = write!(Raw(&mut out), "\",\"scope\":\"{target}\"");
                if let Some(message) = &fields.message {
                    out.extend_from_slice(b",\"message\":\"");
                    out.extend_from_slice(message);
                    out.push(b'"');
                }
                if !fields.text.is_empty() {
                    out.push(b',');
                    out.extend_from_slice(&fields.text);
                }
                for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
                    let _ = write!(Raw(&mut out), ",\"{}\":{{", span.name());
                    if let Some(SpanText(text)) = span.extensions().get() {
                        out.extend_from_slice(text);
                    }
                    out.push(b'}');
                }
                out.push(b'}');
            }
        }
        out.push(b'\n');
        out
    }
}

/// Messages with this target are the program's own words and may have several lines (the configuration).
const FREE: &str = "ztunnel";

/// A span's fields, formatted once.
struct SpanText(Vec<u8>);

impl<S> Layer<S> for LineLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields { format: self.format, message: None, text: Vec::new(), free: false };
        attributes.record(&mut fields);
        if let Some(span) = context.span(id).filter(|_| !fields.text.is_empty()) {
            span.extensions_mut().insert(SpanText(fields.text));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let text = extensions.remove().map_or_else(Vec::new, |SpanText(text)| text);
        let mut fields = Fields { format: self.format, message: None, text, free: false };
        values.record(&mut fields);
        if !fields.text.is_empty() {
            extensions.insert(SpanText(fields.text));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        self.send(self.line(SystemTime::now(), event, &context));
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The target without the name of the program.
fn short(target: &str) -> &str {
    target.strip_prefix("ztunnel::").or_else(|| target.strip_prefix("ringway::")).unwrap_or(target)
}

/// Collects one record's fields; the message goes apart, because it comes first whatever the order was.
struct Fields {
    format: Format,
    message: Option<Vec<u8>>,
    text: Vec<u8>,
    /// Line breaks in the message are kept.
    free: bool,
}

impl Fields {
    /// Starts a field and gives the place for its value; none where it isn't to be printed.
    fn start(&mut self, field: &Field) -> Option<&mut Vec<u8>> {
        if field.name().starts_with("log.") {
            return None;
        }
        if field.name() == "message" {
            return Some(self.message.insert(Vec::new()));
        }
        let out = &mut self.text;
        match self.format {
            Format::Plain => {
                if !out.is_empty() {
                    out.push(b' ');
                }
                let _ = write!(Raw(out), "{}=", field.name());
            }
            Format::Json => {
                if !out.is_empty() {
                    out.push(b',');
                }
                let _ = write!(Raw(out), "\"{}\":", field.name());
            }
        }
        Some(out)
    }

    /// A value that stands for itself in both formats.
    fn native(&mut self, field: &Field, value: impl fmt::Display) {
        if let Some(out) = self.start(field) {
            let _ = write!(Raw(out), "{value}");
        }
    }

    /// A value that plain text shows without quotes and JSON as a string.
    fn shown(&mut self, field: &Field, value: &dyn fmt::Display) {
        let (format, free) = (self.format, self.free);
        let is_message = field.name() == "message";
        let Some(out) = self.start(field) else { return };
        let _ = match format {
            Format::Plain if is_message && free => write!(Raw(out), "{value}"),
            Format::Plain => write!(Bare(out), "{value}"),
            Format::Json if is_message => write!(Json(out), "{value}"),
            Format::Json => {
                out.push(b'"');
                let done = write!(Json(out), "{value}");
                out.push(b'"');
                done
            }
        };
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.native(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.native(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.native(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() { self.native(field, value) } else { self.shown(field, &value) }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.format == Format::Json || field.name() == "message" {
            return self.shown(field, &value);
        }
        if let Some(out) = self.start(field) {
            out.push(b'"');
            let _ = Quoted(out).write_str(value);
            out.push(b'"');
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.shown(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.shown(field, &format_args!("{value:?}"));
    }
}
