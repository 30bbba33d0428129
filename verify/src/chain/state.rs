//! State of firewalls that moves, as `engine/firewall` has it moved: what the old host
//! sends comes to the new one at any later moment, which tells who asked. A message of
//! such a transfer that is lost is said again, and is not told here.

use std::net::IpAddr;

use dysco_proto::{ChangeId, HostId, Message};

use super::config::{Configuration, LEFT};
use super::host::{Later, address, place_of};
use super::seed;
use super::world::World;

impl World {
    /// A host has asked for state to be moved.
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

    /// A daemon has started: who asked says again what was not heard.
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

    /// The host whose place another takes by a change.
    fn giver(&self, change: ChangeId, to: usize) -> Option<IpAddr> {
        let given = &self.accepted.iter().find(|a| a.change == change)?.state;
        let pair = given.iter().find(|(_, new)| *new == address(to));
        pair.map(|(old, _)| *old)
    }

    /// The new host expects it, if its daemon lives.
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

    /// Is a host asked first to get ready? That is said before.
    pub fn comes_later(&self, place: usize, event: &Later) -> bool {
        let Later::Install(change, _) = event else {
            return false;
        };
        let asks = |m: &Message| matches!(m, Message::Enlist { change: of, .. } if of == change);
        let asked = || self.net.iter().any(|l| l.to == place && asks(&l.message));
        self.host(place).passing != Some(*change) && asked()
    }

    /// It comes there, and is installed, unless that fails.
    pub(super) fn install(&mut self, place: usize, change: ChangeId, from: HostId, sound: bool) {
        let has = place_of(from).is_some_and(|from| self.host(from).state);
        let moved = has && sound && !self.gone();
        self.edit(place, |h| h.state |= moved);
        self.moved(change, address(place), moved);
    }

    /// Who asked hears of it, if it still waits.
    fn moved(&mut self, change: ChangeId, to: HostId, moved: bool) {
        if self.host(LEFT).moves.contains_key(&(change, to)) {
            self.edit(LEFT, |h| {
                h.moves.remove(&(change, to));
                h.events.push(Later::State(change, to, moved));
            });
        }
    }

    /// The changes for which a host waits for state that will not come: the daemon died
    /// that was to install it.
    pub fn waits_in_vain(&self, place: usize) -> impl Iterator<Item = (ChangeId, HostId)> + '_ {
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

    /// The changes for which a host waits for state.
    pub fn waits_for_state(&self, place: usize) -> impl Iterator<Item = (ChangeId, HostId)> + '_ {
        let host = self.host(place);
        let moves = host.moves.keys().filter(|_| host.machine.is_some());
        moves.copied()
    }

    /// It waits no more.
    pub fn give_up_state(&mut self, change: ChangeId, to: HostId) {
        self.moved(change, to, false);
    }
}
