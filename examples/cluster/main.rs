//! A fleet on loopback that keeps one cap together: real HTTP in front, real QUIC between, Redis where there is one.
//!
//! `cargo run --release --example cluster -- --help`

mod fleet;
mod load;
mod redis;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use fleet::Fleet;
use load::Load;
use report::say;

/// Starts a fleet on loopback, drives HTTP load at it, and checks that the fleet keeps its cap.
///
/// Exits with 0 when every cap held, with 1 when one was broken or not used, or when the fleet did not start.
#[derive(Parser)]
struct Arguments {
    /// Replicas in the fleet, each with its own HTTP server, limiter and QUIC endpoint
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=50))]
    replicas: u16,
    /// Seconds of load
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Requests per second at the whole fleet; the cap is 1,000 per second
    #[arg(long, default_value_t = 6_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    load: u64,
    /// Redis for the exact tier; without it a redis-server on PATH is started, if there is one
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Decides by the sum of last-seen counters, as others do: it breaks the cap
    #[arg(long)]
    naive: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": "));
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo; whether every cap was kept.
async fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "error".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();

    // Held to the end: dropped, it stops the server that it started.
    let redis = redis::Redis::find(arguments.redis.as_deref()).await?;
    let url = redis.as_ref().map(redis::Redis::url);
    say!("starting {} replicas", arguments.replicas);
    let fleet = Fleet::start(usize::from(arguments.replicas), arguments.naive, url).await?;
    fleet.assembled(Duration::from_secs(10)).await.context("the fleet did not assemble within 10 s")?;
    say!(
        "every replica lists all {} members; {} requests/s for {} s",
        arguments.replicas,
        arguments.load,
        arguments.seconds
    );

    let stop = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let load = Load::start(&fleet.addresses(), arguments.load, url.is_some(), &stop).await?;
    let end = started + Duration::from_secs(arguments.seconds);
    let mut live = report::Live::default();
    while Instant::now() < end {
        let pause = Duration::from_millis(500).min(end.saturating_duration_since(Instant::now()));
        let interrupted = tokio::time::timeout(pause, tokio::signal::ctrl_c()).await.is_ok();
        live.show(load.counts(), started.elapsed());
        if interrupted {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    load.finish().await;
    let judged = report::judge(load.counts(), started.elapsed(), url.is_some());
    fleet.shutdown().await;
    Ok(judged)
}
