//! What a transport counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters once, as atomics for the tasks and as numbers for the report.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        /// What a transport did since it was started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct TransportReport {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(super) fn report(&self) -> TransportReport {
                // Relaxed: each counter stands for itself.
                TransportReport { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Bytes of messages sent, without the overhead of QUIC.
    sent_bytes,
    /// Messages sent as datagrams.
    sent_datagrams,
    /// Messages sent as streams because they fit no datagram.
    sent_streams,
    /// Bytes of messages received.
    received_bytes,
    /// Messages received as datagrams.
    received_datagrams,
    /// Messages received as streams.
    received_streams,
    /// Connections made, dialled and accepted.
    connections,
    /// Connections closed because both ends had dialled at once.
    duplicates_closed,
    /// News never sent because newer news took its place: a slow peer, no loss.
    replaced_news,
    /// Messages not sent because the peer cannot be reached.
    dropped_unreachable,
    /// Messages not sent because too many waited.
    dropped_queue_full,
    /// Messages not sent because another node answered at the address.
    dropped_misaddressed,
    /// Messages not sent whole in time, or whose connection broke.
    dropped_broken,
    /// Messages received and dropped because nobody took them in time.
    dropped_inbox_full,
    /// Messages received that belong to no channel, are too long, or ended early.
    dropped_malformed,
    /// Peers refused because their certificate is none of this cluster's authorities, or none at all.
    refused_authority,
    /// Peers refused because their certificate is not for the cluster or for the node that they claim to be.
    refused_identity,
    /// Peers refused because their cluster secret is another.
    refused_secret,
    /// Peers refused because they use this replica's own node id, or came back from an older incarnation.
    refused_incarnation,
    /// Connections that failed for another reason: no answer, another protocol, another wire version.
    failed_connections,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, by: usize) {
        // Relaxed: each counter stands for itself.
        counter.fetch_add(by as u64, Ordering::Relaxed);
    }
}
