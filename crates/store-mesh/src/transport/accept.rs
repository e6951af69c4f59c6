//! Takes connections that peers dial.

use std::sync::Arc;

use quinn::Incoming;
use tokio::sync::Semaphore;

use super::hello::{complain, greet, why};
use super::link::{Connected, Dialler};
use super::{Counters, Shared, read};

/// Handshakes that may be going on at once.
const HANDSHAKES: usize = 64;
/// Above so many, an address has to prove that it is there before a handshake costs anything.
const UNPROVEN: usize = 16;

/// Accepts until the endpoint is closed.
pub(super) async fn run(shared: Arc<Shared>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    while let Some(incoming) = shared.endpoint.accept().await {
        let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else {
            incoming.ignore();
            Counters::add(&shared.counters.failed_connections, 1);
            continue;
        };
        let busy = handshakes.available_permits() < HANDSHAKES - UNPROVEN;
        if busy && !incoming.remote_address_validated() && incoming.may_retry() {
            // Fails only where `may_retry` said no.
            let _ = incoming.retry();
            continue;
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let connected = accept(&shared, incoming).await;
            drop(permit);
            if let Some(connected) = connected {
                read::run(&shared, connected).await;
            }
        });
    }
}

async fn accept(shared: &Arc<Shared>, incoming: Incoming) -> Option<Arc<Connected>> {
    let address = incoming.remote_address();
    let established = async {
        let connection = incoming.await.map_err(|error| why(&error))?;
        let peer = greet(shared, &connection).await?;
        Ok((connection, peer))
    };
    let result = established.await.and_then(|(connection, peer)| {
        let link = shared.link(peer.address);
        link.register(shared, Connected::new(connection, peer, Dialler::Peer))
    });
    result.map_err(|refusal| complain(shared, address, &refusal)).ok()
}
