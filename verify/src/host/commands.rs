//! The machine's commands, carried out as the engine does it.

use dysco_proto::command::{Anchor, Chain, Direct, Forwarder, Journal, Pair, Proxy};
use dysco_proto::{Action, ChangeId, Command, HostEvent, Reason};

use super::{Host, Wrong};
use crate::plane::Entry;

impl dysco_proto::Host for Host {
    type Outcome = ();

    fn proxy(&mut self, change: ChangeId, command: Proxy) {
        match command {
            Proxy::Measure { subsession } => {
                let relay = self.measure_relay(change);
                let result = relay.map_or_else(|| self.measure(&subsession), Ok);
                self.later(HostEvent::Measured { change, result });
            }
            Proxy::Close {
                subsession_a,
                subsession_b,
            } => {
                for sub in [subsession_a, subsession_b] {
                    self.make_tombstone(&sub);
                }
                let result = Ok(());
                self.later(HostEvent::Closed { change, result });
            }
        }
    }

    fn anchor(&mut self, change: ChangeId, command: Anchor) {
        match command {
            Anchor::Lock { subsession } => {
                let result = self.lock(change, &subsession);
                self.tell(HostEvent::Locked { change, result });
            }
            Anchor::Unlock => self.unlock(change),
            Anchor::Reserve {
                subsession_a,
                subsession_b,
            } => self.reserve(change, &subsession_a, &subsession_b),
            Anchor::Release => self.release(change),
            Anchor::Prepare {
                own,
                new,
                translation,
                ..
            } => self.prepare_recorded(change, (own, new), translation),
            Anchor::Try => self.try_path(change),
            Anchor::Unprepare => self.unprepare(change),
            Anchor::Cut => self.cut(change),
            Anchor::SetCutIn { cutoff } => self.set_cut_in(change, cutoff),
            Anchor::Reset => self.reset_ends(change, false),
            Anchor::CheckPath => self.look(change),
            Anchor::Mute => self.mute(change),
            Anchor::Unmute => self.hear_again(change),
            Anchor::TakeBack { new } => self.take_back(change, new),
            Anchor::Complete => self.complete(change),
        }
    }

    fn pair(&mut self, change: ChangeId, command: Pair) {
        match command {
            Pair::LockPair {
                subsession_a,
                subsession_b,
            } => {
                let result = self.lock_pair(change, &subsession_a, &subsession_b);
                self.tell(HostEvent::PairLocked { change, result });
            }
            Pair::Unlock => self.unlock(change),
            Pair::Join { translation, .. } => self.join(change, translation),
            Pair::Unjoin => self.unjoin_pair(change),
            Pair::Cut => self.cut_pair(change),
            Pair::Reset => self.reset_ends(change, true),
            Pair::Complete => self.relay_pair(change),
            Pair::Close { .. } => self.close_sockets(change),
        }
    }

    fn direct(&mut self, _: ChangeId, _: Direct) {
        self.wrong = Some(Wrong::Unmodelled);
    }

    fn chain(&mut self, _: ChangeId, _: Chain) {
        self.wrong = Some(Wrong::Unmodelled);
    }

    fn forwarder(&mut self, _: ChangeId, _: Forwarder) {
        self.wrong = Some(Wrong::Unmodelled);
    }

    fn journal(&mut self, change: ChangeId, command: Journal) {
        match command {
            Journal::Persist { record } if self.puts_off(change) => {
                self.spoilt.record = Some(record);
            }
            Journal::Persist { record } => {
                self.records.insert(change, record);
            }
            Journal::Erase => {
                self.records.remove(&change);
                self.held.remove(&change);
                self.entries
                    .iter_mut()
                    .flatten()
                    .for_each(Entry::forget_change);
            }
        }
    }
}

impl Host {
    /// Makes the command fail. Returns false if it cannot fail on a sound host.
    pub(super) fn fail(&mut self, command: &Command) -> bool {
        let change = command.change;
        match &command.action {
            Action::Proxy(command) => self.fail_proxy(change, command),
            Action::Anchor(command) => return self.fail_anchor(change, command),
            Action::Pair(command) => return self.fail_pair(change, command),
            Action::Journal(Journal::Persist { .. }) => {
                let error = String::new();
                self.tell(HostEvent::PersistFailed { change, error });
            }
            Action::Journal(Journal::Erase)
            | Action::Direct(_)
            | Action::Chain(_)
            | Action::Forwarder(_) => return false,
        }
        true
    }

    fn fail_proxy(&mut self, change: ChangeId, command: &Proxy) {
        self.later(match command {
            Proxy::Measure { .. } => HostEvent::Measured {
                change,
                result: Err(Reason::Cancelled),
            },
            Proxy::Close { .. } => closing_failed(change),
        });
    }

    fn fail_anchor(&mut self, change: ChangeId, command: &Anchor) -> bool {
        let reason = Reason::Cancelled;
        match command {
            Anchor::Lock { .. } => {
                let result = Err(reason);
                self.tell(HostEvent::Locked { change, result });
            }
            Anchor::Reserve { .. } => {
                let result = Err(reason);
                self.later(HostEvent::Reserved { change, result });
            }
            Anchor::Prepare { own, new, .. } => {
                self.hold_for_path(change, own, *new);
                let result = Err(reason);
                self.later(HostEvent::TwoPaths { change, result });
            }
            Anchor::Try => {
                let result = Err(reason);
                self.later(HostEvent::Tried { change, result });
            }
            Anchor::CheckPath => {
                let carries = false;
                self.later(HostEvent::PathChecked { change, carries });
            }
            _ => return false,
        }
        true
    }

    fn fail_pair(&mut self, change: ChangeId, command: &Pair) -> bool {
        let result = Err(Reason::Cancelled);
        match command {
            Pair::LockPair { .. } => {
                let result = Err(Reason::Cancelled);
                self.tell(HostEvent::PairLocked { change, result });
            }
            Pair::Join { translation, .. } => {
                self.held.entry(change).or_default().waiting = Some(*translation);
                self.later(HostEvent::Prepared { change, result });
            }
            Pair::Close { .. } => self.later(closing_failed(change)),
            _ => return false,
        }
        true
    }

    pub(super) fn later(&mut self, event: HostEvent) {
        self.events.push(event);
    }
}

fn closing_failed(change: ChangeId) -> HostEvent {
    HostEvent::Closed {
        change,
        result: Err(Reason::Cancelled),
    }
}
