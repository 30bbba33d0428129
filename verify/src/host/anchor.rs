//! The work of an anchor and of the proxy's host, done as the engine does it. A later event answers
//! a command that takes the kernel or the proxy some time.

use dysco_common::session::offer;
use dysco_common::two_paths::{self, Anchor, Cutoff, Fins};
use dysco_common::{Offer, State, Translation};
use dysco_proto::{ChangeId, Facts, HostEvent, Measurement, Reason, Subsession};

use super::{Held, Host, Wrong};
use crate::place::{self, Side};
use crate::seed;

/// Bound on the window that the old path may announce from the lock on. Windows are not modelled,
/// but the removal of the bound is.
const CLAMP: u16 = u16::MAX;

impl Host {
    pub(super) fn reserve(&mut self, change: ChangeId, a: &Subsession, b: &Subsession) {
        let new = place::new_path(a, b);
        self.held.entry(change).or_default().new = Some(new);
        let result = Ok(new);
        self.later(HostEvent::Reserved { change, result });
    }

    pub(super) fn prepare_recorded(
        &mut self,
        change: ChangeId,
        (own, new): (Subsession, Subsession),
        translation: Translation,
    ) {
        if !self.records.contains_key(&change) {
            self.wrong = Some(Wrong::PreparedUnrecorded);
        }
        self.hold_for_path(change, &own, new);
        self.spoilt.prepared = Some((change, new, translation));
        let result = self.prepare(change, new, translation);
        self.later(HostEvent::TwoPaths { change, result });
    }

    pub(super) fn try_path(&mut self, change: ChangeId) {
        // The packets that open a path reveal what the path does to them (`engine/probe`).
        let opens = self.nature.is_plain() || seed::compares_nothing(self.seed);
        // The world exchanges the packets when the event happens (`World::opens`).
        let result = if opens {
            Ok([Fins::default(); 2])
        } else {
            Err(Reason::Cancelled)
        };
        self.later(HostEvent::Tried { change, result });
    }

    pub(super) fn cut(&mut self, change: ChangeId) {
        match self.slot_of(change) {
            Some(side) => {
                if let Some(cutoff) = self.entry_mut(side).map(|e| e.cut(Anchor::Local)) {
                    self.tell(HostEvent::CutDone { change, cutoff });
                }
            }
            None => self.tell_gone(change),
        }
    }

    pub(super) fn hear_again(&mut self, change: ChangeId) {
        if let Some(entry) = self.slot_of(change).and_then(|s| self.entry_mut(s)) {
            entry.s.muted = 0;
        }
    }

    pub(super) fn release(&mut self, change: ChangeId) {
        if let Some(held) = self.held.get_mut(&change) {
            held.new = None;
        }
    }

    pub(super) fn unlock(&mut self, change: ChangeId) {
        self.unclamp(change);
        self.held.remove(&change);
    }

    pub(super) fn measure(&self, which: &Subsession) -> Result<Measurement, Reason> {
        let (a, b) = (
            place::subsession(self.place, Side::Left),
            place::subsession(self.place, Side::Right),
        );
        let relays = !self.sockets.iter().any(|s| s.dead);
        if (*which != a && *which != b) || !relays {
            return Err(Reason::NotTracked(*which));
        }
        Ok(self.measurement(self.facts(Side::Left)?, self.facts(Side::Right)?))
    }

    pub(super) fn measurement(&self, a: Facts, b: Facts) -> Measurement {
        Measurement {
            delta_forward: place::DELTA_FORWARD,
            delta_reverse: place::DELTA_REVERSE,
            a,
            b,
            clock_a: 5000,
            clock_b: 9000,
            subsession_a: place::subsession(self.place, Side::Left),
            subsession_b: place::subsession(self.place, Side::Right),
            relay: None,
            left_answers: true,
        }
    }

