//! The transport on real QUIC over loopback.

use std::time::Duration;

use crate::support::{self, Log, bind, bind_at, eventually};
use tidegate_store_mesh::certs::Authority;
use tidegate_store_mesh::transport::{Channel, Received, Transport, TransportConfig};
use tokio::sync::mpsc;

async fn next(receiver: &mut mpsc::Receiver<Received>) -> Received {
    tokio::time::timeout(support::PATIENCE, receiver.recv()).await.expect("a message comes").expect("the inbox is open")
}

/// Sends until the other end has it: datagrams may be lost.
async fn deliver(from: &Transport, to: &Transport, inbox: &mut mpsc::Receiver<Received>, body: &[u8]) -> Received {
    let address = to.own().address;
    let sent = tokio::time::timeout(support::PATIENCE, async {
        loop {
            from.send(address, Some(&to.own().node), Channel::News, body);
            if let Ok(received) = tokio::time::timeout(Duration::from_millis(100), inbox.recv()).await {
                break received.expect("the inbox is open");
            }
        }
    });
    sent.await.expect("a message sent again and again arrives")
}

#[tokio::test]
async fn what_fits_goes_as_a_datagram_and_what_does_not_as_a_stream() {
    let authority = Authority::new("fleet").unwrap();
    let (a, _inbox) = bind(&authority.issue("a").unwrap(), 1);
    let (b, mut inbox) = bind(&authority.issue("b").unwrap(), 2);
    let small = deliver(&a, &b, &mut inbox.news, b"small").await;
    assert_eq!((&small.body[..], small.from), (&b"small"[..], a.own()));
    let before = (a.report(), b.report());
    let body: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    a.send(b.own().address, None, Channel::Pull, &body);
    assert_eq!(next(&mut inbox.pull).await.body, body);
    let (after_a, after_b) = (a.report(), b.report());
    assert_eq!(after_a.sent_streams - before.0.sent_streams, 1);
    assert_eq!(after_a.sent_datagrams, before.0.sent_datagrams);
    assert_eq!(after_b.received_streams - before.1.received_streams, 1);
}

#[tokio::test]
async fn a_peer_of_another_authority_is_refused_counted_and_logged() {
    let (log, _guard) = Log::capture();
    let (ours, theirs) = (Authority::new("fleet").unwrap(), Authority::new("fleet").unwrap());
    let (a, mut inbox) = bind(&ours.issue("a").unwrap(), 1);
    let (stranger, mut stranger_inbox) = bind(&theirs.issue("b").unwrap(), 2);
    stranger.send(a.own().address, None, Channel::News, b"let me in");
    eventually("the dialler to refuse", || stranger.report().refused_authority > 0).await;
    eventually("the listener to refuse", || a.report().refused_authority > 0).await;
    a.send(stranger.own().address, None, Channel::News, b"out");
    eventually("the refusal when we dial", || a.report().refused_authority > 1).await;
    assert!(a.connected().is_empty() && stranger.connected().is_empty());
    assert!(inbox.news.try_recv().is_err() && stranger_inbox.news.try_recv().is_err(), "nothing came through");
    let text = log.text();
    let warned = |line: &&str| line.contains("WARN") && line.contains("refused a peer") && line.contains("authorities");
    assert!(text.lines().any(|line| warned(&line)), "{text}");
}

#[tokio::test]
async fn a_peer_with_another_secret_or_another_cluster_is_refused() {
    let authority = Authority::new("fleet").unwrap();
    let mut other_secret = authority.to_pem();
    other_secret.secret = "another secret of the cluster".to_owned();
    let other_secret = Authority::from_pem("fleet", &other_secret).unwrap();
    let (a, mut inbox) = bind(&authority.issue("a").unwrap(), 1);
    let (b, _b) = bind(&other_secret.issue("b").unwrap(), 1);
    b.send(a.own().address, None, Channel::News, b"x");
    eventually("the secret to be refused", || a.report().refused_secret + b.report().refused_secret > 0).await;
    // The same authority signs for two clusters: a certificate of the one is none of the other.
    let other_cluster = Authority::from_pem("elsewhere", &authority.to_pem()).unwrap();
    let (c, _c) = bind(&other_cluster.issue("c").unwrap(), 1);
    c.send(a.own().address, None, Channel::News, b"x");
    eventually("the cluster to be refused", || {
        let (here, there) = (a.report(), c.report());
        here.refused_identity + there.refused_identity + here.refused_authority + there.refused_authority > 0
    })
    .await;
    assert!(a.connected().is_empty());
    assert!(inbox.news.try_recv().is_err());
}

