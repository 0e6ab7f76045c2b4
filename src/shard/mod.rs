//! Layer: shard.
