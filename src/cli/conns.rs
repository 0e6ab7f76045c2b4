//! `ringway conns`: the live connections of this node's pods. `ringway certs`: the certificates of its identities.

use std::time::Duration;

use super::admin::{Admin, query};
use super::arguments::{CertsArguments, ConnsArguments};
use super::table::{Column, age, at, bytes, column, end, list, number, wide};
use super::{Console, exit};

const CONNECTIONS: &[Column] = &[
    column("POD", pod),
    column("DIRECTION", |item| at(item, "direction")),
    column("SOURCE", |item| end(item, "source")),
    column("DESTINATION", |item| end(item, "destination")),
    column("SERVICE", |item| at(item, "service")),
    column("PROTOCOL", |item| at(item, "protocol")),
    column("STATE", |item| at(item, "state")),
    column("SENT", |item| bytes(number(item, "bytesSent"))),
    column("RECEIVED", |item| bytes(number(item, "bytesReceived"))),
    column("AGE", |item| age(number(item, "ageMs") / 1_000)),
    wide("POLICY", |item| at(item, "policy")),
    wide("SOURCE-ADDRESS", |item| at(item, "source/address")),
    wide("DESTINATION-ADDRESS", |item| at(item, "destination/address")),
    wide("ORIGINAL", |item| at(item, "originalDestination")),
    wide("SOURCE-IDENTITY", |item| at(item, "source/identity")),
    wide("DESTINATION-IDENTITY", |item| at(item, "destination/identity")),
    wide("SHARD", |item| at(item, "shard")),
];

const CERTIFICATES: &[Column] = &[
    column("IDENTITY", |item| at(item, "identity")),
    column("STATE", |item| at(item, "state")),
    column("REMAINING", |item| {
        if at(item, "remainingSeconds").is_empty() {
            String::new()
        } else {
            age(number(item, "remainingSeconds"))
        }
    }),
    column("EXPIRES", |item| at(item, "expirationTime")),
    column("SERIAL", |item| at(item, "serialNumber")),
    wide("TRUST-DOMAIN", |item| at(item, "trustDomain")),
    wide("VALID-FROM", |item| at(item, "validFrom")),
    wide("ROOTS", |item| {
        item.get("roots").and_then(|roots| roots.as_array()).map_or_else(String::new, |roots| {
            roots.iter().map(|root| at(root, "serialNumber")).collect::<Vec<_>>().join(",")
        })
    }),
    wide("NEXT-ATTEMPT", |item| at(item, "nextAttempt")),
    wide("ERROR", |item| {
        let now = at(item, "error");
        if now.is_empty() { at(item, "lastError") } else { now }
    }),
];

/// `NAMESPACE/NAME`, or the uid of a pod that has left.
pub fn pod(item: &serde_json::Value) -> String {
    match (at(item, "pod/namespace"), at(item, "pod/name")) {
        (_, name) if name.is_empty() => at(item, "pod/uid"),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

/// Prints the connections, again and again with `--watch`.
pub fn connections(asked: &ConnsArguments, admin: &Admin, console: &mut Console<'_>) -> anyhow::Result<u8> {
    let limit = asked.limit.map(|limit| limit.to_string());
    let path = query(
        "/connections",
        &[
            ("namespace", asked.ends.namespace.as_deref()),
            ("pod", asked.ends.pod.as_deref()),
            ("from", asked.ends.from.as_deref()),
            ("to", asked.ends.to.as_deref()),
            ("direction", asked.ends.direction.map(|direction| direction.as_str())),
            ("limit", limit.as_deref()),
        ],
    );
    loop {
        let answer = admin.get_json(&path)?;
        let text = list(&answer, CONNECTIONS, asked.output)?;
        let clear = if asked.watch.is_some() && console.terminal { "\x1b[H\x1b[2J\x1b[3J" } else { "" };
        let code = console.print(&format!("{clear}{text}"), exit::OK);
        let shown = answer.get("items").and_then(|items| items.as_array()).map_or(0, Vec::len);
        let total = number(&answer, "total");
        if total > shown as u64 {
            console.say(format_args!("{shown} of {total} connections are shown"));
        }
        tell_silent_shards(&answer, console);
        match asked.watch {
            Some(seconds) if code == exit::OK && !console.closed => {
                std::thread::sleep(Duration::from_secs(seconds.max(1)));
            }
            _ => return Ok(code),
        }
    }
}

/// Prints the certificates.
pub fn certificates(asked: &CertsArguments, admin: &Admin, console: &mut Console<'_>) -> anyhow::Result<u8> {
    let answer = admin.get_json("/certificates")?;
    Ok(console.print(&list(&answer, CERTIFICATES, asked.output)?, exit::OK))
}

/// A table that isn't whole says so.
pub fn tell_silent_shards(answer: &serde_json::Value, console: &mut Console<'_>) {
    let (asked, answering) = (number(answer, "shards/asked"), number(answer, "shards/answering"));
    if answering < asked {
        console.say(format_args!("{} of {asked} shards didn't answer in time", asked - answering));
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::EndArguments;
    use super::super::tests::printed;
    use super::super::{OutputFormat, admin::test::answering};
    use super::*;

    #[test]
    fn connections_are_a_table_and_what_is_missing_is_said() {
        let body = r#"{"items":[{"pod":{"uid":"u","name":"client","namespace":"default"},"direction":"outbound",
            "state":"open","source":{"address":"10.0.0.1:40000","workload":"client","namespace":"default"},
            "destination":{"address":"10.0.0.2:15008","workload":"server","namespace":"default"},
            "hboneAddress":"10.0.0.2:8080","service":"default/web","protocol":"HBONE","bytesSent":1536,
            "bytesReceived":3,"ageMs":61000,"shard":1}],"total":5,"shards":{"asked":2,"answering":1}}"#;
        let (admin, serving) = answering(vec![("200 OK", body.to_owned())]);
        let ends = EndArguments { to: Some("default/web".into()), ..EndArguments::default() };
        let asked = ConnsArguments { ends, limit: Some(1), output: OutputFormat::Table, watch: None };
        let (code, out, err) = printed(|console| connections(&asked, &admin, console));
        assert_eq!(code.unwrap(), exit::OK);
        let cells: Vec<_> = out.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = [
            "default/client",
            "outbound",
            "default/client:40000",
            "default/server:8080",
            "default/web",
            "HBONE",
            "open",
            "1.5K",
            "3",
            "1m1s",
        ];
        assert_eq!(cells, expected);
        assert_eq!(err, "1 of 5 connections are shown\n1 of 2 shards didn't answer in time\n");
        assert_eq!(serving.join().unwrap(), ["GET /connections?to=default%2Fweb&limit=1 HTTP/1.0"]);
    }

    #[test]
    fn certificates_tell_what_is_left_or_what_is_wrong() {
        let body = r#"{"items":[{"identity":"spiffe://a/ns/b/sa/c","state":"Available","remainingSeconds":3600,
            "serialNumber":"12","roots":[{"serialNumber":"9"}]},
            {"identity":"spiffe://a/ns/b/sa/d","state":"Unavailable","error":"no authority"}]}"#;
        let (admin, serving) = answering(vec![("200 OK", body.to_owned())]);
        let asked = CertsArguments { output: OutputFormat::Wide };
        let (_, out, _) = printed(|console| certificates(&asked, &admin, console));
        assert!(out.lines().nth(1).unwrap().contains(" 1h ") && out.contains("no authority"), "{out}");
        serving.join().unwrap();
    }
}
