//! Who is in the fleet: joining, leaving, crashing, coming back; and peers that send what is no message.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::MemoryStore;
use tidegate_store_mesh::certs::{Authority, Identity};
use tidegate_store_mesh::naive::Naive;
use tidegate_store_mesh::transport::{Channel, Transport};
use tidegate_store_mesh::wire::{self, Payload};
use tidegate_store_mesh::{Mesh, MeshConfig, MeshRuntime, ReleaseAfter};

use crate::support::{Log, bind, eventually, limit, loopback};

fn config(identity: Identity, seed: Option<&Mesh<Naive>>) -> MeshConfig {
    let seeds: Vec<String> = seed.map(|seed| seed.local_addr().to_string()).into_iter().collect();
    MeshConfig::new(identity, seeds).listen(loopback()).gossip_interval(Duration::from_millis(50))
}

fn names(mesh: &Mesh<Naive>) -> Vec<String> {
    mesh.members().iter().map(|member| member.node.to_string()).collect()
}

#[tokio::test]
async fn a_fourth_joins_and_every_replica_lists_all() {
    let authority = Authority::new("fleet").unwrap();
    let mut fleet = Vec::new();
    for name in ["a", "b", "c"] {
        let config = config(authority.issue(name).unwrap(), fleet.first());
        fleet.push(Mesh::start_naive(config).await.unwrap());
    }
    eventually("three", || fleet.iter().all(|mesh| names(mesh) == ["a", "b", "c"])).await;
    // By name, through a member that is not the first.
    let port = fleet[1].local_addr().port();
    let newcomer = MeshConfig::new(authority.issue("d").unwrap(), [format!("localhost:{port}")]);
    let newcomer = newcomer.listen(loopback()).gossip_interval(Duration::from_millis(50));
    fleet.push(Mesh::start_naive(newcomer).await.unwrap());
    eventually("four", || fleet.iter().all(|mesh| names(mesh) == ["a", "b", "c", "d"])).await;
}

#[tokio::test]
async fn one_that_crashes_is_lost_then_released_and_may_come_back() {
    let authority = Authority::new("fleet").unwrap();
    let patient = config(authority.issue("a").unwrap(), None).release_after(ReleaseAfter::Never);
    let patient = Mesh::start_naive(patient).await.unwrap();
    let quick = config(authority.issue("b").unwrap(), Some(&patient));
    let quick = Mesh::start_naive(quick.release_after(ReleaseAfter::Time(Duration::ZERO))).await.unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let own =
        config(authority.issue("c").unwrap(), Some(&patient)).runtime(MeshRuntime::Handle(runtime.handle().clone()));
    let crashing = Mesh::start_naive(own).await.unwrap();
    eventually("three", || [&patient, &quick, &crashing].iter().all(|mesh| mesh.members().len() == 3)).await;
    let first_life = crashing.fleet_report().own;
    runtime.shutdown_background();
    drop(crashing);
    eventually("it to be lost", || patient.fleet_report().lost == [first_life.clone()]).await;
    eventually("it to be released", || {
        let report = quick.fleet_report();
        report.lost.is_empty() && report.members.len() == 1
    })
    .await;
    assert_eq!(names(&patient), ["a", "b"]);
    let again = config(authority.issue("c").unwrap(), Some(&quick)).runtime(MeshRuntime::OwnThread);
    let again = Mesh::start_naive(again).await.unwrap();
    eventually("it to be back", || [&patient, &quick, &again].iter().all(|mesh| names(mesh) == ["a", "b", "c"])).await;
    let report = patient.fleet_report();
    assert!(report.lost.is_empty(), "its first life is over: {report:?}");
    assert!(report.members.iter().any(|member| member.incarnation > first_life.incarnation));
}

#[tokio::test]
async fn an_operator_can_release_who_is_lost() {
    let authority = Authority::new("fleet").unwrap();
    let patient = config(authority.issue("a").unwrap(), None).release_after(ReleaseAfter::Never);
    let patient = Mesh::start_naive(patient).await.unwrap();
    let crashing = Mesh::start_naive(config(authority.issue("b").unwrap(), Some(&patient))).await.unwrap();
    eventually("two", || patient.members().len() == 2).await;
    let gone = crashing.fleet_report().own;
    drop(crashing);
    eventually("it to be lost", || patient.fleet_report().lost.len() == 1).await;
    patient.release_member(&gone);
    eventually("it to be released", || patient.fleet_report().lost.is_empty()).await;
    assert_eq!(names(&patient), ["a"]);
}

