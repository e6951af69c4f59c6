//! Carries bytes between replicas: QUIC over one UDP port, mutual TLS 1.3, nothing waits, nothing piles up.
//!
//! One endpoint is client and server. A pair of replicas shares one connection; when both dial at once, the one dialled by
//! the smaller node id stays and the other is closed by its dialler, while both are still read. A message that fits goes as a datagram,
//! a longer one as a stream of its own. The first byte of either says which [`Channel`] it belongs to.
//!
//! [`Transport::send`] only puts a message down for its peer and returns. News waits in a slot of one, where the newest replaces
//! what was not sent yet (each is cumulative, so nothing is lost by it); other channels wait in a short queue that drops when full.

mod accept;
mod complaint;
mod counters;
mod dial;
mod hello;
mod link;
mod read;
mod tls;

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::certs::Identity;
pub(crate) use complaint::Complaint;
use counters::Counters;
pub use counters::TransportReport;
use hello::Hello;
use link::Link;
pub(crate) use tls::check_identity;

/// The most peers that a transport keeps queues for; above, those without a connection make room.
const MAX_LINKS: usize = 1_024;
/// Bytes that may have arrived and not been taken yet, over all peers; more is dropped and counted.
const INBOX_BYTES: usize = 64 << 20;
/// Messages that may have arrived and not been taken yet, for each channel.
const INBOX_MESSAGES: usize = 4_096;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// Counters and acknowledgements: cumulative, the newest replaces what is unsent.
    News = 1,
    /// Membership.
    Gossip = 2,
    /// Copies of state that were asked for, and the asking.
    Pull = 3,
}

impl Channel {
    fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            1 => Some(Self::News),
            2 => Some(Self::Gossip),
            3 => Some(Self::Pull),
            _ => None,
        }
    }
}

/// A replica at the other end of a connection: what its certificate and its greeting said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its node id: proven by its certificate.
    pub node: Arc<str>,
    /// When it was started, in milliseconds since the Unix epoch.
    pub incarnation: u64,
    /// Where it can be reached, as it says.
    pub address: SocketAddr,
}

/// A message that arrived.
#[derive(Debug)]
pub struct Received {
    /// Who sent it: authenticated.
    pub from: Peer,
    /// The message.
    pub body: Bytes,
    /// Gives the room in the inbox back when the message has been dealt with.
    _room: OwnedSemaphorePermit,
}

/// Where each channel's messages arrive. When nobody takes them they are dropped and counted.
#[derive(Debug)]
pub struct Inbox {
    /// Counters and acknowledgements.
    pub news: mpsc::Receiver<Received>,
    /// Membership.
    pub gossip: mpsc::Receiver<Received>,
    /// Copies of state.
    pub pull: mpsc::Receiver<Received>,
}

/// How a transport behaves. The defaults are for a data centre.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// The UDP address to listen at; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where peers reach this replica; the default is the address listened at. Port 0 stands for the port listened at.
    pub advertise: Option<SocketAddr>,
    /// How often a quiet connection is kept alive: default 1 s.
    pub keep_alive: Duration,
    /// After how much silence a connection is closed: default 4 s. Who is a member is decided by gossip, not by this.
    pub idle_timeout: Duration,
    /// Whether several datagrams may go to the kernel at once (GSO): default true. To be switched off for network drivers
    /// that say they can and then fail.
    pub segmentation_offload: bool,
}

impl TransportConfig {
    /// The defaults, listening at `listen`.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            advertise: None,
            keep_alive: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(4),
            segmentation_offload: true,
        }
    }
}

/// Why a transport did not start. Nothing was left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The UDP port cannot be had.
    #[error("cannot listen at udp {address}: {source}; choose another port, or 0 for a free one")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Peers could not reach this replica at the address it would name.
    #[error("peers cannot reach {address}: it is no address of one host; set `advertise` to one that they can reach")]
    Advertise {
        /// The address.
        address: SocketAddr,
    },
    /// The identity cannot be used.
    #[error("the identity cannot be used: {0}")]
    Identity(#[from] crate::certs::IdentityError),
    /// A change of identity must not change who the replica is.
    #[error(
        "the new identity is for {new}, this replica is {own}, or its cluster secret is another: start a replica instead"
    )]
    OtherReplica {
        /// The replica's node id.
        own: String,
        /// The node id of the identity given.
        new: String,
    },
}

/// The QUIC endpoint of a replica. Dropping it closes it.
#[derive(Debug)]
pub struct Transport {
    shared: Arc<Shared>,
}

/// What the tasks of a transport share.
#[derive(Debug)]
struct Shared {
    endpoint: quinn::Endpoint,
    client: Mutex<quinn::ClientConfig>,
    config: TransportConfig,
    identity: Mutex<Identity>,
    hello: Hello,
    links: Mutex<HashMap<SocketAddr, Arc<Link>>>,
    counters: Counters,
    inbox: InboxSender,
    closed: watch::Sender<bool>,
}

#[derive(Debug)]
struct InboxSender {
    news: mpsc::Sender<Received>,
    gossip: mpsc::Sender<Received>,
    pull: mpsc::Sender<Received>,
    room: Arc<Semaphore>,
}

