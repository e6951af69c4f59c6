//! The mesh as a store: what a limiter is given.

use std::collections::BTreeSet;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use siphasher::sip::SipHasher13;
use tidegate_core::algorithm::Mark;
use tidegate_core::{Answer, BoxFuture, Limit, MemoryStore, Nanos, Reason, Rule};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::config::{MeshConfig, MeshRuntime};
use crate::driver::{Command, Counters, Driver, NodeNumbers, Settings, Shared};
use crate::membership::{Gossip, GossipConfig, Member};
use crate::mind::{Mind, ReplicaId};
use crate::replica::{Replica, ReplicaReport};
use crate::transport::{Transport, TransportError, TransportReport};
use crate::wire::WIRE_VERSION;

/// How long [`Mesh::shutdown`] takes at most.
const FAREWELL: Duration = Duration::from_secs(5);

/// One replica of the mesh: a store for a limiter, and its part in the fleet. A clone is the same replica; when the last is
/// dropped it falls silent, which the others take for a crash: call [`shutdown`](Mesh::shutdown) before.
pub struct Mesh<M: Mind = Replica> {
    inner: Arc<Inner<M>>,
}

struct Inner<M> {
    shared: Arc<Shared<M>>,
    transport: Arc<Transport>,
    numbers: NodeNumbers,
    commands: mpsc::UnboundedSender<Command>,
    policy: Mutex<BTreeSet<u64>>,
    handle: Handle,
    /// The runtime of [`MeshRuntime::OwnThread`].
    own_runtime: Option<Runtime>,
}

/// Why a replica did not start. Nothing was left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// The port, the address or the identity.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Gossip did not start.
    #[error("gossip did not start: {0}")]
    Membership(String),
    /// There is no tokio runtime here.
    #[error(
        "no tokio runtime here: call it within one, or set `MeshConfig::runtime` to a handle or to a thread of its own"
    )]
    NoRuntime,
    /// The thread of its own could not be had.
    #[error("cannot start a thread for the mesh: {0}")]
    Thread(std::io::Error),
    /// The system's clock.
    #[error("the system clock is before 1970: set it; incarnations are told apart by their start time")]
    Clock,
}

/// All that a replica of the mesh reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MeshReport {
    /// Members and messages.
    pub fleet: FleetReport,
    /// Buckets and decisions.
    pub replica: ReplicaReport,
}

/// What a replica knows and did since it was started.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FleetReport {
    /// This replica.
    pub own: Member,
    /// Every other member that is heard.
    pub members: Vec<Member>,
    /// Those that are not heard, and not released yet.
    pub lost: Vec<Member>,
    /// Whether every member has acknowledged this replica, so that it has its share.
    pub settled: bool,
    /// Node ids of members that know other mesh limits than this replica: two policies in one fleet.
    pub other_policies: Vec<Arc<str>>,
    /// Times that it looked for news to send: each flush interval, and when something was urgent.
    pub flushes: u64,
    /// News sent: one for each peer and flush.
    pub sent: u64,
    /// News received.
    pub received: u64,
    /// News received and dropped: no message, or one that is too long.
    pub dropped_undecodable: u64,
    /// News received and dropped: meant for an earlier life of this node.
    pub dropped_for_another: u64,
    /// News received and dropped: from no member, replayed, or with nothing to believe in.
    pub dropped_useless: u64,
    /// Gossip received and dropped: no message.
    pub dropped_gossip: u64,
    /// What went over the network.
    pub transport: TransportReport,
}

