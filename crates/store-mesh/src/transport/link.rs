//! What is put down for one peer, the connections to it, and the two tasks that send.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, SendDatagramError, SendStream, VarInt};
use tokio::sync::Notify;

use super::dial::{Backoff, dial};
use super::hello::{DUPLICATE, REFUSED, REPLACED, Refusal};
use super::{Channel, Counters, Peer, Shared, lock};

/// Messages other than news that wait for one peer.
const QUEUE: usize = 64;
/// Connections that one peer may have at once.
const CONNECTIONS: usize = 4;
/// How long a message may take that goes as a stream.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a duplicate connection is still read before its dialler closes it.
const GRACE: Duration = Duration::from_secs(1);

/// Who dialled a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialler {
    Own,
    Peer,
}

/// A connection whose other end is known.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) connection: Connection,
    pub(super) peer: Peer,
    dialler: Dialler,
}

impl Connected {
    pub(super) fn new(connection: Connection, peer: Peer, dialler: Dialler) -> Self {
        Self { connection, peer, dialler }
    }

    /// Both ends compute the same: the connection that the smaller node id dialled stays.
    fn is_preferred(&self, own: &str) -> bool {
        (self.dialler == Dialler::Own) == (own < &*self.peer.node)
    }
}

/// A message that waits.
#[derive(Debug)]
struct Outgoing {
    node: Option<Arc<str>>,
    /// The channel's tag and the message.
    bytes: Bytes,
}

/// One peer, by its address.
#[derive(Debug)]
pub(super) struct Link {
    address: SocketAddr,
    state: Mutex<State>,
    backoff: Arc<tokio::sync::Mutex<Backoff>>,
    news_put: Notify,
    other_put: Notify,
    connected: Notify,
    drained: Notify,
}

#[derive(Debug, Default)]
struct State {
    news: Option<Outgoing>,
    other: VecDeque<Outgoing>,
    /// Messages taken out and not sent yet.
    sending: usize,
    connections: Vec<Arc<Connected>>,
    retired: bool,
}

#[derive(Clone, Copy)]
enum Lane {
    News,
    Other,
}

