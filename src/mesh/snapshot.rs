//! The mesh at one moment (skeleton: the real one is being built).

/// The mesh at one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    pub synced: bool,
}
