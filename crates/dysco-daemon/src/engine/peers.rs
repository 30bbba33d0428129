//! Peers that this host lists: those that are connected, and those that it should be connected with.

use std::collections::HashSet;
use std::net::IpAddr;

use dysco_control::PeerStatus;

use super::Engine;

impl Engine {
    /// Returns the peers for `status` and metrics.
    pub(super) fn peers(&self) -> Vec<PeerStatus> {
        let all = self.core.host.plane.control.peers();
        if all.iter().all(|peer| peer.up) {
            return all;
        }
        let host = &self.core.host;
        let mut named = host.chains.named_hosts(&host.plane);
        named.extend(self.core.machine.peers());
        named.extend(host.services.peers());
        listed(all, &named)
    }
}

/// Removes the peers that are not connected and that nothing names. The channel keeps such a peer
/// for some minutes more.
fn listed(mut peers: Vec<PeerStatus>, named: &HashSet<IpAddr>) -> Vec<PeerStatus> {
    peers.retain(|peer| peer.up || named.contains(&peer.address));
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_connected_is_listed_as_long_as_it_is_named() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let peer = |last, up| PeerStatus {
            address: address(last),
            up,
            rtt: None,
            reason: None,
        };
        let all = vec![peer(1, true), peer(2, false), peer(3, false)];
        let named = HashSet::from([address(2), address(9)]);
        let expected = vec![peer(1, true), peer(2, false)];
        assert_eq!(listed(all, &named), expected);
    }
}
