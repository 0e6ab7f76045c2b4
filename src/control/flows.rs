//! `/flows`: connections that have ended or were refused, whatever the access log says of them. Each shard keeps its
//! last ones; who follows asks for more ten times a second, from where he stands. So a follower who is slow costs
//! nobody anything: he loses flows, and is told how many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::base::limits::{
    FLOW_FOLLOWERS, FLOWS_A_PAGE, FLOWS_HEARTBEAT_MS, FLOWS_KEPT, FLOWS_POLL_MS, SHARD_ANSWER_DEADLINE_MS,
};
use crate::bridge::flow::{Flow, FlowPage};
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::{Order, PodInfo};
use crate::control::filter::Filter;
use crate::control::http::{self, Body, Reply};
use crate::control::live::{Pods, milliseconds, parties, pod_of};
use crate::control::shards;
use crate::wire::log_text::write_time;

/// One JSON object a line.
const NDJSON: &str = "application/x-ndjson";

/// Answers for flows.
pub struct FlowDesk {
    shards: Vec<Mailbox<Order>>,
    pods: Pods,
    places: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

impl FlowDesk {
    /// Followers end when `closing` says so.
    pub fn new(shards: Vec<Mailbox<Order>>, pods: Pods, closing: watch::Receiver<bool>) -> Self {
        Self { shards, pods, places: Arc::new(Semaphore::new(FLOW_FOLLOWERS)), closing }
    }

    /// `last` of those that are kept (all, or none where it follows), then with `follow` what comes.
    pub async fn answer(&self, parameter: impl Fn(&str) -> Option<String>) -> Reply {
        let follow = parameter("follow").is_some_and(|value| value != "false");
        let last = match parameter("last").filter(|last| !last.is_empty()).map(|last| last.parse::<usize>()) {
            None => {
                if follow {
                    0
                } else {
                    usize::MAX
                }
            }
            Some(Ok(last)) => last,
            Some(Err(_)) => return http::text(StatusCode::BAD_REQUEST, "last has to be a number\n"),
        };
        let filter = match Filter::parse(parameter) {
            Ok(filter) => filter,
            Err(error) => return http::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let place = if follow { self.places.clone().try_acquire_owned().ok() } else { None };
        if follow && place.is_none() {
            let body = format!("{FLOW_FOLLOWERS} follow already, which is as many as may\n");
            return http::text(StatusCode::SERVICE_UNAVAILABLE, body);
        }
        let mut reader = Reader { shards: self.shards.clone(), next: vec![0; self.shards.len()] };
        let (flows, _) = reader.read().await;
        let pods = self.pods.by_uid();
        let info = |flow: &Flow| pods.get(&flow.parties.pod).map(|pod| &pod.info);
        let shown: Vec<&Flow> = flows.iter().filter(|flow| filter.shows_flow(flow, info(flow))).collect();
        let mut text = String::new();
        for flow in shown.iter().skip(shown.len().saturating_sub(last)) {
            text.push_str(&line(&shown_flow(flow, info(flow))));
        }
        let Some(place) = place else {
            return http::with_header(http::plain(StatusCode::OK, text), CONTENT_TYPE.as_str(), NDJSON);
        };
        let (pieces, body) = Body::pieces();
        // There is room for the first piece. Even an empty one lets the head go out now.
        let _ = pieces.try_send(Bytes::from(text));
        let heartbeat = Duration::from_millis(FLOWS_HEARTBEAT_MS);
        let follower = Follower { reader, filter, pods: self.pods.clone(), pieces, heartbeat, _place: place };
        let mut closing = self.closing.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = closing.wait_for(|closing| *closing) => {}
                () = follower.run() => {}
            }
        });
        http::with_header(Response::new(body), CONTENT_TYPE.as_str(), NDJSON)
    }
}

/// One who is told of flows as they end.
struct Follower {
    reader: Reader,
    filter: Filter,
    pods: Pods,
    pieces: mpsc::Sender<Bytes>,
    /// After so long without a word, an empty line: writing is the only way to notice a client that is gone.
    heartbeat: Duration,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    async fn run(mut self) {
        let mut told = Instant::now();
        loop {
            tokio::select! {
                () = self.pieces.closed() => return,
                () = tokio::time::sleep(Duration::from_millis(FLOWS_POLL_MS)) => {}
            }
            let (flows, lost) = self.reader.read().await;
            let pods = if flows.is_empty() { BTreeMap::new() } else { self.pods.by_uid() };
            let mut text = if lost > 0 { line(&json!({"lost": lost})) } else { String::new() };
            for flow in &flows {
                let info = pods.get(&flow.parties.pod).map(|pod| &pod.info);
                if self.filter.shows_flow(flow, info) {
                    text.push_str(&line(&shown_flow(flow, info)));
                }
            }
            if text.is_empty() && told.elapsed() > self.heartbeat {
                text.push('\n');
            }
            if text.is_empty() {
                continue;
            }
            told = Instant::now();
            // Waits for a client that reads slowly: what comes meanwhile is kept by the shards, or lost.
            if self.pieces.send(Bytes::from(text)).await.is_err() {
                return;
            }
        }
    }
}

/// Reads on from where it stands, on each shard.
struct Reader {
    shards: Vec<Mailbox<Order>>,
    next: Vec<u64>,
}

