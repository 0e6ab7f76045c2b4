//! Every bound in one place, each with its reason; the unit stands last in the name.

/// TCP connect to any next hop (the reference's value).
pub const CONNECT_DEADLINE_MS: u64 = 10_000;
/// A whole TLS handshake, either role: a peer that stalls holds a task and two descriptors.
pub const HANDSHAKE_DEADLINE_MS: u64 = 10_000;
/// The peer's SETTINGS after the handshake.
pub const SETTINGS_DEADLINE_MS: u64 = 10_000;
/// The answer to a CONNECT: the far side may hold it for its certificate or workload for 30 s.
pub const CONNECT_ANSWER_DEADLINE_MS: u64 = 45_000;
/// A connection that waits longer than this for its certificate or its pod's record says so in the log; no shard
/// says so more often.
pub const WAIT_TOLD_MS: u64 = 1_000;
/// After one side has finished, the other may stay silent this long before both are closed.
pub const HALF_CLOSE_IDLE_MS: u64 = 3_600_000;
/// A lingering close: how long an orderly FIN waits for the peer's, reading and discarding, before the socket goes.
pub const LINGER_MS: u64 = 2_000;

/// Silence on a tunnel after which a PING is sent.
pub const PING_AFTER_SILENCE_MS: u64 = 10_000;
/// A PING without an answer for this long ends the tunnel.
pub const PING_ANSWER_DEADLINE_MS: u64 = 20_000;

/// Orders waiting for one shard; the control thread retries, so it only bounds memory.
pub const ORDERS_QUEUED: usize = 4_096;
/// Reports waiting for the control thread from all shards.
pub const REPORTS_QUEUED: usize = 16_384;

/// Listen backlog of every captured port (the reference's value).
pub const LISTEN_BACKLOG: i32 = 128;
/// Connections accepted in a row before other work of the shard gets its turn.
pub const ACCEPTS_A_TURN: usize = 64;
/// Pause of a listener after the kernel refused a descriptor (EMFILE, ENFILE, ENOBUFS, ENOMEM).
pub const ACCEPT_PAUSE_MS: u64 = 100;

/// Largest plaintext of a TLS record (RFC 8446 section 5.1).
pub const RECORD_PLAINTEXT_BYTES: usize = 16_384;
/// Records read from or sealed into one scratch buffer of 1 MiB. Measured on bulk, CPU a byte: with 4 records a tenth
/// more than with 16, with 40 a sixth less, with 64 a fifth less.
pub const RECORDS_A_TURN: usize = 64;

/// Header block of one request or response, as sent on the wire, CONTINUATION included. As much as the largest list
/// that is announced (reference section 11.1): one that is too long decoded is refused, and its tunnel goes on.
pub const HEADER_BLOCK_BYTES: usize = 64 * 1024;

