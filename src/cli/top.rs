//! `ringway top`: what pods, services and shards carry, as rates between two looks.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::admin::Admin;
use super::arguments::{TopArguments, TopBy};
use super::table::{aligned, at, bytes, number};
use super::{Console, exit};
use crate::sys::terminal::{INTERRUPT, Keys, size};

/// One look at everything that the screen shows.
struct Look {
    at: Instant,
    items: Vec<Value>,
    shards: Vec<Value>,
}

/// Prints once, or refreshes the terminal until q is pressed.
pub fn main(asked: &TopArguments, admin: &Admin, colours: bool, console: &mut Console<'_>) -> Result<u8> {
    let delay = Duration::from_secs(asked.delay.clamp(1, 3_600));
    let mut by = asked.by;
    let mut before = look(admin, by)?;
    if asked.once || !console.terminal {
        std::thread::sleep(delay);
        return Ok(console.print(&table(by, &before, &look(admin, by)?), exit::OK));
    }
    let keys = Keys::new()?;
    loop {
        let now = look(admin, by)?;
        let code = console.print(&screen(by, &before, &now, colours), exit::OK);
        if code != exit::OK || console.closed {
            return Ok(code);
        }
        before = now;
        let pressed = keys.within(delay)?;
        let wanted = match pressed {
            Some(b'q' | INTERRUPT) => {
                console.print("\n", exit::OK);
                return Ok(exit::OK);
            }
            Some(b'p') => TopBy::Pod,
            Some(b's') => TopBy::Service,
            Some(b'h') => TopBy::Shard,
            Some(_) | None => by,
        };
        if wanted != by {
            by = wanted;
            before = look(admin, by)?;
        }
    }
}

