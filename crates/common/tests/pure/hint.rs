//! Places of hints: adjacent for sessions of the same hosts, and spread over all places for others.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use dysco_common::{FlowKey, ShortKey};
use proptest::prelude::*;

fn key(host: u32, local_port: u16, remote_port: u16) -> ShortKey {
    let host = Ipv4Addr::from(0x0a00_0000 + host);
    let server = Ipv4Addr::new(192, 0, 2, 1);
    FlowKey::new((host, local_port).into(), (server, remote_port).into()).short()
}

proptest! {
    #[test]
    fn ports_that_count_up_have_hints_side_by_side(host in 0..1u32 << 24, service in 1..1024u16, port in 1024..u16::MAX) {
        let hint = |port| key(host, port, service).hint();
        prop_assert_eq!(hint(port).wrapping_add(1), hint(port + 1));
        let served = |port| key(host, service, port).hint();
        prop_assert_eq!(served(port).wrapping_add(1), served(port + 1));
    }
}

/// The sessions have at least as many places as by a random choice, less a tenth. With as many
/// places as sessions, a random choice uses 1 - 1/e of the places.
#[test]
fn sessions_of_many_hosts_have_hints_of_their_own() {
    const PLACES: u32 = 1 << 16;
    for each in [1, 16, 256, 4096] {
        let keys = (0..PLACES).map(|n| key(n / each, 32_768 + (n % each) as u16 * 2, 443));
        let places: HashSet<u32> = keys.map(|key| key.hint() % PLACES).collect();
        let least = f64::from(PLACES) * (1.0 - (-1f64).exp()) * 0.9;
        assert!(places.len() as f64 >= least, "{each}: {}", places.len());
    }
}