// shard
/// How often deadlines of tunnels and half-closed connections are looked at, while there are any.
pub const TICK_MS: u64 = 1_000;
/// Ticks after a busy time at which free memory is given back: soon, and once a burst's surplus tunnels have gone. No
/// shard is at rest before the first.
pub const GIVE_BACK_TICKS: [u32; 2] = [2, 15];
/// How often a busy shard looks how late its timer is.
pub const LATENESS_SAMPLE_MS: u64 = 10;
/// A shard is busy where it worked for more than one part of so many of its last pause.
pub const BUSY_PART: u32 = 20;
/// So many looks in a row that find it idle, and it isn't busy any more.
pub const BUSY_LOOKS: u32 = 10;
/// Pause before a report is posted again to a full mailbox.
pub const MAILBOX_RETRY_MS: u64 = 10;
/// How long the end of a pod's tasks may take once they are told.
pub const FORCED_END_MS: u64 = 2_000;
/// Label sets of one shard; connections of further ones are counted without their parties.
pub const LABEL_SETS: usize = 10_000;
/// Label sets told for a scrape before other tasks of the shard get their turn (about 0.1 ms).
pub const LABEL_SETS_A_TURN: usize = 1_024;
/// Label sets that no connection used for so long are no longer told: Prometheus has long stored what they counted, and
/// takes a series that comes back for one that started anew.
pub const LABEL_SET_IDLE_MS: u64 = 3_600_000;
/// A label that a peer told: as long as a DNS name may be.
pub const LABEL_BYTES: usize = 253;
/// Sealed bytes that wait for one tunnel's socket. Streams stop at the first; what can grow past that are answers
/// (acknowledgements, window updates) to a peer that doesn't read, and it is cut off.
pub const TUNNEL_BACKLOG_BYTES: usize = 4 << 20;
/// Descriptors that shards leave to the control thread: admin, metrics, readiness, the CNI agent's.
pub const RESERVED_DESCRIPTORS: u64 = 64;
/// How long a finished log line may wait for others before the writer gets them all.
pub const LINES_WAIT_MS: u64 = 50;
/// Blank sockets of one pod and family that are made ahead at once.
pub const SPARE_SOCKETS: usize = 32;
/// Tunnels tried for one stream where each turns out full or going away.
pub const TUNNEL_TRIES: usize = 4;
/// Tunnels without a stream that one address may keep up to one pod, on one shard: a burst of 50,000 streams leaves so
/// many. Those unused for longest are told to go.
pub const IDLE_TUNNELS_A_PEER: usize = 500;
/// A tunnel that has had no stream for so long goes where another one of its key has none either.
pub const SURPLUS_TUNNEL_MS: u64 = 10_000;
// control: the control thread, the CNI agent, the certificate authority, the servers.

/// One message of the CNI agent, and one answer: both sides read into a buffer of this size.
pub const ZDS_MESSAGE_BYTES: usize = 1_024;
/// How long a pod's shards have to put its listeners up, or to let go: the agent gives up on an answer after 5 s
/// and would take a later one for the answer to its next message.
pub const POD_ORDER_DEADLINE_MS: u64 = 4_000;
/// Pause before pods that failed to start are tried again (the reference's value).
pub const POD_RETRY_MS: u64 = 5_000;
/// First and last pause between attempts to reach the CNI agent's socket (the reference's values).
pub const CNI_CONNECT_BACKOFF_FIRST_MS: u64 = 20;
pub const CNI_CONNECT_BACKOFF_LAST_MS: u64 = 15_000;
/// First pause after a connection to the agent that came to nothing: before the first readiness, and after it.
pub const CNI_SESSION_BACKOFF_FIRST_MS: u64 = 500;
pub const CNI_SESSION_BACKOFF_AGAIN_MS: u64 = 5;
/// An agent that accepted but doesn't go on with its snapshot is called again after this; doubles up to the last,
/// so that an agent which needs minutes still gets through.
pub const CNI_SILENCE_FIRST_MS: u64 = 10_000;
pub const CNI_SILENCE_LAST_MS: u64 = 160_000;
/// Letters from the control thread that the CNI thread hasn't read: two reports a shard for each pod of a node.
pub const CNI_LETTERS_QUEUED: usize = 16_384;

/// The least pause between two rounds of the control thread's regular work; at rest there is none but the heartbeat's.
pub const CONTROL_TICK_MS: u64 = 100;
/// Pause between looks at the source files.
pub const SOURCE_POLL_MS: u64 = 500;
/// A shard that didn't answer for this long makes the process unready.
pub const HEARTBEAT_MS: u64 = 5_000;
/// After the grace of a drain, shards have this long to report that nothing is left.
pub const DRAIN_REPORT_MS: u64 = 2_000;

/// Certificates asked for at the same time (the reference's value).
pub const SIGNINGS_AT_ONCE: usize = 8;
/// First and last pause after a failed signing (the reference's values).
pub const SIGNING_BACKOFF_FIRST_MS: u64 = 1_000;
pub const SIGNING_BACKOFF_LAST_MS: u64 = 150_000;
/// Least pause after an authority said that we may not have a certificate: asking again at once won't change it.
pub const SIGNING_DENIED_MS: u64 = 15_000;
/// A wall clock that goes back by less is being adjusted; by more, what is planned moves with it.
pub const CLOCK_STEP_MS: u64 = 1_000;
/// What is kept of a reason for the dump and the log: an authority's message may be of any length.
pub const SIGNING_REASON_BYTES: usize = 1_024;
/// Identities kept that no local workload has: those asked for by connections of workloads not known as local.
pub const IDENTITIES_KEPT: usize = 16_384;

