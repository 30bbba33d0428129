//! Keys shared with neighbours: SYNs with such a key are accepted.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dysco_control::{Identity, Secret};

use super::Chains;
use super::message::{MANY, Message};
use crate::engine::Plane;

/// Time for which a key is accepted after its connection has ended: a neighbour without a daemon
/// continues to use it.
pub(super) const RETENTION: Duration = Duration::from_secs(3600);
/// Maximum number of such keys of one neighbour; the newest are kept. A neighbour whose connection
/// is set up again and again takes no more room.
const MAX_KEYS_OF_ONE: usize = 8;

/// Key shared with a neighbour.
pub(super) struct Shared {
    pub peer: Arc<Identity>,
    pub key: Secret,
    /// True if the neighbour accepts the key too.
    pub confirmed: bool,
    /// Time at which its connection ended.
    pub gone: Option<Instant>,
}

impl Chains {
    /// Returns the surplus keys of this neighbour whose connections have ended: the oldest first,
    /// and before these the keys that the neighbour never confirmed and may never have used.
    fn too_many(&self, peer: &Identity) -> Vec<u64> {
        let its = self.keys.iter().filter(|(_, s)| *s.peer == *peer);
        let gone = its.filter_map(|(id, s)| Some((s.confirmed, s.gone?, *id)));
        let mut gone: Vec<_> = gone.collect();
        gone.sort_unstable();
        gone.truncate(gone.len().saturating_sub(MAX_KEYS_OF_ONE));
        gone.into_iter().map(|(.., id)| id).collect()
    }

    /// Returns the key whose connection ended first.
    fn first_gone(&self) -> Option<u64> {
        let gone = self.keys.iter().filter_map(|(id, s)| Some((s.gone?, *id)));
        gone.min().map(|(_, id)| id)
    }
}

impl Chains {
    /// Takes up the keys that a former process has shared with neighbours.
    pub(super) fn adopt_keys(&mut self, plane: &Plane, now: Instant) {
        for id in plane.agent.key_ids() {
            let nobody = Shared {
                peer: Arc::new(Identity { addresses: vec![] }),
                key: Secret([0; 2]),
                confirmed: false,
                gone: Some(now),
            };
            self.keys.insert(id, nobody);
        }
    }

    /// Adds a key that both ends of a new connection have.
    pub(in crate::engine) fn take_key(
        &mut self,
        plane: &Plane,
        peer: &Arc<Identity>,
        via: IpAddr,
        id: u64,
        key: Secret,
    ) {
        for id in self.too_many(peer) {
            self.forget_key(plane, id);
        }
        let mut added = plane.agent.add_key(id, key.0);
        // There is no room: a key whose connection has ended makes room.
        if added.is_err()
            && let Some(first) = self.first_gone()
        {
            self.forget_key(plane, first);
            added = plane.agent.add_key(id, key.0);
        }
        if let Err(error) = added {
            return tracing::error!(%via, %error, "a neighbour's SYNs will not be believed");
        }
        let shared = Shared {
            peer: Arc::clone(peer),
            key,
            confirmed: self.early.remove(&id),
            gone: None,
        };
        let confirmed = shared.confirmed;
        self.keys.insert(id, shared);
        plane.send_about_chains(via, &Message::Believed(id));
        self.introduce(plane, |host| peer.holds(host));
        for &address in &peer.addresses {
            self.unconfirmed.is_back(address, Instant::now());
        }
        if confirmed {
            self.find_ways(plane, &peer.addresses);
        }
    }

    /// Handles a key whose connection has ended.
    pub(in crate::engine) fn key_gone(&mut self, plane: &Plane, id: u64) {
        let Some(shared) = self.keys.get_mut(&id) else {
            return;
        };
        let now = Instant::now();
        shared.gone = Some(now);
        let addresses = shared.peer.addresses.clone();
        for &address in &addresses {
            match (self.key_for(address), self.is_connected(address)) {
                (Some(_), _) => {}
                (None, true) => self.unconfirmed.keep(address, now),
                (None, false) => self.lose_hop(plane, address),
            }
        }
        self.find_ways(plane, &addresses);
        self.greet_again(plane, &addresses);
    }

    /// Handles a key whose connection has ended because its peer is revoked: nothing is steered to
    /// that peer any more, and its SYNs are not accepted.
    pub(in crate::engine) fn key_revoked(&mut self, plane: &Plane, id: u64) {
        let peer = self.keys.get(&id).map(|s| Arc::clone(&s.peer));
        self.key_gone(plane, id);
        self.forget_key(plane, id);
        for &address in peer.iter().flat_map(|peer| &peer.addresses) {
            if self.key_for(address).is_none() {
                self.unconfirmed.remove(address);
                self.lose_hop(plane, address);
            }
        }
    }

    /// Forgets all keys but those of connections that are open: some may be of peers that are revoked.
    /// The report that a connection has ended may be still to come.
    pub(in crate::engine) fn forget_closed_keys(&mut self, plane: &Plane, open: &HashSet<u64>) {
        for (id, is_reported) in self.closed_keys(open) {
            match is_reported {
                true => self.forget_key(plane, id),
                false => self.key_revoked(plane, id),
            }
        }
    }

