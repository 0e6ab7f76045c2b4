//! The shard under test: real sockets, real TLS, one thread, both event loops.

mod fixture;
mod gate;
mod nested;
mod peers;
mod pool;
mod relay;
mod splice;
mod table;
mod tunnel;