/// Headers of an HTTP request to the readiness, metrics or admin port must be here by then (the reference's value).
pub const HTTP_HEADER_DEADLINE_MS: u64 = 2_000;
/// Read buffer of one HTTP connection (the reference's value).
pub const HTTP_BUFFER_BYTES: usize = 8_192;
/// Connections of one HTTP server at a time: probes, a scraper or two, an operator.
pub const HTTP_CONNECTIONS: usize = 64;
/// How long a scrape or a dump waits for the shards' answers.
pub const SHARD_ANSWER_DEADLINE_MS: u64 = 1_000;
/// Flows that one shard keeps for operators: about 300 bytes each, and more than a core can end in a tenth of a second
/// (500 us of CPU a connection).
pub const FLOWS_KEPT: usize = 512;
/// What is kept of the reason why a connection failed: a peer may have written it.
pub const FLOW_ERROR_BYTES: usize = 512;
/// Flows told with one answer: a fraction of a millisecond of a shard's time.
pub const FLOWS_A_PAGE: usize = 256;
/// How often followers of flows ask the shards for more.
pub const FLOWS_POLL_MS: u64 = 100;
/// A follower to whom nothing was told for so long gets an empty line: one that is gone doesn't keep its place.
pub const FLOWS_HEARTBEAT_MS: u64 = 15_000;
/// Followers of flows at a time; each wakes every shard ten times a second.
pub const FLOW_FOLLOWERS: usize = 8;
/// Pieces of an answer that wait for a client who reads slowly.
pub const HTTP_PIECES_QUEUED: usize = 16;
/// A client that takes nothing of an answer for this long is let go.
pub const HTTP_WRITE_DEADLINE_MS: u64 = 10_000;
/// The body that a request may announce; none here is read.
pub const HTTP_BODY_BYTES: u64 = 64 * 1024;
/// The longest time that a change of the log filter may last before it ends by itself.
pub const LOG_CHANGE_MOST_S: u64 = 86_400;
/// The longest grace that a pod may be drained with.
pub const DRAIN_MOST_S: u64 = 86_400;
/// Live connections described in a row, the policies of each asked: about 0.3 ms.
pub const DESCRIBED_A_TURN: usize = 256;
/// How long a shard may take for the description of all its connections, which it makes in slices.
pub const SURVEY_DEADLINE_MS: u64 = 5_000;
/// Live connections, or policies, in one answer, unless asked for fewer.
pub const ITEMS_TOLD: usize = 10_000;
/// Of these, so many are put into words before the control thread looks after the rest: about 5 ms.
pub const CONNECTIONS_A_TURN: usize = 1_000;
/// Scrapes answered at the same time; each has a thread and the counters of all shards. Further ones wait a while.
pub const SCRAPES_AT_ONCE: usize = 2;
/// A piece of an answer that is written while it is sent, before compression.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Pieces that wait for a reader.
pub const CHUNKS_QUEUED: usize = 4;
/// A reader that takes no piece for so long is given up; Prometheus itself gives a scrape 10 s.
pub const CHUNK_WAIT_MS: u64 = 10_000;
/// A reader that hasn't taken the whole answer by then is given up, too: Prometheus' longest usual timeout.
pub const CHUNKS_WHOLE_MS: u64 = 60_000;
/// A scrape that finds no place for so long is answered 503.
pub const SCRAPE_WAIT_MS: u64 = 10_000;
/// Niceness of threads that write scrapes and profiles: shards go first.
pub const SCRAPE_NICE: i32 = 10;
/// Pods whose open sockets are told one by one; Kubernetes puts 110 on a node, and nobody goes past a thousand.
pub const PODS_TOLD: usize = 1_000;
// profiles
/// A CPU profile's length and frequency (the reference's values).
pub const PROFILE_MOST_S: u64 = 300;
pub const PROFILE_DEFAULT_S: u64 = 10;
pub const PROFILE_MOST_HZ: u64 = 1_000;
pub const PROFILE_DEFAULT_HZ: u64 = 100;
/// A heap profile as the allocator writes it: a stack is some hundred bytes, and there are some thousand.
pub const HEAP_DUMP_BYTES: u64 = 64 << 20;
// The kernel (sys).
/// Descriptors that one CNI message may carry before the kernel cuts them off; one is right, more is an error.
pub const CNI_DESCRIPTORS_A_MESSAGE: usize = 4;
/// A message to the CNI agent that can't be sent within its own time limit is of no use to it (reference B.3).
pub const CNI_SEND_DEADLINE_MS: u64 = 5_000;
/// Entries of the ring that is made only to see whether rings may be made.
pub const RING_PROBE_ENTRIES: u32 = 8;
/// One read of a netlink dump: the kernel fills at most 32 KiB.
pub const NETLINK_READ_BYTES: usize = 32 * 1024;
/// How long a steered listener goes on accepting before it closes: a handshake that began before the steering may
/// need one retransmission (1 s, RFC 6298 section 2) before it arrives.
pub const HANDOVER_LINGER_MS: u64 = 1_500;
// TLS
/// Records one AES-GCM key may seal (RFC 8446 section 5.5, with the margin of rustls): past it confidentiality erodes.
pub const KEY_RECORDS: u64 = 1 << 24;
/// Records after which a sealer asks for a new key: half the limit, minutes at 100,000 records a second.
pub const KEY_UPDATE_AFTER_RECORDS: u64 = 1 << 23;
/// Key updates, tickets and warnings a peer may send in a row without data: each costs it little and us a key.
pub const UPKEEP_MESSAGES_IN_A_ROW: u8 = 32;
/// Data that makes up for one of them: a full record, which costs as much to open as a key to change.
pub const DATA_BYTES_AN_UPKEEP: usize = RECORD_PLAINTEXT_BYTES;
/// A session ticket that is read over (two vectors of 64 KiB are legal, nobody sends them).
pub const TICKET_BYTES: usize = 65_535;
/// What a peer may send until its handshake is done: the longest sane certificate chain is a fifth of it.
pub const HANDSHAKE_BYTES: usize = 128 * 1024;
// wire::h2
/// CONTINUATION frames of one header block: a block within its bound needs one, a flood of empty ones needs
/// no bytes.
pub const CONTINUATIONS_A_BLOCK: u32 = 32;
/// A header block, from its first byte to its last: a stream that never opens costs a tunnel its other streams.
pub const HEADER_BLOCK_DEADLINE_MS: u64 = 10_000;
/// Streams a peer resets: a pod that drops all 200 streams a few times a second is still at work.
pub const RESETS_A_SECOND: u32 = 2_000;
/// Streams reset before their answer: each has cost a decision and a dial (CVE-2023-44487); twice what we
/// offer.
pub const UNANSWERED_RESETS_A_SECOND: u32 = 400;
/// Streams refused or malformed, requests answered 400: each costs us a decoded header block, an answer and a line.
pub const STREAM_ERRORS_A_SECOND: u32 = 400;
/// Header lists beyond their limit: 16 KiB that name a table's entry again and again are thousands of fields, which
/// have to be decoded all the same. No peer at work sends one.
pub const LARGE_LISTS_A_SECOND: u32 = 10;
/// PING, SETTINGS, PRIORITY, unknown frames and frames of closed streams: far above what any peer at work
/// sends.
pub const OVERHEAD_FRAMES_A_SECOND: u32 = 10_000;
/// DATA frames with neither payload nor END_STREAM; no known peer sends even two.
pub const EMPTY_DATA_FRAMES_IN_A_ROW: u32 = 100;
/// WINDOW_UPDATE frames a peer may send before we sent anything.
pub const WINDOW_UPDATES_AT_START: u32 = 1_000;
/// WINDOW_UPDATE frames earned by each frame we send: one for the stream and one for the connection, twice.
pub const WINDOW_UPDATES_A_FRAME: u32 = 4;
/// One more WINDOW_UPDATE is earned by so much payload: Go's client tells every 4 KiB on both levels.
pub const WINDOW_UPDATE_WORTH_BYTES: u32 = 1_024;
/// Answers (PING and SETTINGS acks, RST_STREAM, connection credit) that wait while the peer doesn't read.
pub const REPLIES_WAITING_BYTES: usize = 64 * 1024;
/// Largest SETTINGS frame: 256 pairs, six are defined.
pub const SETTINGS_FRAME_BYTES: u32 = 1_536;
/// Largest GOAWAY frame: its debug data is read over.
pub const GOAWAY_FRAME_BYTES: u32 = 16_384;
/// A stream's window doubles if half of it went by in less: then a round trip of this order may be holding it
/// back.
pub const WINDOW_GROWTH_MS: u32 = 200;
/// Streams we reset whose late frames are told from a peer's mistake; older ones are forgiven without a look.
pub const RESETS_REMEMBERED: usize = 256;
/// Streams opened before the peer's SETTINGS say how many it takes (RFC 9113 section 6.5.2 advises 100 or
/// more).
pub const STREAMS_BEFORE_SETTINGS: u32 = 100;
/// The HPACK table a peer may use until it acknowledged that ours is 0 (RFC 7541 section 4.2, RFC 9113
/// section 6.5.2).
pub const HPACK_TABLE_BYTES: usize = 4_096;
/// Scratch space a decoder keeps between header blocks; an idle connection should hold next to nothing.
pub const HPACK_SCRATCH_KEPT_BYTES: usize = 512;
// mesh: snapshot and files
/// A local configuration file; 100,000 workloads take about 50 MB of YAML.
pub const LOCAL_CONFIG_BYTES: u64 = 256 * 1024 * 1024;
// Logs.
/// Entries (a line of the control thread, or a shard's batch) that wait for standard output (the reference's value).
pub const LOG_LINES_QUEUED: usize = 10_000;
/// What all of them together may hold, so that an output that stands still costs lines and not the node's memory.
pub const LOG_BYTES_QUEUED: usize = 16 << 20;
/// Entries written with one call (the reference's value).
pub const LOG_LINES_A_WRITE: usize = 64;
/// How long the control thread waits for room in a full queue before a line is dropped.
pub const LOG_LINES_WAIT_MS: u64 = 100;
/// How long the end of the process waits for the last lines (the reference's value).
pub const LOGS_FINISH_MS: u64 = 1_000;
// shard, on epoll
/// Tasks that always find their sockets ready rest this often, for one timer tick (1 ms), so that timers fire.
pub const REST_EVERY_MS: u64 = 20;
/// What an application said first, sent along with its CONNECT: a small record, since the far side keeps it until the
/// application there is reached.
pub const AHEAD_BYTES: usize = 4 * 1024;
// control::xds and the mesh thread
/// A message of the control plane: gRPC could say up to 4 GiB; the reference's 200 MiB is a wall at 400,000 workloads.
pub const XDS_MESSAGE_BYTES: u32 = i32::MAX.cast_unsigned();
/// A message is decoded in parts of about this size: 2 ms of work each, and the memory of a push whatever its size.
pub const XDS_PART_BYTES: usize = 256 * 1024;
/// Parts that wait for the mesh thread; the rest waits in the control plane's socket.
pub const XDS_PARTS_QUEUED: usize = 4;
/// Requests that wait for a control plane which doesn't read: answers to its own messages and look-ups.
pub const XDS_REQUESTS_QUEUED: usize = 8_192;
/// Names and versions declared when a stream opens: istiod takes no message above 4 MiB (ISTIO_GPRC_MAXRECVMSGSIZE),
/// which is 50,000 names. What isn't declared is sent again.
pub const XDS_DECLARED_BYTES: usize = 3 << 20;
/// The text of a refusal: the control plane logs it, one line.
pub const NACK_BYTES: usize = 4_096;
/// Refused resources of one response that are logged; a control plane of another version may send thousands.
pub const XDS_REFUSALS_LOGGED: usize = 32;
/// Look-ups without an answer: each is a few bytes in a request at the next reconnect.
pub const XDS_LOOKUPS_PENDING: usize = 4_096;
/// After a reconnect, names that aren't sent again are given up when none came for so long.
pub const XDS_SETTLE_MS: u64 = 1_000;
/// First and last pause between streams (the reference's values).
pub const XDS_BACKOFF_FIRST_MS: u64 = 10;
pub const XDS_BACKOFF_LAST_MS: u64 = 15_000;
/// Under load the mesh changes at most this often: each snapshot costs every shard a look.
pub const PUBLISH_PAUSE_MS: u64 = 5;
/// Steps of the mesh that the control thread hasn't taken yet.
pub const UPDATES_QUEUED: usize = 8;
/// Look-ups of shards that the mesh thread hasn't taken yet.
pub const LOOKUPS_QUEUED: usize = 1_024;
/// How long a name is known to be absent. The control plane tells when it appears; this bounds what is remembered.
pub const ABSENT_MS: u64 = 30_000;
/// Names known to be absent: a pod that scans a network makes one for each address.
pub const ABSENT_NAMES: usize = 16_384;
/// Retired snapshots are looked at this often, until no shard holds them.
pub const RETIRE_MS: u64 = 100;
/// Niceness of the mesh thread: shards and the CNI agent's thread go first.
pub const MESH_THREAD_NICE: i32 = 5;
// control::grpc: connections to the control plane.
/// Looking up the control plane's name: a resolver answers in milliseconds or, as a rule, not at all.
pub const GRPC_RESOLVE_DEADLINE_MS: u64 = 5_000;
/// TCP connect, over all addresses of the name (the reference's value); each further address waits for its turn
/// so long at most.
pub const GRPC_CONNECT_DEADLINE_MS: u64 = 5_000;
/// TLS handshake with the control plane.
pub const GRPC_HANDSHAKE_DEADLINE_MS: u64 = 5_000;
/// TCP keepalive towards the control plane (the reference's values).
pub const GRPC_KEEPALIVE_TIME_S: u64 = 300;
pub const GRPC_KEEPALIVE_INTERVAL_S: u64 = 75;
pub const GRPC_KEEPALIVE_RETRIES: u32 = 9;
/// HTTP/2 pings while a stream is open, and how long an answer may take (the reference's values): a black hole is
/// noticed after 40 s.
pub const GRPC_PING_INTERVAL_MS: u64 = 30_000;
pub const GRPC_PING_DEADLINE_MS: u64 = 10_000;
/// Sent bytes that nobody acknowledges end the connection after this (TCP_USER_TIMEOUT).
pub const GRPC_UNACKNOWLEDGED_MS: u32 = 20_000;
/// Flow-control windows towards the control plane: a full push of 100,000 workloads is 20 MB or more.
pub const GRPC_STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
pub const GRPC_CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// A bearer token; Kubernetes's have about 1,100 bytes, istiod takes headers up to 16 KiB.
pub const TOKEN_BYTES: usize = 12 * 1024;
/// PEM text of roots: 150 roots of an operating system are 230 KB.
pub const ROOTS_BYTES: usize = 4 * 1024 * 1024;
// wire::xds
/// Names that one response may remove: a million workloads and their services, four times over. Two bytes on the
/// wire can announce a name that takes 24 in memory.
pub const REMOVED_NAMES_A_RESPONSE: usize = 4 << 20;
/// Rules, clauses and matches of one policy: an object of Kubernetes (1.5 MB) can't hold as many, and an empty match
/// takes 150 times its two bytes of the wire.
pub const POLICY_PARTS: usize = 65_536;
/// Unreadable values of one policy that are told; the others count, but repeat the same story.
pub const POLICY_PROBLEMS: usize = 32;
/// A value from the control plane shown in an error: as long as a DNS name may be.
pub const SHOWN_VALUE_BYTES: usize = 253;
/// One call to the certificate authority: those that wait for a person's or another service's approval take seconds.
pub const CA_CALL_DEADLINE_MS: u64 = 30_000;
/// An authority's answer: a bundle of a thousand roots is 1.5 MB.
pub const CA_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Leaf and intermediates: more than this no peer would take in its handshake.
pub const CHAIN_CERTIFICATES: usize = 10;
pub const CHAIN_PEM_BYTES: usize = 64 * 1024;
/// Roots of one bundle; each identity keeps a copy for the dump.
pub const BUNDLE_ROOTS: usize = 1_024;
/// Different bytes of what workloads have in common that are remembered (some 300 each): twice the deployments and
/// zones of a mesh of a million. Past it they are forgotten and read anew.
pub const WORKLOAD_FORMS: usize = 131_072;

