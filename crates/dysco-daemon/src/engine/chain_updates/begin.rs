//! The begin of a change at an anchor: the session is held, and gets a second path.

use std::net::SocketAddr;

use dysco_common::Session;
use dysco_common::chain::{Token, path_number};
use dysco_common::view::{Change, Route, View};
use dysco_explain::{Cause, Explain};
use dysco_proto::{ChangeId, Facts, HostEvent, Reason, Subsession};

use super::Paths;
use super::anchor::anchor_facts;
use crate::engine::{ChainUpdates, Plane};

impl ChainUpdates {
    /// Ends the change that has given a session its second path, if that change is over.
    ///
    /// # Errors
    /// If no change is known, and the host that opened the session has not told yet which of its paths
    /// is in use: its packets do not show that (`dysco_common::transit`).
    fn settle_paths_in_use(&mut self, plane: &mut Plane, slot: u32) -> Result<(), Reason> {
        let s = plane.agent.session(slot);
        let passes = matches!(s.view(), View::Changing(Change::Passing(_)));
        if !passes || self.by_slot.contains_key(&slot) {
            self.forget_late(plane, slot);
            return Ok(());
        }
        if let Some(opened) = plane.opened_elsewhere(&s) {
            self.ask_in_use(plane, opened);
        }
        let why = "a host of its chain does not know yet which of two paths is in use";
        Err(Reason::NoSuchChain(
            Cause::new(why).hint("ask again in a moment"),
        ))
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
        let (mut first, mut second_path) = (slot, None);
        let found = self.taking_up.as_ref().and_then(|second_path| {
            let taken = plane.agent.session(slot).other_path().is_some();
            if taken {
                Some(slot)
            } else {
                second_path.get(&slot).copied()
            }
        });
        if let Some(found) = found {
            second_path = Some(found);
            first = plane.agent.session(found).other_path().unwrap_or(slot);
        } else if plane.agent.session(slot).other_path().is_some() {
            self.settle_paths_in_use(plane, slot)?;
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
            second_path,
            token: None,
            chain: None,
            opening: None,
            reach: facts.reach,
            beyond: Default::default(),
            begins: None,
            length_probes: Default::default(),
            answered: second_path.is_some(),
            asked: None,
            pace: None,
            seen: Default::default(),
            heard: second_path.is_some(),
            lively: false,
            cutoff: None,
            peer_cutoff: None,
            settled: false,
            completed: None,
            erased: false,
        };
        plane.chains_held.insert(change, paths.first.0);
        self.paths.insert(change, paths);
        self.by_slot.extend(second_path.map(|s| (s, change)));
        Ok(facts)
    }

    /// Returns an error if this host, as one of the chain, cannot be the anchor of a segment. Whether
    /// its own middlebox has changed the stream is asked later.
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
        // Orders of earlier changes to forget the session here are late from now on.
        let (left, right) = (own.right, own.left);
        for session in [*own, Subsession { left, right }] {
            self.expect_passing(change, session);
        }
        Ok(())
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

    fn extend(&mut self, plane: &Plane, change: ChangeId, token: Token) -> Result<(), Reason> {
        let second_path = self.add_path(plane, change)?;
        plane.passes_no_filter(second_path)?;
        plane
            .agent
            .set_path_number(second_path, path_number(&token));
        plane
            .agent
            .await_join(token, second_path)
            .map_err(|e| Reason::Failed(e.explain().into()))?;
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.token = Some(token);
        }
        Ok(())
    }

    /// Returns the slot of the change's new path, which is made if needed.
    pub(super) fn add_path(&mut self, plane: &Plane, change: ChangeId) -> Result<u32, Reason> {
        let (first, second_path) = self.slots(plane, change).ok_or(Reason::Closing)?;
        if let Some(second_path) = second_path {
            return Ok(second_path);
        }
        let second_path = plane
            .agent
            .add_path(first)
            .map_err(|e| Reason::Failed(e.explain().into()))?;
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.second_path = Some(second_path);
        }
        self.by_slot.insert(second_path, change);
        Ok(second_path)
    }
}
