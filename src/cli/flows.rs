//! `ringway flows`: connections as they end or are refused, one line each, as hubble shows them.

use std::io::BufRead;

use anyhow::bail;
use serde_json::Value;

use super::admin::{Admin, query};
use super::arguments::{FlowFormat, FlowsArguments};
use super::table::{age, at, bytes, end, number, printable};
use super::{Console, exit};

/// How many are shown where nothing is said of it.
const LAST: usize = 20;

/// Prints flows; with `--follow` it ends when it is interrupted or the proxy does.
pub fn main(
    asked: &FlowsArguments,
    admin: &Admin,
    colours: bool,
    console: &mut Console<'_>,
) -> anyhow::Result<u8> {
    let last = asked.last.unwrap_or(if asked.follow { 0 } else { LAST }).to_string();
    let path = query(
        "/flows",
        &[
            ("follow", asked.follow.then_some("true")),
            ("last", Some(&last)),
            ("namespace", asked.ends.namespace.as_deref()),
            ("pod", asked.ends.pod.as_deref()),
            ("from", asked.ends.from.as_deref()),
            ("to", asked.ends.to.as_deref()),
            ("direction", asked.ends.direction.map(|direction| direction.as_str())),
            ("verdict", asked.verdict.map(|verdict| verdict.as_str())),
        ],
    );
    for line in admin.follow(&path)?.lines() {
        let line = line?;
        if line.is_empty() {
            // The proxy's way to see whether somebody still reads.
            continue;
        }
        let flow: Value = serde_json::from_str(&line)?;
        let lost = number(&flow, "lost");
        if lost > 0 {
            console.say(format_args!("{lost} flows were lost: they came faster than they were read"));
        }
        let text = match asked.output {
            FlowFormat::Json => line,
            FlowFormat::Compact | FlowFormat::Wide if lost > 0 => continue,
            FlowFormat::Compact => compact(&flow, colours),
            FlowFormat::Wide => compact(&flow, colours) + &details(&flow),
        };
        let code = console.print(&(text + "\n"), exit::OK);
        if code != exit::OK || console.closed {
            return Ok(code);
        }
    }
    if asked.follow {
        bail!("the proxy has ended the stream: it drains, or this reader was too slow");
    }
    Ok(exit::OK)
}

/// Time, verdict, direction, from -> to, what was meant, how much, how long, why not.
fn compact(flow: &Value, colours: bool) -> String {
    let verdict = at(flow, "verdict");
    let colour = match verdict.as_str() {
        "allowed" => "32",
        "denied" => "31",
        _ => "33",
    };
    let shown = if colours { format!("\x1b[{colour}m{verdict:<7}\x1b[0m") } else { format!("{verdict:<7}") };
    let mut line = format!(
        "{}  {shown}  {:<8}  {} -> {}",
        at(flow, "time"),
        at(flow, "direction"),
        printable(&end(flow, "source")),
        printable(&end(flow, "destination")),
    );
    let service = at(flow, "service");
    if !service.is_empty() {
        line.push_str(&format!("  {}", printable(&service)));
    }
    let (sent, received) = (number(flow, "bytesSent"), number(flow, "bytesReceived"));
    line.push_str(&format!("  sent {} received {} in {}", bytes(sent), bytes(received), took(flow)));
    let attempts = number(flow, "attempts");
    if attempts > 1 {
        line.push_str(&format!(", {attempts} attempts"));
    }
    let error = at(flow, "error");
    if !error.is_empty() {
        line.push_str(&format!("  {}", printable(&error)));
    }
    line
}

fn took(flow: &Value) -> String {
    match number(flow, "durationMs") {
        short @ 0..10_000 => format!("{short}ms"),
        long => age(long / 1_000),
    }
}

fn details(flow: &Value) -> String {
    let mut text = String::new();
    for (name, place) in [
        ("from", "source/identity"),
        ("to", "destination/identity"),
        ("source", "source/address"),
        ("destination", "destination/address"),
        ("hbone", "hboneAddress"),
        ("via", "via"),
    ] {
        let value = at(flow, place);
        if !value.is_empty() {
            text.push_str(&format!("  {name}={}", printable(&value)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::admin::test::answering;
    use super::super::arguments::{EndArguments, VerdictArgument};
    use super::super::tests::printed;
    use super::*;

    fn asked(output: FlowFormat) -> FlowsArguments {
        let ends = EndArguments { namespace: Some("default".into()), ..EndArguments::default() };
        FlowsArguments { follow: true, last: None, ends, verdict: Some(VerdictArgument::Denied), output }
    }

    const BODY: &str = concat!(
        r#"{"time":"2026-01-02T03:04:05.000006Z","verdict":"denied","direction":"inbound","#,
        r#""source":{"address":"10.0.0.1:4","workload":"a","namespace":"n","identity":"spiffe://t/ns/n/sa/a"},"#,
        r#""destination":{"address":"10.0.0.2:15008","workload":"b","namespace":"n"},"#,
        r#""hboneAddress":"10.0.0.2:80","bytesSent":0,"bytesReceived":2048,"durationMs":7,"attempts":1,"#,
        r#""error":"no\nway"}"#,
        "\n{\"lost\":3}\n",
    );

    #[test]
    fn a_flow_is_a_line_and_a_loss_is_talk() {
        let (admin, serving) = answering(vec![("200 OK", BODY.to_owned()), ("200 OK", BODY.to_owned())]);
        let (code, out, err) = printed(|console| main(&asked(FlowFormat::Wide), &admin, false, console));
        assert!(code.unwrap_err().to_string().contains("ended the stream"));
        let line = "2026-01-02T03:04:05.000006Z  denied   inbound   n/a:4 -> n/b:80  sent 0 received 2.0K in 7ms  \
                    no\\nway  from=spiffe://t/ns/n/sa/a  source=10.0.0.1:4  destination=10.0.0.2:15008  \
                    hbone=10.0.0.2:80\n";
        assert_eq!(out, line);
        assert!(err.starts_with("3 flows were lost"), "{err}");
        let (_, out, _) = printed(|console| main(&asked(FlowFormat::Json), &admin, false, console));
        assert_eq!(out, BODY);
        let request = &serving.join().unwrap()[0];
        assert_eq!(request, "GET /flows?follow=true&last=0&namespace=default&verdict=denied HTTP/1.0");
    }

    #[test]
    fn verdicts_have_colours_where_they_are_wanted() {
        let flow: Value = serde_json::from_str(BODY.lines().next().unwrap()).unwrap();
        assert!(compact(&flow, true).contains("\x1b[31mdenied"));
        assert!(!compact(&flow, false).contains('\x1b'));
    }
}