// Policies and live connections.
/// Exact values that one rule is filed under; with more it is looked at for every call of its scope.
pub const POLICY_ANCHORS: usize = 256;
/// Live connections asked again in a row, so that none of the others waits longer than they take (about 0.5 ms).
pub const ASKED_A_TURN: usize = 512;
/// Between two rounds of asking again: whatever came in between is one round, and 100 ms are kept with ease.
pub const ASK_AGAIN_PAUSE_MS: u64 = 20;
/// Policies that verdicts are counted by; those of further ones are counted under no name.
pub const VERDICT_SETS: usize = 1_000;
// revocation
/// Lists in one file: one for each authority of a mesh, and more than any mesh has.
pub const REVOCATION_LISTS: usize = 4_096;
/// A file of revocation lists: a ConfigMap holds 1 MiB, a large authority's list some tens.
pub const REVOCATION_FILE_BYTES: u64 = 64 << 20;
/// How often a file of revocation lists that changes without end is looked at before it is read all the same; one that
/// has come to rest is read at the second look.
pub const REVOCATION_LOOKS: u32 = 3;
/// How often the ends of revocation lists, and who signed them, are looked at again.
pub const REVOCATION_SURVEY_MS: u64 = 60_000;
// mesh: choices among endpoints, and the second try
/// Endpoints of one shard that are left out for a while: past this many it isn't the endpoints that fail.
pub const EJECTED_ENDPOINTS: usize = 1_024;
/// Draws from a service's table of endpoints before the service is looked through after all: more fail only where most
/// endpoints can't serve the port or are left out.
pub const TABLE_DRAWS: usize = 8;
/// No further endpoint is tried for a connection that has waited this long: one dial that nobody answers takes 10 s.
pub const RETRY_WINDOW_MS: u64 = 15_000;
// wire: the header of an application tunnel
/// The longest name that SPIFFE allows (SPIFFE-ID section 2.3).
pub const PROXY_IDENTITY_BYTES: usize = 2_048;
// control: host names of workloads
/// Names kept with their addresses (the reference's resolver keeps as many answers).
pub const HOSTS_KEPT: usize = 4_096;
/// Names looked for at the same time.
pub const HOSTS_AT_ONCE: usize = 256;
/// One look-up with all its tries; a connection waits no longer for it than for anything else the mesh has to say.
pub const HOST_ANSWER_DEADLINE_MS: u64 = 5_000;
/// An answer is kept for its TTL, but no shorter than this, so that a TTL of 0 doesn't mean a query a connection.
pub const HOST_ANSWER_LEAST_MS: u64 = 1_000;
/// An answer is kept no longer than this, whatever its TTL (the reference's resolver: a day; addresses move sooner).
pub const HOST_ANSWER_MOST_MS: u64 = 3_600_000;
/// Pause before a name is looked for again after a failure.
pub const HOST_FAILED_MS: u64 = 2_000;
/// Addresses are used for so long after they were last confirmed, where the name can't be resolved any more
/// (RFC 8767 section 5 advises one to three days; a mesh's external hosts move sooner).
pub const HOST_STALE_MS: u64 = 3_600_000;
/// A connection's wait for a name: a little longer than the look-up itself, whose end has to get here.
pub const HOST_WAIT_MS: u64 = HOST_ANSWER_DEADLINE_MS + 1_000;
// shard: tunnels within tunnels
/// Streams of a nested tunnel at a time: all of them go to the one backend that the gateway chose for it.
pub const NESTED_STREAMS: u16 = 8;
/// Connections that a nested tunnel carries in its life: a handshake costs as much as a few short connections, and a
/// thousand of them still spread over the backends as the gateway weighs them.
pub const NESTED_CONNECTIONS: u32 = 16;
/// A nested tunnel takes no new connection after this, so that new backends get their share soon.
pub const NESTED_LIFE_MS: u64 = 10_000;

