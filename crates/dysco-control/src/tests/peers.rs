//! Tests with daemons of one fleet.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::lab::{Daemon, Fleet, PORT, addresses};
use crate::{DownReason, Event, MAX_MESSAGE};

#[tokio::test]
async fn a_message_arrives_with_its_senders_identity() {
    let fleet = Fleet::new();
    let [a, b, other] = addresses();
    let left = Daemon::start(a, fleet.credentials(&[a, other]));
    let mut right = fleet.daemon(b);

    left.control.send(b, b"hello".to_vec());

    let incoming = right.message().await;
    assert_eq!(incoming.message, b"hello");
    assert_eq!(incoming.via, a);
    assert!(incoming.from.holds(a) && incoming.from.holds(other));
    assert!(!incoming.from.holds(b));
}

#[tokio::test]
async fn an_answer_takes_the_connection_that_the_question_came_on() {
    let fleet = Fleet::new();
    let [a, b, other] = addresses();
    let mut left = Daemon::start(a, fleet.credentials(&[a, other]));
    let mut right = fleet.daemon(b);

    left.control.send(b, b"question".to_vec());
    right.message().await;
    // Nothing listens there: only the certificate leads back.
    right.control.send(other, b"answer".to_vec());

    let answer = left.message().await;
    assert_eq!(answer.message, b"answer");
    assert!(answer.from.holds(b));
    assert_eq!(left.control.counters().connections, 1);
    assert_eq!(right.control.counters().connections, 1);
}

#[tokio::test]
async fn messages_keep_their_order() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let (mut left, mut right) = (fleet.daemon(a), fleet.daemon(b));
    let message = |i: usize| {
        let mut message = vec![i as u8; 4 + i * 7 % (MAX_MESSAGE - 3)];
        message[..4].copy_from_slice(&(i as u32).to_be_bytes());
        message
    };

    for i in 0..2000 {
        left.control.send(b, message(i));
        right.control.send(a, message(i));
    }

    for i in 0..2000 {
        assert_eq!(right.message().await.message, message(i));
        assert_eq!(left.message().await.message, message(i));
    }
}

#[tokio::test]
async fn the_longest_message_passes_and_no_longer_one() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let (left, mut right) = (fleet.daemon(a), fleet.daemon(b));

    left.control.send(b, vec![]);
    left.control.send(b, vec![1; MAX_MESSAGE + 1]);
    left.control.send(b, vec![2; MAX_MESSAGE]);

    assert_eq!(right.message().await.message, vec![2; MAX_MESSAGE]);
    assert_eq!(left.control.counters().dropped_bad_length, 2);
}

#[tokio::test]
async fn both_ends_of_a_connection_have_its_key() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let (mut left, mut right) = (fleet.daemon(a), fleet.daemon(b));

    left.control.send(b, b"hello".to_vec());
    let (here, there) = (left.key().await, right.key().await);
    assert_eq!(here, there);
    assert_ne!(here.1, [0, 0]);
}

#[tokio::test]
async fn peers_are_reported_up_and_down() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let (mut left, right) = (fleet.daemon(a), fleet.daemon(b));

    left.control.send(b, b"hello".to_vec());
    assert!(matches!(left.event().await, Event::PeerUp(ip) if ip == b));
    let peers = left.control.peers();
    assert!(peers.len() == 1 && peers[0].address == b && peers[0].up);
    assert!(peers[0].rtt.is_some() && peers[0].reason.is_none());

    right.control.shutdown().await;
    let Event::PeerDown(ip, DownReason::Closed(why)) = left.event().await else {
        panic!("not closed");
    };
    assert_eq!((ip, why.as_str()), (b, "dyscod stops"));
    let peer = left.control.peers().remove(0);
    assert!(!peer.up);
    assert_eq!(peer.reason, Some(DownReason::Closed(why)));
}

