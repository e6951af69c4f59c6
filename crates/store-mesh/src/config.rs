//! How a replica of the mesh is set up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Clock, SystemClock};
use tokio::runtime::Handle;

use crate::certs::Identity;
use crate::transport::TransportConfig;

/// The UDP port of the mesh where none is given.
pub const DEFAULT_PORT: u16 = 4_884;

/// Where the mesh's tasks run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum MeshRuntime {
    /// On the tokio runtime that [`Mesh::start`](crate::Mesh::start) is called on: the default.
    #[default]
    Ambient,
    /// On this one.
    Handle(Handle),
    /// On a thread of its own: an application that blocks its runtime does not look silent to its peers.
    OwnThread,
}

/// When a replica that is not heard any more counts as gone, and the others may use the whole limit again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseAfter {
    /// So long after gossip lost it: default 10 s. A cut that lasts longer gives each side the whole limit.
    Time(Duration),
    /// Only when it is back, has left with an announcement, or an operator says so ([`Mesh::release_member`](crate::Mesh::release_member)). The bound
    /// holds for a cut of any length.
    Never,
}

/// What [`Mesh::start`](crate::Mesh::start) needs.
///
/// ```
/// use tidegate_store_mesh::{MeshConfig, certs::Authority};
/// let identity = Authority::new("my-fleet")?.issue("node-1")?;
/// let config = MeshConfig::new(identity, ["node-2.example:4884", "node-3.example"])
///     .listen(([127, 0, 0, 1], 0).into());
/// # Ok::<(), tidegate_store_mesh::certs::IssueError>(())
/// ```
#[derive(Clone)]
pub struct MeshConfig {
    pub(crate) identity: Identity,
    pub(crate) seeds: Vec<String>,
    pub(crate) transport: TransportConfig,
    pub(crate) flush_interval: Duration,
    pub(crate) gossip_interval: Duration,
    pub(crate) release_after: ReleaseAfter,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: MeshRuntime,
}

impl MeshConfig {
    /// A replica with `identity` that finds the fleet at `seeds`: each `host:port` or `host` (then port [`DEFAULT_PORT`]), names or
    /// addresses, some of the fleet or all of it; its own address among them does no harm. No seeds: it founds a fleet.
    pub fn new<S: Into<String>>(identity: Identity, seeds: impl IntoIterator<Item = S>) -> Self {
        Self {
            identity,
            seeds: seeds.into_iter().map(|seed| with_port(seed.into())).collect(),
            transport: TransportConfig::new((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT).into()),
            flush_interval: Duration::from_millis(20),
            gossip_interval: Duration::from_millis(500),
            release_after: ReleaseAfter::Time(Duration::from_secs(10)),
            clock: Arc::new(SystemClock::new()),
            runtime: MeshRuntime::Ambient,
        }
    }

    /// The UDP address to listen at: default port [`DEFAULT_PORT`] of every IPv4 address. Port 0 takes a free one.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.transport.listen = address;
        self
    }

    /// Where the others reach this replica. The default is the address listened at; when that is every address, the one that the
    /// system would use towards the first seed.
    #[must_use]
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.transport.advertise = Some(address);
        self
    }

    /// How often what was spent goes to the others: default 20 ms; at least 1 ms, at most 1 s.
    #[must_use]
    pub fn flush_interval(mut self, interval: Duration) -> Self {
        self.flush_interval = interval.clamp(Duration::from_millis(1), Duration::from_secs(1));
        self
    }

    /// How often membership is gossiped: default 500 ms; at least 20 ms. A crash is noticed within about eight intervals.
    #[must_use]
    pub fn gossip_interval(mut self, interval: Duration) -> Self {
        self.gossip_interval = interval.max(Duration::from_millis(20));
        self
    }

    /// When a silent replica counts as gone: default 10 s after gossip lost it.
    #[must_use]
    pub fn release_after(mut self, policy: ReleaseAfter) -> Self {
        self.release_after = policy;
        self
    }

    /// The clock: default [`SystemClock`]. It has to be the limiter's own.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where the tasks run: default [`MeshRuntime::Ambient`].
    #[must_use]
    pub fn runtime(mut self, runtime: MeshRuntime) -> Self {
        self.runtime = runtime;
        self
    }

    /// Whether several datagrams may go to the kernel at once (GSO): default true.
    #[must_use]
    pub fn segmentation_offload(mut self, on: bool) -> Self {
        self.transport.segmentation_offload = on;
        self
    }

    /// The transport's settings, with an address that others can reach where one can be found.
    pub(crate) fn transport_settings(&self) -> TransportConfig {
        let mut settings = self.transport.clone();
        if settings.advertise.is_none() && settings.listen.ip().is_unspecified() {
            let towards = self.seeds.iter().find_map(|seed| seed.parse::<SocketAddr>().ok());
            settings.advertise =
                own_address(settings.listen.ip(), towards).map(|ip| SocketAddr::new(ip, settings.listen.port()));
        }
        settings
    }
}

impl std::fmt::Debug for MeshConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshConfig")
            .field("identity", &self.identity)
            .field("seeds", &self.seeds)
            .field("transport", &self.transport)
            .field("flush_interval", &self.flush_interval)
            .field("gossip_interval", &self.gossip_interval)
            .field("release_after", &self.release_after)
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

fn with_port(seed: String) -> String {
    if let Ok(ip) = seed.parse::<IpAddr>() {
        return SocketAddr::new(ip, DEFAULT_PORT).to_string();
    }
    let has_port = seed.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { seed } else { format!("{seed}:{DEFAULT_PORT}") }
}

/// The address that the system would send from. Connecting a UDP socket sends nothing.
fn own_address(listen: IpAddr, towards: Option<SocketAddr>) -> Option<IpAddr> {
    // Where no seed is an address: any that is routed; TEST-NET-1 and the documentation prefix belong to nobody.
    let (any, anywhere): (IpAddr, IpAddr) = match listen {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    };
    let towards = towards.filter(|seed| seed.is_ipv4() == listen.is_ipv4()).unwrap_or((anywhere, DEFAULT_PORT).into());
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(towards).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Authority;

    #[test]
    fn seeds_without_a_port_get_the_default() {
        let seed = |text: &str| with_port(text.to_owned());
        assert_eq!(seed("10.0.0.1"), "10.0.0.1:4884");
        assert_eq!(seed("10.0.0.1:9"), "10.0.0.1:9");
        assert_eq!(seed("::1"), "[::1]:4884");
        assert_eq!(seed("[::1]:9"), "[::1]:9");
        assert_eq!(seed("node.example"), "node.example:4884");
        assert_eq!(seed("node.example:9"), "node.example:9");
    }

    #[test]
    fn the_address_towards_a_seed_is_advertised() {
        let identity = Authority::new("fleet").unwrap().issue("a").unwrap();
        let config = MeshConfig::new(identity, ["127.0.0.1:9"]);
        assert_eq!(config.transport_settings().advertise, Some(([127, 0, 0, 1], DEFAULT_PORT).into()));
        let own: SocketAddr = ([10, 0, 0, 7], 1).into();
        assert_eq!(config.advertise(own).transport_settings().advertise, Some(own));
    }
}
