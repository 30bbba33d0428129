//! Notices of the programs, and the lifetime of entries.

use dysco_common::State;
use dysco_proto::{ChangeId, HostEvent};

use super::{Held, Host, Outcome};
use crate::drive::{NOW, Twist};
use crate::place::{self, Side};
use crate::plane::{Entry, Notice};
use crate::seed;

impl Host {
    /// Passes a notice of the programs to user space. Only a live daemon receives it.
    pub fn notice(&mut self, side: Side, notice: Notice) {
        if self.alone {
            return self.ring.push((side, notice));
        }
        if self.machine.is_none() {
            return;
        }
        if let Some(event) = self.heard(side, notice)
            && !self.events.contains(&event)
        {
            self.events.push(event);
        }
    }

    /// Event that the machine receives for a notice.
    pub(super) fn heard(&mut self, side: Side, notice: Notice) -> Option<HostEvent> {
        match notice {
            Notice::Drained => self.drained(side),
            Notice::Reset => self.gone(side),
            Notice::Broken => self.broken(side).or_else(|| self.gone(side)),
            // After the cutover the acknowledgements of the FINs are sufficient.
            Notice::Closed => self
                .entry(side)
                .is_some_and(|e| e.state() == State::Tracked)
                .then(|| self.gone(side))
                .flatten(),
        }
    }

    fn drained(&mut self, side: Side) -> Option<HostEvent> {
        let draining = |h: &Held| h.draining && h.slots().any(|s| s == side);
        let (change, held) = self.held.iter().find(|(_, h)| draining(h))?;
        let unannounced = seed::is_drained_unannounced(self.seed);
        let has = |e: &Entry| e.is_drained() || unannounced && e.s.two.drained != 0;
        let has = |s| self.entry(s).is_some_and(has);
        let drained: Vec<bool> = held.slots().map(has).collect();
        let change = *change;
        if !seed::local::have_drained(self.seed, drained) {
            return None;
        }
        self.held.get_mut(&change)?.draining = false;
        Some(HostEvent::Drained { change })
    }

    /// Models `Engine::session_broken`: a change whose session the proxy has ended.
    fn broken(&self, side: Side) -> Option<HostEvent> {
        let has = |h: &Held| h.slots().any(|s| s == side);
        let (change, held) = self.held.iter().find(|(_, h)| has(h))?;
        let ended = |s: Side| self.entry(s).is_some_and(|e| e.is_broken(held.at()));
        let change = *change;
        // The number of lost bytes decides nothing.
        held.slots()
            .any(ended)
            .then_some(HostEvent::Broken { change, bytes: 0 })
    }

    /// Models `Engine::tell_broken`.
    pub(super) fn tell_broken(&mut self, change: ChangeId) -> bool {
        let slot = self.held.get(&change).and_then(|h| h.slots().next());
        let event = slot.and_then(|side| self.broken(side));
        let reported = event.is_some();
        if let Some(event) = event {
            self.tell(event);
        }
        reported
    }

    fn gone(&self, side: Side) -> Option<HostEvent> {
        let subsession = place::subsession(self.place, side);
        Some(HostEvent::SessionGone { subsession })
    }

    /// True if the entry may be collected: by all that was seen its session is over, and if the
    /// session was changed, its socket is gone as well.
    pub(crate) fn collectable(&self, side: Side, finished: bool) -> bool {
        let Some(entry) = self.entry(side) else {
            return false;
        };
        let life = &entry.s.life;
        let over = life.reset != 0 || life.fin_in & life.fin_out != 0;
        match entry.state() {
            State::Tracked | State::Adopted | State::Closed => over,
            State::TwoPaths | State::NewPath => over && finished,
            State::RelayTwoPaths | State::Relay => over && finished,
            // These entries are collected two MSL later, which has no visible effect.
            State::Tombstone | State::Opening | State::Free => false,
            State::Return | State::Joining | State::Switching | State::Passing => false,
            // Services are not explored here.
            State::Detour | State::Held => false,
        }
    }

    /// Makes the collector forget an entry, and notifies the change that still had it.
    pub fn collect(&mut self, side: Side, twist: Twist) -> Outcome {
        let joined = self.entry(side).is_some_and(|e| e.s.joined != 0);
        self.entries[side as usize] = None;
        if joined {
            self.entries[side.other() as usize] = None;
        }
        let held = self.held.values();
        let held = held.clone().find(|h| h.slots().any(|s| s == side));
        let own = held.and_then(|h| h.own);
        self.input(twist, |machine| {
            if let Some(subsession) = own {
                machine.handle_event(NOW, HostEvent::SessionGone { subsession });
            }
        })
    }
}
