//! Dials a peer, not too often when it does not answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

use super::hello::{Refusal, complain, greet, why};
use super::link::{Connected, Dialler};
use super::{Shared, lock, read};

/// How long a dialled peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// When the next attempt may be made: after 50 ms, then twice as long each time up to 2 s, a quarter of it at random.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    next: Option<Instant>,
}

impl Backoff {
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    fn failed(&mut self, now: Instant) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.next = Some(now + pause.mul_f64(rand::rng().random_range(0.75..=1.0)));
    }
}

/// Dials `address`, unless it is too early after a failure.
pub(super) async fn dial(shared: &Arc<Shared>, address: SocketAddr, backoff: &mut Backoff) -> Option<Arc<Connected>> {
    if !backoff.may_try(Instant::now()) {
        return None;
    }
    match tokio::time::timeout(PATIENCE, connect(shared, address)).await {
        Ok(Ok(connected)) => {
            backoff.succeeded();
            let (shared, reader) = (Arc::clone(shared), Arc::clone(&connected));
            tokio::spawn(async move { read::run(&shared, reader).await });
            Some(connected)
        }
        Ok(Err(refusal)) => {
            complain(shared, address, &refusal);
            backoff.failed(Instant::now());
            None
        }
        Err(_) => {
            complain(shared, address, &Refusal::Failed("no answer in time".to_owned()));
            backoff.failed(Instant::now());
            None
        }
    }
}

async fn connect(shared: &Arc<Shared>, address: SocketAddr) -> Result<Arc<Connected>, Refusal> {
    let config = lock(&shared.client).clone();
    // Every certificate of the mesh names the cluster; which node it is comes with the greeting.
    let cluster = lock(&shared.identity).cluster().to_owned();
    let connecting = shared.endpoint.connect_with(config, address, &cluster);
    let connecting = connecting.map_err(|error| Refusal::Failed(error.to_string()))?;
    let connection = connecting.await.map_err(|error| why(&error))?;
    let peer = greet(shared, &connection).await?;
    let connected = Connected::new(connection, peer, Dialler::Own);
    // Under the address that the peer gives, so that both ends find it; under the one dialled too, which may be a name's.
    let registered = shared.link(connected.peer.address).register(shared, connected)?;
    if registered.peer.address != address {
        shared.link(address).borrow(&registered);
    }
    Ok(registered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_end_with_success() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        assert!(backoff.may_try(now));
        for attempt in 0..40_u32 {
            backoff.failed(now);
            let longest = FIRST_PAUSE.saturating_mul(1 << attempt.min(16)).min(LONGEST_PAUSE);
            assert!(!backoff.may_try(now + longest.mul_f64(0.74)) && backoff.may_try(now + longest), "{attempt}");
        }
        backoff.succeeded();
        assert!(backoff.may_try(now));
    }
}