#[tokio::test]
async fn two_that_dial_at_once_keep_one_connection() {
    let authority = Authority::new("fleet").unwrap();
    let (a, mut a_inbox) = bind(&authority.issue("a").unwrap(), 1);
    let (b, mut b_inbox) = bind(&authority.issue("b").unwrap(), 1);
    a.send(b.own().address, None, Channel::Pull, b"from a");
    b.send(a.own().address, None, Channel::Pull, b"from b");
    // Nothing is lost while the pair settles on one.
    assert_eq!(&next(&mut b_inbox.pull).await.body[..], b"from a");
    assert_eq!(&next(&mut a_inbox.pull).await.body[..], b"from b");
    eventually("one connection", || a.connected() == vec![b.own()] && b.connected() == vec![a.own()]).await;
    deliver(&a, &b, &mut b_inbox.news, b"again").await;
    deliver(&b, &a, &mut a_inbox.news, b"again").await;
}

#[tokio::test]
async fn a_restart_at_the_same_port_is_noticed_before_the_idle_timeout() {
    let authority = Authority::new("fleet").unwrap();
    let patient =
        TransportConfig { idle_timeout: 100 * support::PATIENCE, ..TransportConfig::new(support::loopback()) };
    let (a, mut a_inbox) = Transport::bind(patient, &authority.issue("a").unwrap(), 1).unwrap();
    let identity = authority.issue("b").unwrap();
    // Its first life ends with its runtime, as at a kill: nothing says goodbye.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (b, mut b_inbox) = {
        let _entered = runtime.enter();
        bind(&identity, 1)
    };
    deliver(&a, &b, &mut b_inbox.news, b"first life").await;
    let address = b.own().address;
    runtime.shutdown_background();
    drop((b, b_inbox));
    let (b, mut b_inbox) = bind_at(address, &identity, 2).await;
    let received = deliver(&a, &b, &mut b_inbox.news, b"second life").await;
    assert_eq!(received.from, a.own());
    let answer = deliver(&b, &a, &mut a_inbox.news, b"answer").await;
    assert_eq!(answer.from.incarnation, 2, "the peer is known as its second life");
    eventually("the first life to be gone", || a.connected() == vec![b.own()]).await;
}

#[tokio::test]
async fn sending_to_nobody_neither_waits_nor_piles_up() {
    let authority = Authority::new("fleet").unwrap();
    let (a, _inbox) = bind(&authority.issue("a").unwrap(), 1);
    let socket = std::net::UdpSocket::bind(support::loopback()).unwrap();
    let nobody = socket.local_addr().unwrap();
    for _ in 0..1_000 {
        a.send(nobody, None, Channel::News, &[7; 1_000]);
        a.send(nobody, None, Channel::Gossip, &[7; 1_000]);
    }
    let report = a.report();
    assert!(report.replaced_news >= 998, "newer news replaces what was not sent: {report:?}");
    assert!(report.dropped_queue_full >= 1_000 - 65, "the queue is short: {report:?}");
}

#[tokio::test]
async fn a_message_for_another_node_is_not_given_to_whoever_has_its_address_now() {
    let authority = Authority::new("fleet").unwrap();
    let (a, _a) = bind(&authority.issue("a").unwrap(), 1);
    let (b, mut inbox) = bind(&authority.issue("b").unwrap(), 1);
    deliver(&a, &b, &mut inbox.news, b"hello").await;
    a.send(b.own().address, Some(&"c".into()), Channel::News, b"for c");
    eventually("it to be dropped", || a.report().dropped_misaddressed + a.report().dropped_unreachable > 0).await;
    assert!(inbox.news.try_recv().is_err());
}
