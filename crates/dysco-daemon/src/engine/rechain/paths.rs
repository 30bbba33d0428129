//! The two paths of a session, at an anchor: taking the new one, and returning to the old one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dysco_common::chain::{Token, path_number};
use dysco_common::two_paths::Cutoff;
use dysco_common::view::{ChainState, Change, Route, View};
use dysco_common::{FlowKey, Session, seq};
use dysco_explain::Explain;
use dysco_proto::plan::CLOCK_SLACK;
use dysco_proto::{ChangeId, Facts, HostEvent, Reason, Subsession};

use super::Paths;
use super::open::shown_next;
use crate::engine::{Plane, Rechain, collect, measure, packets, raw};

/// Time for which late packets of the previous path are admitted.
pub(super) const LATE: Duration = Duration::from_millis(200);

impl Rechain {
    /// Returns true if the change is one of a chain.
    pub(in crate::engine) fn is_chain(&self, change: ChangeId) -> bool {
        self.paths.contains_key(&change)
    }

    pub(in crate::engine) fn hold_path(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        session: Subsession,
    ) {
        let result = self.hold(plane, change, session);
        plane.tell_machine(HostEvent::Locked { change, result });
    }

    fn hold(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        session: Subsession,
    ) -> Result<Facts, Reason> {
        let slot = (plane.find_for(change, &session)).ok_or(Reason::NotTracked(session))?;
        let (mut first, mut second) = (slot, None);
        let found = self.taking_up.as_ref().and_then(|second| {
            let taken = plane.agent.session(slot).other_path().is_some();
            if taken {
                Some(slot)
            } else {
                second.get(&slot).copied()
            }
        });
        if let Some(found) = found {
            second = Some(found);
            first = plane.agent.session(found).other_path().unwrap_or(slot);
        } else if plane.agent.session(slot).other_path().is_some() {
            // The slot is of a change that has just ended.
            self.forget_late(plane, slot);
        }
        let s = plane.confirmed(slot);
        plane.not_in_between(&s)?;
        if self.taking_up.is_none() {
            self.may_begin_here(plane, change, &s, &session)?;
        }
        // A recorded change continues although the session has ended meanwhile: its last bytes are
        // under way on a path that this host has to take back or to keep.
        let mut facts = match anchor_facts(&s, &session) {
            Err(Reason::Closing) if self.taking_up.is_some() => Facts::default(),
            facts => facts?,
        };
        facts.reach = plane.agent.reach(slot);
        let paths = Paths {
            session,
            first: (first, s.created_ns),
            second,
            token: None,
            chain: None,
            opening: None,
            reach: facts.reach,
            beyond: Default::default(),
            begins: None,
            showing: Default::default(),
            answered: second.is_some(),
            asked: None,
            pace: None,
            seen: Default::default(),
            heard: second.is_some(),
            lively: false,
            cutoff: None,
            far_cutoff: None,
            settled: false,
            completed: None,
            erased: false,
        };
        self.paths.insert(change, paths);
        self.by_slot.extend(second.map(|s| (s, change)));
        Ok(facts)
    }