impl Transport {
    /// Listens, as `identity`, in its life that started at `incarnation` (milliseconds since the Unix epoch). Has to be called within
    /// a tokio runtime, on which the transport then runs.
    ///
    /// # Errors
    /// [`TransportError`] when the port is taken, the address cannot be reached, or the identity is unusable.
    pub fn bind(
        config: TransportConfig,
        identity: &Identity,
        incarnation: u64,
    ) -> Result<(Self, Inbox), TransportError> {
        let bound = |source| TransportError::Bind { address: config.listen, source };
        let socket = UdpSocket::bind(config.listen).map_err(bound)?;
        let local = socket.local_addr().map_err(bound)?;
        let mut advertise = config.advertise.unwrap_or(local);
        if advertise.port() == 0 {
            advertise.set_port(local.port());
        }
        if advertise.ip().is_unspecified() {
            return Err(TransportError::Advertise { address: advertise });
        }
        let (server, client) = tls::configurations(identity, &config)?;
        let endpoint = quinn::Endpoint::new(
            tls::endpoint_configuration(identity),
            Some(server),
            socket,
            Arc::new(quinn::TokioRuntime),
        )
        .map_err(bound)?;
        let (news, news_receiver) = mpsc::channel(INBOX_MESSAGES);
        let (gossip, gossip_receiver) = mpsc::channel(INBOX_MESSAGES);
        let (pull, pull_receiver) = mpsc::channel(INBOX_MESSAGES);
        let shared = Arc::new(Shared {
            endpoint,
            client: Mutex::new(client),
            config,
            hello: Hello::new(identity, incarnation, advertise),
            identity: Mutex::new(identity.clone()),
            links: Mutex::default(),
            counters: Counters::default(),
            inbox: InboxSender { news, gossip, pull, room: Arc::new(Semaphore::new(INBOX_BYTES)) },
            closed: watch::Sender::new(false),
        });
        tokio::spawn(accept::run(Arc::clone(&shared)));
        Ok((Self { shared }, Inbox { news: news_receiver, gossip: gossip_receiver, pull: pull_receiver }))
    }

    /// Who this replica is to its peers.
    pub fn own(&self) -> Peer {
        self.shared.hello.peer()
    }

    /// Puts `body` down for whoever answers at `to`; with `node`, only for that node. Never waits. What cannot be sent is
    /// dropped and counted.
    pub fn send(&self, to: SocketAddr, node: Option<&Arc<str>>, channel: Channel, body: &[u8]) {
        if *self.shared.closed.borrow() {
            return;
        }
        self.shared.link(to).put(&self.shared, channel, node.cloned(), body);
    }

    /// The replicas that are connected right now.
    pub fn connected(&self) -> Vec<Peer> {
        let links: Vec<_> = lock(&self.shared.links).values().cloned().collect();
        links.iter().flat_map(|link| link.peers()).collect()
    }

    /// What went over the network so far, and what did not.
    pub fn report(&self) -> TransportReport {
        self.shared.counters.report()
    }

    /// Uses `identity` from now on: for new connections; those that are there stay.
    ///
    /// # Errors
    /// [`TransportError::OtherReplica`] unless node, cluster and secret are the same as before; nothing was changed then.
    pub fn rotate(&self, identity: &Identity) -> Result<(), TransportError> {
        let mut current = lock(&self.shared.identity);
        let same = |of: fn(&Identity) -> &str| of(&current) == of(identity);
        if !same(Identity::node) || !same(Identity::cluster) || current.fingerprint() != identity.fingerprint() {
            return Err(TransportError::OtherReplica {
                own: current.node().to_owned(),
                new: identity.node().to_owned(),
            });
        }
        let (server, client) = tls::configurations(identity, &self.shared.config)?;
        self.shared.endpoint.set_server_config(Some(server));
        *lock(&self.shared.client) = client;
        *current = identity.clone();
        Ok(())
    }

    /// Sends what was put down, as far as that takes no longer than `patience`, and closes.
    pub async fn close(&self, patience: Duration) {
        let links: Vec<_> = lock(&self.shared.links).values().cloned().collect();
        let drained = async {
            for link in &links {
                link.drained().await;
            }
        };
        let _ = tokio::time::timeout(patience, drained).await;
        self.shared.close();
        let _ = tokio::time::timeout(patience, self.shared.endpoint.wait_idle()).await;
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    /// The link to whoever is at `address`, made at its first use.
    fn link(self: &Arc<Self>, address: SocketAddr) -> Arc<Link> {
        let mut links = lock(&self.links);
        if let Some(link) = links.get(&address) {
            return Arc::clone(link);
        }
        if links.len() >= MAX_LINKS {
            links.retain(|_, link| {
                let keep = link.is_connected();
                if !keep {
                    link.retire();
                }
                keep
            });
        }
        let link = Link::new(address);
        links.insert(address, Arc::clone(&link));
        link.start(self);
        link
    }

    fn hello_node(&self) -> &str {
        self.hello.node()
    }

    fn close(&self) {
        self.closed.send_replace(true);
        self.endpoint.close(hello::GOODBYE, b"closed");
    }

    /// Completes when the transport closes.
    async fn until_closed(&self) {
        // An error means that the sender is gone, which lives as long as `self`.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Puts a message that arrived into its channel's inbox, if there is room.
    fn deliver(&self, from: &Peer, message: &Bytes) {
        let Some(channel) = message.first().and_then(|&tag| Channel::from_tag(tag)) else {
            return Counters::add(&self.counters.dropped_malformed, 1);
        };
        Counters::add(&self.counters.received_bytes, message.len());
        let body = message.slice(1..);
        let size = u32::try_from(body.len().max(64)).unwrap_or(u32::MAX);
        let delivered = Arc::clone(&self.inbox.room).try_acquire_many_owned(size).is_ok_and(|room| {
            let received = Received { from: from.clone(), body, _room: room };
            match channel {
                Channel::News => self.inbox.news.try_send(received).is_ok(),
                Channel::Gossip => self.inbox.gossip.try_send(received).is_ok(),
                Channel::Pull => self.inbox.pull.try_send(received).is_ok(),
            }
        });
        if !delivered {
            Counters::add(&self.counters.dropped_inbox_full, 1);
        }
    }
}

/// What a poisoned mutex of this module guards is whole: nothing between lock and unlock can panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
