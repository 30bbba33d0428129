//! The two paths of a session, at an anchor: taking the new one, and returning to the old one.

use std::time::{Duration, Instant};

use dysco_common::FlowKey;
use dysco_common::two_paths::Cutoff;
use dysco_common::view::View;
use dysco_proto::{ChangeId, HostEvent, Reason, Subsession};

use super::Paths;
use crate::engine::{ChainUpdates, Plane};

/// Time for which late packets of the previous path are admitted.
pub(super) const LATE: Duration = Duration::from_millis(200);

impl ChainUpdates {
    /// Returns true if this host holds the paths of a change.
    pub(in crate::engine) fn holds(&self, change: ChangeId) -> bool {
        self.paths.contains_key(&change)
    }

    /// Ends at once the changes that only wait for late packets and of which this host was an
    /// anchor as one of the session's chain: from now on it passes the session on by one path.
    pub(super) fn settle_late(&mut self, plane: &mut Plane, session: &Subsession) {
        let (left, right) = (session.left, session.right);
        for key in [FlowKey::new(left, right), FlowKey::new(right, left)] {
            let slot = plane.agent.find_called(&key);
            let change = slot.and_then(|slot| self.by_slot.get(&slot)).copied();
            let paths = change.and_then(|change| self.paths.get(&change));
            let over = paths.is_some_and(|p| p.completed.is_some() && p.erased);
            if let Some(change) = change.filter(|_| over) {
                self.end_paths(plane, change);
            }
        }
    }

    /// Ends at once a change that only waited for late packets.
    pub(super) fn forget_late(&mut self, plane: &mut Plane, slot: u32) {
        if let Some(change) = self.by_slot.get(&slot).copied() {
            self.end_paths(plane, change);
        } else {
            self.tombstone_path(plane, plane.agent.drop_path_before(slot));
        }
    }

    /// Ends a path that was given up: nothing passes here by it any more.
    pub(in crate::engine) fn tombstone_path(&mut self, plane: &mut Plane, slot: Option<u32>) {
        if let Some(slot) = slot {
            self.end_for_firewalls(plane, slot);
            plane.collector.left(slot, &plane.agent.session(slot));
        }
    }

    /// Returns the slots of a change's two paths, if the session still has them.
    pub(super) fn slots(&self, plane: &Plane, change: ChangeId) -> Option<(u32, Option<u32>)> {
        let paths = self.paths.get(&change)?;
        let (first, created) = paths.first;
        let lives = |slot: u32| {
            let s = plane.agent.session(slot);
            s.created_ns == created && s.view() != View::Free
        };
        let second_path = paths.second_path.filter(|second_path| lives(*second_path));
        (second_path.is_some() || lives(first)).then_some((first, second_path))
    }