fn look(admin: &Admin, by: TopBy) -> Result<Look> {
    let items = |path| {
        let answer = admin.get_json(path)?;
        anyhow::Ok(answer.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    };
    let at = Instant::now();
    let shards = items("/shards")?;
    let items = match by {
        TopBy::Pod => items("/pods")?,
        TopBy::Service => items("/services")?,
        TopBy::Shard => shards.clone(),
    };
    Ok(Look { at, items, shards })
}

/// A whole screen, cut to the terminal's size.
fn screen(by: TopBy, before: &Look, now: &Look, colours: bool) -> String {
    let (columns, rows) = size();
    let connections: u64 = now.shards.iter().map(|shard| number(shard, "connections")).sum();
    let busy: f64 = now.shards.iter().map(|shard| busy_percent(shard, before, now)).sum();
    let head = format!(
        "{} shards, {busy:.0}% of a CPU, {connections} connections. p pods, s services, h shards, q quit",
        now.shards.len(),
    );
    let table = table(by, before, now);
    let lines = std::iter::once(head.as_str()).chain(table.lines());
    let mut text = "\x1b[H\x1b[2J".to_owned();
    for (number, line) in lines.take(rows.saturating_sub(1)).enumerate() {
        let cut: String = line.chars().take(columns).collect();
        match number {
            1 if colours => text.push_str(&format!("\x1b[7m{cut:<columns$}\x1b[0m\n")),
            _ => text.push_str(&format!("{cut}\n")),
        }
    }
    text
}

/// Whose traffic it is, busiest first.
fn table(by: TopBy, before: &Look, now: &Look) -> String {
    let heads: &[&str] = match by {
        TopBy::Pod => &["POD", "STATE", "CONNS", "NEW/s", "DENIED/s", "FAILED/s", "SENT/s", "RECEIVED/s"],
        TopBy::Service => &["SERVICE", "SIDE", "NEW/s", "DENIED/s", "FAILED/s", "SENT/s", "RECEIVED/s"],
        TopBy::Shard => &["SHARD", "LOOP", "BUSY", "CONNS", "PODS", "TUNNELS OUT", "IN", "BUFFERS"],
    };
    let mut rows: Vec<(f64, Vec<String>)> = now.items.iter().map(|item| row(by, item, before, now)).collect();
    if by != TopBy::Shard {
        rows.sort_by(|left, right| right.0.total_cmp(&left.0));
    }
    aligned(heads.iter().map(|head| (*head).to_owned()).collect(), rows.into_iter().map(|(_, cells)| cells))
}

/// A line, and how busy it is.
fn row(by: TopBy, item: &Value, before: &Look, now: &Look) -> (f64, Vec<String>) {
    let rate = |what: &str| rate(item, what, before, now);
    let count = |what: &str| format!("{:.1}", rate(what));
    let volume = |what: &str| bytes(whole(rate(what)));
    let traffic = rate("bytesSent") + rate("bytesReceived") + rate("opened");
    let cells = match by {
        TopBy::Pod => vec![
            format!("{}/{}", at(item, "namespace"), at(item, "name")),
            at(item, "state"),
            at(item, "connections"),
            count("opened"),
            count("denied"),
            count("failed"),
            volume("bytesSent"),
            volume("bytesReceived"),
        ],
        TopBy::Service => vec![
            at(item, "service"),
            at(item, "reporter"),
            count("opened"),
            count("denied"),
            count("failed"),
            volume("bytesSent"),
            volume("bytesReceived"),
        ],
        TopBy::Shard => vec![
            at(item, "shard"),
            at(item, "eventLoop"),
            format!("{:.0}%", busy_percent(item, before, now)),
            at(item, "connections"),
            at(item, "pods"),
            at(item, "tunnels/outbound"),
            at(item, "tunnels/inbound"),
            bytes(number(item, "bufferBytes")),
        ],
    };
    (traffic, cells)
}

fn busy_percent(shard: &Value, before: &Look, now: &Look) -> f64 {
    let then = before.shards.iter().find(|other| key(other) == key(shard));
    per_second(shard, then, "busyNanoseconds", before, now) / 1e7
}

/// How fast a counter rises; what wasn't there before has no rate yet.
fn rate(item: &Value, what: &str, before: &Look, now: &Look) -> f64 {
    per_second(item, before.items.iter().find(|other| key(other) == key(item)), what, before, now)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(item: &Value, then: Option<&Value>, what: &str, before: &Look, now: &Look) -> f64 {
    let Some(then) = then else { return 0.0 };
    let risen = number(item, what).saturating_sub(number(then, what));
    let elapsed = now.at.saturating_duration_since(before.at).as_secs_f64();
    if elapsed > 0.0 { risen as f64 / elapsed } else { 0.0 }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is no more than a counter"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

/// What makes a line the same one in two looks.
fn key(item: &Value) -> [String; 4] {
    ["uid", "service", "reporter", "shard"].map(|name| at(item, name))
}

#[cfg(test)]
mod tests {
    use super::super::admin::test::answering;
    use super::super::tests::printed;
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_what_rose_between_two_looks_and_the_busiest_stands_first() {
        let pod = |uid: &str, opened: u64, sent: u64| {
            json!({"uid": uid, "namespace": "n", "name": uid, "state": "Up", "connections": 1, "opened": opened,
                   "denied": 0, "failed": 0, "bytesSent": sent, "bytesReceived": 0})
        };
        let at = Instant::now();
        let before = Look { at, items: vec![pod("a", 10, 0), pod("b", 0, 0)], shards: Vec::new() };
        let items = vec![pod("a", 20, 0), pod("b", 0, 40_960), pod("new", 5, 5)];
        let now = Look { at: at + Duration::from_secs(4), items, shards: Vec::new() };
        let text = table(TopBy::Pod, &before, &now);
        let rows: Vec<Vec<_>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["n/b", "Up", "1", "0.0", "0.0", "0.0", "10K", "0"]);
        assert_eq!(rows[1], ["n/a", "Up", "1", "2.5", "0.0", "0.0", "0", "0"]);
        assert_eq!(rows[2][3], "0.0");
    }

    #[test]
    fn without_a_terminal_it_is_printed_once() {
        let shard = |busy: u64| {
            let item =
                json!({"shard": 0, "eventLoop": "io_uring", "busyNanoseconds": busy, "connections": 3});
            ("200 OK", json!({"items": [item]}).to_string())
        };
        let (admin, serving) = answering(vec![shard(0), shard(0)]);
        let asked = TopArguments { by: TopBy::Shard, delay: 1, once: false };
        let (code, out, _) = printed(|console| main(&asked, &admin, false, console));
        assert_eq!(code.unwrap(), exit::OK);
        assert!(out.lines().nth(1).unwrap().contains("io_uring") && !out.contains('\x1b'), "{out}");
        serving.join().unwrap();
    }
}