    /// Returns an error if this host, as one of the chain, cannot be the anchor of a segment: it
    /// can as long as its own middlebox has not changed the stream.
    fn may_begin_here(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        s: &Session,
        own: &Subsession,
    ) -> Result<(), Reason> {
        let ends_here = |end: SocketAddr| plane.config.host.addresses.contains(&end.ip());
        if ends_here(own.left) || ends_here(own.right) {
            return Ok(());
        }
        if !s.view().new_path().is_some_and(Route::passes_on) {
            return Err(Reason::NotTracked(*own));
        }
        self.settle_late(plane, own);
        plane.may_stay(own)?;
        // Orders of earlier changes to forget the session here are late from now on.
        let (left, right) = (own.right, own.left);
        for session in [*own, Subsession { left, right }] {
            self.expect_passing(change, session);
        }
        Ok(())
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
    fn forget_late(&mut self, plane: &mut Plane, slot: u32) {
        if let Some(change) = self.by_slot.get(&slot).copied() {
            self.end_paths(plane, change);
        } else {
            self.entomb_path(plane, plane.agent.drop_path_before(slot));
        }
    }

    /// Ends a path that was given up: nothing passes here by it any more.
    pub(in crate::engine) fn entomb_path(&mut self, plane: &mut Plane, slot: Option<u32>) {
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
        let second = paths.second.filter(|second| lives(*second));
        (second.is_some() || lives(first)).then_some((first, second))
    }

    pub(in crate::engine) fn extend_path(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        token: Token,
    ) {
        let result = self.extend(plane, change, token);
        plane.tell_machine(HostEvent::Prepared { change, result });
    }

    fn extend(&mut self, plane: &mut Plane, change: ChangeId, token: Token) -> Result<(), Reason> {
        let second = self.add_path(plane, change)?;
        plane.passes_no_filter(second)?;
        plane.agent.set_path_number(second, path_number(&token));
        plane
            .agent
            .await_join(token, second)
            .map_err(|e| Reason::Failed(e.explain().into()))?;
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.token = Some(token);
        }
        Ok(())
    }