impl Link {
    pub(super) fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            address,
            state: Mutex::default(),
            backoff: Arc::default(),
            news_put: Notify::new(),
            other_put: Notify::new(),
            connected: Notify::new(),
            drained: Notify::new(),
        })
    }

    /// Starts the two tasks that send.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>) {
        for lane in [Lane::News, Lane::Other] {
            let (link, shared) = (Arc::clone(self), Arc::clone(shared));
            tokio::spawn(async move {
                tokio::select! {
                    () = link.run(&shared, lane) => {}
                    () = shared.until_closed() => {}
                }
            });
        }
    }

    /// Puts a message down.
    pub(super) fn put(&self, shared: &Shared, channel: Channel, node: Option<Arc<str>>, body: &[u8]) {
        let mut bytes = Vec::with_capacity(1 + body.len());
        bytes.push(channel as u8);
        bytes.extend_from_slice(body);
        let outgoing = Outgoing { node, bytes: bytes.into() };
        let mut state = lock(&self.state);
        if channel == Channel::News {
            if state.news.replace(outgoing).is_some() {
                Counters::add(&shared.counters.replaced_news, 1);
            }
            self.news_put.notify_one();
        } else if state.other.len() < QUEUE {
            state.other.push_back(outgoing);
            self.other_put.notify_one();
        } else {
            Counters::add(&shared.counters.dropped_queue_full, 1);
        }
    }

    /// Adds a connection. Of two to the same incarnation, dialled from both ends, the one that the smaller id dialled stays.
    pub(super) fn register(&self, shared: &Arc<Shared>, connected: Connected) -> Result<Arc<Connected>, Refusal> {
        let connected = Arc::new(connected);
        let own = shared.hello_node();
        let mut duplicate = None;
        let mut state = lock(&self.state);
        let peer = &connected.peer;
        let newest =
            state.connections.iter().filter(|other| other.peer.node == peer.node).map(|o| o.peer.incarnation).max();
        if newest.is_some_and(|newest| newest > peer.incarnation) {
            connected.connection.close(REFUSED, b"a newer incarnation is connected");
            return Err(Refusal::Incarnation(format!("{:?} has a newer incarnation", peer.node)));
        }
        state.connections.retain(|other| {
            let same = other.peer.node == peer.node;
            let outlived = same && (other.peer.incarnation < peer.incarnation || other.dialler == connected.dialler);
            if outlived {
                other.connection.close(REPLACED, b"replaced");
            } else if same {
                let loser = if connected.is_preferred(own) { other } else { &connected };
                duplicate = (loser.dialler == Dialler::Own).then(|| Arc::clone(loser));
            }
            !outlived
        });
        if state.connections.len() >= CONNECTIONS {
            connected.connection.close(REFUSED, b"too many connections");
            return Err(Refusal::Failed("too many nodes say that they have this address".to_owned()));
        }
        state.connections.push(Arc::clone(&connected));
        drop(state);
        Counters::add(&shared.counters.connections, 1);
        self.connected.notify_waiters();
        if let Some(loser) = duplicate {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                tokio::time::sleep(GRACE).await;
                // Only the dialler closes, so that the ends never close one each.
                loser.connection.close(DUPLICATE, b"duplicate");
                Counters::add(&shared.counters.duplicates_closed, 1);
            });
        }
        Ok(connected)
    }

    /// Uses a connection that is registered at another link.
    pub(super) fn borrow(&self, connected: &Arc<Connected>) {
        let mut state = lock(&self.state);
        state.connections.retain(|other| other.connection.close_reason().is_none());
        if state.connections.len() < CONNECTIONS {
            state.connections.push(Arc::clone(connected));
        }
    }

    /// Forgets a connection that ended.
    pub(super) fn unregister(&self, connected: &Arc<Connected>) {
        lock(&self.state).connections.retain(|other| !Arc::ptr_eq(other, connected));
    }

    /// Who is connected.
    pub(super) fn peers(&self) -> Vec<Peer> {
        let mut peers: Vec<Peer> = self.alive().iter().map(|connected| connected.peer.clone()).collect();
        peers.retain(|peer| peer.address == self.address);
        peers.dedup();
        peers
    }

    pub(super) fn is_connected(&self) -> bool {
        !self.alive().is_empty()
    }

    /// Ends the tasks: the link was taken out of the table.
    pub(super) fn retire(&self) {
        lock(&self.state).retired = true;
        self.news_put.notify_one();
        self.other_put.notify_one();
    }

    /// Completes when nothing waits.
    pub(super) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            {
                let state = lock(&self.state);
                if state.news.is_none() && state.other.is_empty() && state.sending == 0 {
                    return;
                }
            }
            drained.await;
        }
    }

    fn alive(&self) -> Vec<Arc<Connected>> {
        let mut state = lock(&self.state);
        state.connections.retain(|connected| connected.connection.close_reason().is_none());
        state.connections.clone()
    }

    /// The connection to use for `node`, or for whoever is there: a preferred one, else the newest.
    fn connection(&self, shared: &Shared, node: Option<&Arc<str>>) -> Option<Arc<Connected>> {
        let own = shared.hello_node();
        let mut fitting = self.alive();
        fitting.retain(|connected| node.is_none_or(|node| connected.peer.node == *node));
        let preferred = fitting.iter().rfind(|connected| connected.is_preferred(own));
        preferred.or_else(|| fitting.last()).cloned()
    }

    async fn run(&self, shared: &Arc<Shared>, lane: Lane) {
        loop {
            match lane {
                Lane::News => self.news_put.notified().await,
                Lane::Other => self.other_put.notified().await,
            }
            while let Some(outgoing) = self.take(lane) {
                self.deliver(shared, outgoing).await;
                lock(&self.state).sending -= 1;
            }
            self.drained.notify_waiters();
            if lock(&self.state).retired {
                return;
            }
        }
    }

    fn take(&self, lane: Lane) -> Option<Outgoing> {
        let mut state = lock(&self.state);
        let outgoing = match lane {
            Lane::News => state.news.take(),
            Lane::Other => state.other.pop_front(),
        }?;
        state.sending += 1;
        Some(outgoing)
    }

    async fn deliver(&self, shared: &Arc<Shared>, outgoing: Outgoing) {
        let node = outgoing.node.as_ref();
        let connected = match self.connection(shared, node) {
            Some(connected) => connected,
            None => match self.obtain(shared, node).await {
                Some(connected) => connected,
                None => return Counters::add(&shared.counters.dropped_unreachable, 1),
            },
        };
        if node.is_some_and(|node| *node != connected.peer.node) {
            return Counters::add(&shared.counters.dropped_misaddressed, 1);
        }
        send(shared, &connected.connection, outgoing.bytes).await;
    }

    /// Dials, or takes the connection that the peer makes meanwhile.
    async fn obtain(&self, shared: &Arc<Shared>, node: Option<&Arc<str>>) -> Option<Arc<Connected>> {
        // A task of its own: were a dial given up when the peer's comes in, both ends could give up the one that the other keeps.
        let dialled = {
            let (shared, address) = (Arc::clone(shared), self.address);
            let backoff = Arc::clone(&self.backoff);
            let present = {
                let (link, node) = (shared.link(address), node.cloned());
                let shared = Arc::clone(&shared);
                move || link.connection(&shared, node.as_ref())
            };
            tokio::spawn(async move {
                // One at a time; who waited may find that the connection is there.
                let mut backoff = backoff.lock().await;
                match present() {
                    Some(connected) => Some(connected),
                    None => dial(&shared, address, &mut backoff).await,
                }
            })
        };
        let accepted = async {
            loop {
                let connected = self.connected.notified();
                if let Some(connected) = self.connection(shared, node) {
                    return connected;
                }
                connected.await;
            }
        };
        tokio::select! {
            connected = dialled => connected.ok().flatten(),
            connected = accepted => Some(connected),
        }
    }
}