impl Mesh<Replica> {
    /// Starts a replica: listens, and looks for the fleet at the seeds. It takes part at once and has its share when
    /// [`ready`](Mesh::ready) completes.
    ///
    /// # Errors
    /// [`MeshError`] says what to mend; nothing was left behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate_store_mesh::{Mesh, MeshConfig, certs::Authority};
    /// let authority = Authority::new("my-fleet")?;
    /// let port = ([127, 0, 0, 1], 0).into();
    /// let first = Mesh::start(MeshConfig::new(authority.issue("a")?, [""; 0]).listen(port)).await?;
    /// first.ready().await;
    /// assert_eq!(first.members().len(), 1);
    /// first.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub async fn start(config: MeshConfig) -> Result<Self, MeshError> {
        let make =
            |id, config: &MeshConfig| Replica::new(id, config.identity.key_secret(), config.flush_interval.into());
        Self::start_with(config, make).await
    }

    /// What this replica knows and did: the fleet, the network, and its buckets.
    pub fn report(&self) -> MeshReport {
        MeshReport { fleet: self.fleet_report(), replica: self.mind().report() }
    }
}

impl<M: Mind> Mesh<M> {
    /// Starts a replica whose state machine is what `make` returns, given its id and the secret of the bucket keys.
    pub(crate) async fn start_with(
        config: MeshConfig,
        make: impl FnOnce(ReplicaId, &MeshConfig) -> M,
    ) -> Result<Self, MeshError> {
        let (handle, own_runtime) = runtime(&config.runtime)?;
        let started = launch(config, make, handle.clone());
        // On the runtime it will live on: sockets and timers belong to the one they are made on.
        let entered = Entered { handle: handle.clone(), future: Box::pin(started) };
        let (shared, transport, numbers, commands) = entered.await?;
        let policy = Mutex::default();
        let inner = Inner { shared, transport, numbers, commands, policy, handle, own_runtime };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Completes when every member has acknowledged this replica, so that it decides with its share; a replica that finds nobody
    /// takes itself for the founder after 3 s. Until then it decides as [`MemoryStore::hold`] says.
    pub async fn ready(&self) {
        // An error means that the sender is gone, which lives as long as `self`.
        let _ = self.inner.shared.settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// All members that are heard, this replica among them, by node id.
    pub fn members(&self) -> Vec<Member> {
        let mut members = self.fleet().0;
        members.push(self.own());
        members.sort_by(|a, b| a.node.cmp(&b.node));
        members
    }

    /// What this replica knows and did.
    pub fn fleet_report(&self) -> FleetReport {
        let Counters { flushes, sent, received, undecodable, for_another, useless, gossip_undecodable } =
            &self.inner.shared.counters;
        // Relaxed: each counter stands for itself.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (members, lost) = self.fleet();
        let own = self.own();
        let differs = |member: &&Member| member.policy.is_some() && member.policy != own.policy;
        FleetReport {
            other_policies: members.iter().filter(differs).map(|member| Arc::clone(&member.node)).collect(),
            own,
            members,
            lost,
            settled: *self.inner.shared.settled.borrow(),
            flushes: read(flushes),
            sent: read(sent),
            received: read(received),
            dropped_undecodable: read(undecodable),
            dropped_for_another: read(for_another),
            dropped_useless: read(useless),
            dropped_gossip: read(gossip_undecodable),
            transport: self.inner.transport.report(),
        }
    }

    /// The UDP address that the others reach this replica at: a seed for them.
    pub fn local_addr(&self) -> std::net::SocketAddr {
        self.inner.transport.own().address
    }

    /// Uses `identity` for new connections: a renewed certificate of the same node.
    ///
    /// # Errors
    /// [`TransportError::OtherReplica`] when it is for another node, cluster or secret; nothing was changed then.
    pub fn rotate(&self, identity: &crate::certs::Identity) -> Result<(), TransportError> {
        self.inner.transport.rotate(identity)
    }

    /// Says that `member`, which is not heard any more, is gone for good, as an operator knows. Where that is wrong, it and the rest of the fleet
    /// each use the whole limit until they meet again.
    pub fn release_member(&self, member: &Member) {
        let id = self.inner.numbers.id(&member.node, member.incarnation);
        // Fails only after a shutdown, when nothing is left to do.
        let _ = self.inner.commands.send(Command::Release(id));
    }

    /// Says goodbye: sends the last spend, tells the fleet, closes. Takes about one gossip interval, at most 5 s. Decisions after it
    /// are this replica's own affair.
    pub async fn shutdown(&self) {
        let (done, finished) = oneshot::channel();
        if self.inner.commands.send(Command::Leave(done)).is_ok() {
            let patience = self.inner.sleep(FAREWELL);
            tokio::select! {
                _ = finished => {}
                () = patience => tracing::warn!("the mesh did not finish its goodbye in time"),
            }
        }
    }

    /// The state machine: what it has to report itself.
    pub fn mind(&self) -> &M {
        &self.inner.shared.mind
    }

    fn own(&self) -> Member {
        let own = self.inner.transport.own();
        let policy = *self.inner.shared.policy.borrow();
        Member {
            node: own.node,
            incarnation: own.incarnation,
            address: own.address,
            // Zero is where none was registered.
            policy: (policy != 0).then_some(policy),
            wire_version: Some(WIRE_VERSION),
        }
    }

    fn fleet(&self) -> (Vec<Member>, Vec<Member>) {
        let fleet = self.inner.shared.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        (fleet.members.clone(), fleet.lost.clone())
    }

    fn push(&self) {
        let shared = &self.inner.shared;
        // SeqCst: see the driver's flush. Read first, since the line is shared with other threads.
        if shared.mind.wants_push()
            && !shared.pushing.load(Ordering::SeqCst)
            && !shared.pushing.swap(true, Ordering::SeqCst)
        {
            self.inner.shared.push.notify_one();
        }
    }
}

impl<M: Mind> Clone for Mesh<M> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<M: Mind> std::fmt::Debug for Mesh<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh").field("own", &self.own()).finish_non_exhaustive()
    }
}

