//! The snapshot of the mesh, as the control thread published it last. Shards load it once a connection.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::mesh::snapshot::Snapshot;

/// One writer (control), many readers (shards); neither ever waits for the other.
pub struct Published(ArcSwap<Snapshot>);

impl Published {
    pub fn new(snapshot: Snapshot) -> Self {
        Self(ArcSwap::from_pointee(snapshot))
    }

    /// The newest snapshot, for a decision made at once.
    pub fn peek(&self) -> Guard<Arc<Snapshot>> {
        self.0.load()
    }

    /// The newest snapshot, to keep across waits.
    pub fn load(&self) -> Arc<Snapshot> {
        self.0.load_full()
    }

    pub fn swap(&self, snapshot: Arc<Snapshot>) {
        self.0.store(snapshot);
    }
}
