//! The naive store over the real transport: membership, exchange, and what it cannot do.

use std::time::Duration;

use tidegate_core::{Clock, MemoryStore, Rule, SystemClock};
use tidegate_store_mesh::certs::Authority;
use tidegate_store_mesh::naive::Naive;
use tidegate_store_mesh::{Mesh, MeshConfig};

use crate::support::{eventually, limit, loopback, rule};

async fn fleet(size: usize) -> Vec<Mesh<Naive>> {
    let authority = Authority::new("fleet").unwrap();
    let mut fleet: Vec<Mesh<Naive>> = Vec::new();
    for index in 0..size {
        let seeds: Vec<String> = fleet.first().map(|first| first.local_addr().to_string()).into_iter().collect();
        let identity = authority.issue(&format!("node-{index}")).unwrap();
        let config = MeshConfig::new(identity, seeds).listen(loopback()).gossip_interval(Duration::from_millis(50));
        fleet.push(Mesh::start_naive(config).await.unwrap());
    }
    eventually("all to know all", || fleet.iter().all(|mesh| mesh.members().len() == size)).await;
    fleet
}

#[tokio::test]
async fn all_know_all_hear_of_each_others_counts_and_leave() {
    let fleet = fleet(3).await;
    for mesh in &fleet {
        mesh.ready().await;
    }
    let limit = limit(1_000_000);
    let rule = rule(&limit, 10);
    let clock = SystemClock::new();
    // Spends again in each window until what it spent there has been heard of.
    eventually("the others to hear of it", || {
        fleet[0].hold(&rule, clock.now());
        let look = Rule { cost: 0, ..rule.clone() };
        let remaining = |mesh: &Mesh<Naive>| mesh.peek(&look, clock.now()).standing.remaining;
        fleet[1..].iter().all(|mesh| remaining(mesh) < 1_000_000)
    })
    .await;
    fleet[2].shutdown().await;
    eventually("the others to see it go", || fleet[..2].iter().all(|mesh| mesh.members().len() == 2)).await;
    assert!(fleet[..2].iter().all(|mesh| mesh.fleet_report().lost.is_empty()), "it left, it did not crash");
}

#[tokio::test]
async fn a_burst_everywhere_at_once_passes_once_for_each_replica() {
    let fleet = fleet(3).await;
    let limit = limit(100);
    let rule = rule(&limit, 1);
    // One instant, before anything can be heard of.
    let now = SystemClock::new().now();
    let mut admitted = 0;
    for mesh in &fleet {
        admitted += (0..200).filter(|_| mesh.hold(&rule, now).standing.is_allowed()).count();
    }
    assert!(admitted > 200, "{admitted}: this is what the mesh is for");
}
