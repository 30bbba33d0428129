//! The commands of a host that is both anchors, carried out as the engine's `relay`
//! and `commands` do: entry by entry, and packets may pass in between.

use dysco_common::State;
use dysco_common::Translation;
use dysco_common::two_paths::{self, Anchor};
use dysco_proto::command::Journal;
use dysco_proto::{ChangeId, Command, Facts, HostEvent, Measurement, Reason, Subsession};

use super::rest::Rest;
use super::{Host, Wrong};
use crate::drive::Twist;
use crate::place::{self, Side};
use crate::plane::Entry;
use crate::seed::local as seed;

impl Host {
    /// Both entries of a change that has two.
    fn pair_of(&mut self, change: ChangeId) -> Option<[&mut Entry; 2]> {
        let held = self.held.get(&change)?;
        held.slot.zip(held.other)?;
        match &mut self.entries {
            [Some(a), Some(b)] => Some([a, b]),
            _ => None,
        }
    }

    pub(super) fn is_pair(&self, change: ChangeId) -> bool {
        self.held.get(&change).is_some_and(|h| h.other.is_some())
    }

    pub(super) fn lock_pair(
        &mut self,
        change: ChangeId,
        a: &Subsession,
        b: &Subsession,
    ) -> Result<[Facts; 2], Reason> {
        let find = |sub: &Subsession| self.find(sub).ok_or(Reason::NotTracked(*sub));
        let sides = [find(a)?, find(b)?];
        let ends = [self.facts(sides[0])?, self.facts(sides[1])?].map(at_the_end);
        let others = self.held.iter().filter(|(c, _)| **c != change);
        if others
            .flat_map(|(_, h)| h.slots())
            .any(|s| sides.contains(&s))
        {
            self.wrong = Some(Wrong::LockedTwice);
        }
        let held = self.held.entry(change).or_default();
        (held.slot, held.other) = (Some(sides[0]), Some(sides[1]));
        held.own = Some(*a);
        self.entries
            .iter_mut()
            .flatten()
            .for_each(Entry::clamp_remote);
        Ok(ends)
    }

    /// Begins to join. The routes to both ends are looked up first.
    pub(super) fn join(&mut self, change: ChangeId, translation: Translation) {
        if !self.records.contains_key(&change) {
            self.wrong = Some(Wrong::PreparedUnrecorded);
        }
        self.held.entry(change).or_default().waiting = Some(translation);
        let result = Ok(());
        self.later(HostEvent::Prepared { change, result });
    }

    /// Delivers the event of an action that took time.
    pub fn happen(&mut self, index: usize, twist: Twist) -> super::Outcome {
        let event = self.events.remove(index);
        if let HostEvent::Prepared { change, result } = &event
            && self.is_pair(*change)
        {
            self.ways_found(*change, result.clone());
            return self.input(twist, |_| ());
        }
        self.input(twist, |machine| {
            machine.handle_event(super::NOW, event);
        })
    }

    fn ways_found(&mut self, change: ChangeId, ways: Result<(), Reason>) {
        let held = self.held.get_mut(&change);
        let Some(translation) = held.and_then(|h| h.waiting.take()) else {
            return;
        };
        match ways.and_then(|()| self.joined(change, translation)) {
            Ok(true) => self.rest.push_front(Rest::Join(change)),
            Ok(false) => self.say_joined(change, Ok(())),
            Err(reason) => self.say_joined(change, Err(reason)),
        }
    }

    fn say_joined(&mut self, change: ChangeId, result: Result<(), Reason>) {
        self.tell(HostEvent::Prepared { change, result });
    }

    /// Joins the first entry. Returns true if the second is still to be joined.
    fn joined(&mut self, change: ChangeId, translation: Translation) -> Result<bool, Reason> {
        let [a, b] = self.pair_of(change).ok_or(Reason::Closing)?;
        let done = |e: &Entry| matches!(e.state(), State::RelayTwoPaths | State::Relay);
        if done(a) && done(b) {
            return Ok(false);
        }
        let fit = |e: &Entry| e.state() == State::Tracked && e.s.life.reset == 0;
        if !fit(a) || !fit(b) {
            return Err(Reason::Closing);
        }
        a.aim(Side::Left, translation);
        b.aim(Side::Right, translation.mirrored());
        a.join();
        Ok(true)
    }

    /// Cuts both sessions, and notifies each of the cutoff of the other.
    pub(super) fn cut_pair(&mut self, change: ChangeId) {
        let Some([a, _]) = self.pair_of(change) else {
            // A former process may have cut both entries while both existed.
            let cut = self.entries.iter().flatten();
            let cutoff = cut.clone().find(|e| e.s.two.cut_set != 0);
            if let Some(cutoff) = cutoff.map(|e| two_paths::cutoff(Anchor::Remote, &e.s)) {
                self.tell(HostEvent::CutDone { change, cutoff });
            }
            return self.tell_gone(change);
        };
        a.cut(Anchor::Remote);
        let rest = [
            Rest::SayCut(change),
            Rest::CutIn(change, Side::Left),
            Rest::CutIn(change, Side::Right),
            Rest::Cut(change),
        ];
        rest.into_iter().for_each(|r| self.rest.push_front(r));
    }

    fn cut_in(&mut self, change: ChangeId, side: Side) {
        let Some([a, b]) = self.pair_of(change) else {
            return;
        };
        let (own, other) = match side {
            Side::Left => (a, b),
            Side::Right => (b, a),
        };
        let cutoff = two_paths::cutoff(Anchor::Remote, &other.s);
        own.set_cut_in(cutoff.moved(other.s.translation.seq_out), Anchor::Remote);
    }

