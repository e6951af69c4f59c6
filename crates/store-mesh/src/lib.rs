//! The mesh store of tidegate: limits counted by the fleet itself, decided in memory, exchanged over QUIC.

pub mod certs;
mod config;
mod driver;
mod membership;
mod mind;
pub mod naive;
pub mod replica;
mod store;
pub mod transport;
pub mod wire;

pub use config::{DEFAULT_PORT, MeshConfig, MeshRuntime, ReleaseAfter};
pub use membership::Member;
pub use mind::{Mind, Outgoing, ReplicaId};
pub use replica::Replica;
pub use store::{FleetReport, Mesh, MeshError, MeshReport};
