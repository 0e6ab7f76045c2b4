//! Asks live connections again where the mesh has changed for them, and closes those that would not be let in now.
//! In slices, so that the shard's other work goes on, each with the newest snapshot there is; what changes while a
//! round is under way is the next round's.

use std::rc::Rc;
use std::time::Duration;

use crate::base::limits::{ASK_AGAIN_PAUSE_MS, ASKED_A_TURN};
use crate::mesh::snapshot::Snapshot;
use crate::shard::Shard;
use crate::shard::closer::CloseReason;
use crate::shard::ready::give_way;
use crate::shard::stats::bump;
use crate::shard::table::{Entry, Touched};

/// Starts a round, unless one is under way; then it is followed by another.
pub(super) fn ask_again(shard: &Rc<Shard>) {
    if shard.asking.replace(true) {
        return;
    }
    let shard = shard.clone();
    monoio::spawn(async move {
        let mut seen = None;
        loop {
            let version = shard.published.peek().version();
            if seen == Some(version) {
                shard.asking.set(false);
                return;
            }
            seen = Some(version);
            let snapshot = shard.published.load();
            for touched in shard.table.touched(&snapshot, &shard.settings.network) {
                ask_group(&shard, &snapshot, &touched).await;
            }
            monoio::time::sleep(Duration::from_millis(ASK_AGAIN_PAUSE_MS)).await;
        }
    });
}

async fn ask_group(shard: &Shard, began_with: &Snapshot, touched: &Touched) {
    let mut next = Some(0);
    while let Some(from) = next {
        let snapshot = shard.published.load();
        next = touched.group.each(from, ASKED_A_TURN, |entry, subject| {
            if let Some((reason, why)) = shard.table.objection(touched, subject, &snapshot) {
                close(shard, entry, reason, &why);
            }
        });
        if next.is_some() {
            give_way().await;
        }
    }
    touched.settle(began_with);
}

fn close(shard: &Shard, entry: &Entry, reason: CloseReason, why: &str) {
    if entry.closer.reason().is_some() {
        return;
    }
    tracing::info!(
        target: "ztunnel::proxy::connection_manager",
        "connection {} -> {} closed because it's no longer allowed after a policy update: {why}",
        entry.src,
        entry.actual_dst,
    );
    entry.closer.close(reason);
    bump(&shard.stats.engine.policy_closes);
}
