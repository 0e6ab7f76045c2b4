//! TLS against rustls itself: real handshakes and records over pipes in memory, cut at random. Each random test
//! prints its seed; `RINGWAY_SEED` repeats it.

mod handshake;
mod identities;
mod peers;
mod record;
mod refusal;
mod revocation;
mod rotation;
mod stream;
mod upkeep;
