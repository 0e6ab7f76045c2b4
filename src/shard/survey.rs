//! What operators ask a shard: its live connections, and what it has in hand. In slices, so that however many
//! connections there are, none of them waits for it.

use std::collections::HashMap;

use crate::base::limits::DESCRIBED_A_TURN;
use crate::base::text::Text;
use crate::bridge::flow::{PodTraffic, ShardStatus};
use crate::bridge::report::LiveConnection;
use crate::shard::Shard;
use crate::shard::ready::give_way;
use crate::shard::table::{Entry, Group};

/// Every live connection.
pub(super) async fn connections(shard: &Shard) -> Vec<LiveConnection> {
    let mut all = Vec::new();
    each(shard, |group, entry| {
        all.push(shard.table.report(shard.index, group, entry, &shard.published.peek()));
    })
    .await;
    all
}

/// What the shard has in hand.
pub(super) async fn status(shard: &Shard) -> ShardStatus {
    let mut pods: HashMap<Text, PodTraffic> = HashMap::new();
    let (mut tunnels_outbound, mut tunnels_inbound) = (0, 0);
    for world in shard.worlds() {
        let (outbound, inbound) = world.tunnel_counts();
        tunnels_outbound += outbound;
        tunnels_inbound += inbound;
        let traffic = PodTraffic { draining: world.is_draining(), ..world.tally.traffic() };
        pods.entry(world.pod.uid.clone()).or_insert(traffic);
    }
    each(shard, |_, entry| {
        let Some(traffic) = pods.get_mut(&entry.pod) else { return };
        traffic.live += 1;
        if let Some(detail) = &entry.detail {
            let (sent, received) = detail.sent_and_received(entry.is_inbound());
            traffic.sent_bytes += sent;
            traffic.received_bytes += received;
        }
    })
    .await;
    ShardStatus {
        shard: shard.index,
        connections: shard.table.len(),
        tunnels_outbound,
        tunnels_inbound,
        buffer_bytes: shard.buffers.bytes(),
        pods: pods.into_values().collect(),
    }
}

async fn each(shard: &Shard, mut look: impl FnMut(&Group, &Entry)) {
    for group in shard.table.groups() {
        let mut next = Some(0);
        while let Some(from) = next {
            next = group.slice(from, DESCRIBED_A_TURN, |entry| look(&group, entry));
            if next.is_some() {
                give_way().await;
            }
        }
    }
}
