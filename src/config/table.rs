//! Every variable that the program reads, once: the parser takes kind and default from here, and so do the
//! errors, `config show` and the documentation page. Source: ztunnel-behaviour 2.2.

use std::fmt;

/// What a value looks like; `Display` is what an error says was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Flag,
    /// Compared with one word only: anything else counts as unset.
    Word(&'static str),
    Choice(&'static [&'static str]),
    Text,
    Path,
    Uri,
    Duration,
    /// Bounds, both included.
    Number(u64, u64),
    Workers,
    Cpus,
    /// From 0 to 100, with decimals.
    Percentage,
    /// Path, PEM text or `SYSTEM`.
    RootCertificate,
    /// Path or the token itself.
    Token,
    WorkloadName,
    Yaml,
    Json,
    Directives,
    /// A header's value; the name's rest is the header's name.
    Header,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "true or false",
            Self::Word(word) => return write!(f, "exactly {word}"),
            Self::Choice(words) => return write!(f, "one of {}", words.join(", ")),
            Self::Text => "text",
            Self::Path => "a path",
            Self::Uri => "an address such as https://istiod.istio-system.svc:15012",
            Self::Duration => "a duration such as 10s, 100ms, 1h30m or 3m+31; a bare number is seconds",
            Self::Number(least, most) => return write!(f, "a whole number from {least} to {most}"),
            Self::Workers => "a whole number (0: as many as CPUs) or a percentage of the CPUs such as 50%",
            Self::Cpus => "a Kubernetes CPU quantity such as 2, 1.5 or 500m",
            Self::Percentage => "a percentage from 0 to 100 such as 100, 10 or 0.1",
            Self::RootCertificate => "a path, PEM text or SYSTEM",
            Self::Token => "the path of a token file, or a token",
            Self::WorkloadName => "namespace/name/service-account",
            Self::Yaml => "a YAML document",
            Self::Json => "JSON",
            Self::Directives => "filter directives such as info or info,ringway::control=debug",
            Self::Header => "a header value of visible ASCII",
        })
    }
}

/// What holds while a variable is unset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// This value, read like one from the environment.
    Is(&'static str),
    /// A rule, told in words.
    Rule(&'static str),
}

/// One row. A name that ends with `*` stands for every variable with that prefix.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    pub kind: Kind,
    pub default: Fallback,
    pub meaning: &'static str,
}

const fn row(name: &'static str, kind: Kind, default: Fallback, meaning: &'static str) -> Variable {
    Variable { name, kind, default, meaning }
}

/// The row of a variable; none for a name that isn't ours to read.
pub fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.get(place(name)?)
}

/// Where in the table the row of a variable stands.
pub fn place(name: &str) -> Option<usize> {
    VARIABLES.iter().position(|variable| match variable.name.strip_suffix('*') {
        Some(prefix) => name.len() > prefix.len() && name.starts_with(prefix),
        None => variable.name == name,
    })
}

use Fallback::{Is, Rule};

const NONE: Fallback = Rule("unset");
const U32: Kind = Kind::Number(0, 4_294_967_295);
/// Flow-control windows end at 2^31-1 (RFC 9113 section 6.9.1).
const WINDOW: Kind = Kind::Number(1, 2_147_483_647);

