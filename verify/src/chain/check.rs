//! Invariants that must hold at any moment.

use dysco_common::Delta;
use dysco_proto::{ChangeId, Machine, Role};

use super::configuration::{Configuration, LEFT, RIGHT};
use super::host::{Host, Wrong};
use super::place::{LEFTWARDS, RIGHTWARDS, place_of};
use super::world::{Accepted, Broken, World};

impl World {
    /// Checks that the reported outcome of a change is the actual one if the left anchor is on
    /// another host. The requester may receive the outcome before that anchor has answered,
    /// because the outcome is decided.
    pub(super) fn check_led(&mut self, place: usize) {
        let Some(machine) = self.host(LEFT).machine.as_ref() else {
            return;
        };
        if place != LEFT || self.gone() {
            return;
        }
        let is_over = |change: ChangeId| machine.changes().all(|c| c.change != change);
        let over: Vec<ChangeId> = (self.host(LEFT).led.iter())
            .copied()
            .filter(|change| is_over(*change))
            .collect();
        let came = |change: ChangeId| {
            let left = self.left_of(change).map(|at| self.host(at));
            left.is_some_and(|h| h.planes[RIGHTWARDS].current == Some(change))
        };
        let reported = self.host(LEFT).endings.iter();
        let falsely = (reported.filter(|e| e.role == Role::Head && over.contains(&e.change)))
            .any(|e| e.changed != came(e.change));
        // Each outcome is checked only once, because a later change takes other paths.
        self.edit(LEFT, |h| {
            over.iter().for_each(|change| _ = h.led.remove(change))
        });
        if falsely {
            self.broken = Some(Broken::Host(Wrong::FalseReport));
        }
    }

    /// Checks the invariants that must hold at any moment.
    pub(super) fn check(&mut self, config: &Configuration) {
        if self.broken.is_none() && self.overlaps() {
            self.broken = Some(Broken::Overlap);
        }
        // Nothing more is sent of a session that has ended.
        if self.gone() || self.broken.is_some() || self.has_closed(config) {
            return;
        }
        if self.has_void(config) {
            self.broken = Some(Broken::Void);
        } else if config.state && self.is_stateless(config) {
            self.broken = Some(Broken::Stateless);
        }
    }

    /// Returns true if a host that remains in the chain has changed the stream. The change must not
    /// succeed.
    pub(super) fn is_behind_delta(&self, accepted: &Accepted) -> bool {
        let mut remain = accepted.remain.iter();
        remain.any(|at| !self.host(*at).delta.is_none())
    }

    /// Checks that a path compensates once for the delta of each host that leaves, and for all of
    /// them unless a fault occurred. It is not opened if a host that remains has a delta.
    pub(super) fn check_delta(&mut self, place: usize) {
        if self.host(place).makes_up.is_none() {
            return;
        }
        let Some((change, delta)) = self.edit(place, |h| h.makes_up.take()) else {
            return;
        };
        let Some(accepted) = self.of(change) else {
            return;
        };
        let leave = &accepted.leave;
        let deltas: Vec<Delta> = leave.iter().map(|at| self.host(*at).delta).collect();
        let sum = |which: usize| {
            let some = (0..deltas.len()).filter(|i| which & (1 << i) != 0);
            some.fold(Delta::default(), |sum, i| sum.and(&deltas[i]))
        };
        let all = (1 << deltas.len()) - 1;
        let fits = match self.pure {
            true => sum(all) == delta,
            false => (0..=all).any(|which| sum(which) == delta),
        };
        if !fits || self.is_behind_delta(accepted) {
            self.broken = Some(Broken::Delta);
        }
    }

    /// True if what an end sends passes a firewall that does not know the session.
    fn is_stateless(&self, config: &Configuration) -> bool {
        let sides = [RIGHTWARDS, LEFTWARDS].into_iter();
        let mut passed = sides.filter_map(|side| self.trace(config, side)).flatten();
        passed.any(|(at, _)| at > RIGHT && !self.host(at).state)
    }

    /// True if two changes hold a part of the session.
    fn overlaps(&self) -> bool {
        let twice = |host: &Host| {
            let mut held: Vec<_> = host.machine.iter().flat_map(Machine::changes).collect();
            held.retain(|c| c.role != Role::Head);
            let names: Vec<_> = held.iter().map(|c| c.subsession).collect();
            (1..names.len()).any(|i| names[..i].contains(&names[i]))
        };
        let left = self.host(LEFT);
        let chain = left.chain.iter().filter_map(|e| place_of(e.host()));
        let chain: Vec<usize> = [LEFT].into_iter().chain(chain).chain([RIGHT]).collect();
        let place = |host: usize| chain.iter().position(|h| *h == host);
        let under_way = left.machine.iter().flat_map(Machine::changes);
        let anchors = under_way.filter_map(|c| self.of(c.change).map(Accepted::anchors));
        let mut segments: Vec<_> = anchors.map(|a| a.map(place)).collect();
        segments.sort();
        let apart = |pair: &[[Option<usize>; 2]]| pair[0][1] <= pair[1][0];
        !segments.windows(2).all(apart) || self.hosts().any(twice)
    }

    fn has_void(&self, config: &Configuration) -> bool {
        let sides = [RIGHTWARDS, LEFTWARDS];
        sides.iter().any(|side| self.trace(config, *side).is_none())
    }
}
