//! Who is in the fleet: gossip by chitchat, over the mesh's own connections. The only file that knows the library.
//!
//! Gossip says who is a member, where, and under which policy; it carries no counters. Each node owns three short texts: the hash of
//! its policy, its wire version, and whether it is leaving.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable, FailureDetectorConfig, NodeState,
    Serializable, spawn_chitchat,
};
use tokio::sync::{mpsc, watch};

use crate::transport::{Channel, Peer, Received, Transport};
use crate::wire::WIRE_VERSION;

/// The longest gossip message: the library's own bound, and the few bytes by which it misses it.
const MAX_GOSSIP: usize = 65_507 + 16;
/// How long the library remembers a node that is gone.
const DEAD_GRACE: Duration = Duration::from_secs(15 * 60);

const POLICY: &str = "policy";
const WIRE: &str = "wire";
const LEAVING: &str = "leaving";

/// One replica as gossip knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its node id: the name in its certificate.
    pub node: Arc<str>,
    /// When it was started, in milliseconds since the Unix epoch.
    pub incarnation: u64,
    /// Where it is reached.
    pub address: SocketAddr,
    /// The hash of the mesh limits that it knows. Two hashes in one fleet are two policies.
    pub policy: Option<u64>,
    /// The version of its messages.
    pub wire_version: Option<u8>,
}

/// What happened to the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A replica was heard of that is alive.
    Joined(Member),
    /// Its texts changed.
    Changed(Member),
    /// It said that it leaves.
    Left(Member),
    /// It was not heard of for too long, or a later incarnation of it was.
    Gone(Member),
}

/// What the mesh needs of a membership.
#[async_trait]
pub(crate) trait Membership: Send + 'static {
    /// The next events, oldest first; `None` when there will be no more. Cancel safe.
    async fn next(&mut self) -> Option<Vec<Event>>;

    /// Publishes the hash of the policy.
    async fn announce_policy(&mut self, hash: u64);

    /// Publishes that this replica leaves, and gossips until that had time to spread.
    async fn leave(&mut self);
}

/// How gossip behaves.
#[derive(Clone, Debug)]
pub(crate) struct GossipConfig {
    pub(crate) cluster: String,
    /// `host:port` each; names are resolved again every minute.
    pub(crate) seeds: Vec<String>,
    pub(crate) interval: Duration,
}

/// Membership by chitchat.
pub(crate) struct Gossip {
    handle: ChitchatHandle,
    live: watch::Receiver<BTreeMap<ChitchatId, NodeState>>,
    known: BTreeMap<ChitchatId, Member>,
    left: BTreeSet<ChitchatId>,
    interval: Duration,
    dropped: Arc<AtomicU64>,
}

impl Gossip {
    /// Starts to gossip on the current runtime. `dropped` counts messages that do not decode.
    pub(crate) async fn start(
        config: GossipConfig,
        transport: Arc<Transport>,
        inbox: mpsc::Receiver<Received>,
        dropped: Arc<AtomicU64>,
    ) -> Result<Self, anyhow::Error> {
        let Peer { node, incarnation, address } = transport.own();
        let opening = Opening { transport, inbox: Mutex::new(Some(inbox)), dropped: Arc::clone(&dropped) };
        let interval = config.interval;
        let settings = ChitchatConfig {
            chitchat_id: ChitchatId::new(node, incarnation, address),
            cluster_id: config.cluster,
            gossip_interval: interval,
            listen_addr: address,
            seed_nodes: config.seeds,
            failure_detector_config: failure_detector(interval),
            marked_for_deletion_grace_period: Duration::from_secs(5 * 60),
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let texts = vec![(WIRE.to_owned(), WIRE_VERSION.to_string())];
        let handle = spawn_chitchat(settings, texts, &opening).await?;
        let live = handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        Ok(Self { handle, live, known: BTreeMap::new(), left: BTreeSet::new(), interval, dropped })
    }

    /// Compares who is alive now with who was known.
    fn compare(&mut self) -> Vec<Event> {
        let own = self.handle.chitchat_id().clone();
        let live = self.live.borrow_and_update().clone();
        let superseded = |id: &ChitchatId| {
            live.keys().any(|other| other.node_id == id.node_id && other.generation_id > id.generation_id)
        };
        let mut events = Vec::new();
        let mut present = BTreeMap::new();
        for (id, state) in &live {
            if id.node_id == own.node_id || superseded(id) || self.left.contains(id) {
                continue;
            }
            let member = member(id, state);
            if state.get(LEAVING).is_some() {
                self.left.insert(id.clone());
                events.push(Event::Left(member));
                continue;
            }
            match self.known.get(id) {
                None => events.push(Event::Joined(member.clone())),
                Some(before) if *before != member => events.push(Event::Changed(member.clone())),
                Some(_) => {}
            }
            present.insert(id.clone(), member);
        }
        for (id, member) in std::mem::replace(&mut self.known, present) {
            if !self.known.contains_key(&id) && !self.left.contains(&id) {
                events.push(Event::Gone(member));
            }
        }
        // Who is gone before its successor joins was never two members at once.
        events.sort_by_key(|event| matches!(event, Event::Joined(_)));
        // Who left is forgotten when the library has forgotten it.
        self.left.retain(|id| live.contains_key(id));
        events
    }

    async fn publish(&mut self, key: &str, value: String) {
        self.handle.with_chitchat(|chitchat| chitchat.self_node_state().set(key, &value)).await;
    }
}

#[async_trait]
impl Membership for Gossip {
    async fn next(&mut self) -> Option<Vec<Event>> {
        loop {
            self.live.changed().await.ok()?;
            let events = self.compare();
            if !events.is_empty() {
                return Some(events);
            }
        }
    }