impl Reader {
    /// What has come, oldest first, and how many are lost. A shard that doesn't answer in time is asked again later.
    async fn read(&mut self) -> (Vec<Flow>, u64) {
        let (mut flows, mut lost) = (Vec::new(), 0);
        // As many rounds as a full ring has pages: what comes meanwhile is the next reading's.
        for _ in 0..FLOWS_KEPT.div_ceil(FLOWS_A_PAGE) {
            let order = |shard: usize, answer| Order::Flows {
                after: self.next.get(shard).copied().unwrap_or_default(),
                answer,
            };
            let pages: Vec<FlowPage> = shards::ask_each(&self.shards, SHARD_ANSWER_DEADLINE_MS, order).await;
            let full = pages.iter().any(|page| page.flows.len() >= FLOWS_A_PAGE);
            for page in pages {
                if let Some(next) = self.next.get_mut(page.shard) {
                    *next = page.next;
                }
                lost += page.lost;
                flows.extend(page.flows);
            }
            if !full {
                break;
            }
        }
        flows.sort_by_key(|flow| flow.ended);
        (flows, lost)
    }
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

fn shown_flow(flow: &Flow, pod: Option<&PodInfo>) -> Value {
    let mut time = Vec::new();
    write_time(flow.ended, &mut time);
    let mut shown = Map::new();
    shown.insert("time".into(), String::from_utf8_lossy(&time).into());
    shown.insert("verdict".into(), flow.verdict.as_str().into());
    shown.insert("pod".into(), pod_of(&flow.parties.pod, pod));
    parties(&flow.parties, &mut shown);
    shown.insert("bytesSent".into(), flow.sent_bytes.into());
    shown.insert("bytesReceived".into(), flow.received_bytes.into());
    shown.insert("durationMs".into(), milliseconds(flow.lasted));
    shown.insert("attempts".into(), flow.attempts.into());
    if let Some(error) = &flow.error {
        shown.insert("error".into(), (&**error).into());
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::test_support::Shards;
    use http_body_util::BodyExt;

    fn desk(shards: &Shards) -> (FlowDesk, watch::Sender<bool>) {
        let (close, closing) = watch::channel(false);
        (FlowDesk::new(shards.mailboxes.clone(), Pods::default(), closing), close)
    }

    async fn ask(desk: &FlowDesk, query: &'static [(&str, &str)]) -> Reply {
        desk.answer(|name| query.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
            .await
    }

    async fn lines(reply: Reply) -> Vec<Value> {
        assert_eq!(reply.status(), 200);
        let bytes = reply.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn the_last_of_all_shards_are_told_in_order() {
        let shards = Shards::start(2, |_| Default::default());
        let (desk, _close) = desk(&shards);
        let all = lines(ask(&desk, &[]).await).await;
        let verdicts: Vec<_> = all.iter().map(|flow| flow["verdict"].as_str().unwrap()).collect();
        assert_eq!(verdicts, ["allowed", "allowed", "denied", "denied", "failed", "failed"]);
        assert_eq!(all[2]["time"], "1970-01-01T00:00:10.000000Z");
        assert_eq!(all[2]["source"]["workload"], "client");
        assert_eq!(all[2]["error"], "why");
        let denied = lines(ask(&desk, &[("verdict", "denied"), ("last", "1")]).await).await;
        assert_eq!(denied.len(), 1);
        assert_eq!(ask(&desk, &[("verdict", "x")]).await.status(), 400);
        assert_eq!(ask(&desk, &[("last", "x")]).await.status(), 400);
    }

    #[tokio::test]
    async fn followers_are_bounded_and_end_with_the_server() {
        let shards = Shards::start(1, |_| Default::default());
        let (desk, close) = desk(&shards);
        let mut followers = Vec::new();
        for _ in 0..FLOW_FOLLOWERS {
            followers.push(ask(&desk, &[("follow", ""), ("last", "2")]).await);
        }
        assert_eq!(ask(&desk, &[("follow", "")]).await.status(), 503);
        drop(followers.pop());
        let mut again = ask(&desk, &[("follow", "true")]).await;
        while again.status() != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            again = ask(&desk, &[("follow", "true")]).await;
        }
        close.send(true).unwrap();
        assert_eq!(lines(followers.remove(0)).await.len(), 2);
    }

    #[tokio::test]
    async fn a_slow_follower_hears_how_many_it_lost_and_gets_the_rest() {
        let shards = Shards::start(1, |_| Default::default());
        let (desk, _close) = desk(&shards);
        let (pieces, body) = Body::pieces();
        let filter = Filter::parse(|name| (name == "verdict").then(|| "denied".to_owned())).unwrap();
        let reader = Reader { shards: shards.mailboxes.clone(), next: vec![1] };
        let place = desk.places.clone().acquire_owned().await.unwrap();
        let heartbeat = Duration::from_millis(300);
        let follower = Follower { reader, filter, pods: Pods::default(), pieces, heartbeat, _place: place };
        let running = tokio::spawn(follower.run());
        let mut body = body;
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let text = String::from_utf8(piece.to_vec()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[0]), (2, &json!({"lost": 3})));
        assert_eq!(lines[1]["verdict"], "denied");
        // Where nothing is to be told, an empty line shows whether the client is still there.
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "\n");
        // It leaves when its client does.
        drop(body);
        running.await.unwrap();
        assert_eq!(desk.places.available_permits(), FLOW_FOLLOWERS);
    }

    #[tokio::test]
    async fn what_a_reader_was_too_slow_for_is_counted() {
        let shards = Shards::start(2, |_| Default::default());
        let mut reader = Reader { shards: shards.mailboxes.clone(), next: vec![1, 7] };
        let (flows, lost) = reader.read().await;
        assert_eq!((flows.len(), lost), (3, 3));
        assert_eq!(reader.read().await.0.len(), 0);
    }
}