impl<M> Inner<M> {
    /// On the mesh's runtime: the caller need not be on one.
    fn sleep(&self, span: Duration) -> tokio::time::Sleep {
        let _entered = self.handle.enter();
        tokio::time::sleep(span)
    }
}

impl<M> Drop for Inner<M> {
    fn drop(&mut self) {
        if let Some(runtime) = self.own_runtime.take() {
            // A runtime must not be waited for inside another.
            runtime.shutdown_background();
        }
    }
}

impl<M: Mind> MemoryStore for Mesh<M> {
    /// Besides, the hash of all limits registered is told to the fleet, so that two policies in it are noticed.
    fn register(&self, limit: &Limit) {
        self.inner.shared.mind.register(limit);
        let mut shapes = self.inner.policy.lock().unwrap_or_else(PoisonError::into_inner);
        shapes.insert(limit.shape());
        let mut hasher = SipHasher13::new();
        shapes.iter().for_each(|&shape| hasher.write_u64(shape));
        self.inner.shared.policy.send_replace(hasher.finish());
    }

    fn hold(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        let answer = self.inner.shared.mind.hold(rule, now);
        if answer.reason == Reason::Credit {
            self.push();
        }
        answer
    }

    fn commit(&self, rule: &Rule<'_>, mark: Mark, now: Nanos) {
        self.inner.shared.mind.commit(rule, mark, now);
        self.push();
    }

    fn release(&self, rule: &Rule<'_>, mark: Mark, now: Nanos) {
        self.inner.shared.mind.release(rule, mark, now);
    }

    fn peek(&self, rule: &Rule<'_>, now: Nanos) -> Answer {
        self.inner.shared.mind.peek(rule, now)
    }

    fn refund(&self, rule: &Rule<'_>, mark: Option<Mark>, now: Nanos) -> u64 {
        let refunded = self.inner.shared.mind.refund(rule, mark, now);
        self.push();
        refunded
    }

    fn charge(&self, rule: &Rule<'_>, now: Nanos) {
        self.inner.shared.mind.charge(rule, now);
        self.push();
    }

    fn reset(&self, rule: &Rule<'_>, now: Nanos) {
        self.inner.shared.mind.reset(rule, now);
        self.push();
    }