    fn say_cut(&mut self, change: ChangeId) {
        let Some([a, b]) = self.pair_of(change) else {
            return;
        };
        let cutoff = two_paths::cutoff(Anchor::Remote, &a.s);
        let drained = [&*a, b].map(|e| e.is_drained());
        let drained = seed::have_drained(self.seed, drained);
        self.tell(HostEvent::CutDone { change, cutoff });
        if self.tell_broken(change) {
            return;
        }
        if drained {
            self.tell(HostEvent::Drained { change });
        } else if let Some(held) = self.held.get_mut(&change) {
            held.draining = true;
        }
        if let Some(record) = self.spoilt.record.take() {
            let command = Command::new(change, Journal::Persist { record });
            self.rest.push_front(Rest::Command(command));
        }
    }

    /// Relays everything that the ends send, and stops hearing the stack.
    pub(super) fn relay_pair(&mut self, change: ChangeId) {
        if let Some([a, b]) = self.pair_of(change) {
            let undrained = |e: &Entry| e.state() == State::RelayTwoPaths && e.s.two.drained == 0;
            let reset = a.s.life.reset | b.s.life.reset != 0;
            let too_early = !reset && (undrained(a) || undrained(b));
            a.relay();
            self.rest.push_front(Rest::Relay(change));
            if too_early {
                self.wrong = Some(Wrong::CompletedUndrained);
            }
        }
    }

    /// Models the engine, which takes back nothing that was cut.
    pub(super) fn unjoin_pair(&mut self, change: ChangeId) {
        let used = self.entries.iter().flatten().any(Entry::used);
        if used {
            self.wrong = Some(Wrong::TakenBackAfterCut);
        }
        self.unjoin(change, Side::Left);
        self.rest.push_front(Rest::Unjoin(change));
    }

    fn unjoin(&mut self, change: ChangeId, side: Side) {
        if self.is_pair(change)
            && let Some(entry) = self.entry_mut(side)
            && entry.state() == State::RelayTwoPaths
            && entry.s.two.cut_armed | entry.s.two.cut_set == 0
        {
            entry.unjoin();
        }
    }

    /// Closes both sockets without a packet.
    pub(super) fn close_sockets(&mut self, change: ChangeId) {
        self.sockets.iter_mut().for_each(|s| s.dead = true);
        let result = Ok(());
        self.later(HostEvent::Closed { change, result });
    }

    /// Measures a relayed session: its data plane is all that there is to measure.
    pub(super) fn measure_relay(&mut self, change: ChangeId) -> Option<Measurement> {
        let [Some(a), Some(b)] = &self.entries else {
            return None;
        };
        let relays = |e: &Entry| e.state() == State::Relay;
        if !relays(a) || !relays(b) {
            return None;
        }
        let relay = Some(a.s.translation);
        let over = [a, b].into_iter().any(|e| {
            let life = &e.s.life;
            life.reset != 0 || life.fin_in & life.fin_out != 0
        });
        if over {
            return None;
        }
        let held = self.held.entry(change).or_default();
        held.slot = Some(Side::Left);
        held.own = Some(place::subsession(self.place, Side::Left));
        let known = |side| self.known(side);
        Some(Measurement {
            relay,
            ..self.measurement(known(Side::Left), known(Side::Right))
        })
    }

    /// Performs the next part of the command that was begun.
    pub(super) fn go_on(&mut self) {
        match self.rest.pop_front() {
            None => {}
            Some(Rest::Command(command)) => command.carry_out(self),
            Some(Rest::Join(change)) => {
                let pair = self.pair_of(change);
                if let Some([_, b]) = pair {
                    b.join();
                }
                self.say_joined(change, Ok(()));
            }
            Some(Rest::Cut(change)) => {
                if let Some([_, b]) = self.pair_of(change) {
                    b.cut(Anchor::Remote);
                }
            }
            Some(Rest::CutIn(change, side)) => self.cut_in(change, side),
            Some(Rest::SayCut(change)) => self.say_cut(change),
            Some(Rest::Relay(change)) => {
                if let Some([_, b]) = self.pair_of(change) {
                    b.relay();
                }
            }
            Some(Rest::Unjoin(change)) => self.unjoin(change, Side::Right),
        }
    }

    /// Holds up the engine before this command and all commands after it.
    pub(super) fn put_off(&mut self, command: Option<Command>) {
        self.rest.extend(command.map(Rest::Command));
        while let Some(command) = self.machine.as_mut().and_then(|m| m.poll_command()) {
            self.rest.push_back(Rest::Command(command));
        }
    }

    /// Makes the engine take the next notice of the programs. Notices outlive the engine.
    pub fn listen(&mut self, twist: Twist) -> super::Outcome {
        let (side, notice) = self.ring.remove(0);
        let there = self.entry(side).is_some();
        let event = there.then(|| self.heard(side, notice)).flatten();
        self.input(twist, |machine| {
            if let Some(event) = event {
                machine.handle_event(super::NOW, event);
            }
        })
    }
}

/// Returns the facts as the far end of the session would report them.
fn at_the_end(here: Facts) -> Facts {
    Facts {
        local: here.remote,
        remote: here.local,
        fin_out: here.fin_in,
        fin_in: here.fin_out,
        ..here
    }
}
