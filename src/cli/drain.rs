//! `ringway drain`: lets go of a pod, as before it is deleted, or of everything.

use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::Value;

use super::admin::{Admin, query};
use super::arguments::DrainArguments;
use super::table::{at, number};
use super::{Console, exit};

/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(500);
/// After the grace, connections are ended; by then they have to be gone.
const MARGIN: Duration = Duration::from_secs(10);

/// Orders the drain, and waits for the end of the pod's connections.
pub fn main(asked: &DrainArguments, admin: &Admin, console: &mut Console<'_>) -> anyhow::Result<u8> {
    let grace = asked.grace.map(|grace| grace.as_secs().to_string());
    let path = query("/drain", &[("pod", asked.pod.as_deref()), ("grace", grace.as_deref())]);
    let ordered = admin.post_json(&path)?;
    let grace = Duration::from_secs(number(&ordered, "graceSeconds"));
    if asked.pod.is_none() {
        console.say(format_args!("the proxy drains, and ends within {grace:?}"));
        return Ok(exit::OK);
    }
    let uid = at(&ordered, "pod/uid");
    let name = format!("{}/{}", at(&ordered, "pod/namespace"), at(&ordered, "pod/name"));
    console.say(format_args!("{name} takes nothing new; what is open may go on for {grace:?}"));
    if asked.no_wait {
        return Ok(exit::OK);
    }
    wait(admin, &uid, &name, grace + MARGIN, console)
}

fn wait(
    admin: &Admin,
    uid: &str,
    name: &str,
    within: Duration,
    console: &mut Console<'_>,
) -> anyhow::Result<u8> {
    let until = Instant::now() + within;
    let mut told = None;
    loop {
        let pods = admin.get_json("/pods")?;
        let whole = number(&pods, "shards/asked") == number(&pods, "shards/answering");
        let items = pods.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let Some(pod) = items.iter().find(|pod| at(pod, "uid") == uid) else {
            console.say(format_args!("{name} has left"));
            return Ok(exit::OK);
        };
        let left = number(pod, "connections");
        let settled = at(pod, "state") == "Draining" && left == 0;
        if whole && settled {
            console.say(format_args!("{name} is drained"));
            return Ok(exit::OK);
        }
        if Instant::now() > until {
            bail!("{name} still has {left} connections");
        }
        if told.replace(left) != Some(left) {
            console.say(format_args!("{left} connections left"));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::super::admin::test::answering;
    use super::super::tests::printed;
    use super::*;

    #[test]
    fn a_pod_is_waited_for_until_nothing_is_left() {
        let ordered = r#"{"draining":"pod","pod":{"uid":"u","namespace":"a","name":"b"},"graceSeconds":5}"#;
        let pods = |state: &str, left: u32| {
            let item = format!(r#"{{"uid":"u","state":"{state}","connections":{left}}}"#);
            ("200 OK", format!(r#"{{"items":[{item}],"shards":{{"asked":1,"answering":1}}}}"#))
        };
        let answers =
            vec![("200 OK", ordered.to_owned()), pods("Up", 0), pods("Draining", 1), pods("Draining", 0)];
        let (admin, serving) = answering(answers);
        let grace = Some(Duration::from_secs(5));
        let asked = DrainArguments { pod: Some("a/b".into()), grace, no_wait: false };
        let (code, out, err) = printed(|console| main(&asked, &admin, console));
        assert_eq!((code.unwrap(), out.as_str()), (exit::OK, ""));
        let said: Vec<_> = err.lines().skip(1).collect();
        assert_eq!(said, ["0 connections left", "1 connections left", "a/b is drained"]);
        assert_eq!(serving.join().unwrap()[0], "POST /drain?pod=a%2Fb&grace=5 HTTP/1.0");
    }
}