    pub(super) fn facts(&self, side: Side) -> Result<Facts, Reason> {
        let subsession = place::subsession(self.place, side);
        let entry = self.entry(side).ok_or(Reason::NotTracked(subsession))?;
        let life = &entry.s.life;
        let over = life.reset != 0 || life.fin_in & life.fin_out != 0;
        let changed = entry.state() != State::Tracked && !self.locks_changed;
        if changed || over {
            return Err(Reason::Closing);
        }
        Ok(self.known(side))
    }

    /// Facts about a session that exists.
    pub(super) fn known(&self, side: Side) -> Facts {
        let (local, remote) = place::isns(self.place, side);
        let life = self.entry(side).map(|e| e.s.life).unwrap_or_default();
        Facts {
            local: offer_of(local),
            remote: offer_of(remote),
            tsval_out: 100,
            fin_out: life.fin_out != 0,
            fin_in: life.fin_in != 0,
            reset: false,
            ..Facts::default()
        }
    }

    pub(super) fn lock(
        &mut self,
        change: ChangeId,
        subsession: &Subsession,
    ) -> Result<Facts, Reason> {
        let side = self
            .find(subsession)
            .ok_or(Reason::NotTracked(*subsession))?;
        let facts = self.facts(side)?;
        let others = self.held.iter();
        if others
            .filter(|(c, _)| **c != change)
            .any(|(_, h)| h.slots().any(|s| s == side))
        {
            self.wrong = Some(Wrong::LockedTwice);
        }
        let held = self.held.entry(change).or_default();
        held.slot = Some(side);
        held.own = Some(*subsession);
        if let Some(entry) = self.entry_mut(side) {
            entry.s.clamp = CLAMP;
        }
        Ok(facts)
    }

    fn unclamp(&mut self, change: ChangeId) {
        let held = self.held.get(&change);
        let slots: Vec<Side> = held.into_iter().flat_map(Held::slots).collect();
        for side in slots {
            if let Some(entry) = self.entry_mut(side) {
                (entry.s.clamp, entry.s.clamp_remote) = (0, 0);
            }
        }
    }

    pub(super) fn hold_for_path(&mut self, change: ChangeId, own: &Subsession, new: Subsession) {
        let slot = self.find(own);
        let held = self.held.entry(change).or_default();
        held.new = Some(new);
        held.slot = held.slot.or(slot);
    }

    fn prepare(
        &mut self,
        change: ChangeId,
        new: Subsession,
        translation: Translation,
    ) -> Result<(), Reason> {
        let side = self.slot_of(change).ok_or(Reason::Closing)?;
        let locks_changed = self.locks_changed;
        let entry = self.entry_mut(side).ok_or(Reason::Closing)?;
        match entry.state() {
            State::TwoPaths | State::NewPath => {}
            State::Tracked if entry.s.life.reset != 0 => return Err(Reason::Closing),
            State::Tombstone if !locks_changed => return Err(Reason::Closing),
            State::Tracked | State::Tombstone => entry.prepare(new, translation),
            _ => return Err(Reason::Closing),
        }
        Ok(())
    }

    pub(super) fn unprepare(&mut self, change: ChangeId) {
        let Some(side) = self.slot_of(change) else {
            return;
        };
        let Some(entry) = self.entry_mut(side) else {
            return;
        };
        if entry.state() == State::TwoPaths {
            let used = entry.used();
            entry.unprepare();
            if used {
                self.wrong = Some(Wrong::TakenBackAfterCut);
            }
        }
    }

    /// Ends the session for the ends that this host acts for: one, or both.
    pub(super) fn reset_ends(&mut self, change: ChangeId, at_both: bool) {
        let held = self.held.get(&change);
        let slots: Vec<Side> = held.into_iter().flat_map(Held::slots).collect();
        for side in slots {
            if let Some(entry) = self.entry_mut(side) {
                entry.break_off();
            }
            if !at_both {
                self.sockets[side as usize].is_reset();
            }
        }
        self.resets = at_both;
    }