#[tokio::test]
async fn a_peer_that_came_back_is_reached_again() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let (mut left, mut right) = (fleet.daemon(a), fleet.daemon(b));
    left.control.send(b, b"before".to_vec());
    right.message().await;

    right.control.shutdown().await;
    drop(right);
    while !matches!(left.event().await, Event::PeerDown(..)) {}
    let mut right = come_back(b, fleet.credentials(&[b])).await;

    left.control.send(b, b"after".to_vec());
    assert_eq!(right.message().await.message, b"after");
}

#[test]
fn a_peer_that_was_killed_and_came_back_is_noticed_at_once() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let credentials = fleet.credentials(&[b]);
    let here = tokio::runtime::Runtime::new().unwrap();
    let there = tokio::runtime::Runtime::new().unwrap();
    let mut left = here.block_on(async { fleet.daemon(a) });
    let first = there.block_on(async {
        let mut right = Daemon::start(b, credentials.clone());
        left.control.send(b, b"before".to_vec());
        right.message().await;
        right
    });
    // Without its runtime it cannot close its connections; the runtime is gone first.
    there.shutdown_timeout(Duration::from_secs(30));
    drop(first);

    here.block_on(async {
        let mut right = come_back(b, credentials).await;
        left.control.send(b, b"into the void".to_vec());
        let reason = loop {
            if let Event::PeerDown(_, reason) = left.event().await {
                break reason;
            }
        };
        assert_eq!(reason, DownReason::Closed("it was restarted".into()));
        left.control.send(b, b"after".to_vec());
        // A probe may have noticed the restart before the first message was sent. That one
        // arrives too, then.
        let mut arrived = right.message().await.message;
        if arrived == b"into the void" {
            arrived = right.message().await.message;
        }
        assert_eq!(arrived, b"after");
    });
}

/// Restarts a daemon. Its former socket is closed when its last task has ended.
async fn come_back(address: std::net::IpAddr, credentials: dysco_pki::Credentials) -> Daemon {
    while std::net::UdpSocket::bind((address, PORT)).is_err() {
        tokio::task::yield_now().await;
    }
    Daemon::start(address, credentials)
}

#[tokio::test]
async fn a_peer_without_a_daemon_is_reported() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let mut left = fleet.daemon(a);

    left.control.send(b, b"anyone?".to_vec());

    let Event::PeerDown(ip, DownReason::NoAnswer(_)) = left.event().await else {
        panic!("not reported");
    };
    assert_eq!(ip, b);
    assert_eq!(left.control.counters().dropped_unreachable, 1);
}

#[tokio::test]
async fn one_socket_takes_both_families() {
    let fleet = Fleet::new();
    let [a] = addresses();
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let wildcard = (Ipv6Addr::UNSPECIFIED, 0).into();
    let mut right = Daemon::with(wildcard, 1, fleet.credentials(&[v4, v6]));
    let port = right.control.local_addresses()[0].port();
    let left = Daemon::with(wildcard, port, fleet.credentials(&[a]));

    left.control.send(v4, b"four".to_vec());
    assert_eq!(right.message().await.via, v4);
    // The same certificate names it: the connection serves both.
    left.control.send(v6, b"six".to_vec());
    assert_eq!(right.message().await.message, b"six");
    let other = Daemon::with(wildcard, port, fleet.credentials(&[a]));
    other.control.send(v6, b"six".to_vec());
    assert_eq!(right.message().await.via, v6);
}

#[tokio::test]
async fn the_number_of_peers_is_limited() {
    let fleet = Fleet::new();
    let [a] = addresses();
    let left = fleet.daemon(a);
    let address = |i: u32| std::net::IpAddr::from(Ipv4Addr::from(0x7fff_0000 + i));
    for i in 0..5000 {
        left.control.reach(address(i));
    }
    left.control.send(address(5000), b"one more".to_vec());
    left.control.send(address(0), b"a known one".to_vec());
    assert_eq!(left.control.peers().len(), 4096);
    assert_eq!(left.control.counters().dropped_unreachable, 1);
}
