//! One line of the access log, as the reference writes it (ztunnel-behaviour 16.1, 16.2), in both formats; what is ours
//! comes last (deploy/docs/access-log.md).
//! Pure and allocation free besides the buffer: it runs on the connection path of the shards.

use std::fmt::{Display, Write};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use crate::base::level::Level;
use crate::wire::log_text::{Json, Quoted, write_address, write_number, write_time};

/// What happened to a connection; with `error` it decides the level, the message and which fields a line has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It is about to be dialled: everything known so far, no counts.
    Opened,
    /// It ended, well or with an error.
    Complete,
    /// It was refused before anything was known about it: addresses, direction and error only.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Inbound,
    Outbound,
}

/// What the log says of one end. What isn't known is left out of the line.
#[derive(Clone, Copy, Default)]
pub struct End<'a> {
    /// The pod's name.
    pub workload: Option<&'a str>,
    pub namespace: Option<&'a str>,
    /// Only where the connection was protected by mutual TLS.
    pub identity: Option<&'a dyn Display>,
    pub cluster: Option<&'a str>,
}

/// The authority of a CONNECT.
#[derive(Clone, Copy, Debug)]
pub enum HboneAddr<'a> {
    Address(SocketAddr),
    /// `host:port` as the peer wrote it: hostile until escaped.
    Named(&'a str),
}

/// Everything a line can say, in the order in which it says it.
#[derive(Clone, Copy)]
pub struct AccessLine<'a> {
    pub event: Event,
    pub src_addr: SocketAddr,
    pub src: End<'a>,
    /// Outbound: the next hop as dialled. Inbound HBONE: the original 15008 address.
    pub dst_addr: SocketAddr,
    /// What was asked for, where no address was found for it; told instead of `dst_addr`.
    pub dst_name: Option<&'a str>,
    pub dst_hbone_addr: Option<HboneAddr<'a>>,
    /// Host name of the service.
    pub dst_service: Option<&'a str>,
    pub dst: End<'a>,
    pub direction: Direction,
    /// Outbound: client to server. Inbound: server to client.
    pub bytes_sent: u64,
    /// The other way.
    pub bytes_recv: u64,
    /// Printed in whole milliseconds.
    pub duration: Duration,
    pub error: Option<&'a dyn Display>,
    /// What is ours; it comes after all of the reference's.
    pub ours: Ours,
}

/// What the reference's lines don't say. What isn't known is left out here too.
#[derive(Clone, Copy, Default, Debug)]
pub struct Ours {
    /// Why it ended, in a word that programs can count; none where both sides finished in order.
    pub reason: Option<&'static str>,
    /// Endpoints tried; told where it is more than one.
    pub attempts: u32,
    /// From the start of `duration` until the far side was reached, in whole milliseconds.
    pub setup: Option<Duration>,
    pub shard: usize,
    /// How it came in, where that isn't by capture.
    pub via: Option<Via>,
}

/// An explicit proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    Connect,
    Socks5,
}

impl Via {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Socks5 => "socks5",
        }
    }
}

impl AccessLine<'_> {
    /// `Failed` warns, `Opened` is for debugging, `Complete` informs or, with an error, is one.
    pub fn level(&self) -> Level {
        match (self.event, self.error) {
            (Event::Opened, _) => Level::Debug,
            (Event::Failed, _) => Level::Warn,
            (Event::Complete, None) => Level::Info,
            (Event::Complete, Some(_)) => Level::Error,
        }
    }

    /// Appends the plain form, newline included.
    pub fn write_plain(&self, now: SystemTime, out: &mut Vec<u8>) {
        write_time(now, out);
        for part in ["\t", self.level().word(), "\taccess\t", self.message(), "\t"] {
            out.extend_from_slice(part.as_bytes());
        }
        self.visit(&mut Plain { out, first: true });
        out.push(b'\n');
    }

    /// Appends the JSON form, newline included.
    pub fn write_json(&self, now: SystemTime, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"level":""#);
        out.extend_from_slice(self.level().word().as_bytes());
        out.extend_from_slice(br#"","time":""#);
        write_time(now, out);
        out.extend_from_slice(br#"","scope":"access","message":""#);
        out.extend_from_slice(self.message().as_bytes());
        out.push(b'"');
        self.visit(&mut JsonFields(out));
        out.extend_from_slice(b"}\n");
    }

    fn message(&self) -> &'static str {
        match self.event {
            Event::Opened => "connection opened",
            Event::Complete => "connection complete",
            Event::Failed => "connection failed",
        }
    }

    fn visit(&self, fields: &mut impl Fields) {
        fields.address("src.addr", self.src_addr);
        if self.event != Event::Failed {
            end(["src.workload", "src.namespace", "src.identity", "src.cluster"], &self.src, fields);
        }
        match self.dst_name {
            Some(name) => fields.bare("dst.addr", name),
            None => fields.address("dst.addr", self.dst_addr),
        }
        if self.event != Event::Failed {
            match self.dst_hbone_addr {
                Some(HboneAddr::Address(address)) => fields.address("dst.hbone_addr", address),
                Some(HboneAddr::Named(authority)) => fields.bare("dst.hbone_addr", authority),
                None => {}
            }
            text("dst.service", self.dst_service, fields);
            end(["dst.workload", "dst.namespace", "dst.identity", "dst.cluster"], &self.dst, fields);
        }
        fields.text(
            "direction",
            match self.direction {
                Direction::Inbound => &"inbound",
                Direction::Outbound => &"outbound",
            },
        );
        if self.event == Event::Complete {
            fields.number("bytes_sent", self.bytes_sent);
            fields.number("bytes_recv", self.bytes_recv);
            fields.milliseconds("duration", milliseconds(self.duration));
        }
        if let Some(error) = self.error {
            fields.text("error", error);
        }
        self.ours.visit(fields);
    }
}