#[tokio::test]
async fn two_policies_in_one_fleet_are_noticed() {
    let authority = Authority::new("fleet").unwrap();
    let a = Mesh::start_naive(config(authority.issue("a").unwrap(), None)).await.unwrap();
    let b = Mesh::start_naive(config(authority.issue("b").unwrap(), Some(&a))).await.unwrap();
    a.register(&limit(10));
    b.register(&limit(11));
    eventually("them to differ", || a.fleet_report().other_policies == ["b".into()]).await;
    a.register(&limit(11));
    b.register(&limit(10));
    eventually("them to agree", || a.fleet_report().other_policies.is_empty() && a.fleet_report().members.len() == 1)
        .await;
}

#[tokio::test]
async fn one_of_another_authority_never_becomes_a_member() {
    let (log, _guard) = Log::capture();
    let a = Mesh::start_naive(config(Authority::new("fleet").unwrap().issue("a").unwrap(), None)).await.unwrap();
    let stranger = config(Authority::new("fleet").unwrap().issue("b").unwrap(), Some(&a));
    let stranger = Mesh::start_naive(stranger).await.unwrap();
    eventually("three refusals", || a.fleet_report().transport.refused_authority >= 3).await;
    assert_eq!((a.members().len(), stranger.members().len()), (1, 1));
    assert!(log.text().contains("refused a peer"), "{}", log.text());
}

/// The layout of the naive store's news, written down again.
#[derive(Debug, Serialize, Deserialize)]
struct Forged {
    to: u64,
    window: u64,
    rows: Vec<(u128, u64)>,
}

impl Payload for Forged {
    const MIN_ROW: usize = 2;

    fn rows(&self) -> usize {
        self.rows.len()
    }
}

/// A certificate of the fleet, and no manners.
struct Rogue {
    transport: Transport,
    victim: std::net::SocketAddr,
}

impl Rogue {
    /// Sends until the victim has counted it: only the newest of what waits is sent.
    async fn insist(&self, what: &str, channel: Channel, body: &[u8], mut counted: impl FnMut() -> bool) {
        eventually(what, || {
            self.transport.send(self.victim, None, channel, body);
            counted()
        })
        .await;
    }
}

#[tokio::test]
async fn what_is_no_message_is_dropped_and_counted() {
    let authority = Authority::new("fleet").unwrap();
    let a = Mesh::start_naive(config(authority.issue("a").unwrap(), None)).await.unwrap();
    let b = Mesh::start_naive(config(authority.issue("b").unwrap(), Some(&a))).await.unwrap();
    eventually("two", || a.members().len() == 2).await;
    let own = a.fleet_report().own;
    let (transport, _inbox) = bind(&authority.issue("rogue").unwrap(), 1);
    let rogue = Rogue { transport, victim: own.address };
    let report = || a.fleet_report();

    let before = report();
    rogue
        .insist("garbage", Channel::News, b"garbage", || report().dropped_undecodable > before.dropped_undecodable)
        .await;
    let whole = wire::encode(&Forged { to: own.incarnation, window: 1, rows: vec![(7, 7)] }).unwrap();
    for cut in 0..whole.len() {
        let before = report().dropped_undecodable;
        rogue.insist("a cut message", Channel::News, &whole[..cut], || report().dropped_undecodable > before).await;
    }
    let before = report().dropped_undecodable;
    let oversized = vec![1; wire::MAX_MESSAGE];
    rogue.insist("the longest garbage", Channel::News, &oversized, || report().dropped_undecodable > before).await;
    let before = report().transport.dropped_malformed;
    let beyond = vec![1; wire::MAX_MESSAGE + 1];
    rogue.insist("more than a message", Channel::News, &beyond, || report().transport.dropped_malformed > before).await;

    let before = report().dropped_for_another;
    let stale = wire::encode(&Forged { to: own.incarnation - 1, window: 1, rows: vec![] }).unwrap();
    rogue.insist("news for an earlier life", Channel::News, &stale, || report().dropped_for_another > before).await;
    let before = report().dropped_useless;
    rogue.insist("news from no member", Channel::News, &whole, || report().dropped_useless > before).await;
    let before = report().dropped_gossip;
    rogue.insist("gossip that is none", Channel::Gossip, b"garbage", || report().dropped_gossip > before).await;

    // And the fleet goes on.
    let received = report().received;
    let limit = limit(1_000_000);
    let rule = crate::support::rule(&limit, 1);
    eventually("news from a member", || {
        b.hold(&rule, tidegate_core::Clock::now(&tidegate_core::SystemClock::new()));
        report().received > received
    })
    .await;
    assert_eq!(a.members().len(), 2);
}