    pub(in crate::engine) fn switch_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some((_, Some(second_path))) = self.slots(plane, change) else {
            return self.tell_chain_gone(plane, change);
        };
        let before = self.session_id_of(plane, change);
        let cutoff = match plane.agent.switch_path(second_path) {
            Ok(cutoff) => cutoff,
            Err(error) => {
                tracing::error!(%change, %error, "a session cannot take its new path");
                return self.tell_chain_gone(plane, change);
            }
        };
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.cutoff = Some(cutoff);
            paths.opening = None;
        }
        plane.follow(before, second_path);
        plane.prime(second_path, cutoff);
        // The cutoff is sent to the other anchor in the wire's numbers.
        let cutoff = plane.agent.session(second_path).sent_on_wire(cutoff);
        // No middlebox of a chain ends its stream, so it does not matter whether the end has
        // closed.
        let cutoff = Cutoff {
            at: cutoff,
            closes: false,
        };
        plane.tell_machine(HostEvent::CutDone { change, cutoff });
    }

    /// Returns the name of a change's session, given by the slot that the session takes.
    fn session_id_of(&self, plane: &Plane, change: ChangeId) -> Option<dysco_api::SessionId> {
        let slot = plane.find(&self.paths.get(&change)?.session)?;
        Some(plane.session_id(slot, &plane.agent.session(slot)))
    }

    pub(in crate::engine) fn settle_path(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        peer_cutoff: u32,
    ) {
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.peer_cutoff = Some(peer_cutoff);
        }
        self.look_at_path(plane, change);
    }

    /// Checks whether the new path has carried all that it has to.
    pub(super) fn look_at_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some((_, Some(second_path))) = self.slots(plane, change) else {
            return;
        };
        let Some(paths) = self.paths.get_mut(&change) else {
            return;
        };
        let (Some(_), Some(peer), false) = (paths.cutoff, paths.peer_cutoff, paths.settled) else {
            return;
        };
        let peer = plane.agent.session(second_path).received_off_wire(peer);
        if plane.agent.settle_path(second_path, peer) {
            paths.settled = true;
            plane.prime_highest(second_path);
            plane.tell_machine(HostEvent::Drained { change });
        }
    }

    /// Runs often while paths change: looks at them, repeats packets that may have been lost, and
    /// forgets old paths.
    pub(in crate::engine) fn sweep_paths(&mut self, plane: &mut Plane) {
        let now = Instant::now();
        let changes: Vec<ChangeId> = self.paths.keys().copied().collect();
        for change in changes {
            self.look_at_path(plane, change);
            let Some(paths) = self.paths.get_mut(&change) else {
                continue;
            };
            let lively = std::mem::take(&mut paths.lively);
            match (paths.completed, paths.cutoff, paths.second_path) {
                // Until the other anchor has ended it may still send primers, which no stack may
                // receive.
                (Some(at), _, _) if paths.erased && at.elapsed() >= LATE => {
                    self.end_paths(plane, change);
                }
                (None, Some(_), Some(second_path)) => plane.prime_unconfirmed(second_path),
                (Some(at), _, Some(second_path)) if !paths.needs_no_more(at) => {
                    plane.prime_unconfirmed(second_path);
                }
                // The SYN was answered: neither the path nor this host would accept it again.
                (None, None, Some(_))
                    if paths.opens_answered() && (lively || !paths.length_probes.is_late(now)) => {}
                (None, None, Some(second_path)) if paths.opens_answered() => {
                    self.prime_answered(plane, second_path);
                }
                (None, None, Some(second_path)) if paths.is_answering() => {
                    plane.answer_syn(second_path)
                }
                _ => {}
            }
        }
        self.announce_ways_back(plane);
        self.sweep_waiting(plane);
    }

    pub(in crate::engine) fn leave_path_before(&mut self, change: ChangeId) {
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.completed = Some(Instant::now());
        }
    }

    fn end_paths(&mut self, plane: &mut Plane, change: ChangeId) {
        let slots = self.slots(plane, change);
        plane.chains_held.remove(&change);
        let Some(paths) = self.paths.remove(&change) else {
            return;
        };
        plane.forget_token(&paths);
        if let Some(second_path) = paths.second_path {
            self.by_slot.remove(&second_path);
        }
        if let Some((_, Some(second_path))) = slots {
            self.tombstone_path(plane, plane.agent.drop_path_before(second_path));
            self.end_if_over(plane, second_path);
        }
    }

    /// Reports the end of a session that has ended while its path changed.
    fn end_if_over(&self, plane: &mut Plane, slot: u32) {
        let s = plane.agent.session(slot);
        if s.has_ended() {
            self.session_ended(plane, slot, s.life.reset != 0);
        }
    }

    pub(in crate::engine) fn abandon_path(&mut self, plane: &mut Plane, change: ChangeId) {
        self.waiting.retain(|w| !w.is_of(change));
        let Some(paths) = self.paths.get_mut(&change) else {
            return;
        };
        paths.opening = None;
        paths.cutoff = None;
        self.forget_token_of(plane, change);
        let Some((first, Some(second_path))) = self.slots(plane, change) else {
            return;
        };
        let before = self.session_id_of(plane, change);
        let back = plane.way_back(first, second_path);
        if let Err(error) = plane.agent.switch_back(second_path) {
            return tracing::error!(%change, %error, "a session cannot take its path before");
        }
        plane.follow(before, first);
        self.announce_way_back(plane, back);
    }

    fn forget_token_of(&self, plane: &Plane, change: ChangeId) {
        if let Some(paths) = self.paths.get(&change) {
            plane.forget_token(paths);
        }
    }

    pub(in crate::engine) fn release_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let slots = self.slots(plane, change);
        plane.chains_held.remove(&change);
        let Some(paths) = self.paths.remove(&change) else {
            return;
        };
        if let Some(second_path) = paths.second_path {
            self.by_slot.remove(&second_path);
        }
        if let Some((first, Some(second_path))) = slots {
            self.tombstone_path(plane, plane.agent.drop_next_path(second_path));
            self.end_if_over(plane, first);
        }
    }

    /// Ends a change that the machine has ended. A completed change still admits late packets.
    pub(in crate::engine) fn erase_path(&mut self, plane: &mut Plane, change: ChangeId) {
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.erased = true;
            match &mut paths.completed {
                Some(at) => *at = Instant::now(),
                None => self.release_path(plane, change),
            }
        }
    }

    pub(super) fn tell_chain_gone(&self, plane: &mut Plane, change: ChangeId) {
        if let Some(paths) = self.paths.get(&change) {
            let subsession = paths.session;
            plane.tell_machine(HostEvent::SessionGone { subsession });
        }
    }

    /// Handles the collection of a slot. Returns true if the slot was a change's.
    pub(in crate::engine) fn chain_gone(
        &mut self,
        plane: &mut Plane,
        slot: u32,
        created_ns: u64,
    ) -> bool {
        let of = |p: &Paths| {
            p.first.1 == created_ns && (p.first.0 == slot || p.second_path == Some(slot))
        };
        let change = self.paths.iter().find(|(_, p)| of(p));
        let Some((change, paths)) = change.map(|(c, p)| (*c, p)) else {
            return false;
        };
        let completed = paths.completed.is_some();
        if !completed || paths.second_path == Some(slot) {
            self.tell_chain_gone(plane, change);
        }
        if completed {
            self.end_paths(plane, change);
        }
        true
    }
}

impl Plane {
    /// Checks that this host's netfilter does not see the session's packets before the data plane.
    pub(super) fn passes_no_filter(&self, slot: u32) -> Result<(), Reason> {
        let s = self.agent.session(slot);
        if s.joined_to().is_some() {
            // The end is elsewhere.
            return self.filters_nothing();
        }
        let local = s.key.local().ip();
        match self.filtered(|i| i.addresses.contains(&local)) {
            Some(cause) => Err(Reason::ChainUnusable(cause)),
            None => Ok(()),
        }
    }

    /// Records the present name of a session.
    fn follow(&mut self, before: Option<dysco_api::SessionId>, slot: u32) {
        let now = self.session_id(slot, &self.agent.session(slot));
        if let Some(before) = before {
            self.rename_session(before, now);
        }
    }

    fn forget_token(&self, paths: &Paths) {
        if let Some(token) = paths.token {
            self.agent.forget_join(token);
        }
    }
}
