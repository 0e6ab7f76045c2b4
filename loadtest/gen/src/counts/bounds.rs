//! What each count may come to at most.

use crate::compare::scenario::Scenario;

/// Both proxies together, development build, one CPU for both, a quarter more than what was seen. To renew: run
/// `ringway-gen counts` three times on a development build, take the greatest of each figure, add a quarter, and
/// tell in the commit what changed the figure. A bound that is far above its figure guards nothing: lower it too.
///
/// Allocations per MB are the one figure that a busy machine changes: 0.1 where the receiver keeps up, more where bytes
/// wait for it. A buffer for each record would come to 60.
pub const BOUNDS: [(Scenario, &str, f64); 15] = [
    (Scenario::Up1, "system_calls_per_gb", 11_800.0),
    (Scenario::Up1, "allocations_per_mb", 1.5),
    (Scenario::Down1, "system_calls_per_gb", 11_800.0),
    (Scenario::Down1, "allocations_per_mb", 1.5),
    (Scenario::Rr1k16, "system_calls_per_request", 7.7),
    (Scenario::Rr1k16, "allocations_per_request", 0.14),
    (Scenario::Crr, "system_calls_per_connection", 55.0),
    (Scenario::Crr, "allocations_per_connection", 63.0),
    (Scenario::Cold, "system_calls_per_tunnel", 117.0),
    (Scenario::Cold, "allocations_per_tunnel", 420.0),
    (Scenario::Cold, "bytes_per_idle_tunnel", 18_800.0),
    (Scenario::Idle, "bytes_per_idle_connection", 4_250.0),
    (Scenario::Idle, "system_calls_per_s", 75.0),
    (Scenario::Idle, "allocations_per_s", 13.0),
    (Scenario::Idle, "rest_bytes", 9e6),
];
