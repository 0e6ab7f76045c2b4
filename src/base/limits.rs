//! Every bound in one place, each with its reason; the unit stands last in the name.

/// TCP connect to any next hop (the reference's value).
pub const CONNECT_DEADLINE_MS: u64 = 10_000;
/// A whole TLS handshake, either role: a peer that stalls holds a task and two descriptors.
pub const HANDSHAKE_DEADLINE_MS: u64 = 10_000;
/// The peer's SETTINGS after the handshake.
pub const SETTINGS_DEADLINE_MS: u64 = 10_000;
/// The answer to a CONNECT: the far side may hold it for its certificate or workload for 30 s.
pub const CONNECT_ANSWER_DEADLINE_MS: u64 = 45_000;
/// How long a connection waits for the workload record of its own pod (the reference's value).
pub const LOCAL_WORKLOAD_DEADLINE_MS: u64 = 5_000;
/// How long a connection waits for a certificate before it is refused.
pub const CERTIFICATE_DEADLINE_MS: u64 = 30_000;
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
/// Records read from or sealed into one scratch buffer.
pub const RECORDS_A_TURN: usize = 16;
/// Sealed bytes that may wait for one tunnel's socket before streams stop reading from their applications.
pub const TUNNEL_BACKLOG_BYTES: usize = 512 * 1024;

/// Header block of one request or response, as sent on the wire, CONTINUATION included.
pub const HEADER_BLOCK_BYTES: usize = 16 * 1024;

// wire::h2
/// CONTINUATION frames of one header block: a block within its bound needs one, a flood of empty ones needs
/// no bytes.
pub const CONTINUATIONS_A_BLOCK: u32 = 32;
/// Streams a peer resets: a pod that drops all 200 streams a few times a second is still at work.
pub const RESETS_A_SECOND: u32 = 2_000;
/// Streams reset before their answer: each has cost a decision and a dial (CVE-2023-44487); twice what we
/// offer.
pub const UNANSWERED_RESETS_A_SECOND: u32 = 400;
/// Streams refused or malformed: each costs us a decoded header block and an answer.
pub const STREAM_ERRORS_A_SECOND: u32 = 400;
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