    /// Returns the slot of the change's new path, which is made if needed.
    pub(super) fn add_path(&mut self, plane: &mut Plane, change: ChangeId) -> Result<u32, Reason> {
        let (first, second) = self.slots(plane, change).ok_or(Reason::Closing)?;
        if let Some(second) = second {
            return Ok(second);
        }
        let second = plane
            .agent
            .add_path(first)
            .map_err(|e| Reason::Failed(e.explain().into()))?;
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.second = Some(second);
        }
        self.by_slot.insert(second, change);
        Ok(second)
    }

    pub(in crate::engine) fn switch_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some((_, Some(second))) = self.slots(plane, change) else {
            return self.tell_chain_gone(plane, change);
        };
        let before = self.session_id_of(plane, change);
        let cutoff = match plane.agent.switch_path(second) {
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
        plane.follow(before, second);
        plane.prime(second, cutoff);
        // The cutoff is sent to the other anchor in the wire's numbers.
        let cutoff = plane.agent.session(second).sent_on_wire(cutoff);
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

    /// Answers a packet that has advanced the numbers of a path which has been taken, as long as
    /// one end has sent more elsewhere than a firewall lets the numbers advance. Until then the
    /// firewalls drop what the ends send on the path, so the next look would be late.
    pub(super) fn catch_up(&mut self, plane: &mut Plane, change: ChangeId, second: u32) {
        let s = plane.agent.session(second);
        if !s.is_current() || plane.was_reset(&s) {
            return;
        }
        let (now, next) = ((s.rcv_ack, s.rcv_max), shown_next(&s));
        let is_behind = seq::after(s.snd_ack, s.rcv_max);
        let paths = self.paths.get_mut(&change);
        let is_news = paths.is_some_and(|paths| paths.asked.replace(now) != Some(now));
        if is_news && (is_behind || next != s.snd_max) {
            plane.prime(second, next);
        }
    }

    pub(in crate::engine) fn settle_path(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        far_cutoff: u32,
    ) {
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.far_cutoff = Some(far_cutoff);
        }
        self.look_at_path(plane, change);
    }

    /// Checks whether the new path has carried all that it has to.
    pub(super) fn look_at_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some((_, Some(second))) = self.slots(plane, change) else {
            return;
        };
        let Some(paths) = self.paths.get_mut(&change) else {
            return;
        };
        let (Some(_), Some(far), false) = (paths.cutoff, paths.far_cutoff, paths.settled) else {
            return;
        };
        let far = plane.agent.session(second).received_off_wire(far);
        if plane.agent.settle_path(second, far) {
            paths.settled = true;
            plane.prime_highest(second);
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
            match (paths.completed, paths.cutoff, paths.second) {
                // Until the other anchor has ended it may still send primers, which no stack may
                // receive.
                (Some(at), _, _) if paths.erased && at.elapsed() >= LATE => {
                    self.end_paths(plane, change);
                }
                (None, Some(_), Some(second)) => plane.prime_unheard(second),
                (Some(at), _, Some(second)) if !paths.hears_no_more(at) => {
                    plane.prime_unheard(second);
                }
                // The SYN was answered: neither the path nor this host would accept it again.
                (None, None, Some(_))
                    if paths.opens_answered() && (lively || !paths.showing.is_late(now)) => {}
                (None, None, Some(second)) if paths.opens_answered() => {
                    self.prime_answered(plane, second);
                }
                (None, None, Some(second)) if paths.is_answering() => plane.answer_syn(second),
                _ => {}
            }
        }
        self.show_ways_back(plane);
        self.sweep_waiting(plane);
    }

    pub(in crate::engine) fn leave_path_before(&mut self, change: ChangeId) {
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.completed = Some(Instant::now());
        }
    }

    fn end_paths(&mut self, plane: &mut Plane, change: ChangeId) {
        let slots = self.slots(plane, change);
        let Some(paths) = self.paths.remove(&change) else {
            return;
        };
        plane.forget_token(&paths);
        if let Some(second) = paths.second {
            self.by_slot.remove(&second);
        }
        if let Some((_, Some(second))) = slots {
            self.entomb_path(plane, plane.agent.drop_path_before(second));
            self.end_if_over(plane, second);
        }
    }

    /// Reports the end of a session that has ended while its path changed.
    fn end_if_over(&mut self, plane: &mut Plane, slot: u32) {
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
        let Some((first, Some(second))) = self.slots(plane, change) else {
            return;
        };
        let before = self.session_id_of(plane, change);
        let back = plane.way_back(first, second);
        if let Err(error) = plane.agent.switch_back(second) {
            return tracing::error!(%change, %error, "a session cannot take its path before");
        }
        plane.follow(before, first);
        self.show_way_back(plane, back);
    }

    fn forget_token_of(&self, plane: &Plane, change: ChangeId) {
        if let Some(paths) = self.paths.get(&change) {
            plane.forget_token(paths);
        }
    }

    pub(in crate::engine) fn release_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let slots = self.slots(plane, change);
        let Some(paths) = self.paths.remove(&change) else {
            return;
        };
        if let Some(second) = paths.second {
            self.by_slot.remove(&second);
        }
        if let Some((first, Some(second))) = slots {
            self.entomb_path(plane, plane.agent.drop_next_path(second));
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

    pub(super) fn tell_chain_gone(&mut self, plane: &mut Plane, change: ChangeId) {
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
        let of =
            |p: &Paths| p.first.1 == created_ns && (p.first.0 == slot || p.second == Some(slot));
        let change = self.paths.iter().find(|(_, p)| of(p));
        let Some((change, paths)) = change.map(|(c, p)| (*c, p)) else {
            return false;
        };
        let completed = paths.completed.is_some();
        if !completed || paths.second == Some(slot) {
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
            self.names.rename(before, now);
            self.history.rename(before, now);
        }
    }

    /// Shows the firewalls of a path how far this end has sent.
    pub(super) fn prime(&self, slot: u32, seq: u32) {
        let mut s = self.agent.session(slot);
        if s.view() == View::Tracked {
            (s.path, s.translation) = (s.key, s.carried());
        }
        let packet = packets::primer(&s, seq);
        if let Err(error) = raw::send(&packet, s.path.remote()) {
            tracing::warn!(path = ?s.path, %error, "cannot send on a new path");
        }
    }

    /// Shows on the new path how far this end has sent since it took that path. Some of the data
    /// may have left by the previous path as well.
    fn prime_highest(&self, second: u32) {
        let s = self.agent.session(second);
        if !self.was_reset(&s) {
            self.prime(second, s.snd_max);
        }
    }

    /// Shows how far this end has sent, unless the other anchor has shown that it has received
    /// that.
    fn prime_unheard(&self, second: u32) {
        let s = self.agent.session(second);
        if seq::after(s.snd_max, s.rcv_ack) && !self.was_reset(&s) {
            self.prime(second, s.snd_max);
            self.show_step(second, &s);
        }
    }

    /// Shows as much of the data that this end has sent elsewhere as a firewall lets the numbers
    /// advance, if that is less than all.
    fn show_step(&self, second: u32, s: &Session) {
        let next = shown_next(s);
        if next != s.snd_max {
            self.prime(second, next);
        }
    }

    /// Returns true if the session of a path was reset. Nothing more is shown then: a firewall
    /// keeps a connection for ten seconds after a reset whose number it cannot confirm, but for the
    /// full time if anything follows (Linux, `nf_conntrack_tcp_packet`).
    fn was_reset(&self, s: &Session) -> bool {
        let relay = s.relayed_by().map(|relay| self.agent.session(relay));
        s.life.reset != 0 || relay.is_some_and(|relay| relay.life.reset != 0)
    }

    fn forget_token(&self, paths: &Paths) {
        if let Some(token) = paths.token {
            self.agent.forget_join(token);
        }
    }
}