    /// Completes at the next acknowledgement, at the latest after the limit's `max_wait`. `None` where it is not credit that is short.
    fn wait(&self, rule: &Rule<'_>) -> Option<BoxFuture<()>> {
        let shared = &self.inner.shared;
        // Before the look: an acknowledgement that comes in between counts.
        let mut acknowledged = shared.acknowledged.subscribe();
        let answer = shared.mind.peek(rule, shared.clock.now());
        if answer.reason != Reason::Credit && !answer.standing.is_allowed() {
            return None;
        }
        if answer.standing.is_allowed() {
            return Some(Box::pin(std::future::ready(())));
        }
        shared.push.notify_one();
        let latest = self.inner.sleep(rule.limit.mesh().max_wait.into());
        Some(Box::pin(async move {
            tokio::select! {
                _ = acknowledged.changed() => {}
                () = latest => {}
            }
        }))
    }
}

type Launched<M> = (Arc<Shared<M>>, Arc<Transport>, NodeNumbers, mpsc::UnboundedSender<Command>);

/// Starts all tasks, on the current runtime.
async fn launch<M: Mind>(
    config: MeshConfig,
    make: impl FnOnce(ReplicaId, &MeshConfig) -> M,
    handle: Handle,
) -> Result<Launched<M>, MeshError> {
    let incarnation = match config.clock.wall() {
        Nanos::ZERO => return Err(MeshError::Clock),
        wall => (wall.0 / 1_000_000).max(1),
    };
    let (transport, inbox) = Transport::bind(config.transport_settings(), &config.identity, incarnation)?;
    let transport = Arc::new(transport);
    let numbers = NodeNumbers::new(&config.identity);
    let own = transport.own();
    let id = numbers.id(&own.node, own.incarnation);
    let shared = Arc::new(Shared {
        mind: make(id, &config),
        clock: Arc::clone(&config.clock),
        push: Notify::new(),
        pushing: AtomicBool::new(false),
        acknowledged: watch::Sender::new(0),
        settled: watch::Sender::new(false),
        policy: watch::Sender::new(0),
        fleet: Mutex::default(),
        counters: Counters::default(),
    });
    let alone = config.seeds.iter().all(|seed| seed.parse() == Ok(own.address));
    let gossip = GossipConfig {
        cluster: config.identity.cluster().to_owned(),
        seeds: config.seeds.clone(),
        interval: config.gossip_interval,
    };
    let undecodable = Arc::clone(&shared.counters.gossip_undecodable);
    let membership = Gossip::start(gossip, Arc::clone(&transport), inbox.gossip, undecodable).await;
    let membership = membership.map_err(|error| MeshError::Membership(format!("{error:#}")))?;
    let settings = Settings {
        flush_interval: config.flush_interval,
        release_after: config.release_after,
        founding: if alone { Duration::ZERO } else { Duration::from_secs(3) },
    };
    let (commands, received) = mpsc::unbounded_channel();
    let driver = Driver::new(
        Arc::clone(&shared),
        settings,
        Arc::clone(&transport),
        Box::new(membership),
        inbox.news,
        received,
        numbers.clone(),
        id,
    );
    handle.spawn(driver.run());
    Ok((shared, transport, numbers, commands))
}

fn runtime(wanted: &MeshRuntime) -> Result<(Handle, Option<Runtime>), MeshError> {
    match wanted {
        MeshRuntime::Ambient => Ok((Handle::try_current().map_err(|_| MeshError::NoRuntime)?, None)),
        MeshRuntime::Handle(handle) => Ok((handle.clone(), None)),
        MeshRuntime::OwnThread => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(1).thread_name("tidegate-mesh").enable_all().build();
            let runtime = runtime.map_err(MeshError::Thread)?;
            Ok((runtime.handle().clone(), Some(runtime)))
        }
    }
}

/// Polls a future within a runtime other than the caller's.
struct Entered<F> {
    handle: Handle,
    future: std::pin::Pin<Box<F>>,
}

impl<F: Future> Future for Entered<F> {
    type Output = F::Output;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<F::Output> {
        let handle = self.handle.clone();
        let _entered = handle.enter();
        self.future.as_mut().poll(context)
    }
}