    /// Returns the keys of connections that are not open, each with true if its end was reported.
    fn closed_keys(&self, open: &HashSet<u64>) -> Vec<(u64, bool)> {
        let keys = self.keys.iter().map(|(id, s)| (*id, s.gone.is_some()));
        keys.filter(|(id, is_reported)| *is_reported || !open.contains(id))
            .collect()
    }

    /// Repeats the greeting of a neighbour that has another connection: messages to it used the
    /// connection that has ended, and may be lost.
    fn greet_again(&self, plane: &Plane, addresses: &[IpAddr]) {
        let its = |s: &Shared| s.gone.is_none() && addresses.iter().any(|a| s.peer.holds(*a));
        for (id, shared) in self.keys.iter().filter(|(_, s)| its(s)) {
            if let Some(&to) = shared.peer.addresses.first() {
                plane.send_about_chains(to, &Message::Believed(*id));
                self.introduce(plane, |host| shared.peer.holds(host));
            }
        }
    }

    /// Asks a neighbour again whether it accepts the keys shared with it.
    pub(in crate::engine) fn ask_about_keys(&self, plane: &Plane, host: IpAddr) {
        let keys = self.keys.iter();
        let unsure = |s: &Shared| !s.confirmed && s.gone.is_none() && s.peer.holds(host);
        for (id, _) in keys.filter(|(_, shared)| unsure(shared)) {
            plane.send_about_chains(host, &Message::IsBelieved(*id));
        }
    }

    /// Asks all neighbours again that have not confirmed a key.
    pub(super) fn ask_about_all_keys(&self, plane: &Plane) {
        let keys = self.keys.iter();
        for (id, shared) in keys.filter(|(_, s)| !s.confirmed && s.gone.is_none()) {
            if let Some(&to) = shared.peer.addresses.first() {
                plane.send_about_chains(to, &Message::IsBelieved(*id));
            }
        }
    }

    pub(super) fn is_connected(&self, host: IpAddr) -> bool {
        let mut keys = self.keys.values();
        keys.any(|s| s.gone.is_none() && s.peer.holds(host))
    }

    pub(super) fn key_for(&self, peer: IpAddr) -> Option<(u64, [u64; 2])> {
        let keys = self.keys.iter();
        let mut live = keys.filter(|(_, s)| s.confirmed && s.gone.is_none() && s.peer.holds(peer));
        live.next().map(|(id, shared)| (*id, shared.key.0))
    }

    pub(super) fn believed(&mut self, plane: &Plane, id: u64, from: &Arc<Identity>) {
        match self.keys.get_mut(&id) {
            Some(shared) if shared.peer == *from => {
                shared.confirmed = true;
                self.find_ways(plane, &from.addresses);
            }
            Some(_) => tracing::warn!(?from, "spoke of a key of others"),
            None => {
                if self.early.len() >= MANY {
                    // Keys that never came, or have gone. That of a key which comes is asked for again.
                    self.early.clear();
                }
                self.early.insert(id);
            }
        }
    }

    fn forget_key(&mut self, plane: &Plane, id: u64) {
        self.keys.remove(&id);
        plane.agent.remove_key(id);
    }

    /// Forgets the keys whose connections ended long ago.
    pub(super) fn forget_old_keys(&mut self, plane: &Plane, now: Instant) {
        let old = |s: &Shared| s.gone.is_some_and(|at| now - at >= RETENTION);
        let ids: Vec<u64> = self
            .keys
            .iter()
            .filter(|(_, shared)| old(shared))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.forget_key(plane, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_one_neighbour_only_the_newest_keys_are_kept() {
        let start = Instant::now();
        let peer = |last| {
            let addresses = vec![IpAddr::from([10, 0, 0, last])];
            Arc::new(Identity { addresses })
        };
        let (flaps, stays) = (peer(1), peer(2));
        let mut chains = Chains::default();
        let mut add = |id, peer: &Arc<Identity>, gone: Option<u64>| {
            let shared = Shared {
                peer: Arc::clone(peer),
                key: Secret([0; 2]),
                confirmed: true,
                gone: gone.map(|s| start + Duration::from_secs(s)),
            };
            chains.keys.insert(id, shared);
        };
        add(100, &stays, Some(0));
        add(101, &flaps, None);
        for id in 1..=MAX_KEYS_OF_ONE as u64 + 2 {
            add(id, &flaps, Some(id));
        }
        assert_eq!(chains.too_many(&flaps), [1, 2]);
        chains.keys.entry(5).and_modify(|s| s.confirmed = false);
        assert_eq!(chains.too_many(&flaps), [5, 1]);
        assert!(chains.too_many(&stays).is_empty());
        let closed = |open: &[u64]| {
            let mut closed = chains.closed_keys(&open.iter().copied().collect());
            closed.sort_unstable();
            closed
                .into_iter()
                .skip_while(|(id, _)| *id < 100)
                .collect::<Vec<_>>()
        };
        assert_eq!(closed(&[100, 101]), [(100, true)]);
        // Its end is not reported yet.
        assert_eq!(closed(&[]), [(100, true), (101, false)]);
        assert_eq!(chains.first_gone(), Some(100));
    }
}
