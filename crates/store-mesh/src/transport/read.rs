//! Reads what a peer sends, until the connection ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::link::Connected;
use super::{Counters, Shared};
use crate::wire::MAX_MESSAGE;

/// Streams of one peer that are read at once; each can hold a whole message in memory.
const STREAMS: usize = 4;
/// How long a stream may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads datagrams and streams, then takes the connection off its link.
pub(super) async fn run(shared: &Arc<Shared>, connected: Arc<Connected>) {
    let closed = tokio::select! {
        error = datagrams(shared, &connected) => error,
        error = streams(shared, &connected) => error,
    };
    tracing::debug!(node = %shared.hello_node(), peer = %connected.peer.node, %closed, "a connection ended");
    shared.link(connected.peer.address).unregister(&connected);
}

async fn datagrams(shared: &Shared, connected: &Connected) -> quinn::ConnectionError {
    loop {
        match connected.connection.read_datagram().await {
            Ok(message) => {
                Counters::add(&shared.counters.received_datagrams, 1);
                shared.deliver(&connected.peer, &message);
            }
            Err(error) => return error,
        }
    }
}

async fn streams(shared: &Arc<Shared>, connected: &Arc<Connected>) -> quinn::ConnectionError {
    let room = Arc::new(Semaphore::new(STREAMS));
    loop {
        // Waits before accepting, so that a peer's streams wait with the peer. The semaphore is never closed.
        let permit = Arc::clone(&room).acquire_owned().await.ok();
        let mut stream = match connected.connection.accept_uni().await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        let (shared, connected) = (Arc::clone(shared), Arc::clone(connected));
        tokio::spawn(async move {
            let _permit = permit;
            // One byte more for the channel.
            match tokio::time::timeout(PATIENCE, stream.read_to_end(MAX_MESSAGE + 1)).await {
                Ok(Ok(message)) => {
                    Counters::add(&shared.counters.received_streams, 1);
                    shared.deliver(&connected.peer, &message.into());
                }
                Ok(Err(_)) | Err(_) => Counters::add(&shared.counters.dropped_malformed, 1),
            }
        });
    }
}
