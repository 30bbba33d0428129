//! Tests of certificates that replace others, and of revoked ones.

use std::net::IpAddr;
use std::time::Duration;

use dysco_pki::validity_of;
use quinn::{ConnectionError, VarInt};
use rustls::pki_types::UnixTime;

use super::lab::{Daemon, Fleet, Stranger, addresses};
use crate::frame::HELLO;
use crate::link::close;
use crate::tls::{Tls, Verdict};
use crate::{Control, DownReason, Event};

async fn down(daemon: &mut Daemon) -> DownReason {
    loop {
        if let Event::PeerDown(_, why) = daemon.event().await {
            return why;
        }
    }
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_the_others_go_on() {
    let fleet = Fleet::new();
    let [a, b, other] = addresses();
    let (left, mut right) = (fleet.daemon(a), fleet.daemon(b));
    left.control.send(b, b"before".to_vec());
    right.message().await;

    let next = fleet.credentials(&[b, other]);
    right.control.take_up(Control::prepare(&next).unwrap());
    left.control.send(b, b"meanwhile".to_vec());
    let meanwhile = right.message().await;
    assert_eq!(meanwhile.message, b"meanwhile");
    assert_eq!(right.control.counters().connections, 1);

    // As a server and as a client: each later peer sees the new certificate.
    let [c, d] = addresses();
    let (mut caller, mut called) = (fleet.daemon(c), fleet.daemon(d));
    caller.control.send(b, b"question".to_vec());
    right.message().await;
    right.control.send(c, b"answer".to_vec());
    assert!(caller.message().await.from.holds(other));
    right.control.send(d, b"hello".to_vec());
    assert!(called.message().await.from.holds(other));
}

#[tokio::test]
async fn a_revoked_peer_is_cut_off_at_once_and_both_are_notified() {
    let fleet = Fleet::new();
    let [a, b, c] = addresses();
    let (here, keys) = (fleet.issue(&[a]), fleet.issue(&[b]));
    let mut left = Daemon::start(a, fleet.load(&here, &[a]));
    let mut right = Daemon::start(b, fleet.load(&keys, &[b]));
    let mut third = fleet.daemon(c);
    left.control.send(b, b"before".to_vec());
    right.message().await;
    third.control.send(a, b"before".to_vec());
    left.message().await;

    fleet.revoke(&keys);
    let renewal = Control::prepare(&fleet.load(&here, &[a])).unwrap();
    left.control.take_up(renewal);

    let revoked = DownReason::ClosedHere("its certificate is revoked");
    assert_eq!(down(&mut left).await, revoked);
    let DownReason::Closed(why) = down(&mut right).await else {
        panic!("not closed");
    };
    assert_eq!(why, "its certificate is revoked");
    // It gets no other connection, in either direction.
    right.control.send(a, b"again".to_vec());
    let DownReason::Tls(why) = down(&mut right).await else {
        panic!("not refused");
    };
    assert!(why.contains("evoked"), "{why}");
    left.control.send(b, b"again".to_vec());
    let DownReason::Tls(why) = down(&mut left).await else {
        panic!("not refused");
    };
    assert!(why.contains("evoked"), "{why}");
    let known = |daemon: &Daemon, address: IpAddr| {
        let mut peers = daemon.control.peers().into_iter();
        peers.find(|peer| peer.address == address).unwrap()
    };
    assert_eq!(known(&left, b).reason, Some(DownReason::Tls(why)));
    // The other peers continue.
    third.control.send(a, b"meanwhile".to_vec());
    assert_eq!(left.message().await.message, b"meanwhile");
    left.control.send(c, b"answer".to_vec());
    assert_eq!(third.message().await.message, b"answer");
    assert_eq!(third.control.counters().connections, 1);
    // So does the host itself, with another certificate.
    let next = fleet.credentials(&[b]);
    right.control.take_up(Control::prepare(&next).unwrap());
    right.control.send(a, b"renewed".to_vec());
    assert_eq!(left.message().await.message, b"renewed");
    let peer = known(&left, b);
    assert!(peer.up && peer.reason.is_none(), "{peer:?}");
}

#[tokio::test]
async fn an_expired_certificate_is_judged_by_the_list_and_the_authority() {
    let (fleet, other) = (Fleet::new(), Fleet::new());
    let [a, b] = addresses();
    let (here, keys) = (fleet.issue(&[a]), fleet.issue_short(&[b]));
    let certificate = fleet.load(&keys, &[b]).cert;
    let validity = validity_of(&certificate).unwrap();
    while UnixTime::now().as_secs() <= validity.not_after {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let verdict = |credentials| {
        let judge = Tls::new(&credentials).unwrap().judge;
        judge.verdict(&certificate, validity)
    };
    assert_eq!(verdict(fleet.load(&here, &[a])), Verdict::Good);
    assert_eq!(verdict(other.credentials(&[a])), Verdict::Foreign);
    fleet.revoke(&keys);
    assert_eq!(verdict(fleet.load(&here, &[a])), Verdict::Revoked);
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let (left, keys) = (fleet.credentials(&[a]), fleet.issue_short(&[b]));
    let mut left = Daemon::start(a, left);
    let mut right = Daemon::start(b, fleet.load(&keys, &[b]));
    left.control.send(b, b"before".to_vec());
    right.message().await;

    let expired = DownReason::ClosedHere("its certificate has expired");
    assert_eq!(down(&mut left).await, expired);
    let DownReason::Closed(why) = down(&mut right).await else {
        panic!("not closed");
    };
    assert_eq!(why, "its certificate has expired");
}

#[tokio::test]
async fn a_connection_with_the_next_certificate_is_there_before_the_last_one_expires() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let mut left = fleet.daemon(a);
    let mut next = fleet.daemon(b);
    let keys = fleet.issue_short(&[b]);
    let last = Stranger::trusted(&fleet.load(&keys, &[b]), a).await;
    let mut stream = last.connection.open_uni().await.unwrap();
    stream.write_all(&HELLO).await.unwrap();
    assert!(matches!(left.event().await, Event::PeerUp(ip) if ip == b));

    let ConnectionError::ApplicationClosed(why) = last.closed().await else {
        panic!("not closed");
    };
    assert_eq!(why.error_code, VarInt::from_u32(close::EXPIRED));
    left.control.send(b, b"hello".to_vec());
    assert_eq!(next.message().await.message, b"hello");
    assert_eq!(left.control.counters().connections, 2);
    assert!(left.no_peer_went());
}

#[tokio::test]
async fn peers_of_another_authority_are_cut_off() {
    let (fleet, other) = (Fleet::new(), Fleet::new());
    let [a, b] = addresses();
    let (mut left, mut right) = (fleet.daemon(a), fleet.daemon(b));
    left.control.send(b, b"before".to_vec());
    right.message().await;
    let (key, _) = left.key().await;

    let renewal = Control::prepare(&other.credentials(&[a])).unwrap();
    assert!(left.control.take_up(renewal).is_empty());

    let foreign = DownReason::ClosedHere("its certificate is of another authority");
    let mut revoked = false;
    let why = loop {
        match left.any_event().await {
            Event::KeyRevoked(id) => revoked = id == key,
            Event::PeerDown(_, why) => break why,
            _ => {}
        }
    };
    assert!(revoked);
    assert_eq!(why, foreign);
    assert!(matches!(down(&mut right).await, DownReason::Closed(_)));
}
