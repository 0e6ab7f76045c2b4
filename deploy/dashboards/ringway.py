"""Ringway's Grafana dashboard: what it shows stands in `ROWS`, `text()` is the JSON that Grafana imports.

It stands beside Istio's own ztunnel dashboard, which reads the same scrape, and shows what only Ringway has. A query
says POD for the chosen pods and RANGE for the time that a rate is taken over.
"""

import json

POD = 'pod=~"$pod"'
RANGE = "$__rate_interval"


def rate(metric, by, labels=""):
    return f"sum by ({by}) (rate({metric}{{{labels}{POD}}}[{RANGE}]))"


def quantile(part, metric, by="", labels=""):
    buckets = f"sum by (le{by and ', ' + by}) (rate({metric}_bucket{{{labels}{POD}}}[{RANGE}]))"
    return f"histogram_quantile({part}, {buckets})"


def spread(metric, by="", labels=""):
    """Median and 99th percentile."""
    name = by and f" {{{{{by}}}}}"
    return [(quantile(0.5, metric, by, labels), f"median{name}"), (quantile(0.99, metric, by, labels), f"p99{name}")]


def gauge(metric, by="pod", labels=""):
    return f"sum by ({by}) ({metric}{{{labels}{POD}}})"


PER_POD = "{{pod}}"
# Row: panels of (title, unit, what it means, queries with their legends).
ROWS = {
    "Connections": [
        (
            "Opened and closed",
            "cps",
            "Connections a second; closed ones below the line.",
            [
                (rate("istio_tcp_connections_opened_total", "pod"), "opened, {{pod}}"),
                ("-" + rate("istio_tcp_connections_closed_total", "pod"), "closed, {{pod}}"),
            ],
        ),
        (
            "Failed, by flag",
            "cps",
            "Connections that didn't come about: deploy/docs/troubleshooting.md explains the flags.",
            [
                (
                    rate("istio_tcp_connections_failed_total", "response_flags, reporter"),
                    "{{response_flags}}, {{reporter}}",
                )
            ],
        ),
        (
            "Denied, by policy",
            "cps",
            "Connections that authorization policies refused.",
            [(rate("ringway_policy_denials_total", "policy, reason"), "{{reason}} {{policy}}")],
        ),
        (
            "Bytes",
            "Bps",
            "Payload in both directions.",
            [
                (rate("istio_tcp_sent_bytes_total", "pod"), "to clients, {{pod}}"),
                (rate("istio_tcp_received_bytes_total", "pod"), "from clients, {{pod}}"),
            ],
        ),
        (
            "Closed or tried again by Ringway",
            "cps",
            "Open connections closed by a change of policy; further endpoints tried; endpoints left out for a while.",
            [
                (rate("ringway_policy_closes_total", "pod"), "closed by policy, {{pod}}"),
                (rate("ringway_second_tries_total", "pod"), "second tries, {{pod}}"),
                (rate("ringway_ejections_total", "pod"), "ejections, {{pod}}"),
            ],
        ),
        (
            "Dry run",
            "cps",
            "What policies on dry run would have said.",
            [(rate("ringway_dry_run_verdicts_total", "policy, result"), "{{result}} {{policy}}")],
        ),
    ],
    "Latency": [
        (
            "Setting up a connection",
            "s",
            "From accept until bytes can flow.",
            spread("ringway_connection_setup_seconds", "direction"),
        ),
        ("Dialling", "s", "TCP connects to applications, peers and the outside.", spread("ringway_dial_seconds")),
        ("TLS handshakes", "s", "Of tunnels, by side.", spread("ringway_tls_handshake_seconds", "side")),
        (
            "Waiting for certificates",
            "s",
            "How long connections waited for a certificate that wasn't there yet.",
            spread("ringway_certificate_wait_seconds"),
        ),
        (
            "How late shards are",
            "s",
            "How late a shard's timer of one second fires: what else its connections wait for.",
            spread("ringway_shard_tick_delay_seconds", "pod"),
        ),
        (
            "Shards without a CPU",
            "s",
            "Seconds a second in which shards could have run and others had the CPU.",
            [(rate("ringway_shard_cpu_wait_seconds_total", "pod, shard"), "{{pod}} {{shard}}")],
        ),
        ("DNS", "s", "From question to answer, forwarded or not.", spread("ringway_dns_request_seconds")),
    ],
    "Tunnels": [
        (
            "Tunnels and streams",
            "short",
            "HBONE tunnels that are up, and the connections in them.",
            [
                (gauge("ringway_tunnels", "pod, side"), "tunnels, {{pod}} {{side}}"),
                (gauge("ringway_tunnel_streams", "pod, side"), "streams, {{pod}} {{side}}"),
            ],
        ),
        (
            "Waiting in tunnels",
            "bytes",
            "Bytes that a peer or an application doesn't take.",
            [(gauge("ringway_buffered_bytes"), PER_POD)],
        ),
        (
            "Pool",
            "ops",
            "Connections carried by a tunnel that was up, and tunnels dialled.",
            [
                (rate("ringway_pool_hits_total", "pod"), "hits, {{pod}}"),
                (rate("ringway_pool_dials_total", "pod"), "dials, {{pod}}"),
            ],
        ),
        (
            "TLS handshakes",
            "ops",
            "Completed and failed, both roles.",
            [
                (rate("ringway_tls_handshakes_total", "pod"), "completed, {{pod}}"),
                (rate("ringway_tls_handshake_failures_total", "pod"), "failed, {{pod}}"),
            ],
        ),
        (
            "Tunnels ended before their time",
            "ops",
            "Retired with a new certificate, revoked, cut off because the peer broke HTTP/2 or a bound.",
            [
                (rate("ringway_tunnels_retired_total", "pod"), "retired, {{pod}}"),
                (rate("ringway_tunnels_revoked_total", "pod"), "revoked, {{pod}}"),
                (rate("ringway_tunnels_cut_off_total", "pod"), "cut off, {{pod}}"),
            ],
        ),
    ],
    "Shards": [
        (
            "Busy",
            "percentunit",
            "How much of its core a shard uses: one near 100 % is a bottleneck.",
            [(rate("ringway_shard_busy_seconds_total", "pod, shard"), "{{pod}} shard {{shard}}")],
        ),
        (
            "Connections by shard: tunnels used",
            "ops",
            "How evenly the kernel spreads connections over the shards.",
            [(rate("ringway_pool_hits_total", "pod, shard"), "{{pod}} shard {{shard}}")],
        ),
        (
            "Missing shards",
            "short",
            "Shards that didn't answer a scrape in time.",
            [(f"ringway_shards{{{POD}}} - ringway_shards_answering{{{POD}}}", PER_POD)],
        ),
        (
            "Held up",
            "ops",
            "Listeners paused for want of descriptors or memory; orders to shards that had to wait.",
            [
                (rate("ringway_accept_pauses_total", "pod"), "accept pauses, {{pod}}"),
                (rate("ringway_orders_delayed_total", "pod"), "orders delayed, {{pod}}"),
            ],
        ),
        (
            "Event loop",
            "short",
            "io_uring, or epoll and why (deploy/docs/seccomp.md).",
            [(f"sum by (kind, cause) (ringway_event_loop{{{POD}}})", "{{kind}} {{cause}}")],
        ),
    ],
    "Certificates and control plane": [
        (
            "The certificate that ends first",
            "s",
            "Time left. They are renewed half-way.",
            [(f"min by (pod) (ringway_certificate_expiry_timestamp_seconds{{{POD}}}) - time()", PER_POD)],
        ),
        (
            "Certificates asked for",
            "ops",
            "By what came of it.",
            [(rate("ringway_certificate_requests_total", "outcome"), "{{outcome}}")],
        ),
        (
            "Messages of istiod",
            "ops",
            "By type, and changes of the mesh that came of them.",
            [
                (rate("istio_xds_message_total", "url"), "{{url}}"),
                (rate("ringway_mesh_snapshots_total", "pod"), "snapshots, {{pod}}"),
            ],
        ),
        (
            "Size of the mesh",
            "short",
            "Workloads that are known: the same on all nodes, but for moments.",
            [(gauge("ringway_mesh_workloads"), PER_POD)],
        ),
        (
            "Streams that ended",
            "ops",
            "By reason.",
            [(rate("istio_xds_connection_terminations_total", "pod, reason"), "{{reason}}, {{pod}}")],
        ),
        (
            "Refused or not understood",
            "short",
            "Resources that can't be used, and policies that deny because part of them can't be read.",
            [
                (f"sum by (pod) (increase(ringway_xds_resources_refused_total{{{POD}}}[1h]))", "refused, {{pod}}"),
                (f"sum by (policy) (ringway_policies_unreadable{{{POD}}})", "unreadable {{policy}}"),
                (rate("ringway_xds_lookups_refused_total", "pod"), "look-ups refused, {{pod}}"),
            ],
        ),
        (
            "Revocation lists",
            "short",
            "In force, of these over their time or signed by nobody we know; and connections they refused.",
            [
                (gauge("ringway_crl_lists"), "in force, {{pod}}"),
                (gauge("ringway_crl_lists_expired"), "expired, {{pod}}"),
                (gauge("ringway_crl_lists_unsigned"), "unsigned, {{pod}}"),
                (rate("istio_crl_policy_rejections_total", "pod"), "connections refused, {{pod}}"),
                (rate("ringway_crl_load_errors_total", "pod"), "load errors, {{pod}}"),
            ],
        ),
    ],
    "DNS": [
        (
            "Queries",
            "reqps",
            "All, forwarded, and forwarded without an answer.",
            [
                (rate("istio_dns_requests_total", "pod"), "all, {{pod}}"),
                (rate("istio_dns_upstream_requests_total", "pod"), "forwarded, {{pod}}"),
                (rate("istio_dns_upstream_failures_total", "pod"), "failed, {{pod}}"),
            ],
        ),
        ("Name servers", "s", "How long they take.", spread("istio_dns_upstream_request_duration_seconds")),
        (
            "Remembered, repeated, refused",
            "reqps",
            "Replies from memory; further attempts; answers to no question; queries and answers that found no place.",
            [
                (rate("ringway_dns_cache_hits_total", "pod"), "remembered, {{pod}}"),
                (rate("ringway_dns_retries_total", "pod"), "asked again, {{pod}}"),
                (rate("ringway_dns_strays_total", "pod"), "strays, {{pod}}"),
                (rate("ringway_dns_crowded_total", "pod"), "crowded, {{pod}}"),
                (rate("ringway_dns_unsent_total", "pod"), "unsent, {{pod}}"),
            ],
        ),
    ],
    "Pods and process": [
        (
            "Pods",
            "short",
            "Pods that are served, those whose proxy can't start, and those that istiod hasn't told of.",
            [
                (gauge("workload_manager_active_proxy_count"), "served, {{pod}}"),
                (gauge("workload_manager_pending_proxy_count"), "pending, {{pod}}"),
                (gauge("ringway_pods_without_workload"), "unknown to istiod, {{pod}}"),
            ],
        ),
        (
            "Descriptors and sockets",
            "short",
            "Open descriptors, and sockets of applications and peers.",
            [
                (gauge("process_open_fds"), "descriptors, {{pod}}"),
                (gauge("istio_tcp_sockets_open"), "sockets, {{pod}}"),
            ],
        ),
        (
            "Lost and refused",
            "ops",
            "Log lines that were dropped; clients of the explicit proxies that were malformed, late or too many.",
            [
                (rate("ringway_log_lines_dropped_total", "pod"), "log lines, {{pod}}"),
                (rate("ringway_proxy_refusals_total", "pod"), "proxy clients, {{pod}}"),
            ],
        ),
    ],
}
COLUMNS, WIDTH, HEIGHT = 3, 8, 8
SOURCE = {"type": "prometheus", "uid": "$datasource"}


def panel(number, place, title, unit, meaning, queries):
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": meaning,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": unit, "custom": {"fillOpacity": 10, "showPoints": "never"}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }


def panels():
    number, line = 0, 0
    for row, contents in ROWS.items():
        number += 1
        place = {"x": 0, "y": line, "w": COLUMNS * WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row, "collapsed": False, "panels": [], "gridPos": place}
        line += 1
        for index, (title, unit, meaning, queries) in enumerate(contents):
            number += 1
            place = {"x": index % COLUMNS * WIDTH, "y": line + index // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield panel(number, place, title, unit, meaning, queries)
        line += -(-len(contents) // COLUMNS) * HEIGHT


def dashboard():
    return {
        "uid": "ringway",
        "title": "Ringway",
        "description": "The node proxies of the mesh, beside Istio's ztunnel dashboard.",
        "tags": ["istio", "ringway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "pod",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(ringway_shards, pod)", "refId": "pod"},
                    "refresh": 2,
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(panels()),
    }


def text():
    return json.dumps(dashboard(), indent=1) + "\n"
