//! The mesh on real QUIC over loopback.

mod support;
mod transport;
