//! The mesh on real QUIC over loopback.

mod fleet;
mod naive;
mod support;
mod transport;
