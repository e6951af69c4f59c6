//! The mesh store of tidegate: limits counted by the fleet itself, decided in memory, exchanged over QUIC.

pub mod certs;
pub mod transport;
pub mod wire;
