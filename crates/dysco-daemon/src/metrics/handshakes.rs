//! Permits for clients of the TCP port that have not shown a certificate yet.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::permits::{Permit, Permits};

/// Maximum number of TLS handshakes at a time.
const HANDSHAKES: usize = 32;
/// Maximum number of these of one source.
const OF_SOURCE: usize = 4;
/// Prefix of an IPv6 address that stands for one source: a host may have all addresses of its
/// network.
const NETWORK: u32 = 64;

/// TLS handshakes in progress, by source.
#[derive(Clone)]
pub(super) struct Handshakes(Arc<Permits<IpAddr>>);

/// Permit of one handshake, until this value is dropped.
pub(super) type Handshake = Permit<IpAddr>;

impl Default for Handshakes {
    fn default() -> Handshakes {
        Handshakes(Permits::new(HANDSHAKES, OF_SOURCE))
    }
}

impl Handshakes {
    /// Returns a permit for a client, unless there are too many, or too many of its source.
    pub(super) fn begin(&self, client: IpAddr) -> Option<Handshake> {
        self.0.take(source(client))
    }
}

fn source(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => {
            let network = ip.to_bits() >> (u128::BITS - NETWORK) << (u128::BITS - NETWORK);
            Ipv6Addr::from_bits(network).into()
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_takes_few_places() {
        let all = Handshakes::default();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut held = Vec::new();
        for n in 0..OF_SOURCE {
            // All of them are of one network.
            held.extend(all.begin(ip(&format!("fd00::{n}:1"))));
        }
        assert_eq!(held.len(), OF_SOURCE);
        assert!(all.begin(ip("fd00::9")).is_none());
        assert!(all.begin(ip("fd00:0:0:1::9")).is_some());
        held.pop();
        assert!(all.begin(ip("fd00::9")).is_some());
    }

    #[test]
    fn all_sources_together_take_no_more_than_there_are() {
        let all = Handshakes::default();
        let of = |n: u8| all.begin([10, 0, 0, n].into());
        let held: Vec<_> = (0..=255).map_while(of).collect();
        assert_eq!(held.len(), HANDSHAKES);
        drop(held);
        assert!(of(0).is_some());
    }
}
