//! State of firewalls that moves, as `engine/firewall` moves it. The state that the old host sends
//! arrives at the new host at any later moment; the new host then notifies the requester. A lost
//! message of such a transfer is retransmitted, and this model does not show it.

use std::net::IpAddr;

use dysco_proto::{ChangeId, HostId, Message};

use super::configuration::{Configuration, LEFT};
use super::host::Later;
use super::place::{address, place_of};
use super::seed;
use super::world::World;

impl World {
    /// Carries out a host's requests to move state.
    pub(super) fn ask_for_state(&mut self, config: &Configuration, place: usize) {
        if self.host(place).asked.is_empty() {
            return;
        }
        for (change, from, to) in self.edit(place, |h| std::mem::take(&mut h.asked)) {
            if seed::hurries_state(config.seed) {
                self.edit(place, |h| h.events.push(Later::State(change, to, true)));
            }
            self.expect(change, from, to);
        }
    }

    /// Repeats the requester's requests that were not received, after a daemon has started.
    pub(super) fn ask_for_state_again(&mut self, place: usize) {
        let unheard = |((change, to), expected): (&(ChangeId, HostId), &bool)| {
            (!expected && *to == address(place)).then_some(*change)
        };
        let moves = &self.host(LEFT).moves;
        let changes: Vec<ChangeId> = moves.iter().filter_map(unheard).collect();
        for change in changes {
            if let Some(from) = self.giver(change, place) {
                self.expect(change, from, address(place));
            }
        }
    }

    /// Returns the host that another host replaces in a change.
    fn giver(&self, change: ChangeId, to: usize) -> Option<IpAddr> {
        let given = &self.accepted.iter().find(|a| a.change == change)?.state;
        let pair = given.iter().find(|(_, new)| *new == address(to));
        pair.map(|(old, _)| *old)
    }

    /// Makes the new host expect the state, if its daemon lives.
    fn expect(&mut self, change: ChangeId, from: HostId, to: HostId) {
        let Some(place) = place_of(to).filter(|to| *to < self.hosts().len()) else {
            return;
        };
        if self.host(place).machine.is_some() {
            self.edit(place, |h| h.events.push(Later::Install(change, from)));
            self.edit(LEFT, |h| {
                let expected = h.moves.get_mut(&(change, to));
                expected.map(|expected| *expected = true)
            });
        }
    }

    /// True if a host is first asked to get ready. That request precedes the state.
    pub(crate) fn comes_later(&self, place: usize, event: &Later) -> bool {
        let Later::Install(change, _) = event else {
            return false;
        };
        let asks = |m: &Message| matches!(m, Message::Enlist { change: of, .. } if of == change);
        let asked = || self.net.iter().any(|l| l.to == place && asks(&l.message));
        self.host(place).passing != Some(*change) && asked()
    }

    /// Delivers the state to the new host, which installs it unless that fails.
    pub(super) fn install(&mut self, place: usize, change: ChangeId, from: HostId, sound: bool) {
        let has = place_of(from).is_some_and(|from| self.host(from).state);
        let moved = has && sound && !self.gone();
        self.edit(place, |h| h.state |= moved);
        self.moved(change, address(place), moved);
    }

    /// Notifies the requester of the result, if it still waits.
    fn moved(&mut self, change: ChangeId, to: HostId, moved: bool) {
        if self.host(LEFT).moves.contains_key(&(change, to)) {
            self.edit(LEFT, |h| {
                h.moves.remove(&(change, to));
                h.events.push(Later::State(change, to, moved));
            });
        }
    }

    /// Changes for which a host waits for state that will not arrive, because the daemon that was
    /// to install it died.
    pub(crate) fn waits_in_vain(
        &self,
        place: usize,
    ) -> impl Iterator<Item = (ChangeId, HostId)> + '_ {
        let host = self.host(place);
        let comes = |change: ChangeId, to: HostId| {
            let to = place_of(to).map(|to| self.host(to));
            let coming = |e: &Later| matches!(e, Later::Install(of, _) if *of == change);
            to.is_some_and(|to| to.machine.is_none() || to.events.iter().any(coming))
        };
        let moves = host.moves.keys().filter(|_| host.machine.is_some());
        moves
            .copied()
            .filter(move |(change, to)| !comes(*change, *to))
    }

    /// Changes for which a host waits for state.
    pub(crate) fn waits_for_state(
        &self,
        place: usize,
    ) -> impl Iterator<Item = (ChangeId, HostId)> + '_ {
        let host = self.host(place);
        let moves = host.moves.keys().filter(|_| host.machine.is_some());
        moves.copied()
    }

    /// Ends the wait for state.
    pub(crate) fn give_up_state(&mut self, change: ChangeId, to: HostId) {
        self.moved(change, to, false);
    }
}
