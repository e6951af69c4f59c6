//! What the tests share: transports on loopback, waiting for what has to come, and the log.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::algorithm::{Algorithm, TokenBucket};
use tidegate_core::{Figures, Limit, LimitName, LimitParts, MeshFigures, Rate, Rule, StoreKind};
use tidegate_store_mesh::certs::Identity;
use tidegate_store_mesh::transport::{Inbox, Transport, TransportConfig, TransportError};
use tracing_subscriber::fmt::MakeWriter;

/// Far more than anything takes that works: a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// A limit for everybody, on the mesh: `capacity`, refilled in a second.
pub(crate) fn limit(capacity: u64) -> Limit {
    limit_with(capacity, Rate::per_second(capacity).unwrap())
}

/// One that refills a unit an hour.
pub(crate) fn slow_limit(capacity: u64) -> Limit {
    limit_with(capacity, Rate::per_hour(1).unwrap())
}

fn limit_with(capacity: u64, refill: Rate) -> Limit {
    let bucket = TokenBucket::new(capacity, refill).unwrap();
    Limit::new(LimitParts {
        name: LimitName::new("requests"),
        key: Box::default(),
        store: StoreKind::Mesh,
        figures: Figures::Limited(Algorithm::TokenBucket(bucket)),
        fallback: None,
        shadow: false,
        on_missing: None,
        mesh: MeshFigures::default(),
    })
}

pub(crate) fn rule(limit: &Limit, cost: u64) -> Rule<'_> {
    Rule { limit, values: SmallVec::new(), cost }
}

pub(crate) fn bind(identity: &Identity, incarnation: u64) -> (Transport, Inbox) {
    Transport::bind(TransportConfig::new(loopback()), identity, incarnation).expect("a free port is free")
}

/// Listens where another has just stopped: the port may take a moment to come free.
pub(crate) async fn bind_at(address: SocketAddr, identity: &Identity, incarnation: u64) -> (Transport, Inbox) {
    let mut bound = None;
    eventually("the port to come free", || {
        match Transport::bind(TransportConfig::new(address), identity, incarnation) {
            Ok(pair) => bound = Some(pair),
            Err(TransportError::Bind { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        bound.is_some()
    })
    .await;
    bound.expect("it was waited for")
}

/// Asks again and again until `reached` says yes: real networks take the time they take.
pub(crate) async fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain for {what}");
}

/// What was logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Takes the log of this thread, and of the tasks of a runtime that runs on it, as long as the guard lives.
    pub(crate) fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