/// Returns the time since a session began.
fn age(s: &Session) -> Duration {
    collect::boot_time().saturating_sub(Duration::from_nanos(s.created_ns))
}

/// Removes the clocks of facts that may be too old to be compared. The programs keep neither clock
/// of a relay, and not the one that arrives by a new path. A clock advances by at most one tick in
/// a millisecond (RFC 7323, 5.4).
fn without_old_clocks(facts: Facts, s: &Session, age: Duration) -> Facts {
    let is_old = age > Duration::from_millis(u64::from(CLOCK_SLACK));
    let keeps_own = !s.view().is_relayed();
    Facts {
        tsval_out: if is_old && !keeps_own {
            0
        } else {
            facts.tsval_out
        },
        tsval_in: if is_old { 0 } else { facts.tsval_in },
        ..facts
    }
}

/// Returns the facts of a session that may take another path, in the wire's numbers.
fn anchor_facts(s: &Session, session: &Subsession) -> Result<Facts, Reason> {
    match s.view() {
        View::NewPath(route) | View::Changing(Change::Switching(route)) if route.bypassed => {
            let mut facts = measure::known(&s.on_wire())?;
            // Its two openings differ by what the middlebox has added since. Its name, which only
            // the two ends know, shows that they are of one session.
            (facts.local.isn, facts.remote.isn) = (0, 0);
            Ok(facts)
        }
        View::NewPath(route) | View::Changing(Change::Switching(route)) if route.is_open() => {
            measure::known(s).map(|facts| without_old_clocks(facts, s, age(s)))
        }
        View::Relayed(_) => measure::known(s).map(|facts| without_old_clocks(facts, s, age(s))),
        View::NewPath(route) if route.chain == ChainState::Opening => Err(Reason::NotSeen),
        _ => measure::facts(s, session),
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::State;

    use super::*;

    #[test]
    fn a_clock_that_is_not_kept_is_compared_for_a_while() {
        let facts = Facts {
            tsval_out: 7,
            tsval_in: 9,
            ..Facts::default()
        };
        let clocks = |state: State, minutes: u64| {
            let s = Session {
                state: state as u32,
                ..Session::default()
            };
            let age = Duration::from_secs(60 * minutes);
            let facts = without_old_clocks(facts, &s, age);
            (facts.tsval_out, facts.tsval_in)
        };
        for state in [State::Relay, State::NewPath] {
            assert_eq!(clocks(state, 17), (7, 9));
        }
        assert_eq!(clocks(State::Relay, 18), (0, 0));
        assert_eq!(clocks(State::NewPath, 18), (7, 0));
    }
}
