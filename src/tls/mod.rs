//! Layer 4: TLS. The handshake is rustls's, the records are ours.

pub mod aead;
pub mod cert;
pub mod config;
pub mod csr;
pub mod handshake;
pub mod keyschedule;
pub mod record;
pub mod revocation;
pub mod tenure;
pub mod upkeep;
pub mod verify;

#[cfg(test)]
mod tests;
