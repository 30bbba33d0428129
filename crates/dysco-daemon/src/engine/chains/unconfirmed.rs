//! Hops without a key that both ends of a connection have confirmed: those of an earlier process,
//! until it is known which hosts are still there, and those of a neighbour that came back, until it
//! confirms its new key. It still accepts the previous key.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_common::chain::Hop;

use super::keys::RETENTION;
use crate::engine::{Chains, Plane};

/// Time in which a connected neighbour has to confirm the new key.
const SETTLES: Duration = Duration::from_secs(20);
/// Number of hosts of an earlier process that are asked for at once.
const AT_ONCE: usize = 64;

/// Unconfirmed hosts, with the time until which each is, and those still to be asked for.
#[derive(Default)]
pub(super) struct Unconfirmed {
    until: HashMap<IpAddr, Instant>,
    to_ask: VecDeque<IpAddr>,
}

impl Unconfirmed {
    /// Keeps the hosts to which an earlier process could steer.
    pub(super) fn adopt(&mut self, hosts: impl IntoIterator<Item = IpAddr>, now: Instant) {
        for host in hosts {
            self.until.insert(host, now + RETENTION);
            self.to_ask.push_back(host);
        }
    }

    /// Returns some of the hosts that have not been heard of yet.
    pub(crate) fn next_to_ask(&mut self) -> Vec<IpAddr> {
        let some = self.to_ask.len().min(AT_ONCE);
        let some = self.to_ask.drain(..some);
        some.filter(|host| self.until.contains_key(host)).collect()
    }

    /// Keeps a host that has another connection, whose key it has not confirmed.
    pub(super) fn keep(&mut self, host: IpAddr, now: Instant) {
        self.until.insert(host, now + SETTLES);
    }

    /// Shortens the time of a host that is back, if it is one of these.
    pub(crate) fn is_back(&mut self, host: IpAddr, now: Instant) {
        if let Some(until) = self.until.get_mut(&host) {
            *until = (*until).min(now + SETTLES);
        }
    }

    /// Removes a host that has a key or is gone. Returns true if it was one of these.
    pub(super) fn remove(&mut self, host: IpAddr) -> bool {
        self.until.remove(&host).is_some()
    }

    /// Returns true if the host is one of these.
    pub(super) fn has(&self, host: IpAddr) -> bool {
        self.until.contains_key(&host)
    }

    /// Removes and returns the hosts whose time is over.
    pub(super) fn late(&mut self, now: Instant) -> Vec<IpAddr> {
        let late = self.until.extract_if(|_, until| *until <= now);
        late.map(|(host, _)| host).collect()
    }
}

impl Chains {
    /// Handles a host to which there is no connection, or could not be one.
    pub(in crate::engine) fn neighbour_gone(&mut self, plane: &Plane, host: IpAddr) {
        if !self.is_connected(host) && self.unconfirmed.remove(host) {
            plane.agent.remove_hop(host);
        }
    }

    pub(super) fn lose_hop(&mut self, plane: &Plane, host: IpAddr) {
        self.unconfirmed.remove(host);
        plane.agent.remove_hop(host);
    }

    /// Returns the hop to a host that accepts this host's key as far as is known.
    pub(in crate::engine) fn known_hop(&self, plane: &Plane, host: IpAddr) -> Option<Hop> {
        let unconfirmed = self.unconfirmed.has(host);
        plane.agent.hop(host).filter(|_| !unconfirmed)
    }

    /// Asks for hosts of an earlier process, and gives up those that were not heard of.
    pub(super) fn sweep_unconfirmed(&mut self, plane: &Plane, now: Instant) {
        for host in self.unconfirmed.next_to_ask() {
            if !self.is_connected(host) {
                plane.control.reach(host);
            }
        }
        for host in self.unconfirmed.late(now) {
            if self.key_for(host).is_none() {
                plane.agent.remove_hop(host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn hops_of_before_stay_until_something_is_known() {
        let (mut unconfirmed, now) = (Unconfirmed::default(), Instant::now());
        unconfirmed.adopt([host(1), host(2), host(3)], now);
        assert_eq!(unconfirmed.next_to_ask(), [host(1), host(2), host(3)]);
        assert!(unconfirmed.next_to_ask().is_empty());
        assert!(unconfirmed.late(now + SETTLES).is_empty());
        // One host does not answer; one does, and never confirms the key.
        assert!(unconfirmed.remove(host(1)) && !unconfirmed.remove(host(1)));
        unconfirmed.is_back(host(2), now);
        unconfirmed.is_back(host(9), now);
        assert!(unconfirmed.has(host(2)) && unconfirmed.has(host(3)) && !unconfirmed.has(host(9)));
        assert_eq!(unconfirmed.late(now + SETTLES), [host(2)]);
        // No host accepts a key for longer.
        assert_eq!(unconfirmed.late(now + RETENTION), [host(3)]);
    }

    #[test]
    fn many_are_asked_for_in_turn() {
        let (mut unconfirmed, now) = (Unconfirmed::default(), Instant::now());
        let all: Vec<IpAddr> = (0..=255).map(host).collect();
        unconfirmed.adopt(all.clone(), now);
        unconfirmed.remove(host(1));
        let turns =
            std::iter::from_fn(|| Some(unconfirmed.next_to_ask()).filter(|t| !t.is_empty()));
        let turns: Vec<_> = turns.collect();
        assert!(turns.iter().all(|turn| turn.len() <= AT_ONCE));
        assert_eq!(turns.concat().len(), all.len() - 1);
    }

    #[test]
    fn one_that_came_back_is_kept_for_a_while() {
        let (mut unconfirmed, now) = (Unconfirmed::default(), Instant::now());
        unconfirmed.keep(host(1), now);
        assert!(unconfirmed.has(host(1)) && unconfirmed.late(now).is_empty());
        assert_eq!(unconfirmed.late(now + SETTLES), [host(1)]);
    }
}
