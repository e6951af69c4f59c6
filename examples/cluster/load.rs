//! The load: clients with a connection each, that count what the HTTP statuses say.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::time::MissedTickBehavior;

use crate::fleet::http_headers::TIER;

/// Connections to each replica in the capped tier; one more asks in the metered one.
const CLIENTS: u64 = 12;

/// What the clients of one replica saw.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) capped: Tally,
    pub(crate) metered: Tally,
}

/// Requests by answer.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) admitted: AtomicU64,
    pub(crate) denied: AtomicU64,
    /// Anything else: a connection that broke, or another status.
    pub(crate) failed: AtomicU64,
}

pub(crate) struct Load {
    counts: Arc<[Counts]>,
    clients: std::sync::Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

impl Load {
    /// Starts the clients: together they send `rate` requests per second in the capped tier, spread evenly.
    pub(crate) async fn start(
        addresses: &[SocketAddr],
        rate: u64,
        metered: bool,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let counts: Arc<[Counts]> = addresses.iter().map(|_| Counts::default()).collect();
        let clients_of_all = CLIENTS * addresses.len() as u64;
        let period = Duration::from_nanos(1_000_000_000 * clients_of_all / rate);
        let mut clients = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let tiers = (0..CLIENTS).map(|_| ("capped", period));
            let tiers = tiers.chain(metered.then_some(("metered", Duration::from_millis(20))));
            for (tier, period) in tiers {
                let client = connect(*address).await?;
                let (counts, stop) = (Arc::clone(&counts), Arc::clone(stop));
                clients.push(tokio::spawn(async move {
                    let counts = &counts[index];
                    let tally = if tier == "capped" { &counts.capped } else { &counts.metered };
                    ask(client, tier, period, tally, &stop).await;
                }));
            }
        }
        Ok(Self { counts, clients: std::sync::Mutex::new(clients) })
    }

    pub(crate) fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// Waits for the last answers.
    pub(crate) async fn finish(&self) {
        let clients = std::mem::take(&mut *self.clients.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for client in clients {
            // A client that panicked has counted no more: the totals say so.
            let _ = client.await;
        }
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (client, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Asks once each `period` until told to stop, or until the connection breaks.
async fn ask(mut client: SendRequest<Empty<Bytes>>, tier: &str, period: Duration, tally: &Tally, stop: &AtomicBool) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let Ok(request) = Request::get("/").header("host", "demo").header(TIER, tier).body(Empty::new()) else {
            return;
        };
        let answer = async {
            let response = client.send_request(request).await?;
            let status = response.status();
            response.into_body().collect().await?;
            Ok::<_, hyper::Error>(status)
        };
        let counter = match answer.await {
            Ok(StatusCode::OK) => &tally.admitted,
            Ok(StatusCode::TOO_MANY_REQUESTS) => &tally.denied,
            Ok(_) => &tally.failed,
            Err(_) => {
                tally.failed.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