impl Ours {
    fn visit(&self, fields: &mut impl Fields) {
        text("reason", self.reason, fields);
        if self.attempts > 1 {
            fields.number("attempts", self.attempts.into());
        }
        if let Some(setup) = self.setup {
            fields.number("setup_ms", milliseconds(setup));
        }
        fields.number("shard", u64::try_from(self.shard).unwrap_or(u64::MAX));
        text("via", self.via.map(Via::as_str), fields);
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn end(names: [&'static str; 4], end: &End<'_>, fields: &mut impl Fields) {
    let [workload, namespace, identity, cluster] = names;
    text(workload, end.workload, fields);
    text(namespace, end.namespace, fields);
    if let Some(value) = end.identity {
        fields.text(identity, value);
    }
    text(cluster, end.cluster, fields);
}

fn text(name: &'static str, value: Option<&str>, fields: &mut impl Fields) {
    if let Some(value) = value {
        fields.text(name, &value);
    }
}

/// One of the two formats. Formatting into a `Vec` fails only where a `Display` does: the text is then cut.
trait Fields {
    fn address(&mut self, name: &'static str, value: SocketAddr);
    fn bare(&mut self, name: &'static str, value: &str);
    fn text(&mut self, name: &'static str, value: &dyn Display);
    fn number(&mut self, name: &'static str, value: u64);
    fn milliseconds(&mut self, name: &'static str, value: u64);
}

struct Plain<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl Plain<'_> {
    fn name(&mut self, name: &'static str) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b' ');
        }
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b'=');
    }
}

impl Fields for Plain<'_> {
    fn address(&mut self, name: &'static str, value: SocketAddr) {
        self.name(name);
        write_address(value, self.out);
    }

    /// Unquoted as in the reference, unless that could be read as more than one value.
    fn bare(&mut self, name: &'static str, value: &str) {
        let is_one_word = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'=');
        if value.is_empty() || !value.bytes().all(is_one_word) {
            return self.text(name, &value);
        }
        self.name(name);
        self.out.extend_from_slice(value.as_bytes());
    }

    fn text(&mut self, name: &'static str, value: &dyn Display) {
        self.name(name);
        self.out.push(b'"');
        let _ = write!(Quoted(self.out), "{value}");
        self.out.push(b'"');
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.name(name);
        write_number(value, self.out);
    }

    fn milliseconds(&mut self, name: &'static str, value: u64) {
        self.name(name);
        self.out.push(b'"');
        write_number(value, self.out);
        self.out.extend_from_slice(b"ms\"");
    }
}

struct JsonFields<'a>(&'a mut Vec<u8>);

impl JsonFields<'_> {
    fn name(&mut self, name: &'static str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }
}

impl Fields for JsonFields<'_> {
    fn address(&mut self, name: &'static str, value: SocketAddr) {
        self.name(name);
        self.0.push(b'"');
        write_address(value, self.0);
        self.0.push(b'"');
    }

    fn bare(&mut self, name: &'static str, value: &str) {
        self.text(name, &value);
    }

    fn text(&mut self, name: &'static str, value: &dyn Display) {
        self.name(name);
        self.0.push(b'"');
        let _ = write!(Json(self.0), "{value}");
        self.0.push(b'"');
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.name(name);
        write_number(value, self.0);
    }

    fn milliseconds(&mut self, name: &'static str, value: u64) {
        self.name(name);
        self.0.push(b'"');
        write_number(value, self.0);
        self.0.extend_from_slice(b"ms\"");
    }
}

#[cfg(test)]
mod tests;
