//! What the driver drives: a state machine without I/O. The replica of the mesh is one, the naive sum of counters another.

use tidegate_core::{MemoryStore, Nanos};

use crate::wire::Payload;

/// One life of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The node: a hash of its id under the cluster's secret, the same in the whole fleet.
    pub node: u64,
    /// When this life of it started, in milliseconds since the Unix epoch.
    pub incarnation: u64,
}

/// What a state machine wants done.
#[derive(Debug)]
pub struct Outgoing<M> {
    /// To whom what is to be sent.
    pub messages: Vec<(ReplicaId, M)>,
    /// When to ask again at the latest.
    pub next: Nanos,
}

/// A state machine that the driver can run. Time, messages and membership go in; decisions and messages come out.
pub trait Mind: MemoryStore {
    /// What replicas tell each other.
    type Message: Payload + Send + 'static;

    /// `id` is a member from now on.
    fn join(&self, id: ReplicaId, now: Nanos);

    /// `id` said that it leaves.
    fn leave_announced(&self, id: ReplicaId, now: Nanos);

    /// `id` is gone for good.
    fn forget(&self, id: ReplicaId, now: Nanos);

    /// Takes in a message. Returns whether it was of use; one that is not is counted as dropped.
    fn receive(&self, from: ReplicaId, message: &Self::Message, now: Nanos) -> bool;

    /// The messages that are due.
    fn poll(&self, now: Nanos) -> Outgoing<Self::Message>;

    /// Whether a message should go out before the flush interval is over.
    fn wants_push(&self) -> bool;

    /// A number that grows with each acknowledgement of another member: those who wait for credit look again then.
    fn acknowledged(&self) -> u64;

    /// Whether every member has acknowledged this replica, so that it has its share; or it has founded the fleet.
    fn is_settled(&self) -> bool;

    /// There is nobody else: this replica founds the fleet.
    fn found(&self);

    /// This replica leaves: its last spend and its goodbye are in the next messages.
    fn leave(&self, now: Nanos);
}
