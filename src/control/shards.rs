//! A question to all shards, answered within a bound: for scrapes and dumps.

use std::time::Duration;

use crossbeam::channel::{Sender, TryRecvError, bounded};
use tokio::time::Instant;

use crate::base::limits::SHARD_ANSWER_DEADLINE_MS;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::Order;

/// The answers that came in time; fewer than shards where one is stuck or its mailbox is full.
pub async fn ask<T>(shards: &[Mailbox<Order>], order: impl Fn(Sender<T>) -> Order) -> Vec<T> {
    ask_each(shards, SHARD_ANSWER_DEADLINE_MS, |_, answer| order(answer)).await
}

/// The same, each shard being asked something of its own, within another bound.
pub async fn ask_each<T>(
    shards: &[Mailbox<Order>],
    deadline_ms: u64,
    order: impl Fn(usize, Sender<T>) -> Order,
) -> Vec<T> {
    let (sender, receiver) = bounded(shards.len().max(1));
    for (number, shard) in shards.iter().enumerate() {
        // A full mailbox is a shard that doesn't read; its answer is missing.
        let _ = shard.post(order(number, sender.clone()));
    }
    drop(sender);
    let end = Instant::now() + Duration::from_millis(deadline_ms);
    let mut answers = Vec::with_capacity(shards.len());
    let mut pause = Duration::from_micros(200);
    while answers.len() < shards.len() {
        match receiver.try_recv() {
            Ok(answer) => answers.push(answer),
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) if Instant::now() >= end => break,
            Err(TryRecvError::Empty) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(10));
            }
        }
    }
    answers
}
