//! Tests with peers of another fleet, with the wrong certificate or none, and with peers that break
//! the framing.

use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, VarInt};
use rustls::RootCertStore;

use super::lab::{Daemon, Fleet, Stranger, addresses};
use crate::link::close;
use crate::tls::ALPN;
use crate::{DownReason, Event, MAX_MESSAGE, frame};

#[tokio::test]
async fn another_fleets_daemon_is_not_talked_to() {
    let (fleet, other) = (Fleet::new(), Fleet::new());
    let [a, b] = addresses();
    let (mut left, mut right) = (fleet.daemon(a), other.daemon(b));

    left.control.send(b, b"secret".to_vec());

    let Event::PeerDown(ip, DownReason::Tls(_)) = left.event().await else {
        panic!("not refused");
    };
    assert_eq!(ip, b);
    assert_eq!(left.control.counters().messages_sent, 0);
    assert!(right.heard_nothing());
}

#[tokio::test]
async fn another_fleets_daemon_is_not_listened_to() {
    let (fleet, other) = (Fleet::new(), Fleet::new());
    let [a, b] = addresses();
    let mut right = fleet.daemon(b);
    // It trusts the fleet, but does not belong to it.
    let mut credentials = other.credentials(&[a]);
    credentials.ca = fleet.credentials(&[a]).ca;
    let mut left = Daemon::start(a, credentials);

    left.control.send(b, b"let me in".to_vec());

    let Event::PeerDown(_, DownReason::Tls(_)) = left.event().await else {
        panic!("not refused");
    };
    assert!(right.heard_nothing());
    let counters = right.control.counters();
    assert_eq!((counters.handshakes_failed, counters.connections), (1, 0));
    assert_eq!(counters.messages_received, 0);
}

#[tokio::test]
async fn a_certificate_for_another_address_is_refused() {
    let fleet = Fleet::new();
    let [a, b, elsewhere] = addresses();
    let mut left = fleet.daemon(a);
    let mut right = Daemon::start(b, fleet.credentials(&[elsewhere]));

    left.control.send(b, b"secret".to_vec());

    let Event::PeerDown(ip, DownReason::Tls(_)) = left.event().await else {
        panic!("not refused");
    };
    assert_eq!(ip, b);
    assert!(right.heard_nothing());
}

#[tokio::test]
async fn a_client_without_certificate_gets_the_tls_failure() {
    let fleet = Fleet::new();
    let [b] = addresses();
    let mut right = fleet.daemon(b);
    let mut roots = RootCertStore::empty();
    roots.add(fleet.credentials(&[b]).ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));

    let stranger = Stranger::connect(config, b).await;

    let ConnectionError::ConnectionClosed(failure) = stranger.closed().await else {
        panic!("not refused");
    };
    assert!((0x100..0x200).contains(&u64::from(failure.error_code)));
    assert!(right.heard_nothing());
    assert_eq!(right.control.counters().connections, 0);
}

/// Sends bytes on a separate stream, ends it, and returns the close code.
async fn refused(fleet: &Fleet, daemon: &mut Daemon, bytes: &[u8], at: std::net::IpAddr) -> VarInt {
    let [a] = addresses();
    let stranger = Stranger::trusted(&fleet.credentials(&[a]), at).await;
    let mut stream = stranger.connection.open_uni().await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.finish().unwrap();
    let ConnectionError::ApplicationClosed(close) = stranger.closed().await else {
        panic!("not refused");
    };
    assert!(matches!(daemon.event().await, Event::PeerUp(ip) if ip == a));
    let down = daemon.event().await;
    assert!(matches!(down, Event::PeerDown(ip, DownReason::Framing(_)) if ip == a));
    close.error_code
}

#[tokio::test]
async fn frames_that_are_too_long_cut_short_or_empty_close_the_connection() {
    let fleet = Fleet::new();
    let [b] = addresses();
    let mut right = fleet.daemon(b);
    let code = VarInt::from_u32(close::FRAMING);
    let hello = frame::HELLO;

    let mut long = hello.to_vec();
    long.extend((MAX_MESSAGE as u16 + 1).to_be_bytes());
    long.extend([0; MAX_MESSAGE + 1]);
    assert_eq!(refused(&fleet, &mut right, &long, b).await, code);
    assert_eq!(right.control.counters().frames_oversized, 1);

    for short in [&[0][..], &[0, 10], &[0, 10, 1, 2, 3]] {
        let bytes = [&hello[..], short].concat();
        assert_eq!(refused(&fleet, &mut right, &bytes, b).await, code);
    }
    assert_eq!(right.control.counters().frames_truncated, 3);

    let bytes = [hello, hello].concat();
    assert_eq!(refused(&fleet, &mut right, &bytes, b).await, code);
    assert_eq!(right.control.counters().frames_empty, 1);
    assert_eq!(right.control.counters().messages_received, 0);
}

#[tokio::test]
async fn whoever_does_not_greet_is_turned_away() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let mut right = fleet.daemon(b);
    let stranger = Stranger::trusted(&fleet.credentials(&[a]), b).await;
    let mut stream = stranger.connection.open_uni().await.unwrap();

    stream.write_all(&[0, 1, 42]).await.unwrap();

    let ConnectionError::ApplicationClosed(close) = stranger.closed().await else {
        panic!("not refused");
    };
    assert_eq!(close.error_code, VarInt::from_u32(close::FRAMING));
    assert!(right.heard_nothing());
}

#[tokio::test]
async fn one_certificate_cannot_hold_connections_without_bound() {
    let fleet = Fleet::new();
    let [a, b] = addresses();
    let mut right = fleet.daemon(b);
    let credentials = fleet.credentials(&[a]);
    let mut strangers = Vec::new();

    for i in 0..5u8 {
        let stranger = Stranger::trusted(&credentials, b).await;
        let mut stream = stranger.connection.open_uni().await.unwrap();
        stream.write_all(&[0, 0, 0, 1, i]).await.unwrap();
        assert_eq!(right.message().await.message, [i]);
        strangers.push((stranger, stream));
    }

    let ConnectionError::ApplicationClosed(close) = strangers[0].0.closed().await else {
        panic!("not closed");
    };
    assert_eq!(close.error_code, VarInt::from_u32(close::TOO_MANY));
    let open = |(s, _): &&(Stranger, _)| s.connection.close_reason().is_none();
    assert_eq!(strangers.iter().filter(open).count(), 4);
}
