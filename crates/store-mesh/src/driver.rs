//! The tasks around a state machine: they bring it messages, membership and the time, and carry away what it has to say.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tidegate_core::Clock;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::certs::Identity;
use crate::config::ReleaseAfter;
use crate::membership::{Event, Member, Membership};
use crate::mind::{Mind, ReplicaId};
use crate::transport::{Channel, Complaint, Received, Transport};
use crate::wire::{self, Payload};

/// Messages taken in before something else gets its turn.
const BATCH: usize = 64;
/// How long the last messages may take when a replica leaves.
const FAREWELL: Duration = Duration::from_millis(500);

/// A message and the life of the process that it is for: what was meant for a predecessor is not for the successor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Addressed<M> {
    to: u64,
    message: M,
}

impl<M: Payload> Payload for Addressed<M> {
    const MIN_ROW: usize = M::MIN_ROW;

    fn rows(&self) -> usize {
        self.message.rows()
    }
}

/// What the driver and the store share.
pub(crate) struct Shared<M> {
    pub(crate) mind: M,
    pub(crate) clock: Arc<dyn Clock>,
    /// Something should go out before the flush interval is over.
    pub(crate) push: Notify,
    /// The driver knows that it should: telling it once is enough.
    pub(crate) pushing: AtomicBool,
    /// The number of the newest acknowledgement.
    pub(crate) acknowledged: watch::Sender<u64>,
    /// Whether this replica has its share.
    pub(crate) settled: watch::Sender<bool>,
    /// The hash of the limits that are registered.
    pub(crate) policy: watch::Sender<u64>,
    pub(crate) fleet: Mutex<Fleet>,
    pub(crate) counters: Counters,
}

/// Who is there, for reports.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) members: Vec<Member>,
    pub(crate) lost: Vec<Member>,
}

/// What the driver counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) flushes: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) undecodable: AtomicU64,
    pub(crate) for_another: AtomicU64,
    pub(crate) useless: AtomicU64,
    pub(crate) gossip_undecodable: Arc<AtomicU64>,
}

/// What a store asks its driver for.
pub(crate) enum Command {
    /// Say goodbye, then end.
    Leave(oneshot::Sender<()>),
    /// An operator says that all lives of this node up to this one are gone.
    Release(ReplicaId),
}

/// Settings of a driver.
pub(crate) struct Settings {
    pub(crate) flush_interval: Duration,
    pub(crate) release_after: ReleaseAfter,
    /// How long a replica that hears of nobody waits before it takes itself for the founder of the fleet.
    pub(crate) founding: Duration,
}

/// Owns what goes on around one replica.
pub(crate) struct Driver<M> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) settings: Settings,
    pub(crate) transport: Arc<Transport>,
    pub(crate) membership: Box<dyn Membership>,
    pub(crate) news: mpsc::Receiver<Received>,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    pub(crate) numbers: NodeNumbers,
    pub(crate) own: ReplicaId,
    /// From before the first registration, so that none is missed.
    policy: watch::Receiver<u64>,
    known: HashMap<ReplicaId, Known>,
    started: Instant,
}

/// A member as the driver knows it.
struct Known {
    member: Member,
    /// Since when gossip has lost it.
    lost: Option<Instant>,
    /// Another replica answers at its address by now.
    displaced: bool,
}

/// Node ids as numbers: a hash under the cluster's secret, so that no node can choose to be taken for another.
#[derive(Clone)]
pub(crate) struct NodeNumbers(SipHasher13);

impl NodeNumbers {
    pub(crate) fn new(identity: &Identity) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&identity.derive("node numbers")[..16]);
        Self(SipHasher13::new_with_key(&key))
    }

    pub(crate) fn id(&self, node: &str, incarnation: u64) -> ReplicaId {
        let mut hasher = self.0;
        hasher.write(node.as_bytes());
        ReplicaId { node: hasher.finish(), incarnation }
    }
}

