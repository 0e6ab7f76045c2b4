//! What a shard counts beside connections: the name, labels and help of each family, and the values of one shard.
//! The same struct holds the shard's own cells, and their values on the way to the control thread.

/// What a value is called on the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The family's name, without a counter's `_total`.
    pub name: &'static str,
    pub help: &'static str,
    /// What tells it from others of the same family.
    pub label: Option<(&'static str, &'static str)>,
}

macro_rules! counts {
    (
        $(#[$about:meta])* $of:ident:
        $($field:ident = $name:literal $({ $key:literal: $value:literal })?, $help:literal;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default)]
        pub struct $of<T> {
            $(#[doc = $help] pub $field: T,)*
        }

        impl<T> $of<T> {
            pub fn map<U>(&self, read: impl Fn(&T) -> U) -> $of<U> {
                $of { $($field: read(&self.$field),)* }
            }

            /// Each value with its name, in the order of the page.
            pub fn each(&self) -> Vec<(Known, &T)> {
                vec![$((
                    Known {
                        name: $name,
                        help: $help,
                        #[allow(unused_mut, unused_assignments, reason = "some have a label")]
                        label: { let mut label = None; $(label = Some(($key, $value));)? label },
                    },
                    &self.$field,
                ),)*]
            }
        }
    };
}

counts! {
    /// Counters of one shard.
    Engine:
    accept_pauses = "ringway_accept_pauses", "Pauses of a listener for want of descriptors or memory.";
    tls_handshakes = "ringway_tls_handshakes", "TLS handshakes completed, both roles.";
    tls_handshake_failures = "ringway_tls_handshake_failures", "TLS handshakes failed, both roles.";
    pool_hits = "ringway_pool_hits", "Connections carried by a tunnel that was up already.";
    pool_misses = "ringway_pool_misses", "Connections that waited for a tunnel to come up.";
    pool_dials = "ringway_pool_dials", "Tunnels dialled.";
    tunnels_cut_off = "ringway_tunnels_cut_off", "Tunnels closed because the peer broke HTTP/2 or a bound.";
    tunnels_surplus = "ringway_tunnels_surplus",
        "Idle tunnels told to go since their peer's address held too many.";
    tunnels_retired = "ringway_tunnels_retired",
        "Tunnels that take no new streams since their own identity, roots or certificate changed.";
    tunnels_revoked = "ringway_tunnels_revoked",
        "Tunnels closed because a new revocation list names their peer.";
    policy_closes = "ringway_policy_closes",
        "Live connections closed because the mesh no longer allows them.";
    second_tries = "ringway_second_tries",
        "Further endpoints tried for connections whose first could not be reached.";
    ejections = "ringway_ejections", "Endpoints left out for a while after they could not be reached.";
    proxy_refusals = "ringway_proxy_refusals",
        "Clients of the SOCKS5 and CONNECT listeners that were malformed, late or too many.";
    dns_cache_hits = "ringway_dns_cache_hits", "DNS queries answered by a reply that was remembered.";
    dns_retries = "ringway_dns_retries", "Further attempts at name servers that stayed silent.";
    dns_strays = "ringway_dns_strays",
        "Datagrams of name servers that were no reply to what had been asked.";
    dns_crowded = "ringway_dns_crowded",
        "DNS queries refused because too many of the pod waited.";
    dns_unsent = "ringway_dns_unsent", "DNS answers that the kernel did not take.";
    access_lines_sampled_out = "ringway_access_lines_sampled_out",
        "Access-log lines of connections that ended well, left out by RINGWAY_ACCESS_LOG_SAMPLING.";
}

counts! {
    /// How long what connections wait for takes: histograms.
    Timings:
    setup_outbound = "ringway_connection_setup_seconds" { "direction": "outbound" },
        "From accept (inbound by HBONE and explicit proxy: from the request) until bytes can flow; successes.";
    setup_inbound = "ringway_connection_setup_seconds" { "direction": "inbound" },
        "From accept (inbound by HBONE and explicit proxy: from the request) until bytes can flow; successes.";
    dial = "ringway_dial_seconds", "TCP connects to applications, peers and servers outside the mesh; successes.";
    handshake_client = "ringway_tls_handshake_seconds" { "side": "client" },
        "TLS handshakes of HBONE tunnels; successes.";
    handshake_server = "ringway_tls_handshake_seconds" { "side": "server" },
        "TLS handshakes of HBONE tunnels; successes.";
    certificate_wait = "ringway_certificate_wait_seconds",
        "Waits for a certificate that was not there yet, also those in vain.";
    dns_request = "ringway_dns_request_seconds",
        "DNS requests from arrival to answer, those that name servers answered included.";
    tick_delay = "ringway_shard_tick_delay_seconds",
        "How late a timer of a shard fired: a sample of how long the loop is busy in one go.";
}

counts! {
    /// What one shard holds right now: gauges.
    Holding:
    label_sets = "ringway_label_sets", "Label sets of connections that are counted.";
    tunnels_client = "ringway_tunnels" { "side": "client" }, "HBONE tunnels that are up.";
    tunnels_server = "ringway_tunnels" { "side": "server" }, "HBONE tunnels that are up.";
    streams_client = "ringway_tunnel_streams" { "side": "client" }, "Streams open on these tunnels.";
    streams_server = "ringway_tunnel_streams" { "side": "server" }, "Streams open on these tunnels.";
    buffered_bytes = "ringway_buffered_bytes",
        "Bytes that wait in tunnels, because a peer or an application does not take them.";
}

/// Upper bounds of the buckets of `Timings`: 0.1 ms to 10 s; a last one has none.
pub const TIMING_BUCKETS_NS: [u64; 16] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// One histogram's values.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// How many took at most each of `TIMING_BUCKETS_NS` but longer than the one before, and the rest.
    pub buckets: [u64; TIMING_BUCKETS_NS.len() + 1],
    pub sum_ns: u64,
}

/// What the thread of a shard has done.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// CPU time of the thread, in seconds.
    pub busy_s: f64,
    /// How often it had nothing to do and slept.
    pub parks: u64,
    /// Tasks inside the gates of its pods: connections, requests, tunnels of peers, accept loops.
    pub tasks: u64,
    /// The most that its timer was late while it had a CPU, in seconds.
    pub longest_stall_s: f64,
    /// How long it could have run and had no CPU, in seconds; 0 where the kernel doesn't tell.
    pub cpu_wait_s: f64,
}