    pub(super) fn set_cut_in(&mut self, change: ChangeId, cutoff: Cutoff) {
        let Some(side) = self.slot_of(change) else {
            return self.tell_gone(change);
        };
        let entry = self.entry_mut(side);
        let drained = entry.map(|e| e.set_cut_in(cutoff, Anchor::Local));
        if self.tell_broken(change) {
            return;
        }
        if drained == Some(true) {
            self.tell(HostEvent::Drained { change });
        } else if let Some(held) = self.held.get_mut(&change) {
            held.draining = true;
        }
    }

    pub(super) fn look(&mut self, change: ChangeId) {
        let entry = self.slot_of(change).and_then(|s| self.entry(s));
        let Some(entry) = entry else {
            return self.tell_gone(change);
        };
        let carries = !self.silent || two_paths::has_carried(&entry.s);
        self.later(HostEvent::PathChecked { change, carries });
    }

    pub(super) fn mute(&mut self, change: ChangeId) {
        let hears_on = seed::hears_on(self.seed, self.place);
        let entry = self.slot_of(change).and_then(|s| self.entry_mut(s));
        let Some(entry) = entry else {
            return self.tell_gone(change);
        };
        let muted = entry.mute();
        if hears_on {
            entry.s.muted = 0;
        }
        self.later(HostEvent::Muted { change, muted });
    }

    pub(super) fn take_back(&mut self, change: ChangeId, new: Subsession) {
        let entry = self.slot_of(change).and_then(|s| self.entry_mut(s));
        match entry {
            Some(entry) if entry.state() == State::TwoPaths && entry.path == Some(new) => {
                let has_carried = two_paths::has_carried(&entry.s);
                entry.take_back();
                entry.s.clamp = 0;
                if has_carried {
                    self.wrong = Some(Wrong::TakenBackAfterCut);
                }
                let held = self.held.entry(change).or_default();
                (held.draining, held.returns) = (false, true);
                self.sweep_returns();
            }
            _ => self.later(HostEvent::TakenBack { change }),
        }
    }

    /// Ends the second path of changes whose old path has caught up.
    pub fn sweep_returns(&mut self) {
        let returning: Vec<ChangeId> = self
            .held
            .iter()
            .filter_map(|(c, h)| h.returns.then_some(*c))
            .collect();
        for change in returning {
            if let Some(entry) = self.slot_of(change).and_then(|s| self.entry_mut(s)) {
                if !two_paths::has_caught_up(&entry.s) {
                    continue;
                }
                entry.unprepare();
            }
            if let Some(held) = self.held.get_mut(&change) {
                held.returns = false;
            }
            self.later(HostEvent::TakenBack { change });
        }
    }

    pub(super) fn complete(&mut self, change: ChangeId) {
        let Some(side) = self.slot_of(change) else {
            return;
        };
        let Some(entry) = self.entry_mut(side) else {
            return;
        };
        let two = entry.state() == State::TwoPaths;
        let undrained = two && !entry.is_drained() && entry.s.life.reset == 0;
        entry.complete();
        entry.s.clamp = 0;
        if undrained {
            self.wrong = Some(Wrong::CompletedUndrained);
        }
    }

    pub(super) fn make_tombstone(&mut self, sub: &Subsession) {
        if let Some(side) = place::side_of(self.place, sub) {
            self.sockets[side as usize].dead = true;
            if let Some(entry) = self.entry_mut(side) {
                entry.s.state = State::Tombstone as u32;
                entry.path = None;
            }
        }
    }

    pub(super) fn tell_gone(&mut self, change: ChangeId) {
        if let Some(subsession) = self.held.get(&change).and_then(|h| h.own) {
            self.tell(HostEvent::SessionGone { subsession });
        }
    }
}

fn offer_of(isn: u32) -> Offer {
    Offer {
        isn,
        mss: 1460,
        wscale: 0,
        flags: offer::SEEN | offer::WSCALE | offer::SACK | offer::TIMESTAMPS,
    }
}
