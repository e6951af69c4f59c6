//! Replicas of the mesh on real QUIC.

use std::time::Duration;

use tidegate_core::{Clock, MemoryStore, Reason, SystemClock};
use tidegate_store_mesh::certs::Authority;
use tidegate_store_mesh::{Mesh, MeshConfig};

use crate::support::{eventually, limit, loopback, rule, slow_limit};

async fn fleet(size: usize) -> Vec<Mesh> {
    let authority = Authority::new("fleet").unwrap();
    let mut fleet: Vec<Mesh> = Vec::new();
    for index in 0..size {
        let seeds: Vec<String> = fleet.first().map(|first| first.local_addr().to_string()).into_iter().collect();
        let identity = authority.issue(&format!("node-{index}")).unwrap();
        let config = MeshConfig::new(identity, seeds).listen(loopback()).gossip_interval(Duration::from_millis(50));
        fleet.push(Mesh::start(config).await.unwrap());
    }
    eventually("all to know all", || fleet.iter().all(|mesh| mesh.members().len() == size)).await;
    for mesh in &fleet {
        mesh.ready().await;
    }
    eventually("all to count all", || fleet.iter().all(|mesh| mesh.report().replica.replicas == size as u64)).await;
    fleet
}

fn now() -> tidegate_core::Nanos {
    SystemClock::new().now()
}

/// Takes `cost` at `mesh` and makes it final, if it is allowed.
fn spend(mesh: &Mesh, limit: &tidegate_core::Limit, cost: u64) -> bool {
    let rule = rule(limit, cost);
    let answer = mesh.hold(&rule, now());
    if answer.standing.is_allowed() {
        mesh.commit(&rule, answer.standing.mark, now());
    }
    answer.standing.is_allowed()
}

fn register(fleet: &[Mesh], limit: &tidegate_core::Limit) {
    for mesh in fleet {
        mesh.register(limit);
    }
}

fn remaining(mesh: &Mesh, limit: &tidegate_core::Limit) -> u64 {
    mesh.peek(&rule(limit, 0), now()).standing.remaining
}

#[tokio::test]
async fn what_one_spends_the_others_views_show_once_they_acknowledged_it() {
    let fleet = fleet(3).await;
    // It refills one unit an hour: what is not there was spent.
    let limit = slow_limit(1_000);
    register(&fleet, &limit);
    let flushes = fleet[0].report().fleet.flushes;
    assert!(spend(&fleet[0], &limit, 100));
    assert_eq!(fleet[0].report().replica.unacknowledged, 100);
    assert_eq!((remaining(&fleet[1], &limit), remaining(&fleet[2], &limit)), (1_000, 1_000), "nothing was told yet");
    eventually("the second flush, and the acknowledgement", || {
        let report = fleet[0].report();
        report.fleet.flushes >= flushes + 2 && report.replica.unacknowledged == 0
    })
    .await;
    // An acknowledgement is given after the view was debited, so there is nothing to wait for.
    assert_eq!((remaining(&fleet[1], &limit), remaining(&fleet[2], &limit)), (900, 900));
    assert!(spend(&fleet[1], &limit, 50));
    assert_eq!(fleet[1].mind().report().own, fleet[1].report().replica.own);
    eventually("the answer", || fleet[1].report().replica.unacknowledged == 0).await;
    assert_eq!((remaining(&fleet[0], &limit), remaining(&fleet[2], &limit)), (850, 850));
}

#[tokio::test]
async fn a_single_client_gets_its_whole_burst_by_waiting_for_credit() {
    let fleet = fleet(3).await;
    let limit = slow_limit(1_000);
    register(&fleet, &limit);
    let (mut admitted, mut waits) = (0, 0);
    while admitted < 1_000 {
        if spend(&fleet[0], &limit, 1) {
            admitted += 1;
            continue;
        }
        let waited = fleet[0].wait(&rule(&limit, 1)).expect("credit is short, not the bucket");
        waited.await;
        waits += 1;
    }
    assert!(waits > 0, "the burst is larger than the credit");
    assert!(!spend(&fleet[0], &limit, 1), "the limit is the limit");
    assert!(fleet[0].wait(&rule(&limit, 1)).is_none(), "waiting is no use where the bucket is empty");
    eventually("all views to show it", || fleet.iter().all(|mesh| remaining(mesh, &limit) == 0)).await;
}

#[tokio::test]
async fn a_burst_at_all_replicas_at_once_stays_within_the_bound() {
    let fleet = fleet(3).await;
    let limit = slow_limit(1_000);
    register(&fleet, &limit);
    let mut admitted = 0;
    let empty = |mesh: &Mesh| mesh.peek(&rule(&limit, 1), now()).reason == Reason::Level;
    for _ in 0..200 {
        for mesh in &fleet {
            admitted += (0..100).filter(|_| spend(mesh, &limit, 1)).count();
        }
        if fleet.iter().all(|mesh| remaining(mesh, &limit) == 0 && empty(mesh)) {
            break;
        }
        // Lets real messages travel; the next round asks again.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!((1_000..=1_102).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn a_joiner_starts_from_what_was_spent_and_a_leaver_hands_over_what_it_spent() {
    let mut fleet = fleet(2).await;
    let limit = slow_limit(1_000);
    register(&fleet, &limit);
    assert!(spend(&fleet[1], &limit, 400));
    // At once, before a flush is due.
    fleet.pop().unwrap().shutdown().await;
    eventually("its leaving", || fleet[0].members().len() == 1).await;
    assert_eq!(remaining(&fleet[0], &limit), 600);
    assert!(fleet[0].report().fleet.lost.is_empty());
    assert!(spend(&fleet[0], &limit, 100), "alone it has all the credit");
}

#[tokio::test]
async fn many_buckets_go_as_a_stream() {
    let fleet = fleet(2).await;
    let mut keyed = slow_limit(1_000).parts().clone();
    keyed.key = Box::from([Box::from("user")]);
    let limit = tidegate_core::Limit::new(keyed);
    register(&fleet, &limit);
    let streams = fleet[0].report().fleet.transport.sent_streams;
    let users: Vec<String> = (0..500).map(|user| format!("user-{user}")).collect();
    let rule = |user| tidegate_core::Rule { limit: &limit, values: [Some(user)].into_iter().collect(), cost: 3 };
    for user in &users {
        let answer = fleet[0].hold(&rule(user), now());
        fleet[0].commit(&rule(user), answer.standing.mark, now());
    }
    eventually("all to be acknowledged", || fleet[0].report().replica.unacknowledged == 0).await;
    assert!(fleet[0].report().fleet.transport.sent_streams > streams);
    for user in &users {
        let mut look = rule(user);
        look.cost = 0;
        assert_eq!(fleet[1].peek(&look, now()).standing.remaining, 997);
    }
}

#[tokio::test]
async fn waiting_needs_no_runtime_of_the_caller() {
    let authority = Authority::new("fleet").unwrap();
    let config = MeshConfig::new(authority.issue("a").unwrap(), [""; 0]).listen(loopback());
    let mesh = Mesh::start(config.runtime(tidegate_store_mesh::MeshRuntime::OwnThread)).await.unwrap();
    mesh.ready().await;
    let limit = limit(10);
    mesh.register(&limit);
    let admitted = std::thread::spawn(move || (0..20).filter(|_| spend(&mesh, &limit, 1)).count()).join().unwrap();
    assert!(admitted >= 10, "{admitted}");
}
