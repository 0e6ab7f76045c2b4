//! All end-to-end tests in one binary: real programs and odd peers against two real proxies in network
//! namespaces. Worlds take turns, so the order of tests doesn't matter and times mean something.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::indexing_slicing, reason = "tests")]

#[path = "all/abuse.rs"]
mod abuse;
#[path = "all/ahead.rs"]
mod ahead;
#[path = "all/certificates.rs"]
mod certificates;
#[path = "all/close.rs"]
mod close;
#[path = "all/command_line.rs"]
mod command_line;
#[path = "all/dns.rs"]
mod dns;
#[path = "all/dns_trouble.rs"]
mod dns_trouble;
#[path = "all/endings.rs"]
mod endings;
#[path = "all/envoy.rs"]
mod envoy;
#[path = "all/envoy_gateway.rs"]
mod envoy_gateway;
#[path = "all/envoy_waypoint.rs"]
mod envoy_waypoint;
#[path = "all/faults.rs"]
mod faults;
#[path = "all/gateway.rs"]
mod gateway;
#[path = "all/h2spec.rs"]
mod h2spec;
#[path = "all/hostile.rs"]
mod hostile;
#[path = "all/inventory.rs"]
mod inventory;
#[path = "all/istio.rs"]
mod istio;
#[path = "all/istio_policy.rs"]
mod istio_policy;
#[path = "all/istio_routes.rs"]
mod istio_routes;
#[path = "all/istioctl.rs"]
mod istioctl;
#[path = "all/istiod_peer.rs"]
mod istiod_peer;
#[path = "all/kernel.rs"]
mod kernel;
#[path = "all/misbehave.rs"]
mod misbehave;
#[path = "all/observe.rs"]
mod observe;
#[path = "all/page.rs"]
mod page;
#[path = "all/pods.rs"]
mod pods;
#[path = "all/policy.rs"]
mod policy;
#[path = "all/programs.rs"]
mod programs;
#[path = "all/proxies.rs"]
mod proxies;
#[path = "all/proxy_programs.rs"]
mod proxy_programs;
#[path = "all/reach.rs"]
mod reach;
#[path = "all/refuse.rs"]
mod refuse;
#[path = "all/rest.rs"]
mod rest;
#[path = "all/retry.rs"]
mod retry;
#[path = "all/revoke.rs"]
mod revoke;
#[path = "all/soak.rs"]
mod soak;
#[path = "all/stall.rs"]
mod stall;
#[path = "all/storm.rs"]
mod storm;
#[path = "all/surface.rs"]
mod surface;
#[path = "all/upgrade.rs"]
mod upgrade;
#[path = "all/volume.rs"]
mod volume;
#[path = "all/ways.rs"]
mod ways;
