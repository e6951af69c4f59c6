//! The mesh on real QUIC over loopback.

mod naive;
mod support;
mod transport;