/// In the order of the documentation page.
pub const VARIABLES: &[Variable] = &[
    row("ENABLE_PROXY", Kind::Flag, Is("true"), "Run the data plane. `false` leaves the DNS proxy alone."),
    row(
        "PROXY_MODE",
        Kind::Choice(&["dedicated", "shared"]),
        Is("shared"),
        "`shared`: one proxy for all pods of a node, by the CNI agent. `dedicated`: for one workload.",
    ),
    row(
        "PROXY_WORKLOAD_INFO",
        Kind::WorkloadName,
        Rule("required where PROXY_MODE=dedicated, else unread"),
        "The workload that a dedicated proxy serves.",
    ),
    row("IPV6_ENABLED", Kind::Flag, Is("true"), "Whether wildcard addresses are IPv6 ones (dual stack)."),
    row(
        "ENABLE_ORIG_SRC",
        Kind::Flag,
        Rule("where the kernel lets us"),
        "Keep the client's address towards the server: `true` must, `false` never.",
    ),
    row(
        "PACKET_MARK",
        U32,
        Rule("1337 in shared mode, none in dedicated"),
        "SO_MARK of every socket; 0 sets none.",
    ),
    row(
        "LOCALHOST_APP_TUNNEL",
        Kind::Flag,
        Is("true"),
        "Deliver application tunnels of protocol PROXY to loopback.",
    ),
    row(
        "UNSTABLE_ENABLE_SOCKS5",
        Kind::Flag,
        Is("false"),
        "SOCKS5 on 127.0.0.1:15080 in each pod (explicit-proxies.md).",
    ),
    row("INPOD_UDS", Kind::Path, Is("/var/run/ztunnel/ztunnel.sock"), "The CNI agent's socket."),
    row(
        "INPOD_PORT_REUSE",
        Kind::Flag,
        Is("true"),
        "SO_REUSEPORT on listeners in pods. Set even with `false` where a pod has several shards.",
    ),
    row(
        "ZTUNNEL_WORKER_THREADS",
        Kind::Workers,
        Rule(
            "proxyConfig `concurrency`; else from the CPU limits: max(limit, request), or without a limit \
             max(a quarter of the CPUs, request, 2)",
        ),
        "How many shards (pinned worker threads) there are.",
    ),
    row(
        "ZTUNNEL_CPU_LIMIT",
        Kind::Number(1, 1_048_576),
        Rule("the CPUs of the machine"),
        "How many CPUs to count with.",
    ),
    row(
        "ZTUNNEL_RESOURCE_CPU_LIMIT",
        Kind::Cpus,
        NONE,
        "The container's CPU limit, rounded up; goes before ZTUNNEL_CPU_LIMIT.",
    ),
    row(
        "ZTUNNEL_RESOURCE_CPU_REQUEST",
        Kind::Cpus,
        NONE,
        "The container's CPU request, rounded up: the least number of shards by default.",
    ),
    row(
        "XDS_ADDRESS",
        Kind::Uri,
        Rule(
            "proxyConfig `discoveryAddress`; else https://istiod.istio-system.svc:15012 in Kubernetes, \
             https://localhost:15012 elsewhere",
        ),
        "Where the mesh's configuration comes from, by TLS only; a local file adds to it. Empty: from nowhere else.",
    ),
    row(
        "CA_ADDRESS",
        Kind::Uri,
        Rule("https://istiod.istio-system.svc:15012 in Kubernetes, https://localhost:15012 elsewhere"),
        "Where certificates come from, by TLS only. Empty: from nowhere, every connection that needs one is refused. \
         Unread with FAKE_CA=true.",
    ),
    row(
        "KUBERNETES_SERVICE_HOST",
        Kind::Text,
        NONE,
        "Set by Kubernetes; its presence decides the two defaults above.",
    ),
    row(
        "XDS_ROOT_CA",
        Kind::RootCertificate,
        Is("./var/run/secrets/istio/root-cert.pem"),
        "Root of the XDS server's certificate; `SYSTEM`: the roots of the operating system. A file is \
         read again at each connect.",
    ),
    row(
        "CA_ROOT_CA",
        Kind::RootCertificate,
        Is("./var/run/secrets/istio/root-cert.pem"),
        "The same for the certificate authority. Read again at each connect.",
    ),
    row("ALT_XDS_HOSTNAME", Kind::Text, NONE, "One more name that the XDS server's certificate may carry."),
    row("ALT_CA_HOSTNAME", Kind::Text, NONE, "The same for the certificate authority."),
    row(
        "AUTH_TOKEN",
        Kind::Token,
        Rule("./var/run/secrets/tokens/istio-token where that file exists, else no authentication"),
        "Bearer token for both. A file is read again for each request.",
    ),
    row(
        "XDS_HEADER_*",
        Kind::Header,
        NONE,
        "A header for the XDS stream: XDS_HEADER_X_TEAM=a sends x_team: a.",
    ),
    row("CA_HEADER_*", Kind::Header, NONE, "A header for requests to the certificate authority."),
    row(
        "XDS_ON_DEMAND",
        Kind::Flag,
        Is("false"),
        "Ask for workloads and services only when they are needed; excludes the DNS proxy.",
    ),
    row(
        "LOCAL_XDS_PATH",
        Kind::Path,
        NONE,
        "A YAML or JSON file with workloads, services and policies; excludes LOCAL_XDS.",
    ),
    row("LOCAL_XDS", Kind::Yaml, NONE, "The same document itself."),
    row(
        "FAKE_CA",
        Kind::Flag,
        Is("false"),
        "Sign certificates here, with the root in RINGWAY_CA_DIR, instead of asking CA_ADDRESS.",
    ),
    row("SECRET_TTL", Kind::Duration, Is("24h"), "Life of the certificates asked for."),
    row(
        "CRL_PATH",
        Kind::Path,
        NONE,
        "Certificate revocation lists: PEM, or one as DER; followed as it changes. Empty counts as unset.",
    ),
    row(
        "TRUST_DOMAIN",
        Kind::Text,
        Is("cluster.local"),
        "Our own trust domain: in the proxy's own identity, with FAKE_CA, and what the aliases are aliases of.",
    ),
    row("COMPLIANCE_POLICY", Kind::Choice(&["pqc"]), NONE, "`pqc`: key exchange by X25519MLKEM768 only."),
    row(
        "TLS12_ENABLED",
        Kind::Word("true"),
        Is("false"),
        "Allow TLS 1.2 as well, towards the control plane only.",
    ),
    row(
        "CLUSTER_ID",
        Kind::Text,
        Is("Kubernetes"),
        "Name of the cluster; ISTIO_META_CLUSTER_ID goes before it.",
    ),
    row("CLUSTER_DOMAIN", Kind::Text, Is("cluster.local"), "DNS domain of the cluster, for the DNS proxy."),
    row("NETWORK", Kind::Text, Is(""), "Network of this node."),
    row("NODE_NAME", Kind::Text, NONE, "Name of this node."),
    row(
        "POD_NAMESPACE",
        Kind::Text,
        NONE,
        "With POD_NAME and SERVICE_ACCOUNT: the proxy's own identity and workload.",
    ),
    row("POD_NAME", Kind::Text, NONE, "See POD_NAMESPACE."),
    row("SERVICE_ACCOUNT", Kind::Text, NONE, "See POD_NAMESPACE."),
    row("INSTANCE_IP", Kind::Text, Is("1.1.1.1"), "Address of the proxy in its XDS node id."),
    row(
        "PREFERED_SERVICE_NAMESPACE",
        Kind::Text,
        NONE,
        "Namespace that wins where a DNS name has services in several and the asker's own has none.",
    ),
    row(
        "PROXY_CONFIG",
        Kind::Yaml,
        NONE,
        "A ProxyConfig document, on top of `defaultConfig` in ./etc/istio/config/mesh.",
    ),
    row(
        "ISTIO_META_*",
        Kind::Text,
        NONE,
        "Proxy metadata. ISTIO_META_DNS_CAPTURE turns the DNS proxy on and off, ISTIO_META_DNS_PROXY_ADDR \
         moves it (localhost:PORT or ADDRESS:PORT; localhost:15053 by default).",
    ),
    row(
        "ISTIO_METAJSON_*",
        Kind::Json,
        NONE,
        "Metadata of the XDS node; what isn't JSON is skipped with a warning.",
    ),
    row(
        "POOL_MAX_STREAMS_PER_CONNECTION",
        Kind::Number(1, 65_535),
        Is("100"),
        "Connections that share one HBONE tunnel.",
    ),
    row(
        "POOL_UNUSED_RELEASE_TIMEOUT",
        Kind::Duration,
        Is("5m"),
        "How long an idle tunnel is kept; of several to one destination, all but one go after 10s.",
    ),
    row("HTTP2_STREAM_WINDOW_SIZE", WINDOW, Is("4194304"), "Flow-control window of a stream, bytes."),
    row("HTTP2_CONNECTION_WINDOW_SIZE", WINDOW, Is("16777216"), "Flow-control window of a tunnel, bytes."),
    row("HTTP2_FRAME_SIZE", Kind::Number(16_384, 16_777_215), Is("1048576"), "Largest frame we take, bytes."),
    row("KEEPALIVE_ENABLED", Kind::Flag, Is("true"), "TCP keepalive."),
    row("KEEPALIVE_TIME", Kind::Duration, Is("180s"), "Silence before the first probe."),
    row("KEEPALIVE_INTERVAL", Kind::Duration, Is("180s"), "Time between probes."),
    row("KEEPALIVE_RETRIES", U32, Is("9"), "Probes without an answer before the connection is given up."),
    row(
        "USER_TIMEOUT_ENABLED",
        Kind::Flag,
        Is("false"),
        "TCP_USER_TIMEOUT = KEEPALIVE_TIME + KEEPALIVE_RETRIES x KEEPALIVE_INTERVAL.",
    ),
    row(
        "ENABLE_RESPONSE_BAGGAGE",
        Kind::Flag,
        Is("true"),
        "Tell and believe workload details in HBONE's baggage header.",
    ),
    row(
        "CONNECTION_TERMINATION_DEADLINE",
        Kind::Duration,
        Rule("from TERMINATION_GRACE_PERIOD_SECONDS, else 5s"),
        "How long connections may go on after SIGTERM.",
    ),
    row(
        "TERMINATION_GRACE_PERIOD_SECONDS",
        Kind::Number(0, u64::MAX),
        NONE,
        "The pod's grace period n: connections get n-5 s (n-1 s up to 10), at least 1 s.",
    ),
    row("RUST_LOG", Kind::Directives, Is("info"), "Which log lines are written."),
    row("LOG_FORMAT", Kind::Word("json"), Rule("plain"), "Format of log lines."),
    row(
        "AUTHZ_POLICY_INFO_LOGGING",
        Kind::Word("true"),
        Is("false"),
        "Log policy decisions at level info instead of debug.",
    ),
    row(
        "RINGWAY_ACCESS_LOG_SAMPLING",
        Kind::Percentage,
        Is("100"),
        "Of the connections that end well, how many have a line in the access log. Failures and denials always have.",
    ),
    row(
        "RINGWAY_POD_SHARDS",
        Kind::Number(1, 1_024),
        Rule("the number of shards, at most 4"),
        "How many shards carry the listeners of one pod.",
    ),
    row(
        "RINGWAY_CERTIFICATE_DEADLINE",
        Kind::Duration,
        Is("30s"),
        "How long a connection waits for a certificate before it is refused.",
    ),
    row(
        "RINGWAY_WORKLOAD_DEADLINE",
        Kind::Duration,
        Is("5s"),
        "How long a connection waits until the mesh knows its pod, or until a look-up is answered (XDS_ON_DEMAND).",
    ),
    row(
        "RINGWAY_AEAD",
        Kind::Choice(&["auto", "ring", "aws-lc-rs"]),
        Is("auto"),
        "Which library protects TLS records; `auto` measures at start.",
    ),
    row(
        "RINGWAY_HYBRID_KEY_EXCHANGE",
        Kind::Flag,
        Is("false"),
        "Key exchange by X25519MLKEM768 first, by the classical groups with a peer that doesn't know it.",
    ),
    row(
        "RINGWAY_TRUST_DOMAIN_ALIASES",
        Kind::Text,
        NONE,
        "Names, separated by commas, that mean the same trust domain as TRUST_DOMAIN.",
    ),
    row(
        "RINGWAY_EVENT_LOOP",
        Kind::Choice(&["auto", "io_uring", "epoll"]),
        Is("auto"),
        "`auto`: io_uring, or epoll with a warning where the kernel refuses it.",
    ),
    row(
        "RINGWAY_ADMIN_SOCKET",
        Kind::Path,
        NONE,
        "A socket in the file system that answers as the admin port does, for the proxy's own user alone (mode 0600). \
         Its directory has to be there and writable, as /tmp is. Empty counts as unset.",
    ),
    row(
        "RINGWAY_CA_DIR",
        Kind::Path,
        Is("./var/run/ringway/ca"),
        "Directory of the root for FAKE_CA=true; nodes that share it trust each other.",
    ),
    row(
        "RINGWAY_RETRIES",
        Kind::Number(0, 10),
        Is("2"),
        "Further endpoints of a service that are tried where one can't be reached, before any byte is taken from the \
         application. Never after a denial by a policy.",
    ),
    row(
        "RINGWAY_EJECTION",
        Kind::Duration,
        Is("10s"),
        "How long an endpoint that couldn't be reached is left out while others are there; 0 leaves none out.",
    ),
    row(
        "RINGWAY_LOAD_BALANCING",
        Kind::Choice(&["random", "least-connections"]),
        Is("random"),
        "How one of a service's endpoints is chosen; `least-connections`: of two at random, the one with fewer live \
         connections of this shard for its capacity.",
    ),
    row(
        "RINGWAY_HTTP_CONNECT",
        Kind::Flag,
        Is("false"),
        "HTTP/1.1 CONNECT on 127.0.0.1:15081 and [::1]:15081 in each pod (explicit-proxies.md).",
    ),
    row(
        "RINGWAY_SOCKS5_EARLY_REPLY",
        Kind::Flag,
        Is("false"),
        "SOCKS5 tells success before the upstream is called, as ztunnel does.",
    ),
    row(
        "RINGWAY_DNS_CACHE",
        Kind::Flag,
        Is("true"),
        "Remember replies of name servers, for as long as they say.",
    ),
    row(
        "RINGWAY_DNS_PATIENCE",
        Kind::Duration,
        Is("4500ms"),
        "How long all attempts to forward a DNS query may take; a little less than clients wait.",
    ),
    row(
        "RINGWAY_DNS_UPSTREAM",
        Kind::Choice(&["asked", "resolv.conf"]),
        Is("asked"),
        "Where DNS queries that the mesh doesn't answer go: `asked`, to the server that the pod asked, by \
         /etc/resolv.conf only where that can't be found out; `resolv.conf`: always by it.",
    ),
];
