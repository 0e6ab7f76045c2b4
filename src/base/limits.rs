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

// TLS
/// Records one AES-GCM key may seal (RFC 8446 section 5.5, with the margin of rustls): past it confidentiality erodes.
pub const KEY_RECORDS: u64 = 1 << 24;
/// Records after which a sealer asks for a new key: half the limit, minutes at 100,000 records a second.
pub const KEY_UPDATE_AFTER_RECORDS: u64 = 1 << 23;
/// Key updates, tickets and warnings a peer may send in a row without data: each costs it little and us a key.
pub const UPKEEP_MESSAGES_IN_A_ROW: u8 = 32;
/// A session ticket that is read over (two vectors of 64 KiB are legal, nobody sends them).
pub const TICKET_BYTES: usize = 65_535;
/// What a peer may send until its handshake is done: the longest sane certificate chain is a fifth of it.
pub const HANDSHAKE_BYTES: usize = 128 * 1024;