    async fn announce_policy(&mut self, hash: u64) {
        self.publish(POLICY, format!("{hash:016x}")).await;
    }

    async fn leave(&mut self) {
        self.publish(LEAVING, "yes".to_owned()).await;
        // Each round tells three members, and those tell the others.
        for member in self.known.values() {
            // Fails only when gossip has ended already.
            let _ = self.handle.gossip(member.address);
        }
        tokio::time::sleep(self.interval).await;
        // Fails only when gossip has ended already.
        let _ = self.handle.initiate_shutdown();
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.handle.abort();
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            tracing::debug!(dropped, "gossip messages that did not decode");
        }
    }
}

fn member(id: &ChitchatId, state: &NodeState) -> Member {
    Member {
        node: Arc::clone(&id.node_id),
        incarnation: id.generation_id,
        address: id.gossip_advertise_addr,
        policy: state.get(POLICY).and_then(|text| u64::from_str_radix(text, 16).ok()),
        wire_version: state.get(WIRE).and_then(|text| text.parse().ok()),
    }
}

/// Who misses about eight times its usual interval is suspected. The library's own start value of 5 s would take seconds to notice a
/// crash soon after a start.
fn failure_detector(interval: Duration) -> FailureDetectorConfig {
    let longest = Duration::from_secs(2).max(10 * interval);
    FailureDetectorConfig::new(8.0, 1_000, longest, 4 * interval, DEAD_GRACE)
}

/// Hands the mesh's connections to the library, once.
struct Opening {
    transport: Arc<Transport>,
    inbox: Mutex<Option<mpsc::Receiver<Received>>>,
    dropped: Arc<AtomicU64>,
}

#[async_trait]
impl chitchat::transport::Transport for Opening {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn chitchat::transport::Socket>> {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        let inbox = inbox.ok_or_else(|| anyhow::anyhow!("the gossip inbox was taken already"))?;
        let (transport, dropped) = (Arc::clone(&self.transport), Arc::clone(&self.dropped));
        Ok(Box::new(Socket { transport, inbox, dropped }))
    }
}

struct Socket {
    transport: Arc<Transport>,
    inbox: mpsc::Receiver<Received>,
    dropped: Arc<AtomicU64>,
}

#[async_trait]
impl chitchat::transport::Socket for Socket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        // Whoever answers there: a seed is known by its address alone.
        self.transport.send(to, None, Channel::Gossip, &message.serialize_to_vec());
        Ok(())
    }

    // Cancel safe, as the library needs it: it only waits for a channel.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let Some(received) = self.inbox.recv().await else { anyhow::bail!("the transport is closed") };
            match decode(&received.body) {
                Some(message) => return Ok((received.from.address, message)),
                // Relaxed: the counter stands for itself.
                None => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
            }
        }
    }
}

fn decode(body: &Bytes) -> Option<ChitchatMessage> {
    if body.len() > MAX_GOSSIP {
        return None;
    }
    let mut rest = &body[..];
    let message = ChitchatMessage::deserialize(&mut rest).ok()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, kind in 0_u8..5) {
            let _ = decode(&bytes.clone().into());
            // The library's magic number and version, so that the bytes get further.
            let whole = ChitchatMessage::BadCluster.serialize_to_vec();
            let opening = &whole[..whole.len() - 1];
            let _ = decode(&[opening, &[kind], &bytes].concat().into());
        }
    }

    #[test]
    fn what_is_whole_decodes_and_what_follows_it_does_not() {
        let whole = ChitchatMessage::BadCluster.serialize_to_vec();
        assert_eq!(decode(&whole.clone().into()), Some(ChitchatMessage::BadCluster));
        assert!(decode(&[&whole[..], &[0]].concat().into()).is_none());
    }

    #[test]
    fn what_is_too_long_is_not_even_read() {
        assert!(decode(&vec![0; MAX_GOSSIP + 1].into()).is_none());
    }
}