impl<M: Mind> Driver<M> {
    #[expect(clippy::too_many_arguments, reason = "its parts, put together once")]
    pub(crate) fn new(
        shared: Arc<Shared<M>>,
        settings: Settings,
        transport: Arc<Transport>,
        membership: Box<dyn Membership>,
        news: mpsc::Receiver<Received>,
        commands: mpsc::UnboundedReceiver<Command>,
        numbers: NodeNumbers,
        own: ReplicaId,
    ) -> Self {
        let (known, started, policy) = (HashMap::new(), Instant::now(), shared.policy.subscribe());
        Self { shared, settings, transport, membership, news, commands, numbers, own, policy, known, started }
    }

    /// Runs until the replica leaves or its store is dropped.
    pub(crate) async fn run(mut self) {
        let mut gossiping = true;
        let mut deadline = self.flush();
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Leave(done)) => {
                        self.leave().await;
                        // Nobody may be waiting any more.
                        let _ = done.send(());
                        return;
                    }
                    Some(Command::Release(id)) => self.release_up_to(id),
                    None => return,
                },
                events = self.membership.next(), if gossiping => {
                    if let Some(events) = events {
                        for event in events {
                            self.change(event);
                        }
                        deadline = self.flush();
                    } else {
                        gossiping = false;
                        tracing::error!("gossip has ended: members that join or crash are not noticed any more");
                    }
                }
                Some(received) = self.news.recv() => {
                    if self.take_in(received) {
                        deadline = self.flush();
                    }
                }
                () = self.shared.push.notified() => deadline = self.flush(),
                () = tokio::time::sleep_until(deadline) => deadline = self.flush(),
                // The sender lives as long as `shared`.
                Ok(()) = self.policy.changed() => {
                    let hash = *self.policy.borrow_and_update();
                    self.membership.announce_policy(hash).await;
                }
            }
        }
    }

    /// Takes in `first` and what else is there. Returns whether an answer is urgent.
    fn take_in(&mut self, first: Received) -> bool {
        let mut next = Some(first);
        for _ in 0..BATCH {
            let Some(received) = next.take() else { break };
            self.receive(&received);
            next = self.news.try_recv().ok();
        }
        if let Some(received) = next {
            self.receive(&received);
        }
        let acknowledged = self.shared.mind.acknowledged();
        self.shared.acknowledged.send_if_modified(|newest| std::mem::replace(newest, acknowledged) != acknowledged);
        self.settle();
        self.shared.mind.wants_push()
    }

    fn receive(&self, received: &Received) {
        static COMPLAINT: Complaint = Complaint::new();
        let counters = &self.shared.counters;
        add(&counters.received, 1);
        let addressed = match wire::decode::<Addressed<M::Message>>(&received.body) {
            Ok(addressed) => addressed,
            Err(error) => {
                add(&counters.undecodable, 1);
                if let Some(suppressed) = COMPLAINT.due() {
                    tracing::warn!(peer = %received.from.node, %error, suppressed, "dropped a message");
                }
                return;
            }
        };
        if addressed.to != self.own.incarnation {
            return add(&counters.for_another, 1);
        }
        let from = self.numbers.id(&received.from.node, received.from.incarnation);
        if !self.shared.mind.receive(from, &addressed.message, self.shared.clock.now()) {
            add(&counters.useless, 1);
        }
    }

    /// Sends what is due and returns when to look again.
    fn flush(&mut self) -> Instant {
        self.release_overdue();
        self.settle();
        let now = self.shared.clock.now();
        // Before the poll: who wants a push after this tells again. SeqCst: it must not move behind the poll.
        self.shared.pushing.store(false, Ordering::SeqCst);
        let outgoing = self.shared.mind.poll(now);
        if self.shared.mind.wants_push() {
            // Put off, and looked at again when `outgoing.next` says.
            self.shared.pushing.store(true, Ordering::SeqCst);
        }
        add(&self.shared.counters.flushes, 1);
        for (id, message) in outgoing.messages {
            let Some(known) = self.known.get(&id).filter(|known| !known.displaced) else { continue };
            match wire::encode(&Addressed { to: id.incarnation, message }) {
                Ok(frame) => {
                    add(&self.shared.counters.sent, 1);
                    self.transport.send(known.member.address, Some(&known.member.node), Channel::News, &frame);
                }
                Err(error) => tracing::error!(%error, "a message of our own cannot be sent"),
            }
        }
        // Never later than the flush interval: a clock that a test holds still must not hold the mesh.
        let pause = Duration::from(outgoing.next - self.shared.clock.now());
        Instant::now() + pause.clamp(Duration::from_micros(200), self.settings.flush_interval)
    }

    fn change(&mut self, event: Event) {
        let now = self.shared.clock.now();
        match event {
            Event::Joined(member) => {
                let id = self.numbers.id(&member.node, member.incarnation);
                tracing::info!(node = %member.node, incarnation = member.incarnation, address = %member.address, "a member joined");
                self.displace(id, &member);
                if self.known.insert(id, Known { member, lost: None, displaced: false }).is_none() {
                    self.shared.mind.join(id, now);
                }
                // Nobody has two lives at once: the earlier ones are over, whatever their silence.
                if let Some(before) = id.incarnation.checked_sub(1) {
                    self.release_up_to(ReplicaId { incarnation: before, ..id });
                }
            }
            Event::Changed(member) => {
                let id = self.numbers.id(&member.node, member.incarnation);
                if let Some(known) = self.known.get_mut(&id) {
                    known.member = member;
                }
            }
            Event::Left(member) => {
                tracing::info!(node = %member.node, incarnation = member.incarnation, "a member left");
                let id = self.numbers.id(&member.node, member.incarnation);
                if self.known.remove(&id).is_some() {
                    self.shared.mind.leave_announced(id, now);
                }
            }
            Event::Gone(member) => {
                let id = self.numbers.id(&member.node, member.incarnation);
                if let Some(known) = self.known.get_mut(&id) {
                    tracing::warn!(node = %member.node, incarnation = member.incarnation, "a member is not heard any more");
                    known.lost = Some(Instant::now());
                }
            }
        }
        self.publish();
    }

    /// What still waits for whoever had this address or this name before must not take the place of what is for `member`.
    fn displace(&mut self, id: ReplicaId, member: &Member) {
        for (other, known) in &mut self.known {
            let same = known.member.address == member.address || known.member.node == member.node;
            known.displaced |= same && other.incarnation < id.incarnation;
        }
    }

    fn release_overdue(&mut self) {
        let ReleaseAfter::Time(patience) = self.settings.release_after else { return };
        let overdue = |known: &Known| known.lost.is_some_and(|since| since.elapsed() >= patience);
        let overdue: Vec<_> = self.known.iter().filter(|(_, known)| overdue(known)).map(|(&id, _)| id).collect();
        for id in overdue {
            self.release(id);
        }
    }

    fn release_up_to(&mut self, last: ReplicaId) {
        let gone = |id: &&ReplicaId| id.node == last.node && id.incarnation <= last.incarnation;
        let gone: Vec<_> = self.known.keys().filter(gone).copied().collect();
        for id in gone {
            self.release(id);
        }
    }

    fn release(&mut self, id: ReplicaId) {
        if let Some(known) = self.known.remove(&id) {
            tracing::warn!(node = %known.member.node, incarnation = id.incarnation, "a member counts as gone");
            self.shared.mind.forget(id, self.shared.clock.now());
            self.publish();
        }
    }

    /// Tells those who wait for it that this replica has its share.
    fn settle(&self) {
        if *self.shared.settled.borrow() {
            return;
        }
        if self.known.is_empty() && self.started.elapsed() >= self.settings.founding {
            self.shared.mind.found();
        }
        if self.shared.mind.is_settled() {
            self.shared.settled.send_replace(true);
        }
    }

    fn publish(&self) {
        let mut fleet = Fleet::default();
        for known in self.known.values() {
            let list = if known.lost.is_some() { &mut fleet.lost } else { &mut fleet.members };
            list.push(known.member.clone());
        }
        *self.shared.fleet.lock().unwrap_or_else(PoisonError::into_inner) = fleet;
    }

    async fn leave(&mut self) {
        self.shared.mind.leave(self.shared.clock.now());
        self.flush();
        self.membership.leave().await;
        self.flush();
        self.transport.close(FAREWELL).await;
    }
}

fn add(counter: &AtomicU64, by: u64) {
    // Relaxed: each counter stands for itself.
    counter.fetch_add(by, Ordering::Relaxed);
}
