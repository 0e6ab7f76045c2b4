//! Pods that are this process's own: the workload of dedicated mode, or the proxy's own inbound listener. Nobody asks
//! for them, so they are started when the mesh is known, and again where that failed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::error;

use crate::base::limits::POD_RETRY_MS;
use crate::base::text::Text;
use crate::bridge::order::{Order, Pod, PodKind};
use crate::bridge::settings::Settings;
use crate::control::control::ControlError;
use crate::control::publish::Orders;

/// See above.
pub(super) struct OwnPods {
    pods: HashMap<Text, Own>,
    /// The process lives for one workload, and can't go on without it.
    dedicated: bool,
}

struct Own {
    pod: Arc<Pod>,
    shards: Vec<usize>,
    /// Shards that haven't said yet how the start went.
    owing: usize,
    failure: Option<String>,
    retry_at: Option<Instant>,
}

impl OwnPods {
    pub fn new(pods: Vec<Arc<Pod>>, dedicated: bool, shards: usize, settings: &Settings) -> Self {
        let own = pods.into_iter().map(|pod| {
            // The one workload of a dedicated proxy has all shards to itself.
            let shards = if dedicated { (0..shards).collect() } else { settings.shards_of(&pod.uid) };
            (pod.uid.clone(), Own { pod, shards, owing: 0, failure: None, retry_at: None })
        });
        Self { pods: own.collect(), dedicated }
    }

    pub fn contains(&self, uid: &Text) -> bool {
        self.pods.contains_key(uid)
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub fn start(&mut self, orders: &mut Orders) {
        self.pods.values_mut().for_each(|own| own.start(orders));
    }

    /// When one of them is to be started again.
    pub fn retry_at(&self) -> Option<Instant> {
        self.pods.values().filter_map(|own| own.retry_at).min()
    }

    /// Starts those again that failed a while ago.
    pub fn retry(&mut self, now: Instant, orders: &mut Orders) {
        let due = |own: &&mut Own| own.retry_at.is_some_and(|at| at <= now);
        self.pods.values_mut().filter(due).for_each(|own| own.start(orders));
    }

    /// One shard says how a start went. True: the workload that the process is for is up on all shards.
    pub fn started(
        &mut self,
        uid: &Text,
        shard: usize,
        result: Result<(), String>,
        orders: &mut Orders,
    ) -> Result<bool, ControlError> {
        let Some(own) = self.pods.get_mut(uid) else { return Ok(false) };
        own.owing = own.owing.saturating_sub(1);
        if let Err(error) = result {
            own.failure.get_or_insert(format!("shard {shard}: {error}"));
        }
        if own.owing > 0 {
            return Ok(false);
        }
        let Some(error) = own.failure.take() else { return Ok(own.pod.kind == PodKind::Workload) };
        let pod = format!("{}/{}", own.pod.info.namespace, own.pod.info.name);
        if self.dedicated {
            return Err(ControlError::OwnPod { pod, error });
        }
        // Scrapes over HBONE fail until then; the pods of the node don't depend on it.
        error!(%pod, "the proxy's own inbound listener can't start, trying again: {error}");
        own.retry_at = Some(Instant::now() + Duration::from_millis(POD_RETRY_MS));
        for shard in &own.shards {
            orders.post(*shard, Order::Stop { uid: uid.clone() });
        }
        Ok(false)
    }
}

impl Own {
    fn start(&mut self, orders: &mut Orders) {
        (self.owing, self.failure, self.retry_at) = (self.shards.len(), None, None);
        for shard in &self.shards {
            orders.post(*shard, Order::Start(self.pod.clone()));
        }
    }
}
