//! Tests of ports of sessions that continue without their socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use super::*;
use crate::port::HeldPort;

/// First port of the range. The kernel chooses even ports first.
const FIRST: u16 = 40_000;
const HELD: u16 = FIRST + 1;

fn listen(host: IpAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

fn port(of: &std::io::Result<TcpStream>) -> u16 {
    of.as_ref().unwrap().local_addr().unwrap().port()
}

#[test]
fn a_port_is_held_for_one_server_and_without_a_packet() {
    for host in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        in_network(async move || {
            let ((_one, one), (_other, other)) = (listen(host), listen(host));
            let range = "/proc/sys/net/ipv4/ip_local_port_range";
            std::fs::write(range, format!("{FIRST} {HELD}")).unwrap();
            let key = FlowKey::new(SocketAddr::new(host, HELD), one);
            let capture = kernel::Capture::start();
            let held = HeldPort::hold(&key).unwrap();
            assert!(HeldPort::hold(&key).is_err(), "twice");
            assert_eq!(capture.segments(), 0);
            let open = TcpStream::connect(one);
            assert_eq!(port(&open), FIRST);
            let full = TcpStream::connect(one).unwrap_err();
            assert_eq!(full.kind(), std::io::ErrorKind::AddrNotAvailable);
            // The port cannot be bound explicitly either, as beside the proxy's socket.
            let named = TcpListener::bind((host, HELD)).unwrap_err();
            assert_eq!(named.kind(), std::io::ErrorKind::AddrInUse);
            // For connections to another server the port is available.
            let others = [TcpStream::connect(other), TcpStream::connect(other)];
            let ports = others.each_ref().map(port);
            assert!(ports.contains(&HELD), "{ports:?}");
            let capture = kernel::Capture::start();
            drop(held);
            assert_eq!(capture.segments(), 0);
            assert_eq!(port(&TcpStream::connect(one)), HELD);
        });
    }
}

#[test]
fn a_port_that_is_never_chosen_is_not_held() {
    in_network(async || {
        let (_listener, at) = listen(Ipv4Addr::LOCALHOST.into());
        let key = FlowKey::new(SocketAddr::new(at.ip(), 1_000), at);
        assert!(HeldPort::hold(&key).is_err());
    });
}
