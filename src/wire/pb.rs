//! The generated types of proto/: exactly what is on the wire, unchecked. Only their neighbours in `wire` and the two
//! clients of the control plane see them.
#![allow(clippy::all, unused_qualifications, reason = "generated")]

/// Workloads and services.
pub mod workload {
    include!(concat!(env!("OUT_DIR"), "/istio.workload.rs"));
}

/// Authorization policies.
pub mod security {
    include!(concat!(env!("OUT_DIR"), "/istio.security.rs"));
}

/// Delta discovery.
pub mod discovery {
    include!(concat!(env!("OUT_DIR"), "/envoy.service.discovery.v3.rs"));
}

/// Certificate signing.
pub mod ca {
    include!(concat!(env!("OUT_DIR"), "/istio.v1.auth.rs"));
}

/// The CNI agent.
pub mod zds {
    include!(concat!(env!("OUT_DIR"), "/istio.workload.zds.rs"));
}

/// Profiles.
pub mod profile {
    include!(concat!(env!("OUT_DIR"), "/perftools.profiles.rs"));
}
