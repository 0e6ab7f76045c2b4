//! What leaves the control thread: orders to the shards. And what a local source of the mesh is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::limits::ORDERS_QUEUED;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::Order;
use crate::mesh::delta::Change;

/// A local source of the mesh.
pub trait Source: Send {
    /// What changed since the last call, `None` where nothing did. After an error the state before it stands, and
    /// the same error isn't given twice. The text names place and cause.
    fn poll(&mut self) -> Option<Result<Vec<Change>, String>>;

    /// Reads what the local file holds at the moment of a dump; `None` where the source is no file.
    fn static_config(&self) -> Option<StaticConfig>;
}

/// `staticConfig` of the dump, read anew with each call.
pub type StaticConfig = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// The way to every shard. Orders are never lost and never overtake each other: what a full mailbox doesn't take
/// waits here until `flush`.
pub struct Orders {
    shards: Vec<Mailbox<Order>>,
    waiting: Vec<VecDeque<Order>>,
    /// The shard that took no orders for so long that one was lost; it must be dead.
    lost: Arc<AtomicUsize>,
}

/// No shard has lost an order.
const NONE_LOST: usize = usize::MAX;

impl Orders {
    pub fn new(shards: Vec<Mailbox<Order>>) -> Self {
        let waiting = shards.iter().map(|_| VecDeque::new()).collect();
        Self { shards, waiting, lost: Arc::new(AtomicUsize::new(NONE_LOST)) }
    }

    /// For another thread that posts to the same shards. What is lost there is seen here, and the other way round.
    pub fn beside(&self) -> Self {
        let waiting = self.shards.iter().map(|_| VecDeque::new()).collect();
        Self { shards: self.shards.clone(), waiting, lost: self.lost.clone() }
    }

    /// The shard that lost an order. From then on nobody knows what it carries, so the process can't go on.
    pub fn lost(&self) -> Option<usize> {
        Some(self.lost.load(Ordering::Relaxed)).filter(|shard| *shard != NONE_LOST)
    }

    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Posts to one shard. False: there is no such shard, or so much waits for it that it must be dead.
    pub fn post(&mut self, shard: usize, order: Order) -> bool {
        let Some((mailbox, waiting)) = self.shards.get(shard).zip(self.waiting.get_mut(shard)) else {
            return false;
        };
        let order = if waiting.is_empty() {
            match mailbox.post(order) {
                Ok(()) => return true,
                Err(order) => order,
            }
        } else {
            order
        };
        if matches!((&order, waiting.back()), (Order::Look, Some(Order::Look))) {
            return true;
        }
        metrics::counter!("ringway_orders_delayed").increment(1);
        if waiting.len() >= ORDERS_QUEUED {
            self.lost.store(shard, Ordering::Relaxed);
            return false;
        }
        waiting.push_back(order);
        true
    }

    pub fn post_all(&mut self, order: impl Fn() -> Order) {
        for shard in 0..self.shards.len() {
            self.post(shard, order());
        }
    }

    pub fn waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Tries again with what waits. True: nothing waits any more.
    pub fn flush(&mut self) -> bool {
        for (mailbox, waiting) in self.shards.iter().zip(&mut self.waiting) {
            while let Some(order) = waiting.pop_front() {
                if let Err(order) = mailbox.post(order) {
                    waiting.push_front(order);
                    break;
                }
            }
        }
        !self.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::mailbox::mailbox;

    #[test]
    fn orders_keep_their_order_over_a_full_mailbox_and_looks_collapse() {
        let (post, letters) = mailbox(2).unwrap();
        let mut orders = Orders::new(vec![post]);
        for number in 0..5 {
            assert!(orders.post(0, Order::Stop { uid: number.to_string().into() }));
            orders.post(0, Order::Look);
            orders.post(0, Order::Look);
        }
        let mut seen = Vec::new();
        loop {
            let done = orders.flush();
            while let Some(order) = letters.take() {
                seen.push(match order {
                    Order::Stop { uid, .. } => uid.to_string(),
                    Order::Look => "look".to_owned(),
                    Order::Start(_)
                    | Order::Drain { .. }
                    | Order::DrainPod { .. }
                    | Order::Beat(_)
                    | Order::Scrape(_)
                    | Order::Forget(_)
                    | Order::Connections(_)
                    | Order::Flows { .. }
                    | Order::Status(_) => panic!("nobody posted this"),
                });
            }
            if done {
                break;
            }
        }
        // The mailbox took the first look, the second one waits before "1"; from there on two become one.
        assert_eq!(seen, ["0", "look", "look", "1", "look", "2", "look", "3", "look", "4", "look"]);
        assert!(!orders.post(1, Order::Look), "there is no second shard");
    }

    #[test]
    fn a_dead_shard_is_noticed_before_memory_is_gone() {
        let (post, letters) = mailbox(1).unwrap();
        drop(letters);
        let mut orders = Orders::new(vec![post]);
        let stop = || Order::Stop { uid: "x".into() };
        let mut beside = orders.beside();
        assert!(beside.post(0, stop()));
        let taken = (0..ORDERS_QUEUED).filter(|_| orders.post(0, stop())).count();
        assert_eq!((taken, beside.lost()), (ORDERS_QUEUED, None));
        let taken = (0..10).filter(|_| orders.post(0, stop())).count();
        assert_eq!((taken, orders.lost(), beside.lost()), (0, Some(0), Some(0)));
    }
}
