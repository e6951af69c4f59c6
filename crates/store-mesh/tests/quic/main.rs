//! The mesh on real QUIC over loopback.

mod fleet;
mod mesh;
mod naive;
mod support;
mod transport;