async fn send(shared: &Shared, connection: &Connection, message: Bytes) {
    let counters = &shared.counters;
    let length = message.len();
    let message = match connection.max_datagram_size() {
        Some(most) if length <= most => match connection.send_datagram(message.clone()) {
            Ok(()) => {
                Counters::add(&counters.sent_datagrams, 1);
                return Counters::add(&counters.sent_bytes, length);
            }
            // The path has just become narrower.
            Err(SendDatagramError::TooLarge) => message,
            Err(_) => return Counters::add(&counters.dropped_broken, 1),
        },
        _ => message,
    };
    let sent = tokio::time::timeout(PATIENCE, async {
        let mut stream = connection.open_uni().await.ok()?;
        let whole = Whole(Some(&mut stream));
        whole.write(message).await
    });
    match sent.await {
        Ok(Some(())) => {
            Counters::add(&counters.sent_streams, 1);
            Counters::add(&counters.sent_bytes, length);
        }
        _ => Counters::add(&counters.dropped_broken, 1),
    }
}

/// A stream that is reset unless its message was written whole; the library would finish it instead, and the peer would take
/// a part for a message.
struct Whole<'a>(Option<&'a mut SendStream>);

impl Whole<'_> {
    async fn write(mut self, message: Bytes) -> Option<()> {
        let stream = self.0.as_mut()?;
        stream.write_chunk(message).await.ok()?;
        stream.finish().ok()?;
        self.0 = None;
        Some(())
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            // Fails only where the stream has ended already.
            let _ = stream.reset(VarInt::from_u32(1));
        }
    }
}