// the explicit proxies: SOCKS5 and HTTP CONNECT
/// All that a client has to say before its destination is known: it stands in the same pod, so a round trip is nothing.
pub const PROXY_REQUEST_DEADLINE_MS: u64 = 10_000;
/// The head of a CONNECT; one with a large credential has a few KiB.
pub const PROXY_HEAD_BYTES: usize = 16 * 1024;
/// Fields of such a head (as many as common servers take).
pub const PROXY_HEAD_FIELDS: usize = 100;
/// Clients of one pod and shard that haven't said yet where they want to go; each holds a descriptor and up to a head.
pub const PROXY_DIALOGUES: usize = 1_024;
/// A pod's refused dialogues are told in the log no more often than this.
pub const PROXY_TOLD_MS: u64 = 1_000;
/// Read from a refused client and thrown away, so that the answer gets there before a reset: a client that has begun to
/// send looks for an answer only after its buffer.
pub const DISMISSED_BYTES: usize = 2 << 20;
// DNS
/// Time that answers out of the mesh may be kept for (the reference's value).
pub const DNS_TTL_S: u32 = 30;
/// A datagram's message where the asker says nothing of larger ones (RFC 1035 section 2.3.4).
pub const DNS_PLAIN_BYTES: usize = 512;
/// The largest DNS message there can be: TCP's length field has 16 bits.
pub const DNS_MESSAGE_BYTES: usize = 65_535;
/// Queries of one pod and shard that wait for a name server, each with a socket, or for the mesh's record of the pod. A
/// resolver library has a handful.
pub const DNS_IN_FLIGHT: usize = 512;
/// Queries of one TCP connection that wait for their answer (the reference's value); more wait in its socket.
pub const DNS_PIPELINED: usize = 32;
/// A TCP connection on which nothing is asked and nothing is owed (the reference's value).
pub const DNS_IDLE_MS: u64 = 5_000;
/// Answers that a TCP client hasn't taken: two of the largest.
pub const DNS_UNREAD_BYTES: usize = 2 * DNS_MESSAGE_BYTES;
/// Datagrams answered before other tasks of the shard get their turn: about 0.3 ms.
pub const DNS_DATAGRAMS_A_TURN: usize = 64;
/// Attempts at a name server within the patience for one query, where resolv.conf asks for fewer: one lost datagram,
/// and one lost retry.
pub const DNS_ATTEMPTS: usize = 3;
/// The same, where it asks for more.
pub const DNS_ATTEMPTS_MOST: usize = 6;
/// Replies of one pod and shard that are remembered; some 1,000 of them.
pub const DNS_CACHE_BYTES: usize = 256 * 1024;
/// A reply that is worth remembering: what fits into one datagram of an ordinary network.
pub const DNS_CACHED_MESSAGE_BYTES: usize = 1_500;
/// Longest time that a reply is remembered, whatever it says.
pub const DNS_CACHED_MOST_S: u32 = 3_600;
/// Between two lines about the same trouble with names; a broken pod asks thousands of times a second.
pub const DNS_TOLD_MS: u64 = 5_000;
/// The largest reply we ask name servers for ourselves (the value of DNS flag day 2020).
pub const DNS_EDNS_BYTES: u16 = 1_232;
/// Addresses that a resolve hands on; a headless service may have thousands of endpoints.
pub const RESOLVED_ADDRESSES: usize = 64;
/// How often it is looked whether a pod has a resolv.conf of its own, until one is found.
pub const DNS_POD_FILES_MS: u64 = 10_000;
/// A resolv.conf; Kubernetes allows 32 search domains of 2,048 characters together.
pub const RESOLV_CONF_BYTES: u64 = 16 * 1024;
/// Between two looks whether a client has taken enough of a zone for more of it.
pub const TRANSFER_PAUSE_MS: u64 = 10;
/// Queries that wait in the kernel, with its own overhead (some 800 bytes each): a burst of a thousand. Linux's default
/// of 208 KiB loses all but 270 of one.
pub const DNS_QUEUE_BYTES: i32 = 1024 * 1024;
